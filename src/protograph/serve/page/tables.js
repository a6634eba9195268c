/** Tables that sort by any of their columns. */

import { focus, h, replace } from "./dom.js";
import { counted } from "./words.js";

const SHOWN = 100; // rows, before someone asks for more
const MORE = 1000;

/**
 * Return a table. Of many rows the first are drawn, and more when someone asks for them.
 *
 * @param {{caption: string, columns: {title: string, value: (row: any) => any, cell?: (row: any) => any, number?: boolean}[]}} options
 */
export function sortable({ caption, columns }) {
  let rows = [];
  let most = SHOWN;
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
    const drawn = sorted.slice(0, most);
    const others = Math.min(MORE, sorted.length - drawn.length);
    for (const row of drawn) if (!made.has(row)) made.set(row, rowOf(row));
    replace(
      body,
      drawn.map((row) => made.get(row)),
    );
    more.hidden = !others;
    more.textContent = `Show ${counted(others, "more row")}`;
  };
  const more = h("button", {
    type: "button",
    class: "small more",
    hidden: true,
    onclick: () => {
      const next = most;
      most += MORE;
      show(rows);
      focus(body.children[next].firstElementChild, { preventScroll: true });
    },
  });
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
    more,
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
