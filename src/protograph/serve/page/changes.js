/** Undo, redo, and what the page says after each change. */

import { h, replace } from "./dom.js";
import { icon } from "./icons.js";
import { notify, notifyError } from "./notices.js";
import { changeBy, store } from "./store.js";
import { counted } from "./words.js";

/** Undo the last change. */
export const undo = () => step("undo");

/** Make the last undone change again. */
export const redo = () => step("redo");

/** Undo the last changes, one after the other. */
export async function undoLast(count) {
  try {
    for (let left = count; left > 0; left--) await changeBy("/api/history/undo", {});
    notify(`undone: the last ${count === 1 ? "change" : counted(count, "change")}`, { action: "Redo", onAction: redo });
  } catch (error) {
    notifyError(error);
  }
}

async function step(verb) {
  if (!store.model?.history[verb]) return notify(`There is nothing to ${verb}`);
  try {
    const change = await changeBy(`/api/history/${verb}`, {});
    notify(change.what, verb === "undo" ? { action: "Redo", onAction: redo } : { action: "Undo", onAction: undo });
  } catch (error) {
    notifyError(error);
  }
}

/** Undo a change that this page made, unless others followed it. */
export async function undoChange(change) {
  if (store.model?.version === change.version) return undo();
  notify("Other changes followed: the history leads back behind them", {
    action: "History",
    onAction: () => (location.hash = "#/history"),
  });
}

/** Tell what was changed, with a button that undoes it. */
export function tellChange(change) {
  notify(change.what, { action: "Undo", onAction: () => undoChange(change) });
}

/** Fill the header's buttons, and take Ctrl+Z and Ctrl+Shift+Z (or Ctrl+Y) outside of text fields. */
export function showButtons(place) {
  const buttons = {
    undo: h("button", { type: "button", class: "bare", onclick: undo }, icon("undo")),
    redo: h("button", { type: "button", class: "bare", onclick: redo }, icon("redo")),
  };
  replace(
    place,
    buttons.undo,
    buttons.redo,
    h("a", { class: "bare button", href: "#/history", "aria-label": "History", title: "History" }, icon("history")),
  );
  const show = () => {
    for (const [verb, button] of Object.entries(buttons)) {
      const what = store.model?.history[verb];
      const label = verb === "undo" ? "Undo" : "Redo";
      button.disabled = !what;
      button.setAttribute("aria-label", what ? `${label}: ${what}` : label);
      button.title = what ? `${label}: ${what}` : `There is nothing to ${verb}`;
    }
  };
  store.addEventListener("model", show);
  show();
  addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.altKey || writesInto(event.target) || document.querySelector("dialog[open]"))
      return;
    const key = event.key.toLowerCase();
    if (key === "z" || key === "y") {
      event.preventDefault();
      (key === "y" || event.shiftKey ? redo : undo)();
    }
  });
}

const writesInto = (element) =>
  element.matches("textarea, select, [contenteditable], input:not([type=checkbox], [type=range], [type=file])");
