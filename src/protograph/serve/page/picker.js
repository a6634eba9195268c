/** The place where images come in: a button, a camera, a drop; and a tray of small pictures of what was chosen. */

import { h, replace } from "./dom.js";
import { icon } from "./icons.js";
import { droppedFiles, imagesAmong, preview } from "./images.js";
import { notify, notifyError, speak } from "./notices.js";
import { counted } from "./words.js";

const EDGE = 160; // pixels of a small picture, twice as many as it is shown with

/**
 * Return a place for images.
 *
 * @param {{onImages: (images: File[]) => void, multiple?: boolean, folders?: boolean, roomy?: boolean, hint?: string}} options
 */
export function picker({ onImages, multiple = false, folders = false, roomy = false, hint }) {
  const take = (files) => {
    if (area.closest("fieldset:disabled")) return; // what was chosen before is on its way
    const { images, others } = imagesAmong(files);
    if (others)
      notify(`${counted(others, "file")} ${others === 1 ? "is not an image and was" : "are not images and were"} left out`);
    if (images.length) onImages(multiple ? images : images.slice(0, 1));
  };
  const input = (attributes) =>
    h("input", {
      type: "file",
      accept: "image/*",
      hidden: true,
      ...attributes,
      onchange: (event) => {
        take([...event.target.files]);
        event.target.value = ""; // the same file can be chosen again
      },
    });
  const chosen = input({ multiple });
  const photographed = !folders && input({ capture: "environment" });
  const inside = folders && input({ webkitdirectory: true, multiple: true, accept: null });
  const area = h(
    "div",
    {
      class: roomy ? "picker roomy" : "picker",
      ondragover: (event) => (event.preventDefault(), area.classList.add("over")),
      ondragleave: (event) => area.contains(event.relatedTarget) || area.classList.remove("over"),
      ondrop: async (event) => {
        event.preventDefault();
        area.classList.remove("over");
        await droppedFiles(event.dataTransfer).then(take, notifyError);
      },
    },
    h(
      "div",
      { class: "picker-buttons" },
      photographed &&
        h("button", { type: "button", class: "camera", onclick: () => photographed.click() }, icon("camera"), "Take a photo"),
      h(
        "button",
        { type: "button", class: "choose", onclick: () => chosen.click() },
        icon("image"),
        multiple ? "Choose images" : "Choose an image",
      ),
      inside &&
        h(
          "button",
          { type: "button", class: "quiet folder", onclick: () => inside.click() },
          icon("folder"),
          "Choose a folder",
        ),
    ),
    h(
      "p",
      { class: hint && !folders ? "hint" : "hint by-mouse" },
      h("span", { class: "by-mouse" }, multiple ? "or drop them here. " : "or drop or paste one here. "),
      hint,
    ),
    chosen,
    photographed,
    inside,
  );
  return { element: area, take };
}

/** Return the tray of chosen images, each with a button that takes it out again. */
export function tray(onChange) {
  let files = [];
  const list = h("ul", { class: "thumbs", "aria-label": "Chosen images" });
  const show = () => {
    list.hidden = !files.length;
    onChange(files);
  };
  const add = (more) => {
    for (const file of more) {
      const remove = h(
        "button",
        {
          type: "button",
          class: "bare",
          "aria-label": `Leave out ${file.name}`,
          onclick: () => {
            const next = item.nextElementSibling ?? item.previousElementSibling;
            files = files.filter((other) => other !== file);
            item.remove();
            (next?.querySelector("button") ?? list.parentElement.querySelector("button, input"))?.focus();
            show();
          },
        },
        icon("close"),
      );
      const item = h("li", { title: file.name }, remove);
      preview(file, EDGE).then((canvas) => item.prepend(label(canvas, file.name)));
      list.append(item);
    }
    files = [...files, ...more];
    speak(`${counted(files.length, "image")} chosen`);
    show();
  };
  const clear = () => {
    files = [];
    replace(list);
    show();
  };
  list.hidden = true;
  return { element: list, add, clear, files: () => files };
}

function label(canvas, name) {
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", name);
  return canvas;
}
