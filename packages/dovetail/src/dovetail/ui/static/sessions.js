// The list of sessions: one page of it, with a search.

import { createTable, h, setText, updateRows } from "./dom.js";
import { formatAge, formatCount, formatShare, sessionLink, sessionName } from "./format.js";

const SEARCH_DELAY_MS = 200;

/** Create the view. `load(query, offset)` returns one page of sessions. */
export function createSessionsView(load) {
  let offset = 0;
  let now = 0;
  let timer = null;
  const search = h("input", { type: "search", id: "search", placeholder: "session, harness, model, tenant, running", oninput: () => {
    clearTimeout(timer);
    timer = setTimeout(() => { offset = 0; refresh(); }, SEARCH_DELAY_MS);
  } });
  const count = h("span", { class: "muted", role: "status" });
  const table = createTable([
    { name: "session", link: (one) => sessionLink(one), value: (one) => sessionName(one), title: (one) => one.id },
    { name: "state", value: (one) => (one.running ? "running" : "idle"), kind: (one) => (one.running ? "good" : "") },
    { name: "harness", value: (one) => one.harness },
    { name: "model", value: (one) => one.model },
    { name: "tenant", value: (one) => one.tenant },
    { name: "agents", number: true, value: (one) => formatCount(one.agents) },
    { name: "turns", number: true, value: (one) => formatCount(one.requests) },
    { name: "prompt tokens", number: true, value: (one) => formatCount(one.input_tokens) },
    { name: "output tokens", number: true, value: (one) => formatCount(one.output_tokens) },
    { name: "hit rate", number: true, value: (one) => formatShare(one.cached_tokens, one.input_tokens) },
    { name: "evicted", number: true, value: (one) => formatCount(one.reprefilled_tokens), title: () => "Tokens prefilled again because the engine no longer had them" },
    { name: "changed", number: true, value: (one) => formatCount(one.changed_tokens), kind: (one) => (one.diverged ? "changed" : ""), title: (one) => `Tokens prefilled again because the prefix changed, in ${one.diverged} turns` },
    { name: "failed", number: true, value: (one) => formatCount(one.failed), kind: (one) => (one.failed ? "bad" : "") },
    { name: "last activity", value: (one) => formatAge(one.last, now) },
  ], "Sessions");
  const newer = h("button", { type: "button", onclick: () => turnPage(-1) }, "Newer");
  const older = h("button", { type: "button", onclick: () => turnPage(1) }, "Older");
  const empty = h("p", { class: "muted" }, "No session matches.");
  const node = h("div", null, h("h1", null, "Sessions"),
    h("div", { class: "search" }, h("label", { for: "search" }, "Search"), search, count,
      h("span", { class: "buttons" }, newer, older)), h("div", { class: "panel" }, table.node, empty));
  let page = { offset: 0, page_size: 50, count: 0 };

  function turnPage(direction) {
    offset = Math.max(0, offset + direction * page.page_size);
    refresh();
  }

  async function refresh() {
    const loaded = await load(search.value, offset);
    if (!loaded) return;
    page = loaded;
    updateRows(table, page.sessions);
    const last = page.offset + page.sessions.length;
    setText(count, page.count ? `${page.offset + 1} to ${last} of ${formatCount(page.count)}` : "");
    newer.disabled = page.offset === 0;
    older.disabled = last >= page.count;
    empty.hidden = page.sessions.length > 0;
    table.node.hidden = page.sessions.length === 0;
  }

  return {
    node,
    update(time) {
      now = time;
      return refresh();
    },
  };
}
