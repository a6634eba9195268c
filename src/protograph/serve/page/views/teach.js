/** Teach: a new class by its name and a few images, and what that changed. */

import { get } from "../api.js";
import { undoChange } from "../changes.js";
import { classNames, nameField, typedName } from "../classnames.js";
import { focus, h, replace } from "../dom.js";
import { prepared } from "../images.js";
import { failure, progress, prose, uploading } from "../parts.js";
import { picker, tray } from "../picker.js";
import { relationsEditor } from "../relations.js";
import { changeByUpload, store } from "../store.js";
import { counted, isolated, percent, sentence } from "../words.js";

const PAUSE = 400; // milliseconds after the last letter of the name, before relations are suggested

export function createTeach() {
  let stop = new AbortController();
  let asked = 0;
  let suggestedFor = null;
  let told = null; // the change that the page tells of

  const problem = h("div");
  const lead = h("p", { class: "lead" });
  const name = nameField({ id: "teach-name", required: true, oninput: () => nameChanged(), "aria-describedby": "teach-known" });
  const known = h("p", { class: "hint", id: "teach-known", role: "status" });
  const chosen = tray(() => {
    replace(problem);
    showButton();
  });
  const images = picker({
    multiple: true,
    onImages: (files) => chosen.add(files),
    hint: "Three to five images that differ are a good start.",
  });
  const relations = relationsEditor();
  const relationsNote = h("p", { class: "hint" });
  const related = h(
    "details",
    { class: "card related", ontoggle: () => suggest() },
    h("summary", {}, "What is it like? ", h("span", { class: "hint" }, "optional")),
    relationsNote,
    relations.element,
  );
  const sending = progress();
  const submit = h("button", { type: "submit", class: "primary" }, "Teach it");
  const cancel = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => stop.abort() }, "Stop");
  const given = h(
    "fieldset",
    { class: "given" },
    h("div", { class: "field" }, h("label", { for: "teach-name" }, "Name of the class"), name, known),
    h("fieldset", {}, h("legend", {}, "Images of it"), images.element, chosen.element),
    related,
  );
  const form = h(
    "form",
    { onsubmit: (event) => (event.preventDefault(), teach()) },
    given,
    problem,
    sending.element,
    h("div", { class: "row" }, submit, cancel),
  );
  const result = h("div");
  const element = h("section", { class: "view narrow" }, h("h1", {}, "Teach a class"), lead, result, form);

  function nameChanged() {
    showButton();
    const turn = ++asked;
    setTimeout(() => turn === asked && (tellKnown(), suggest()), PAUSE);
  }

  async function tellKnown() {
    const names = await classNames().catch(() => []);
    const text = typedName(name);
    const similar = names.find((other) => other !== text && other.toLowerCase() === text.toLowerCase());
    known.textContent = isolated(
      names.includes(text)
        ? `'${text}' is known already: it gets these images as further examples.`
        : similar
          ? `'${similar}' is known already. '${text}' would be another class.`
          : "",
    );
    related.hidden = names.includes(text) || !store.model?.classes;
  }

  async function suggest() {
    const text = typedName(name);
    if (!related.open || !text || text === suggestedFor) {
      if (related.open && !text) relationsNote.textContent = "Type the name first: then classes are suggested.";
      return;
    }
    suggestedFor = text;
    try {
      const found = await get("/api/classes/relations", { class: text });
      if (suggestedFor !== text) return;
      relations.show({ suggestions: found.suggestions });
      relationsNote.textContent = found.suggestions.length
        ? "Tick what it resembles, and say how much. That places a class without images. With images it counts only where trials on known classes show that it helps."
        : "No class is suggested. Name one yourself, if it resembles any.";
    } catch (error) {
      suggestedFor = null;
      relationsNote.textContent = error.message;
    }
  }

  function showButton() {
    const count = chosen.files().length;
    const text = typedName(name);
    submit.textContent = text && count ? isolated(`Teach '${text}' from ${counted(count, "image")}`) : "Teach it";
  }

  async function teach() {
    const text = typedName(name);
    const files = chosen.files();
    const alike = related.open && !related.hidden ? relations.values() : {};
    replace(problem);
    if (!files.length && !Object.keys(alike).length)
      return refuse("Choose at least one image of it.", images.element.querySelector("button:not(.camera)"));
    const { limits } = store.model ?? {};
    if (limits && files.length > limits.files)
      return refuse(`At most ${counted(limits.files, "image")} can be sent at once: leave some out.`, submit);
    stop = new AbortController();
    given.disabled = submit.disabled = true;
    cancel.hidden = false;
    const what = counted(files.length, "image");
    try {
      sending.to(0, `Sending ${what}`);
      const exists = (await classNames()).includes(text);
      const ready = await Promise.all(files.map(prepared));
      const fields = [[exists ? "class" : "name", text], ...ready.map((image) => ["images", image])];
      if (!exists && Object.keys(alike).length) fields.push(["relations", JSON.stringify(alike)]);
      const path = exists ? "/api/classes/examples" : "/api/classes";
      const onProgress = (share) => {
        cancel.hidden = share === 1; // then it learns, which can be undone
        uploading(sending, what)(share);
      };
      const change = await changeByUpload(path, fields, { signal: stop.signal, onProgress });
      done(change, text);
    } catch (error) {
      if (error.name !== "AbortError") {
        replace(problem, failure(error));
        problem.scrollIntoView({ block: "nearest" });
      }
    } finally {
      given.disabled = submit.disabled = false;
      cancel.hidden = true;
      sending.end();
      if (document.activeElement === document.body) submit.focus({ preventScroll: true });
    }
  }

  function refuse(words, place) {
    replace(problem, h("p", { class: "problem", role: "alert" }, words));
    place.focus();
  }

  function done(change, text) {
    form.reset();
    chosen.clear();
    relations.clear();
    related.open = false;
    suggestedFor = null;
    known.textContent = "";
    showButton();
    told = change;
    const title = h("h2", {}, sentence(change.what));
    replace(
      result,
      h(
        "section",
        { class: "card done" },
        title,
        h("p", {}, `It knows ${counted(store.model.classes, "class")} now.`, heldOut(change)),
        (change.notes ?? []).map((note) => h("p", { class: "hint" }, prose(note))),
        h(
          "div",
          { class: "row" },
          store.model.classes > 1 && h("a", { class: "button primary", href: "#/ask" }, "Ask about an image"),
          h("a", { class: "button quiet", href: `#/class?${new URLSearchParams({ name: text })}` }, `Show '${text}'`),
          h(
            "button",
            { type: "button", class: "quiet", onclick: () => (replace(result), undoChange(change), name.focus()) },
            "Undo",
          ),
        ),
      ),
    );
    focus(title);
    title.scrollIntoView({ block: "nearest" });
  }

  function showLead() {
    const count = store.model?.classes;
    const words = {
      0: "First class: give it a name and a few images. A second one follows.",
      1: "Second class: something else that it is to tell from the first.",
    };
    lead.textContent = words[count] ?? "A name and a few images: it learns the class at once.";
    related.hidden = !count;
  }

  store.addEventListener("model", showLead);
  showLead();
  const tellNoMore = () => told?.version !== store.model?.version && replace(result);
  return {
    element,
    refresh: tellNoMore,
    show(query) {
      tellNoMore();
      if (query.has("name")) {
        name.value = query.get("name");
        nameChanged();
      }
    },
  };
}

/** Say how the answers about left-out examples changed, where that is known. */
export function heldOut({ held_out: shares }) {
  if (!shares || typeof shares.after !== "number") return null;
  const now = ` Of all examples, each asked as if it had not been one, ${percent(shares.after)} are right`;
  return typeof shares.before === "number" ? `${now}; before, it was ${percent(shares.before)}.` : `${now}.`;
}
