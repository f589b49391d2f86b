// The overview: rates, latencies, prefix reuse, replicas and errors. It has a fixed number of nodes.

import { createChart } from "./charts.js";
import { createTable, h, setAttribute, setText, updateRows } from "./dom.js";
import { formatAge, formatCount, formatRate, formatSeconds, formatShare, NONE, sessionLink } from "./format.js";

const TILES = [
  ["requests", "Requests / s", (o) => formatRate(o.rates.requests), (o) => `${formatCount(o.totals.requests)} in total`],
  ["tokens", "Output tokens / s", (o) => formatRate(o.rates.output), (o) => `${formatCount(o.totals.output_tokens)} in total`],
  ["running", "Running", (o) => formatCount(o.running), (o) => `${formatCount(o.queued)} waiting for the first token`],
  ["ttft", "TTFT, p50", (o) => formatSeconds(o.first_token.p50), (o) => `p99 ${formatSeconds(o.first_token.p99)}, ${formatCount(o.first_token.count)} requests`],
  ["itl", "Inter-token latency, p50", (o) => formatSeconds(o.inter_token.p50), (o) => `p99 ${formatSeconds(o.inter_token.p99)}`],
  ["hits", "Prefix hit rate", (o) => formatShare(o.totals.cached_tokens, o.totals.input_tokens), (o) => `${formatCount(o.totals.cached_tokens)} of ${formatCount(o.totals.input_tokens)} prompt tokens`],
  ["reprefilled", "Re-prefilled tokens", (o) => formatCount(o.totals.reprefilled_tokens + o.totals.changed_tokens), (o) => `${formatCount(o.totals.reprefilled_tokens)} evicted, ${formatCount(o.totals.changed_tokens)} changed`],
  ["errors", "Failed requests", (o) => formatCount(o.totals.failed), (o) => `${formatRate(o.rates.errors)} errors / s`],
];

/** Create the overview. */
export function createOverview() {
  let now = 0;
  const tiles = TILES.map(([id, name, value, detail]) => {
    const number = h("dd", { class: "value", id: `tile-${id}` });
    const small = h("dd", { class: "detail", id: `tile-${id}-detail` });
    return { value, detail, number, small, node: h("div", { class: "tile" }, h("dt", null, name), number, small) };
  });
  const tokens = createChart("Output tokens per second", [{ name: "output", kind: "text" }], formatRate);
  const requests = createChart("Requests per second", [{ name: "requests", kind: "prefill" }, { name: "errors", kind: "failed" }], formatRate);
  const prompts = createChart("Prompt tokens per second", [{ name: "prompt", kind: "new" }, { name: "cached", kind: "previous" }, { name: "re-prefilled", kind: "changed" }], formatRate);
  const replicas = createTable([
    { name: "model", value: (one) => one.model },
    { name: "replica", number: true, value: (one) => `${one.replica}` },
    { name: "engine", value: (one) => one.engine },
    { name: "state", value: (one) => (one.available ? "up" : "down"), kind: (one) => (one.available ? "good" : "bad") },
    { name: "requests", number: true, value: (one) => formatCount(one.active) },
    { name: "engine running", number: true, value: (one) => formatCount(one.running) },
    { name: "engine waiting", number: true, value: (one) => formatCount(one.waiting) },
    { name: "KV cache", number: true, value: (one) => (one.cache_usage === null ? NONE : formatShare(one.cache_usage, 1)) },
    { name: "restarts", number: true, value: (one) => formatCount(one.restarts) },
  ], "Replicas");
  const errors = createTable([
    { name: "when", value: (one) => formatAge(one.at, now) },
    { name: "status", number: true, value: (one) => `${one.status}`, kind: () => "bad" },
    { name: "error", value: (one) => [one.error, one.reason].filter(Boolean).join(": ") || NONE },
    { name: "endpoint", value: (one) => one.endpoint },
    { name: "session", link: (one) => sessionLink({ id: one.session || "", tenant: one.tenant }), value: (one) => one.session || NONE },
    { name: "request", value: (one) => one.id },
  ], "Last errors");
  const reasons = createTable([
    { name: "reason", value: ([reason]) => reason, kind: () => "changed" },
    { name: "prompts", number: true, value: ([, count]) => formatCount(count) },
  ], "Divergent prefixes by reason");
  const noErrors = h("p", { class: "muted" }, "None.");
  const noReasons = h("p", { class: "muted" }, "Every prompt extends the previous one of its session.");
  const scope = h("p", { class: "muted scope" });
  const node = h("div", { class: "overview" }, h("h1", null, "Overview"), scope,
    h("dl", { class: "tiles" }, ...tiles.map((tile) => tile.node)),
    h("div", { class: "charts" }, tokens.node, prompts.node, requests.node),
    h("div", { class: "panel" }, h("h2", null, "Replicas"), replicas.node),
    h("div", { class: "columns" },
      h("div", { class: "panel" }, h("h2", null, "Last errors"), errors.node, noErrors),
      h("div", { class: "panel" }, h("h2", null, "Divergent prefixes"), reasons.node, noReasons)));

  return {
    node,
    update(overview) {
      now = overview.now;
      for (const tile of tiles) {
        setText(tile.number, tile.value(overview));
        setText(tile.small, tile.detail(overview));
      }
      const { series } = overview;
      const perSecond = (name) => series[name].map((value) => value / series.step);
      tokens.update([perSecond("output")], series.step);
      requests.update([perSecond("requests"), perSecond("errors")], series.step);
      prompts.update([perSecond("input"), perSecond("cached"), perSecond("reprefilled")], series.step);
      updateRows(replicas, overview.replicas);
      updateRows(errors, overview.errors);
      const found = Object.entries(overview.reasons);
      updateRows(reasons, found);
      for (const [table, none, count] of [[errors, noErrors, overview.errors.length], [reasons, noReasons, found.length]]) {
        table.node.hidden = count === 0;
        none.hidden = count > 0;
      }
      setText(scope, `Version ${overview.version}. ${overview.workers > 1 ? `All ${overview.workers} worker processes. ` : ""}Rates: the last minute. Latencies: the last ten minutes. Totals: since the start of the server.`);
      setAttribute(node, "data-updates", Number(node.dataset.updates || 0) + 1);
    },
  };
}
