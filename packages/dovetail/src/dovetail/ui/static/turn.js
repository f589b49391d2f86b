// One turn: its prompt as a bar, its output in order, its usage and what was reported about it.

import { createTable, h, updateRows } from "./dom.js";
import { formatClock, formatCount, formatSeconds, formatShare, NONE, sessionLink } from "./format.js";

const PARTS = {
  previous: "from the previous turn, cached by the engine",
  unreported: "from the previous turn (the engine does not report its cache)",
  cached: "cached by the engine, not from the previous turn",
  evicted: "re-prefilled: the engine no longer had it",
  changed: "re-prefilled: the prefix changed",
  new: "new",
};
const SPAN_NAMES = { reasoning: "reasoning", text: "text", call: "tool call" };

/** Create the view of a turn. `loadPayload` returns its texts; null if there are none. */
export function createTurnView(session, turn, loadPayload) {
  return h("section", { class: "turn-view", "aria-label": `Turn ${turn.number + 1}` },
    createHead(session, turn),
    h("div", { class: "columns" },
      h("div", null, createPrompt(turn), ...createExplanations(turn), createOutput(turn)),
      h("div", null, createFacts(session, turn), createReports(turn))),
    createPayload(turn, loadPayload));
}

function createHead(session, turn) {
  const last = session.turns.length - 1;
  const link = (number, text) => number < 0 || number > last ? null
    : h("a", { class: "button", href: sessionLink(session.session, number) }, text);
  const state = turn.error || turn.finish || (turn.disconnected ? "disconnected" : NONE);
  return h("div", { class: "head" },
    h("h2", { id: "turn-title" }, `Turn ${turn.number + 1} of ${last + 1}`),
    h("span", { class: `badge ${turn.status >= 400 ? "bad" : ""}` }, `${turn.status} ${state}`),
    h("span", { class: "buttons" }, link(turn.number - 1, "Previous"), link(turn.number + 1, "Next"),
      h("a", { class: "button", href: sessionLink(session.session) }, "All turns")));
}

function createPrompt(turn) {
  const parts = turn.prompt;
  const total = parts.reduce((sum, part) => sum + part.tokens, 0);
  const bar = h("div", { class: "prompt-bar", "aria-hidden": "true" });
  for (const part of parts) {
    const segment = h("i", { class: `part ${part.kind}`, title: `${PARTS[part.kind]}: ${formatCount(part.tokens)}` });
    segment.style.flexGrow = String(part.tokens / total);
    bar.append(segment);
  }
  const table = createTable([
    { name: "part of the prompt", value: (part) => PARTS[part.kind], kind: (part) => part.kind },
    { name: "tokens", number: true, value: (part) => formatCount(part.tokens) },
    { name: "share", number: true, value: (part) => formatShare(part.tokens, total) },
  ], "Parts of the prompt");
  updateRows(table, parts);
  return h("div", { class: "panel" }, h("h3", null, `Prompt: ${formatCount(total)} tokens`),
    parts.length ? bar : h("p", { class: "muted" }, "No usage was reported."), table.node);
}

function createExplanations(turn) {
  return turn.explanations.map((one) => {
    const cost = one.tokens
      ? h("p", { class: "cost" }, h("b", null, `${formatCount(one.tokens)} tokens`), " prefilled again",
        one.seconds === undefined ? null : `, about ${formatSeconds(one.seconds)} of ${formatSeconds(turn.first_token - turn.prepared)} prefill`)
      : null;
    return h("div", { class: `panel note ${one.tokens ? "warn" : ""}`, "data-reason": one.code },
      h("h3", null, one.title, " ", h("code", null, one.code)), h("p", null, one.text), cost,
      one.code === "evicted" ? null : createDivergence(turn.divergence),
      one.remedy ? h("p", null, h("b", null, "Remedy: "), one.remedy) : null);
  });
}

function createDivergence(divergence) {
  if (!divergence) return null;
  const [before, old, now] = divergence;
  return h("dl", { class: "diff" },
    h("dt", null, "text before"), h("dd", null, h("pre", null, before)),
    h("dt", null, "was"), h("dd", null, h("pre", { class: "old" }, old)),
    h("dt", null, "is now"), h("dd", null, h("pre", { class: "now" }, now)));
}

function createOutput(turn) {
  const table = createTable([
    { name: "span", value: (span) => SPAN_NAMES[span.kind], kind: (span) => span.kind },
    { name: "tool", value: (span) => (span.kind === "call" ? span.name || "unknown tool" : "") },
    { name: "starts after", number: true, value: (span) => formatSeconds(span.begin) },
    { name: "takes", number: true, value: (span) => formatSeconds(span.end - span.begin) },
    { name: "dispatched after", number: true, value: (span) =>
      (span.kind !== "call" ? "" : span.dispatched === null ? "never" : formatSeconds(span.dispatched)) },
  ], "Output spans in order");
  updateRows(table, turn.spans);
  return h("div", { class: "panel" }, h("h3", null, "Output in order"),
    turn.spans.length ? table.node : h("p", { class: "muted" }, "No output."));
}

function createFacts(session, turn) {
  const usage = turn.usage || {};
  const facts = [
    ["Started", formatClock(turn.began)], ["Duration", formatSeconds(turn.duration)],
    ["Time to first token", formatSeconds(turn.first_token)],
    ...turn.stages.map(([name, begin, end]) => [`  ${name}`, formatSeconds(end - begin)]),
    ["Prompt tokens", formatCount(usage.input_tokens)], ["Cached tokens", formatCount(usage.cached_tokens)],
    ["Evicted, re-prefilled", turn.reprefilled === undefined ? "not reported" : formatCount(turn.reprefilled)],
    ["Output tokens", formatCount(usage.output_tokens)], ["Reasoning tokens", formatCount(usage.reasoning_tokens)],
    ["Model", turn.model], ["Requested model", turn.asked], ["API", turn.endpoint],
    ["Transport", turn.transport || "http"], ["Agent", session.agents[turn.agent].name],
    ["Replica", turn.replica], ["Migrations", turn.migrations], ["Request", turn.id],
  ].filter(([, value]) => value !== undefined && value !== "" && value !== null);
  return h("div", { class: "panel" }, h("h3", null, "Request"), h("dl", { class: "facts" },
    ...facts.flatMap(([name, value]) => [h("dt", null, name), h("dd", null, String(value))])));
}

function createReports(turn) {
  const turns = turn.prefix?.turns || {};
  const rewrites = [
    turns.exact ? `${turns.exact} earlier turns are exact` : null,
    turns.written ? `${turns.written} turns were rewritten by the client and written in the model's notation` : null,
    turns.natural ? `${turns.natural} turns are rendered by the template` : null,
    turn.compaction ? "the client announced a compaction" : null,
  ].filter(Boolean);
  const list = (items) => h("ul", { class: "plain" }, ...items.map((item) => h("li", null, item)));
  const codes = Object.entries(turn.diagnostics || {}).map(([code, count]) => `${code} (${count})`);
  const block = (title, items) => [h("h3", null, title), items.length ? list(items) : h("p", { class: "muted" }, "None.")];
  return h("div", { class: "panel" },
    ...block("Earlier turns in the prompt", rewrites),
    ...block("Malformed output", codes),
    ...block("Notes to the client", turn.notes || []));
}

function createPayload(turn, loadPayload) {
  if (!turn.has_payload || !loadPayload) return null;
  const panel = h("div", { class: "panel" }, h("h3", null, "Bodies"));
  const button = h("button", { type: "button", onclick: async () => {
    button.disabled = true;
    const payload = await loadPayload(turn);
    button.remove();
    for (const [name, text] of [["Request", payload?.request], ["Response", payload?.response]]) {
      if (text) panel.append(h("h4", null, name), h("pre", { class: "body", tabindex: "0" }, text));
    }
  } }, "Show request and response");
  panel.append(button);
  return panel;
}
