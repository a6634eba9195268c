/** Dialogs: the browser's own, which keep the focus inside, close by Escape, and give the focus back. */

import { h, replace, uniqueId } from "./dom.js";
import { prose } from "./parts.js";

/**
 * Ask for something, and do it; the dialog stays open, with the reason, while that fails.
 *
 * @param {{title: string, body: Node[], action: string, onAction: (signal: AbortSignal) => Promise<void>, danger?: boolean}} options
 */
export function ask({ title, body, action, onAction, danger = false }) {
  const id = uniqueId("dialog");
  const stop = new AbortController();
  let pressed = null;
  const problem = h("p", { class: "problem", role: "alert", hidden: true });
  const submit = h("button", { type: "submit", class: danger ? "danger" : "primary" }, action);
  const form = h(
    "form",
    {
      onsubmit: async (event) => {
        event.preventDefault();
        submit.disabled = true;
        problem.hidden = true;
        try {
          await onAction(stop.signal);
          dialog.close();
        } catch (error) {
          if (error.name === "AbortError") return;
          replace(problem, prose(error.message));
          problem.hidden = false;
        } finally {
          submit.disabled = false;
        }
      },
    },
    h("h2", { id }, title),
    body,
    problem,
    h(
      "div",
      { class: "dialog-buttons" },
      h("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Cancel"),
      submit,
    ),
  );
  const dialog = h(
    "dialog",
    {
      "aria-labelledby": id,
      onclose: () => {
        stop.abort();
        dialog.remove();
      },
      // A press and release on the backdrop closes it, not a selection of text that ends there. The form covers the rest.
      onpointerdown: (event) => (pressed = event.target),
      onclick: (event) => event.target === dialog && pressed === dialog && dialog.close(),
    },
    form,
  );
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}
