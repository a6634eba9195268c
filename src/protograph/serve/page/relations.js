/** How alike a class is to others: suggestions to tick, each with a slider, and any other class by its name. */

import { classNames, nameField } from "./classnames.js";
import { h, replace, uniqueId } from "./dom.js";
import { percent, sourceName } from "./words.js";

const USUAL = 0.5; // how alike two classes are when they are first ticked, unless a source says otherwise
const LEAST = 0.01;

/** Return an editor: `show({relations, suggestions})` fills it, `values()` returns the similarity of each ticked class. */
export function relationsEditor(onChange = () => {}) {
  const rows = new Map(); // name -> {tick, slider}
  const list = h("ul", { class: "relations" });
  const other = nameField({ id: uniqueId("other-class"), placeholder: "another class" });
  const problem = h("p", { class: "problem", role: "alert", hidden: true });

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
          h("span", { class: "relation-name" }, name),
          " ",
          source && h("span", { class: "source" }, sourceName(source)),
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
      rows.get(name).tick.checked = true;
      rows.get(name).slider.disabled = false;
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
    list,
    h(
      "div",
      { class: "row" },
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
    for (const row of relations) addRow(String(row.class), { similarity: row.similarity, source: row.relation, ticked: true });
    for (const [name, similarity] of Object.entries(ticked)) if (!rows.has(name)) addRow(name, { similarity, ticked: true });
    for (const row of suggestions) if (!rows.has(String(row.class))) addRow(String(row.class), { ...row, ticked: false });
    list.hidden = !rows.size;
  };
  const values = () =>
    Object.fromEntries(
      [...rows].filter(([, { tick }]) => tick.checked).map(([name, { slider }]) => [name, Number(slider.value)]),
    );
  const clear = () => {
    rows.clear();
    replace(list);
    list.hidden = true;
  };
  return { element, show, values, clear };
}
