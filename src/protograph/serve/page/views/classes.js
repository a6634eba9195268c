/** Classes: all of them, with a few of their examples. */

import { get } from "../api.js";
import { h, replace } from "../dom.js";
import { loadInto } from "../parts.js";
import { store } from "../store.js";
import { shownExamples, thumbnail } from "../thumbnails.js";
import { counted, madeOf } from "../words.js";
import { startPanel } from "./start.js";

export function createClasses() {
  let classes = [];
  const search = h("input", {
    type: "search",
    id: "search-classes",
    placeholder: "Search",
    autocomplete: "off",
    oninput: () => showFound(),
  });
  const found = h("p", { class: "hint", role: "status" });
  const list = h("ul", { class: "classes" });
  const content = h("div");
  const body = h(
    "div",
    { class: "stack" },
    h(
      "div",
      { class: "row search" },
      h("label", { for: "search-classes", class: "unseen" }, "Search classes"),
      search,
      h("a", { class: "button", href: "#/teach" }, "Teach a class"),
    ),
    found,
    list,
  );
  const element = h("section", { class: "view" }, h("h1", {}, "Classes"), content);

  const load = () =>
    loadInto(content, "Loading the classes\u2026", async () => {
      ({ classes } = await get("/api/classes"));
      if (!classes.length) return startPanel(0);
      showFound();
      return body;
    });

  function showFound() {
    const text = search.value.trim().toLowerCase();
    const shown = classes.filter((row) => String(row.class).toLowerCase().includes(text));
    found.textContent = text ? `${shown.length} of ${counted(classes.length, "class")}` : counted(classes.length, "class");
    replace(list, shown.map(card));
  }

  return { element, show: load, refresh: load };
}

function card(row) {
  const name = row.class;
  return h(
    "li",
    {},
    h(
      "a",
      { class: "card class-card", href: `#/class?${new URLSearchParams({ name })}` },
      h(
        "span",
        { class: "class-thumbs", "aria-hidden": "true" },
        shownExamples(row).map((index) => thumbnail(name, index)),
      ),
      h("span", { class: "class-name clamped", title: name }, name),
      h("span", { class: "hint" }, madeOf(row, store.model)),
    ),
  );
}
