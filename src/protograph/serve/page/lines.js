/** A line that was drawn between two classes: how alike they are, asked in a dialog and told to the server. */

import { get } from "./api.js";
import { tellChange } from "./changes.js";
import { ask } from "./dialogs.js";
import { h, uniqueId } from "./dom.js";
import { notifyError } from "./notices.js";
import { changeBy } from "./store.js";
import { percent, sourceName } from "./words.js";

const USUAL = 0.5; // how alike two classes are at first, unless a source says otherwise

/** Ask how alike two classes are, and tell the first one so; what it is like besides stays. */
export async function askHowAlike(first, second) {
  let told;
  try {
    told = await get("/api/classes/relations", { class: first });
  } catch (error) {
    return notifyError(error);
  }
  const toSecond = (row) => String(row.class) === second;
  const known = told.relations.find(toSecond);
  const suggested = told.suggestions.find((row) => toSecond(row) && row.source !== "prototypes");
  const slider = h("input", {
    type: "range",
    id: uniqueId("alike"),
    min: 0,
    max: 1,
    step: 0.01,
    value: within((known ?? suggested)?.similarity ?? USUAL),
  });
  const shown = h("output", { for: slider.id });
  const show = () => {
    const value = Number(slider.value);
    shown.textContent = value ? percent(value) : "not alike";
    slider.setAttribute("aria-valuetext", shown.textContent);
  };
  slider.addEventListener("input", show);
  show();
  const source = known?.relation ?? suggested?.source;
  ask({
    title: `How alike are '${first}' and '${second}'?`,
    body: [
      h("label", { for: slider.id, class: "unseen" }, "How alike"),
      h("div", { class: "alike" }, slider, shown),
      h(
        "p",
        { class: "hint" },
        source && `Now ${shown.textContent} ${sourceName(source)}. `,
        "At the left end, the line goes away.",
      ),
    ],
    action: "Save",
    onAction: async () => {
      const similarities = Object.fromEntries(told.relations.map((row) => [row.class, within(row.similarity)]));
      delete similarities[second];
      if (Number(slider.value)) similarities[second] = Number(slider.value);
      tellChange(await changeBy("/api/classes/relations", { class: first, similarities }));
    },
  });
  slider.focus();
}

const within = (similarity) => Math.min(1, Math.max(0, similarity));
