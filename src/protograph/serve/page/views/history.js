/** History: what was changed, newest first, and the way back. */

import { get } from "../api.js";
import { redo, undo, undoLast } from "../changes.js";
import { h } from "../dom.js";
import { icon } from "../icons.js";
import { loadInto } from "../parts.js";
import { store } from "../store.js";
import { counted, moment, sentence } from "../words.js";

export function createHistory() {
  const content = h("div");
  const element = h("section", { class: "view narrow" }, h("h1", {}, "History"), content);
  const load = () =>
    loadInto(content, "Loading the history\u2026", async () => {
      const { changes } = await get("/api/history");
      return changes.length
        ? [buttons(), list(changes)]
        : h("p", { class: "hint" }, "Nothing was changed yet. Every change will stand here, and can be undone.");
    });
  return { element, show: load, refresh: load };
}

function buttons() {
  const { undo: last, redo: next } = store.model?.history ?? {};
  return h(
    "div",
    { class: "history-buttons" },
    h("button", { type: "button", disabled: !last, onclick: undo }, icon("undo"), last ? `Undo: ${last}` : "Nothing to undo"),
    next && h("button", { type: "button", class: "quiet", onclick: redo }, icon("redo"), `Redo: ${next}`),
    h("p", { class: "hint by-mouse" }, "Or press Ctrl+Z, and Ctrl+Shift+Z."),
  );
}

function list(changes) {
  return h(
    "ol",
    { class: "history", reversed: true },
    changes.map(({ number, what, when, classes, undone }) => {
      const { clock, ago } = moment(when);
      const later = changes.filter((other) => !other.undone && other.number > number).length;
      return h(
        "li",
        { class: undone ? "undone" : null },
        h(
          "span",
          { class: "history-what" },
          undone ? h("s", {}, sentence(what)) : sentence(what),
          undone && h("span", { class: "tag" }, "undone"),
        ),
        h("span", { class: "hint" }, h("time", { datetime: when, title: clock }, ago), ` \u00b7 ${counted(classes, "class")}`),
        !undone &&
          later > 0 &&
          h(
            "button",
            {
              type: "button",
              class: "link",
              "aria-label": `Go back to here: ${what}`,
              title: `Undo the ${later === 1 ? "change" : counted(later, "change")} after this one`,
              onclick: () => undoLast(later),
            },
            "Go back to here",
          ),
      );
    }),
  );
}
