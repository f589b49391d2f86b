// Charts over time, as SVG with a fixed number of nodes: an update only changes their attributes.

import { h, setAttribute, setText, svg } from "./dom.js";
import { formatAge } from "./format.js";

const WIDTH = 600;
const HEIGHT = 96;
const TOP = 6;

/**
 * Create a chart of one or more series of equal length.
 * lines: [{ name, kind }]; format: value -> text.
 */
export function createChart(title, lines, format) {
  const paths = lines.map((line, at) => ({
    ...line,
    area: at === 0 ? svg("path", { class: `area ${line.kind}` }) : null,
    path: svg("path", { class: `line ${line.kind}`, "vector-effect": "non-scaling-stroke" }),
    value: h("b"),
  }));
  const cursor = svg("line", { class: "cursor", y1: 0, y2: HEIGHT, "vector-effect": "non-scaling-stroke" });
  const drawing = svg("svg", {
    class: "chart",
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": `${title}, the last ten minutes`,
  }, svg("line", { class: "base", x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1 }),
    ...paths.flatMap((one) => [one.area, one.path]), cursor);
  const top = h("span", { class: "chart-top" });
  const when = h("span", { class: "chart-when" });
  const legend = h("p", { class: "chart-legend" }, ...paths.map((one) =>
    h("span", null, h("i", { class: `key ${one.kind}` }), `${one.name} `, one.value)), when);
  const node = h("figure", { class: "panel" }, h("figcaption", null, title), legend,
    h("div", { class: "chart-box" }, drawing, top));
  let current = null;
  let pointed = null;

  function showValues() {
    const count = current.values[0].length;
    const at = pointed === null ? count - 1 : Math.round(pointed * (count - 1));
    paths.forEach((one, index) => setText(one.value, format(current.values[index][at])));
    const age = (count - 1 - at) * current.step;
    setText(when, pointed === null ? "" : formatAge(0, age));
    const x = (at / (count - 1)) * WIDTH;
    setAttribute(cursor, "x1", x);
    setAttribute(cursor, "x2", x);
    setAttribute(cursor, "visibility", pointed === null ? "hidden" : "visible");
  }

  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    pointed = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    if (current) showValues();
  });
  drawing.addEventListener("pointerleave", () => {
    pointed = null;
    if (current) showValues();
  });

  return {
    node,
    /** values: one array per line. */
    update(values, step) {
      current = { values, step };
      const highest = Math.max(...values.map((one) => Math.max(...one)));
      const scale = (HEIGHT - TOP - 1) / (highest || 1);
      paths.forEach((one, index) => {
        const points = values[index].map((value, at) =>
          `${((at / (values[index].length - 1)) * WIDTH).toFixed(1)} ${(HEIGHT - 1 - value * scale).toFixed(1)}`);
        const line = `M${points.join("L")}`;
        setAttribute(one.path, "d", line);
        if (one.area) setAttribute(one.area, "d", `${line}L${WIDTH} ${HEIGHT}L0 ${HEIGHT}Z`);
      });
      setText(top, highest ? format(highest) : "");
      showValues();
    },
  };
}
