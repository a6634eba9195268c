/** What the page tells beside its views: sentences for screen readers, notices that go away, banners that stay. */

import { line } from "./api.js";
import { h, replace } from "./dom.js";
import { icon } from "./icons.js";
import { retryNow } from "./live.js";
import { prose } from "./parts.js";
import { setToken, token } from "./session.js";
import { sentence } from "./words.js";

const SHOWN = 10_000; // milliseconds for which a notice stays, unless the pointer or the focus is on it

let shownAt = 0;

/** Let screen readers say a sentence. */
export function speak(text) {
  const spoken = document.getElementById("spoken");
  spoken.textContent = ""; // the same sentence twice is said twice
  setTimeout(() => (spoken.textContent = text), 50);
}

/**
 * Show a notice, with one action if it has one.
 *
 * @param {string} text
 * @param {{action?: string, onAction?: () => void, kind?: "done" | "error"}} options
 */
export function notify(text, { action, onAction, kind = "done" } = {}) {
  const toasts = document.getElementById("toasts");
  const close = () => toast.remove();
  const toast = h(
    "div",
    { class: `toast ${kind}` },
    h("p", {}, prose(text)),
    action && h("button", { class: "link", type: "button", onclick: () => (close(), onAction()) }, action),
    h("button", { class: "bare", type: "button", "aria-label": "Close the notice", onclick: close }, icon("close")),
  );
  replace(toasts, toast);
  shownAt = Date.now();
  speak(sentence(text));
  const later = () => (toast.matches(":hover, :focus-within") ? setTimeout(later, 2000) : close());
  setTimeout(later, SHOWN);
}

/** Take the notice away when another view opens, unless it came with that. */
export function leaveNotices() {
  if (Date.now() - shownAt > 1000) replace(document.getElementById("toasts"));
}

/** Show a failure as a notice. */
export const notifyError = (error) => error.name === "AbortError" || notify(error.message, { kind: "error" });

/** Show banners while the server cannot be reached, or does not accept the token. */
export function showBanners() {
  const place = document.getElementById("banners");
  const lost = lostBanner();
  let refused = null;
  line.addEventListener("unreachable", () => {
    if (!lost.isConnected) place.append(lost);
  });
  line.addEventListener("reached", () => {
    if (!lost.isConnected) return;
    lost.remove();
    speak("The server is back.");
  });
  line.addEventListener("refused", () => {
    if (!refused?.isConnected) place.append((refused = refusedBanner()));
  });
}

function lostBanner() {
  return h(
    "div",
    { class: "banner lost", role: "alert" },
    h("p", {}, h("strong", {}, "The server cannot be reached. "), "Nothing you entered is lost. Trying again\u2026"),
    h("button", { type: "button", class: "small", onclick: retryNow }, "Try now"),
  );
}

function refusedBanner() {
  const link = h("input", {
    type: "text",
    id: "new-link",
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "http://\u2026?token=\u2026",
  });
  const what = token() ? "This link has expired" : "Changes need the printed link";
  const form = h(
    "form",
    {
      class: "row",
      onsubmit: (event) => {
        event.preventDefault();
        if (!link.value.trim()) return link.focus();
        setToken(link.value);
        link.value = "";
        banner.remove();
        speak("The link was taken. Try again.");
        document.getElementById("main").focus();
        retryNow();
      },
    },
    h("label", { for: "new-link" }, "Printed link"),
    link,
    h("button", { type: "submit", class: "small" }, "Use it"),
  );
  const banner = h(
    "div",
    { class: "banner refused", role: "alert" },
    h(
      "p",
      {},
      h("strong", {}, `${what}. `),
      "Open the link again that ",
      h("code", {}, "protograph serve"),
      " printed, or paste it here: then nothing you entered is lost.",
    ),
    form,
    h(
      "button",
      { class: "bare", type: "button", "aria-label": "Close the notice", onclick: () => banner.remove() },
      icon("close"),
    ),
  );
  return banner;
}
