/** Ask: one image, what it is and why, and the way to say that it is something else. */

import { upload } from "../api.js";
import { tellChange } from "../changes.js";
import { classNames, nameField, typedName } from "../classnames.js";
import { ask as askFor } from "../dialogs.js";
import { h, replace, uniqueId } from "../dom.js";
import { drawImage, strongestPart } from "../heatmap.js";
import { imagesAmong, prepared } from "../images.js";
import { notifyError, speak } from "../notices.js";
import { bar, failure, probabilities, progress } from "../parts.js";
import { picker } from "../picker.js";
import { changeByUpload, store } from "../store.js";
import { counted, isolated, percent, signed, sourceName } from "../words.js";
import { startPanel } from "./start.js";

const TOP = 5;
const REASONS = 4; // related classes that are named
const OTHERS = ""; // the heat map against the mean of all other classes

export function createAsk() {
  let file = null;
  let bitmap = null;
  let answer = null;
  let taught = null; // the class of which this image was made an example
  let stop = new AbortController();

  const start = h("div");
  const lead = h("p", { class: "lead" });
  const images = picker({ roomy: true, onImages: ([image]) => open(image) });
  const sending = progress();
  const canvas = h("canvas", { class: "photo", role: "img", "aria-label": "The image" });
  const overlay = h("input", { type: "checkbox", id: "show-heatmap", checked: true, onchange: () => draw() });
  const subject = h("select", { "aria-label": "Heat map for", onchange: () => askAgain() });
  const rival = h("select", { "aria-label": "Heat map against", onchange: () => askAgain() });
  const legend = h("p", { class: "hint legend" });
  const heatmap = h(
    "div",
    { class: "heatmap-options card" },
    h("div", { class: "selects" }, h("label", {}, "Heat map for", subject), h("label", {}, "against", rival)),
    legend,
  );
  const toggle = h("label", { for: "show-heatmap", class: "tick" }, overlay, "Show where it looked");
  const note = h("p", { class: "hint", hidden: true });
  const unseen = h("p", { class: "hint", hidden: true });
  const result = h("section", { class: "answer", "aria-label": "Answer" });
  const grid = h(
    "div",
    { class: "ask-grid", hidden: true },
    h("figure", { class: "card" }, canvas, toggle, unseen, note),
    result,
    heatmap,
  );
  const asking = h("div", {}, lead, images.element, sending.element, grid);
  const element = h("section", { class: "view" }, h("h1", {}, "What is it?"), start, asking);

  async function open(image) {
    stop.abort();
    file = image;
    answer = taught = null;
    replace(result);
    const drawable = await createImageBitmap(image).catch(() => null);
    if (file !== image) return drawable?.close(); // another one was opened meanwhile
    bitmap?.close();
    bitmap = drawable;
    grid.hidden = false;
    images.element.classList.add("compact");
    lead.hidden = true;
    heatmap.hidden = toggle.hidden = true;
    draw();
    await askAgain(true);
  }

  /** Ask the server about the image that is open: with the heat map that was chosen, or afresh with that of the answer. */
  async function askAgain(afresh = false) {
    if (!file) return;
    stop.abort();
    stop = new AbortController();
    const { signal } = stop;
    result.setAttribute("aria-busy", "true");
    const fields = [
      ["image", await prepared(file)],
      ["top", String(TOP)],
    ];
    if (!afresh && answer?.heatmap) {
      fields.push(["class", subject.value]);
      if (rival.value !== OTHERS) fields.push(["against", rival.value]);
    }
    try {
      const shown = setTimeout(() => sending.to(null, "Looking at it\u2026"), 300);
      answer = await upload("/api/explain", fields, { signal }).finally(() => (clearTimeout(shown), sending.end()));
      showAnswer();
      speak(spoken());
    } catch (error) {
      if (error.name !== "AbortError")
        replace(
          result,
          failure(error, () => askAgain(true)),
        );
    } finally {
      if (signal === stop.signal) result.removeAttribute("aria-busy");
    }
  }

  const best = () => answer.nearest[0];

  function spoken() {
    if (answer.unknown) return `Unknown. The nearest class is ${best().class}.`;
    return `${best().class}, ${percent(best().probability)}`;
  }

  function showAnswer() {
    showOptions();
    draw();
    replace(
      result,
      h("p", { class: "verdict" }, answer.unknown ? "Unknown" : best().class),
      h("p", { class: "hint" }, explanation()),
      probabilities(answer.nearest, "Most probable classes"),
      feedback(),
      reasons(),
    );
  }

  function explanation() {
    if (store.model.classes === 1) return `Every image is taken for '${best().class}', the only class: teach a second one.`;
    if (answer.unknown) return "It is like none of the classes. If it were one of them, these would be the most probable:";
    if (store.model.unknown === null)
      return `It answers one of its ${store.model.classes} classes, whatever an image shows. The most probable ones:`;
    return `Of the ${store.model.classes} classes, these are the most probable:`;
  }

  function feedback() {
    if (taught !== null) return h("p", { class: "notice done" }, `This image is now an example of '${taught}'.`);
    const right = h("button", { type: "button", onclick: () => teach(String(best().class), right) }, "That is right");
    right.title = `Keep the image as one more example of '${best().class}'`;
    return h(
      "div",
      { class: "feedback" },
      !answer.unknown && right,
      h(
        "button",
        { type: "button", class: answer.unknown ? "" : "quiet", onclick: correct },
        answer.unknown ? "Tell what it is\u2026" : "It is something else\u2026",
      ),
      h("p", { class: "hint" }, "Either way it learns from this image at once. You can undo it."),
    );
  }

  /** Make the image an example of a class, which may be a new one. */
  async function learn(name, signal) {
    const asked = file;
    const known = (await classNames()).includes(name);
    const [path, field] = known ? ["/api/classes/examples", "class"] : ["/api/classes", "name"];
    const fields = [
      [field, name],
      ["images", await prepared(asked)],
    ];
    tellChange(await changeByUpload(path, fields, { signal }));
    if (asked !== file) return; // another one was opened meanwhile
    taught = name;
    if (answer) showAnswer();
  }

  async function teach(name, button) {
    button.disabled = true;
    await learn(name).catch(notifyError);
    button.disabled = false;
  }

  function correct() {
    const id = uniqueId("right-class");
    const hint = h("p", { class: "hint", role: "status" });
    const field = nameField({ id, required: true, oninput: () => tellKind() });
    const tellKind = async () => {
      const names = await classNames().catch(() => []);
      const name = typedName(field);
      const similar = names.find((other) => other.toLowerCase() === name.toLowerCase());
      if (!name) hint.textContent = "";
      else if (names.includes(name)) hint.textContent = isolated(`'${name}' gets this image as one more example.`);
      else if (similar) replace(hint, `'${name}' would be another class. Did you mean `, chip(similar), "?");
      else hint.textContent = isolated(`'${name}' is a new class: this image is its first example.`);
    };
    const choose = (name) => {
      field.value = name;
      tellKind();
      field.focus();
    };
    const chip = (name) => h("button", { type: "button", class: "chip", onclick: () => choose(name) }, name);
    const others = answer.nearest.slice(answer.unknown ? 0 : 1).map((row) => chip(row.class));
    askFor({
      title: "What is it?",
      body: [
        h("label", { for: id }, "Class, known or new"),
        field,
        others.length ? h("div", { class: "chips", role: "group", "aria-label": "Suggestions" }, others) : null,
        hint,
      ],
      action: "Learn it",
      onAction: (signal) => learn(typedName(field), signal),
    });
    field.focus();
  }

  /** Name what spoke for the class of the heat map: its own examples, and classes that it is related to. */
  function reasons() {
    const name = subject.value || String(best().class);
    const row = answer.nearest.find((other) => String(other.class) === name) ?? best();
    const related = (row.related ?? []).slice(0, REASONS);
    if (!related.length) return null;
    const parts = [
      { name: "its own examples", value: row.own },
      ...related.map((part) => ({ name: part.class, source: part.relation, value: part.value })),
    ];
    const longest = Math.max(...parts.map(({ value }) => Math.abs(value)), 1e-9);
    return h(
      "section",
      { class: "reasons" },
      h("h2", {}, `What speaks for '${row.class}'`),
      h(
        "ul",
        { class: "bars" },
        parts.map((part) =>
          h(
            "li",
            {},
            h(
              "span",
              { class: "bar-name" },
              part.name,
              " ",
              part.source && h("span", { class: "source" }, sourceName(part.source)),
            ),
            h("span", { class: "bar-number" }, signed(part.value)),
            bar(Math.abs(part.value) / longest, part.value < 0 ? "against" : "for"),
          ),
        ),
      ),
      h("p", { class: "hint" }, "Parts of its logit, the score behind the probability."),
    );
  }

  function showOptions() {
    const names = answer.nearest.map((row) => String(row.class));
    const map = answer.heatmap;
    heatmap.hidden = toggle.hidden = !map;
    note.textContent = answer.heatmap_note ?? "";
    note.hidden = !note.textContent;
    if (!map) return;
    const option = (value, text = value) => h("option", { value }, text);
    replace(
      subject,
      [...new Set([String(map.class), ...names])].map((name) => option(name)),
    );
    subject.value = String(map.class);
    const rivals = [...new Set([...(map.against ? [String(map.against)] : []), ...names])].filter(
      (name) => name !== subject.value,
    );
    replace(
      rival,
      option(OTHERS, "all others"),
      rivals.map((name) => option(name)),
    );
    rival.value = map.against === null ? OTHERS : String(map.against);
    replace(
      legend,
      h("span", { class: "swatch for" }),
      ` speaks for '${map.class}', `,
      h("span", { class: "swatch against" }),
      ` against it. Most speaks for it: ${strongestPart(map)}.${narrowed(map.crop) ? " What has faded was not looked at." : ""}`,
    );
  }

  const narrowed = ([left, top, right, bottom]) => left > 0.005 || top > 0.005 || right < 0.995 || bottom < 0.995;

  function draw() {
    canvas.hidden = !bitmap;
    unseen.hidden = Boolean(bitmap) || !file;
    unseen.textContent = file ? `${file.name} (this browser cannot show it)` : "";
    if (!bitmap) return;
    const map = overlay.checked ? answer?.heatmap : null;
    drawImage(canvas, bitmap, map);
    canvas.setAttribute(
      "aria-label",
      map
        ? `${file.name}, with the heat map for '${map.class}': most speaks for it in the part: ${strongestPart(map)}`
        : file.name,
    );
  }

  function showStart() {
    const count = store.model?.classes ?? null;
    start.hidden = count === null || count > 1;
    asking.hidden = count === 0 || count === null;
    lead.hidden = !(count > 1) || file !== null;
    lead.textContent = count > 1 ? `Show it an image: it says which of its ${counted(count, "class")} that is.` : "";
    replace(start, count !== null && count < 2 && startPanel(count));
  }

  addEventListener("paste", (event) => {
    if (element.hidden || asking.hidden || document.querySelector("dialog[open]")) return;
    images.take(imagesAmong(event.clipboardData.files).images);
  });
  store.addEventListener("model", showStart);
  showStart();
  return {
    element,
    refresh() {
      taught = null;
      if (answer) askAgain(true); // the class that the heat map was drawn for may be gone
    },
  };
}
