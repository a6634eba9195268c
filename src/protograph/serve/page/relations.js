/** How alike a class is to others: suggestions to tick, each with a slider, and any other class by its name. */

import { classNames, nameField } from "./classnames.js";
import { h, replace, uniqueId } from "./dom.js";
import { percent, sourceName } from "./words.js";

const USUAL = 0.5; // how alike two classes are when they are first ticked, unless a source says otherwise
const LEAST = 0.01;
const SHOWN = 8; // rows, before someone asks for the others

/** Return an editor: `show({relations, suggestions})` fills it, `values()` returns the similarity of each ticked class. */
export function relationsEditor(onChange = () => {}) {
  const rows = new Map(); // name -> {tick, slider}
  const origin = h("p", { class: "hint relations-source" }); // of all numbers, where one source tells them all
  const list = h("ul", { class: "relations" });
  const other = nameField({ id: uniqueId("other-class"), placeholder: "another class" });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const more = h("button", { type: "button", class: "small", hidden: true, onclick: () => showAll() });

  const addRow = (name, { similarity, source, ticked }) => {
    const tick = h("input", { type: "checkbox", id: uniqueId("alike"), checked: ticked });
    const value = Math.max(LEAST, Math.min(1, similarity ?? USUAL));
    const shown = h("output", {}, percent(value));
    const slider = h("input", {
      type: "range",
      min: LEAST,
      max: 1,
      step: 0.01,
      value,
      "aria-label": `How alike: ${name}`,
      disabled: !ticked,
    });
    slider.setAttribute("aria-valuetext", percent(value));
    slider.addEventListener("input", () => {
      shown.textContent = percent(Number(slider.value));
      slider.setAttribute("aria-valuetext", shown.textContent);
      onChange();
    });
    tick.addEventListener("change", () => {
      slider.disabled = !tick.checked;
      onChange();
    });
    rows.set(name, { tick, slider });
    list.hidden = false;
    list.append(
      h(
        "li",
        {},
        h(
          "label",
          { for: tick.id },
          tick,
          h("span", {}, name, " ", source && h("span", { class: "source" }, sourceName(source))),
        ),
        slider,
        shown,
      ),
    );
  };

  const add = async () => {
    const name = other.value.trim();
    const names = name ? await classNames().catch(() => []) : [];
    problem.hidden = names.includes(name);
    if (!names.includes(name)) {
      problem.textContent = name ? `There is no class '${name}'.` : "Type the name of a class.";
      return;
    }
    if (rows.has(name)) {
      const { tick, slider } = rows.get(name);
      tick.checked = true;
      slider.disabled = false;
      tick.closest("li").hidden = false;
    } else addRow(name, { ticked: true });
    other.value = "";
    onChange();
  };
  other.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    add();
  });

  const element = h(
    "div",
    {},
    origin,
    list,
    more,
    h(
      "div",
      { class: "row also" },
      h("label", { for: other.id }, "Also like"),
      other,
      h("button", { type: "button", class: "small", onclick: add }, "Add"),
    ),
    problem,
  );
  const show = ({ relations = [], suggestions = [] }) => {
    const ticked = values();
    rows.clear();
    replace(list);
    const found = [
      ...relations.map((row) => [row.class, { similarity: row.similarity, source: row.relation, ticked: true }]),
      ...Object.entries(ticked).map(([name, similarity]) => [name, { similarity, ticked: true }]),
      ...suggestions.map((row) => [row.class, { ...row, ticked: false }]),
    ];
    const sources = new Set(found.map(([, row]) => row.source));
    const shared = sources.size === 1 ? [...sources][0] : null;
    origin.textContent = shared ? `How alike they are ${sourceName(shared)}:` : "";
    for (const [name, row] of found)
      if (!rows.has(String(name))) addRow(String(name), { ...row, source: shared ? null : row.source });
    const others = [...list.children].slice(SHOWN);
    for (const item of others) item.hidden = true;
    more.hidden = !others.length;
    more.textContent = `Show ${others.length} more`;
    list.hidden = !rows.size;
  };
  const showAll = () => {
    const first = list.querySelector("li[hidden] input");
    for (const item of list.children) item.hidden = false;
    more.hidden = true;
    first?.focus();
  };
  const values = () =>
    Object.fromEntries(
      [...rows].filter(([, { tick }]) => tick.checked).map(([name, { slider }]) => [name, Number(slider.value)]),
    );
  const clear = () => {
    rows.clear();
    replace(list);
    origin.textContent = "";
    list.hidden = more.hidden = true;
  };
  return { element, show, values, clear };
}
