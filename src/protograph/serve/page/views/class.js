/** One class: its examples, its name, and what it is like. */

import { get } from "../api.js";
import { tellChange } from "../changes.js";
import { classNames, typedName } from "../classnames.js";
import { ask } from "../dialogs.js";
import { focus, h, replace, uniqueId } from "../dom.js";
import { icon } from "../icons.js";
import { prepared } from "../images.js";
import { notifyError, speak } from "../notices.js";
import { failure, loadInto, progress, uploading } from "../parts.js";
import { picker, tray } from "../picker.js";
import { relationsEditor } from "../relations.js";
import { changeBy, changeByUpload, store } from "../store.js";
import { blank, thumbnail } from "../thumbnails.js";
import { counted, isolated } from "../words.js";

export function createClass() {
  let name = "";
  const title = h("h1", {}, "Class");
  const content = h("div");
  const buttons = h(
    "div",
    { class: "row" },
    h("button", { type: "button", class: "quiet", onclick: () => rename() }, icon("edit"), "Rename\u2026"),
    h("button", { type: "button", class: "quiet", onclick: () => remove() }, icon("remove"), "Remove"),
  );
  const element = h(
    "section",
    { class: "view" },
    h("p", { class: "back" }, h("a", { href: "#/classes" }, icon("back"), "Classes")),
    h("div", { class: "title-row" }, title, buttons),
    content,
  );
  const examples = h("div");
  const examplesTitle = h("h2", {}, "Examples");
  const adding = addForm(() => name);
  const relations = h("div");
  const relationsTitle = h("h2", {}, "What it is like");
  let editing = null; // the form in which it is told how the class relates
  const body = [
    h("section", { class: "card" }, examplesTitle, examples),
    h("section", { class: "card" }, h("h2", {}, "Add examples"), adding.element),
    h("section", { class: "card" }, relationsTitle, relations),
  ];

  const load = () =>
    loadInto(content, "Loading the class\u2026", async () => {
      const asked = name;
      const known = (await classNames()).includes(asked);
      buttons.hidden = !known;
      if (!known) return h("p", {}, isolated(`There is no class '${asked}' any more: it was removed or renamed.`));
      const found = await get("/api/classes/examples", { class: asked });
      replace(
        examples,
        exampleGrid(asked, found.examples, () => focus(examplesTitle, { preventScroll: true })),
      );
      if (!editing?.begun()) loadInto(relations, "Looking for related classes\u2026", () => showRelations(asked));
      return body;
    });

  async function showRelations(asked) {
    editing = await relationsForm(asked, () => focus(relationsTitle, { preventScroll: true }));
    return editing.content;
  }

  function rename() {
    const id = uniqueId("new-name");
    const field = h("input", { type: "text", id, required: true, value: name, autocomplete: "off", maxlength: 200 });
    ask({
      title: `Rename '${name}'`,
      body: [h("label", { for: id }, "New name"), field],
      action: "Rename",
      onAction: async () => {
        const next = typedName(field);
        if (next === name) return;
        tellChange(await changeBy("/api/classes/rename", { class: name, name: next }));
        location.replace(`#/class?${new URLSearchParams({ name: next })}`);
      },
    });
    field.select();
  }

  async function remove() {
    try {
      tellChange(await changeBy("/api/classes/remove", { class: name }));
      location.hash = "#/classes";
    } catch (error) {
      notifyError(error);
    }
  }

  return {
    element,
    show(query) {
      if (query.get("name") !== name) {
        name = query.get("name") ?? "";
        editing = null;
        adding.clear();
        replace(content);
      }
      title.textContent = name;
      load();
    },
    refresh: load,
  };
}

/** Return the examples of a class, with the way to remove some of them; `onRemoved` is called after that. */
function exampleGrid(name, examples, onRemoved) {
  if (!examples.length) return h("p", { class: "hint" }, "Its examples are not kept, or it has none.");
  const ticks = examples.map(({ index }) =>
    h("input", { type: "checkbox", value: index, "aria-label": `Example ${index + 1}`, onchange: () => show() }),
  );
  const remove = h("button", {
    type: "button",
    class: "danger",
    onclick: async () => {
      remove.disabled = true;
      try {
        const indices = ticks.filter((tick) => tick.checked).map((tick) => Number(tick.value));
        tellChange(await changeBy("/api/classes/examples/remove", { class: name, indices }));
        onRemoved();
      } catch (error) {
        notifyError(error);
        remove.disabled = false;
      }
    },
  });
  const show = () => {
    const count = ticks.filter((tick) => tick.checked).length;
    remove.hidden = !count;
    remove.textContent = `Remove ${counted(count, "example")}`;
    if (count) speak(`${counted(count, "example")} ticked`);
  };
  show();
  return [
    h("p", { class: "hint" }, `${counted(examples.length, "example")}. Tick those that do not belong here.`),
    h(
      "ul",
      { class: "thumbs tickable" },
      examples.map(({ index, thumbnail: kept }, place) =>
        h("li", {}, h("label", {}, kept ? thumbnail(name, index) : blank(`${index + 1}`), ticks[place])),
      ),
    ),
    h("p", {}, remove),
  ];
}

/** Return the form that adds examples to the class that `nameOf` returns. */
function addForm(nameOf) {
  const problem = h("div");
  const sending = progress();
  const submit = h("button", { type: "button", class: "primary", hidden: true, onclick: () => send() });
  const chosen = tray((files) => {
    submit.hidden = !files.length;
    submit.textContent = `Add ${counted(files.length, "image")}`;
  });
  const images = picker({ multiple: true, onImages: (files) => chosen.add(files) });

  async function send() {
    const files = chosen.files();
    replace(problem);
    const { limits } = store.model ?? {};
    if (limits && files.length > limits.files)
      return replace(
        problem,
        h(
          "p",
          { class: "problem", role: "alert" },
          `At most ${counted(limits.files, "image")} can be sent at once: leave some out.`,
        ),
      );
    submit.disabled = true;
    try {
      const ready = await Promise.all(files.map(prepared));
      const fields = [["class", nameOf()], ...ready.map((image) => ["images", image])];
      const change = await changeByUpload("/api/classes/examples", fields, {
        onProgress: uploading(sending, counted(files.length, "image")),
      });
      chosen.clear();
      tellChange(change);
    } catch (error) {
      replace(problem, failure(error));
    } finally {
      submit.disabled = false;
      sending.end();
    }
  }

  const clear = () => {
    chosen.clear();
    replace(problem);
  };
  return { element: h("div", {}, images.element, chosen.element, problem, sending.element, submit), clear };
}

/**
 * Return the form that tells how a class relates; `begun()` says whether someone has changed anything in it that is not
 * saved, and `onSaved` is called once it is.
 */
async function relationsForm(name, onSaved) {
  const found = await get("/api/classes/relations", { class: name });
  let begun = false;
  const problem = h("div");
  const save = h("button", { type: "button", disabled: true, onclick: () => send() }, "Save");
  const editor = relationsEditor(() => {
    begun = true;
    save.disabled = false;
  });
  editor.show(found);

  async function send() {
    replace(problem);
    save.disabled = true;
    begun = false; // what comes back is what was saved
    try {
      tellChange(await changeBy("/api/classes/relations", { class: name, similarities: editor.values() }));
      onSaved();
    } catch (error) {
      replace(problem, failure(error));
      begun = true;
      save.disabled = false;
    }
  }

  const none = !found.relations.length && !found.suggestions.length;
  const content = [
    h(
      "p",
      { class: "hint" },
      none
        ? "No class is suggested. Name one that it resembles, if there is any."
        : "Tick what it resembles, and say how much. That places a class without images. With images it counts only where trials on known classes show that it helps.",
    ),
    editor.element,
    problem,
    h("p", {}, save),
  ];
  return { content, begun: () => begun };
}
