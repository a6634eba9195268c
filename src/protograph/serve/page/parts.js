/** Parts that several views share: bars, progress, states of loading and failing. */

import { h, replace } from "./dom.js";
import { percent, sentence } from "./words.js";

/** Return a sentence of the server, with what stands between backticks as code. */
export const prose = (text) =>
  sentence(text)
    .split("`")
    .map((part, place) => (place % 2 ? h("code", {}, part) : part));

/** Return a bar as long as a share. Its length is decoration; the number stands beside it. */
export function bar(share, kind = "") {
  const length = h("span", { class: "bar-length" });
  length.style.setProperty("--share", share);
  return h("span", { class: `bar ${kind}`, "aria-hidden": "true" }, length);
}

/** Return a list of classes with their probabilities. */
export function probabilities(nearest, label) {
  return h(
    "ol",
    { class: "bars", "aria-label": label },
    nearest.map(({ class: name, probability }, place) =>
      h(
        "li",
        {},
        h("span", { class: "bar-name" }, name),
        h("span", { class: "bar-number" }, percent(probability)),
        bar(probability, place ? "" : "best"),
      ),
    ),
  );
}

/** Return a display of progress: `to(share, text)` moves it, `end()` hides it. */
export function progress() {
  const meter = h("progress", { max: 1, value: 0, "aria-label": "Progress" });
  const text = h("p", { class: "hint" });
  const element = h("div", { class: "progress", hidden: true }, meter, text);
  const to = (share, words) => {
    element.hidden = false;
    if (share === null) meter.removeAttribute("value");
    else meter.value = share;
    text.textContent = words;
  };
  return { element, to, end: () => (element.hidden = true) };
}

/** Return the callback of an upload's progress that moves a display: it is sent, then the server works. */
export const uploading = (display, what) => (share) =>
  share < 1 ? display.to(share, `Sending ${what}: ${percent(share)}`) : display.to(null, "Sent. Learning\u2026");

/** Show in an element that something is on its way, then what `load` returns, or why it failed, with a button to try again. */
export async function loadInto(element, words, load) {
  const attempt = (element.attempt = Symbol("attempt"));
  if (!element.childElementCount || element.querySelector(":scope > .failure")) {
    replace(element, h("p", { class: "loading", role: "status" }, words));
  }
  try {
    const content = await load();
    if (element.attempt === attempt) replace(element, content);
  } catch (error) {
    if (element.attempt === attempt && error.name !== "AbortError")
      replace(
        element,
        failure(error, () => loadInto(element, words, load)),
      );
  }
}

/** Return a failure in plain words, with a button to try again. */
export function failure(error, again) {
  return h(
    "div",
    { class: "failure", role: "alert" },
    h("p", {}, prose(error.message)),
    again && h("button", { type: "button", class: "small", onclick: again }, "Try again"),
  );
}
