/** What the page says while there are no two classes to tell apart. */

import { h } from "../dom.js";

const STEPS = [
  "Teach a first class: a name and a few images",
  "Teach a second class",
  "Ask about an image that it has not seen",
];

/** Return the way from no class to the first answer; `count` classes are there. */
export function startPanel(count) {
  const action = count ? "Teach the second class" : "Teach the first class";
  return h(
    "section",
    { class: "card start" },
    h("h2", {}, count ? "One class more, and it can answer" : "It knows nothing yet"),
    h(
      "p",
      {},
      count
        ? "With one class alone, every image is taken for it."
        : "Show it two kinds of things. Three to five images of each are enough to begin.",
    ),
    h(
      "ol",
      { class: "steps" },
      STEPS.map((step, place) =>
        h("li", { class: place < count ? "done" : null }, step, place < count && h("span", { class: "unseen" }, " (done)")),
      ),
    ),
    h("p", {}, h("a", { class: "button primary", href: "#/teach" }, action)),
  );
}
