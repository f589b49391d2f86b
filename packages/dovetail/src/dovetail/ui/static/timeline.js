// The timeline of a session: one row per agent, each turn divided into its stages and spans.
// Only what is visible is drawn. Parts that would be narrower than a pixel are merged.

import { h, setAttribute, setText, svg } from "./dom.js";
import { formatCount, formatSeconds, shorten } from "./format.js";

const ROW_HEIGHT = 24;
const BAR_HEIGHT = 16;
const LABEL_HEIGHT = 18;
const AXIS_HEIGHT = 20;
const MAX_ROWS = 40;
const MAX_SHAPES = 4000;
const MIN_SPAN_SECONDS = 0.002;
const SMALL_TURN_PIXELS = 4;
const STEPS = [1, 2, 5];

const LEGEND = [
  ["queue", "queue"], ["prepare", "prepare"], ["prefill", "prefill"], ["reasoning", "reasoning"],
  ["text", "text"], ["call", "tool call"], ["wait", "tool runs at the client"],
  ["failed", "failed"],
];

/** Create the timeline. `onSelect` is called with the number of a turn. */
export function createTimeline(onSelect) {
  const drawing = svg("svg", { class: "timeline", role: "group", tabindex: "0", "aria-label":
    "Timeline. Arrow keys pan, plus and minus zoom, 0 shows everything, comma and period select the previous and next turn. The table below has the same turns." });
  const tip = h("div", { class: "tip", hidden: true });
  const range = h("span", { class: "muted" });
  const buttons = h("div", { class: "buttons" },
    h("button", { type: "button", "aria-label": "Zoom in", onclick: () => zoom(0.6) }, "+"),
    h("button", { type: "button", "aria-label": "Zoom out", onclick: () => zoom(1 / 0.6) }, "−"),
    h("button", { type: "button", onclick: showAll }, "All"), range);
  const legend = h("ul", { class: "legend" }, ...LEGEND.map(([kind, name]) =>
    h("li", null, h("i", { class: `key ${kind}` }), name)),
    h("li", null, h("i", { class: "key mark" }), "dispatched"));
  const box = h("div", { class: "timeline-box" }, drawing, tip);
  const node = h("section", { class: "panel", "aria-label": "Timeline of turns" }, buttons, box, legend);

  let data = null;
  let rows = [];
  let view = { begin: 0, end: 1 };
  let selected = null;
  let width = 800;
  let shapes = 0;
  let pending = false;

  function update(session, selectedTurn) {
    const wasAll = !data || (view.begin <= 0 && view.end >= data.end);
    data = session;
    selected = selectedTurn;
    rows = arrangeRows(session);
    if (wasAll) view = { begin: 0, end: Math.max(session.end, MIN_SPAN_SECONDS) };
    draw();
  }

  function showAll() {
    view = { begin: 0, end: Math.max(data.end, MIN_SPAN_SECONDS) };
    draw();
  }

  function setView(begin, span) {
    const limit = Math.max(data.end, MIN_SPAN_SECONDS);
    const length = Math.min(limit, Math.max(MIN_SPAN_SECONDS, span));
    const start = Math.min(Math.max(0, begin), limit - length);
    view = { begin: start, end: start + length };
    if (!pending) {
      pending = true;
      requestAnimationFrame(() => { pending = false; draw(); });
    }
  }

  function zoom(factor, share = 0.5) {
    const span = view.end - view.begin;
    setView(view.begin + span * (1 - factor) * share, span * factor);
  }

  function pan(share) {
    const span = view.end - view.begin;
    setView(view.begin + span * share, span);
  }

  function x(seconds) {
    return ((seconds - view.begin) / (view.end - view.begin)) * width;
  }

  function draw() {
    width = Math.max(200, box.clientWidth || 800);
    const height = AXIS_HEIGHT + rows.reduce((sum, row) => sum + row.height, 0) + 4;
    setAttribute(drawing, "viewBox", `0 0 ${width} ${height}`);
    setAttribute(drawing, "height", height);
    setText(range, `${formatSeconds(view.end - view.begin)} of ${formatSeconds(data.end)}`);
    shapes = 0;
    const content = [drawAxis(height)];
    let top = AXIS_HEIGHT;
    for (const row of rows) {
      content.push(drawRow(row, top));
      top += row.height;
    }
    drawing.replaceChildren(...content);
  }

  function drawAxis(height) {
    const group = svg("g", { class: "axis", "aria-hidden": "true" });
    const span = view.end - view.begin;
    const step = tickStep((span / width) * 90);
    for (let at = Math.ceil(view.begin / step) * step; at <= view.end; at += step) {
      const px = x(at).toFixed(1);
      group.append(svg("line", { x1: px, x2: px, y1: AXIS_HEIGHT - 4, y2: height }),
        svg("text", { x: px, y: 11, "text-anchor": px < 14 ? "start" : "middle" }, formatTick(at, step)));
    }
    return group;
  }

  function drawRow(row, top) {
    const group = svg("g", { "aria-hidden": "true" });
    const middle = top + row.height - ROW_HEIGHT + (ROW_HEIGHT - BAR_HEIGHT) / 2;
    group.append(svg("line", { class: "row-line", x1: 0, x2: width, y1: middle + BAR_HEIGHT / 2, y2: middle + BAR_HEIGHT / 2 }));
    if (row.label) {
      const indent = Math.min(row.depth, 6) * 12;
      group.append(svg("text", { class: "row-label", x: 2 + indent, y: top + 13 },
        `${row.depth ? "↳ " : ""}${shorten(row.label, Math.floor((width - indent) / 7))}`));
    }
    for (const wait of row.waits) drawWait(group, wait, middle);
    let small = null;
    for (const turn of row.turns) {
      if (turn.end < view.begin || turn.begin > view.end || shapes > MAX_SHAPES) continue;
      const left = x(turn.begin);
      const right = Math.max(x(turn.end), left + 1);
      if (right - left >= SMALL_TURN_PIXELS) {
        small = null;
        drawTurn(group, turn, left, right, middle);
      } else if (small && left - small.right < 1) {
        small.right = right;
        setAttribute(small.node, "width", (small.right - small.left).toFixed(1));
      } else {
        const shape = bar("turn small", left, right, middle, BAR_HEIGHT);
        shape.dataset.turn = turn.number;
        group.append(shape);
        small = { node: shape, left, right };
      }
    }
    return group;
  }

  function drawTurn(group, turn, left, right, top) {
    const marks = [];
    const failed = turn.status >= 400;
    const shape = svg("g", { class: `turn${turn.number === selected ? " selected" : ""}`, "data-turn": turn.number });
    shape.append(bar(`whole${failed ? " failed" : ""}`, left, right, top, BAR_HEIGHT));
    for (const part of turnParts(turn)) {
      const from = x(turn.begin + part.begin);
      const to = x(turn.begin + part.end);
      if (to - from < 0.5 || to < 0 || from > width || shapes > MAX_SHAPES) continue;
      shape.append(bar(part.kind, from, to, top, BAR_HEIGHT));
      if (part.kind === "call" && to - from > 34 && part.name) {
        shape.append(svg("text", { class: "call-name", x: from + 4, y: top + 12 },
          shorten(part.name, Math.floor((to - from - 6) / 6.2))));
      }
      if (part.dispatched !== null && part.dispatched !== undefined) marks.push(x(turn.begin + part.dispatched));
    }
    for (const at of marks) {
      if (at >= 0 && at <= width) {
        shapes += 1;
        shape.append(svg("path", { class: "mark", d: `M${at.toFixed(1)} ${top - 1}l-3.5 -4h7z` }));
      }
    }
    group.append(shape);
  }

  function drawWait(group, wait, top) {
    if (wait.end < view.begin || wait.begin > view.end || shapes > MAX_SHAPES) return;
    const left = x(wait.begin);
    const right = x(wait.end);
    if (right - left < 0.5) return;
    const shape = bar("wait", left, right, top + BAR_HEIGHT / 2 - 2, 4);
    shape.dataset.wait = `${wait.name || "tool"}: ${formatSeconds(wait.end - wait.begin)} at the client`;
    group.append(shape);
  }

  function bar(kind, left, right, top, height) {
    shapes += 1;
    const from = Math.max(-2, left);
    const to = Math.min(width + 2, right);
    return svg("rect", { class: kind, x: from.toFixed(1), y: top, height, width: Math.max(0.5, to - from).toFixed(1) });
  }

  function describe(target) {
    const wait = target.dataset?.wait;
    if (wait) return wait;
    const number = target.closest("[data-turn]")?.dataset.turn;
    if (number === undefined) return null;
    const turn = data.turns[Number(number)];
    const usage = turn.usage;
    const tokens = usage ? `, ${formatCount(usage.input_tokens)} prompt tokens (${formatCount(usage.cached_tokens)} cached), ${formatCount(usage.output_tokens)} output` : "";
    return `Turn ${turn.number + 1}: ${formatSeconds(turn.duration)}${tokens}`;
  }

  // Mouse, touch and keyboard.
  const pointers = new Map();
  let moved = 0;
  drawing.addEventListener("wheel", (event) => {
    const zooms = event.ctrlKey || event.metaKey;
    const pans = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!zooms && !pans) return; // the wheel alone scrolls the page
    event.preventDefault();
    const frame = drawing.getBoundingClientRect();
    if (zooms) zoom(Math.exp(event.deltaY * 0.004), (event.clientX - frame.left) / frame.width);
    else pan((event.deltaX || event.deltaY) / frame.width);
  }, { passive: false });
  drawing.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, event.clientX);
    moved = 0;
  });
  drawing.addEventListener("pointermove", (event) => {
    if (pointers.has(event.pointerId)) dragged(event);
    const text = pointers.size ? null : describe(event.target);
    tip.hidden = !text;
    if (!text) return;
    setText(tip, text);
    const frame = box.getBoundingClientRect();
    tip.style.left = `${Math.max(0, Math.min(event.clientX - frame.left + 10, frame.width - tip.offsetWidth))}px`;
    tip.style.top = `${event.clientY - frame.top + 16}px`;
  });
  function dragged(event) {
    const before = [...pointers.values()];
    const delta = event.clientX - pointers.get(event.pointerId);
    pointers.set(event.pointerId, event.clientX);
    moved += Math.abs(delta);
    if (moved > 3 && !drawing.hasPointerCapture(event.pointerId)) drawing.setPointerCapture(event.pointerId);
    const box = drawing.getBoundingClientRect();
    if (pointers.size === 2) {
      const after = [...pointers.values()];
      const distance = (pair) => Math.max(10, Math.abs(pair[0] - pair[1]));
      const center = ((after[0] + after[1]) / 2 - box.left) / box.width;
      zoom(distance(before) / distance(after), center);
    } else if (moved > 3) {
      pan(-delta / box.width);
    }
  }
  const release = (event) => pointers.delete(event.pointerId);
  drawing.addEventListener("pointerup", release);
  drawing.addEventListener("pointercancel", release);
  drawing.addEventListener("pointerleave", (event) => {
    tip.hidden = true;
    if (!drawing.hasPointerCapture(event.pointerId)) release(event);
  });
  drawing.addEventListener("click", (event) => {
    const number = event.target.closest("[data-turn]")?.dataset.turn;
    if (number !== undefined && moved <= 3) onSelect(Number(number));
  });
  const keys = {
    ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => zoom(0.6), "=": () => zoom(0.6),
    "-": () => zoom(1 / 0.6), 0: showAll, ",": () => step(-1), ".": () => step(1),
  };
  drawing.addEventListener("keydown", (event) => {
    const act = keys[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
  function step(direction) {
    const next = selected === null ? (direction > 0 ? 0 : data.turns.length - 1) : selected + direction;
    if (data.turns[next]) onSelect(next);
  }
  new ResizeObserver(() => { if (data && box.clientWidth !== width) draw(); }).observe(box);

  return { node, update };
}

/** The stages and spans of a turn in order, relative to its begin. */
function turnParts(turn) {
  const stages = turn.stages.map(([kind, begin, end]) => ({ kind, begin, end }));
  return [...stages, ...turn.spans];
}

/** One row for each agent, or several if its requests overlap. Subagents follow their parents. */
function arrangeRows(session) {
  const rows = [];
  const visit = (agent, depth) => {
    const turns = session.turns.filter((turn) => turn.agent === agent.number);
    const numbers = [...new Set(turns.map((turn) => turn.row))];
    numbers.forEach((number, at) => {
      const own = turns.filter((turn) => turn.row === number);
      const ids = new Set(own.map((turn) => turn.number));
      const label = at === 0 ? agent.name : null;
      rows.push({
        label,
        depth,
        turns: own,
        waits: session.waits.filter((wait) => ids.has(wait.turn)),
        height: ROW_HEIGHT + (label ? LABEL_HEIGHT : 0),
      });
    });
    for (const child of session.agents) if (child.parent === agent.number) visit(child, depth + 1);
  };
  for (const agent of session.agents) if (agent.parent === null) visit(agent, 0);
  return rows.slice(0, MAX_ROWS);
}

function tickStep(seconds) {
  const power = 10 ** Math.floor(Math.log10(seconds));
  return STEPS.map((one) => one * power).find((one) => one >= seconds) || 10 * power;
}

function formatTick(seconds, step) {
  if (step < 1) return seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(step < 0.1 ? 2 : 1)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes ? `${minutes}:${String(Math.round(seconds % 60)).padStart(2, "0")}` : `${Math.round(seconds)} s`;
}
