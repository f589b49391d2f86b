// Create and update elements. Text is always set as text, never parsed as markup.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

/** Create an HTML element. Properties that start with "on" are event listeners. */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** Create an SVG element. */
export function svg(tag, properties, ...children) {
  return fill(document.createElementNS(SVG_NAMESPACE, tag), properties, children);
}

/** Set the text of a node only if it differs, so that unchanged values cost no layout. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set an attribute only if it differs. */
export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/** Create a table with a header row and a body that `updateRows` fills. */
export function createTable(columns, label) {
  const cells = columns.map((column) =>
    h("th", { scope: "col", class: column.number ? "number" : null }, column.name));
  const body = h("tbody");
  const table = h("table", { "aria-label": label }, h("thead", null, h("tr", null, ...cells)), body);
  return { node: h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table), body, columns };
}

/** Show one row per item. Rows are reused, and only changed cells are written. */
export function updateRows(table, items, onRow) {
  const { body, columns } = table;
  while (body.rows.length > items.length) body.lastElementChild.remove();
  while (body.rows.length < items.length) {
    const cells = columns.map((column) => {
      const cell = h("td", { class: column.number ? "number" : null, "data-label": column.name });
      if (column.link) cell.append(h("a"));
      return cell;
    });
    body.append(h("tr", null, ...cells));
  }
  items.forEach((item, at) => {
    const row = body.rows[at];
    columns.forEach((column, index) => {
      const cell = row.cells[index];
      const target = column.link ? cell.firstElementChild : cell;
      setText(target, column.value(item));
      if (column.link) setAttribute(target, "href", column.link(item));
      if (column.title) setAttribute(cell, "title", column.title(item));
      if (column.kind) setAttribute(cell, "data-kind", column.kind(item));
    });
    if (onRow) onRow(row, item);
  });
}

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}
