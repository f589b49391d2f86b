// One session: its agents as a tree, its timeline, and its turns as a table or one turn in detail.

import { createTable, h, setText, updateRows } from "./dom.js";
import { formatAge, formatCount, formatSeconds, formatShare, NONE, sessionLink, sessionName } from "./format.js";
import { createTimeline } from "./timeline.js";
import { createTurnView } from "./turn.js";

const TURNS_PER_PAGE = 100;

/** Create the view. `loadPayload` returns the texts of a turn, if the server stores them. */
export function createSessionView(loadPayload) {
  let data = null;
  let selected = null;
  let page = 0;
  const title = h("h1");
  const facts = h("p", { class: "session-facts" });
  const agents = createTable([
    { name: "agent", value: (agent) => `${"  ".repeat(agent.depth)}${agent.depth ? "↳ " : ""}${agent.name}` },
    { name: "turns", number: true, value: (agent) => formatCount(agent.turns) },
    { name: "tool calls", number: true, value: (agent) => formatCount(agent.calls) },
    { name: "prompt tokens", number: true, value: (agent) => formatCount(agent.input_tokens) },
    { name: "hit rate", number: true, value: (agent) => formatShare(agent.cached_tokens, agent.input_tokens) },
    { name: "output", number: true, value: (agent) => formatCount(agent.output_tokens) },
  ], "Agents of the session");
  const agentsPanel = h("div", { class: "panel" }, agents.node);
  const turns = createTable([
    { name: "turn", link: (turn) => sessionLink(data.session, turn.number), value: (turn) => `${turn.number + 1}` },
    { name: "agent", value: (turn) => data.agents[turn.agent].name },
    { name: "start", number: true, value: (turn) => formatSeconds(turn.begin) },
    { name: "duration", number: true, value: (turn) => formatSeconds(turn.duration) },
    { name: "TTFT", number: true, value: (turn) => formatSeconds(turn.first_token) },
    { name: "prompt", number: true, value: (turn) => formatCount(turn.usage?.input_tokens) },
    { name: "cached", number: true, value: (turn) => formatCount(turn.usage?.cached_tokens) },
    { name: "re-prefilled", number: true, value: (turn) => formatCount(reprefilledTokens(turn)) },
    { name: "output", number: true, value: (turn) => formatCount(turn.usage?.output_tokens) },
    { name: "calls", number: true, value: (turn) => formatCount(turn.spans.filter((span) => span.kind === "call").length) },
    { name: "prefix", value: (turn) => turn.prefix?.reason || "extends", kind: prefixKind },
    { name: "finish", value: (turn) => turn.error || turn.finish || NONE, kind: (turn) => (turn.status >= 400 ? "bad" : "") },
  ], "Turns of the session");
  const timeline = createTimeline((number) => { location.hash = sessionLink(data.session, number); });
  const pages = h("span", { class: "muted" });
  const pager = h("div", { class: "buttons" },
    h("button", { type: "button", onclick: () => turnPage(-1) }, "Earlier turns"), pages,
    h("button", { type: "button", onclick: () => turnPage(1) }, "Later turns"));
  const turnsPanel = h("div", { class: "panel" }, turns.node, pager);
  const detail = h("div");
  const node = h("div", { class: "session" }, h("div", { class: "head" }, title), facts, agentsPanel, timeline.node, detail);

  function turnPage(direction) {
    page = Math.min(Math.max(0, page + direction), Math.ceil(data.turns.length / TURNS_PER_PAGE) - 1);
    showDetail();
  }

  function showDetail() {
    const turn = selected === null ? null : data.turns[selected];
    if (turn) {
      detail.replaceChildren(createTurnView(data, turn, loadPayload));
      return;
    }
    const from = page * TURNS_PER_PAGE;
    const shown = data.turns.slice(from, from + TURNS_PER_PAGE);
    updateRows(turns, shown);
    pager.hidden = data.turns.length <= TURNS_PER_PAGE;
    setText(pages, `${from + 1} to ${from + shown.length} of ${data.turns.length}`);
    if (turnsPanel.parentNode !== detail) detail.replaceChildren(turnsPanel);
  }

  return {
    node,
    /** session: the view of a session from the server, or of a trace file. */
    update(session, turnNumber, now) {
      data = session;
      selected = turnNumber;
      const totals = session.session;
      setText(title, sessionName(totals));
      const dropped = totals.requests - totals.stored;
      setText(facts, [
        totals.running ? `${totals.running} running` : "idle",
        totals.harness || "unknown harness", totals.model, totals.tenant ? `tenant ${totals.tenant}` : null,
        `${formatCount(totals.requests)} ${totals.requests === 1 ? "turn" : "turns"}`, totals.failed ? `${totals.failed} failed` : null,
        `${formatCount(totals.input_tokens)} prompt tokens`,
        `${formatShare(totals.cached_tokens, totals.input_tokens)} cached`,
        `re-prefilled: ${formatCount(totals.reprefilled_tokens)} evicted, ${formatCount(totals.changed_tokens)} changed`,
        `${formatCount(totals.output_tokens)} output tokens`,
        dropped > 0 ? `the first ${formatCount(dropped)} turns are no longer in memory` : null,
        now ? `last activity ${formatAge(totals.last, now)}` : null,
      ].filter(Boolean).join(" · "));
      updateRows(agents, orderAgents(session.agents));
      agentsPanel.hidden = session.agents.length < 2;
      timeline.update(session, turnNumber);
      showDetail();
    },
  };
}

/** The tokens that were prefilled again, for any reason. */
function reprefilledTokens(turn) {
  const parts = turn.prompt.filter((part) => part.kind === "evicted" || part.kind === "changed");
  return parts.reduce((sum, part) => sum + part.tokens, 0);
}

function prefixKind(turn) {
  const reason = turn.prefix?.reason;
  return !reason || reason === "first" ? "" : "changed";
}

/** The agents with their depth, each after its parent. */
function orderAgents(agents) {
  const ordered = [];
  const visit = (agent, depth) => {
    ordered.push({ ...agent, depth });
    for (const child of agents) if (child.parent === agent.number) visit(child, depth + 1);
  };
  for (const agent of agents) if (agent.parent === null) visit(agent, 0);
  return ordered;
}
