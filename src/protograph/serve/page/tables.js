/** Tables that sort by any of their columns. */

import { h, replace } from "./dom.js";

/**
 * Return a table.
 *
 * @param {{caption: string, columns: {title: string, value: (row: any) => any, cell?: (row: any) => any, number?: boolean}[]}} options
 */
export function sortable({ caption, columns }) {
  let rows = [];
  let order = null; // {index, down}
  const made = new WeakMap(); // a row that was drawn stays as it is, so that long tables grow quickly
  const body = h("tbody");
  const headings = columns.map((column, index) =>
    h(
      "th",
      { scope: "col", class: column.number ? "number" : null },
      h("button", { type: "button", class: "sort", onclick: () => sortBy(index) }, column.title),
    ),
  );
  const sortBy = (index) => {
    order = { index, down: order?.index === index ? !order.down : Boolean(columns[index].number) };
    headings.forEach((heading, place) => {
      if (place === index) heading.setAttribute("aria-sort", order.down ? "descending" : "ascending");
      else heading.removeAttribute("aria-sort");
    });
    show(rows);
  };
  const show = (shown) => {
    rows = shown;
    const sorted = order ? [...rows].sort(comparison(columns[order.index].value, order.down)) : rows;
    for (const row of sorted) if (!made.has(row)) made.set(row, rowOf(row));
    replace(
      body,
      sorted.map((row) => made.get(row)),
    );
  };
  const rowOf = (row) =>
    h(
      "tr",
      {},
      columns.map(({ title, value, cell, number }, index) => {
        const content = cell ? cell(row) : value(row);
        const attributes = { class: number ? "number" : null, "data-title": title };
        return index ? h("td", attributes, content ?? "") : h("th", { scope: "row", ...attributes }, content ?? "");
      }),
    );
  const element = h(
    "div",
    { class: "table", role: "region", "aria-label": caption, tabindex: 0 },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, headings)), body),
  );
  return { element, show };
}

/** What has no value stands last, whichever way the others are sorted. */
function comparison(value, down) {
  return (first, second) => {
    const [a, b] = [value(first), value(second)];
    if (a === null || a === undefined || b === null || b === undefined)
      return Number(a === null || a === undefined) - Number(b === null || b === undefined);
    const sign = typeof a === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
    return down ? -sign : sign;
  };
}
