/** Many: a folder of images, their answers in a table, and the table as a file. */

import { Unreachable, upload } from "../api.js";
import { asCsv, download } from "../csv.js";
import { h, replace } from "../dom.js";
import { icon } from "../icons.js";
import { prepared, smallPicture } from "../images.js";
import { speak } from "../notices.js";
import { failure, progress } from "../parts.js";
import { picker } from "../picker.js";
import { store } from "../store.js";
import { sortable } from "../tables.js";
import { counted, percent } from "../words.js";
import { startPanel } from "./start.js";

const AT_ONCE = 8; // images in one request
const TOP = 3;

export function createMany() {
  let rows = []; // {file, result, version}
  let stop = null;

  const start = h("div");
  const images = picker({
    multiple: true,
    folders: true,
    onImages: (files) => add(files),
    hint: "Folders may hold folders.",
  });
  const state = progress();
  const problem = h("div");
  const summary = h("p", { class: "hint", role: "status" });
  const stopButton = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => stop?.abort() }, "Stop");
  const goOn = h("button", { type: "button", hidden: true, onclick: () => run() }, "Go on");
  const save = h("button", { type: "button", hidden: true, onclick: () => saveFile() }, icon("download"), "Download as CSV");
  const anew = h("button", { type: "button", hidden: true, onclick: () => askAnew() }, "Ask all anew");
  const clear = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => empty() }, "Clear");
  const table = sortable({
    caption: "Answers",
    columns: [
      {
        title: "Image",
        value: (row) => nameOf(row.file),
        cell: (row) => h("span", { class: "many-image" }, smallPicture(row.file), nameOf(row.file)),
      },
      { title: "Class", value: (row) => className(row.result), cell: (row) => classCell(row.result) },
      {
        title: "Probability",
        number: true,
        value: (row) => row.result?.nearest?.[0]?.probability,
        cell: (row) => probabilityCell(row.result),
      },
      { title: "Next", value: (row) => row.result?.nearest?.[1]?.class ?? null, cell: (row) => next(row.result) },
    ],
  });
  table.element.hidden = true;
  const body = h(
    "div",
    {},
    images.element,
    state.element,
    problem,
    h("div", { class: "row" }, stopButton, goOn, anew, save, clear),
    summary,
    table.element,
  );
  const element = h("section", { class: "view" }, h("h1", {}, "Many images at once"), start, body);

  const waiting = () => rows.filter((row) => !row.result);

  const fresh = (file) => ({ file, result: null, version: null });

  function add(files) {
    rows = [...rows, ...files.map(fresh)];
    if (!stop) run();
  }

  function askAnew() {
    rows = rows.map(({ file }) => fresh(file));
    run();
  }

  /** Send what waits in parts, until all is answered, someone stops it, or the server is gone. */
  async function run() {
    stop = new AbortController();
    replace(problem);
    show();
    try {
      for (let part = nextPart(); part.length; part = nextPart()) {
        state.to(
          (rows.length - waiting().length) / rows.length,
          `${rows.length - waiting().length} of ${counted(rows.length, "image")}`,
        );
        await send(part, stop.signal);
        show();
      }
    } catch (error) {
      if (error.name !== "AbortError") replace(problem, failure(error, error instanceof Unreachable ? run : null));
    } finally {
      stop = null;
      state.end();
      show();
      if (!waiting().length) speak(`All ${counted(rows.length, "image")} are answered.`);
    }
  }

  function nextPart() {
    const { bytes = Infinity, files = AT_ONCE } = store.model?.limits ?? {};
    const part = [];
    let size = 0;
    for (const row of waiting()) {
      size += row.file.size;
      if (part.length && (part.length >= Math.min(AT_ONCE, files) || size > 0.8 * bytes)) break;
      part.push(row);
    }
    return part;
  }

  async function send(part, signal) {
    const ready = await Promise.all(part.map(({ file }) => prepared(file)));
    const { results, version } = await upload(
      "/api/predict",
      [["top", String(TOP)], ...ready.map((image) => ["images", image])],
      {
        signal,
      },
    );
    part.forEach((row, place) => Object.assign(row, { result: results[place], version }));
  }

  function show() {
    const answered = rows.filter((row) => row.result);
    const errors = answered.filter((row) => row.result.error).length;
    const unknown = answered.filter((row) => row.result.unknown).length;
    const old = answered.filter((row) => row.version !== store.model?.version).length;
    stopButton.hidden = !stop;
    goOn.hidden = Boolean(stop) || !waiting().length;
    goOn.textContent = `Go on with ${counted(waiting().length, "image")}`;
    save.hidden = !answered.length;
    anew.hidden = Boolean(stop) || !old;
    clear.hidden = Boolean(stop) || !rows.length;
    table.element.hidden = !answered.length;
    const parts = [
      `${answered.length} of ${counted(rows.length, "image")} answered`,
      unknown && `${unknown} unknown`,
      errors && `${errors} could not be read`,
      old && `${old === answered.length ? "all" : old} before the classifier changed`,
    ];
    summary.textContent = rows.length ? parts.filter(Boolean).join(", ") : "";
    table.show(answered);
  }

  function empty() {
    rows = [];
    replace(problem);
    show();
  }

  function saveFile() {
    const answered = rows.filter((row) => row.result);
    const heads = ["file", "class", "probability", "likeness", "error"];
    for (let place = 2; place <= TOP; place++) heads.push(`class ${place}`, `probability ${place}`);
    const lines = answered.map(({ file, result }) => [
      nameOf(file),
      result.class ?? "",
      result.nearest?.[0]?.probability ?? "",
      result.likeness ?? "",
      result.error ?? "",
      ...(result.nearest ?? []).slice(1, TOP).flatMap((other) => [other.class, other.probability]),
    ]);
    download(asCsv([heads, ...lines]), "answers.csv");
  }

  function showStart() {
    const count = store.model?.classes;
    start.hidden = count !== 0;
    body.hidden = count === 0;
    replace(start, count === 0 && startPanel(0));
  }

  store.addEventListener("model", showStart);
  showStart();
  return { element, refresh: show };
}

const nameOf = (file) => file.webkitRelativePath || file.name;

const className = (result) => (result?.error ? null : String(result?.class ?? ""));

function classCell(result) {
  if (result.error) return h("span", { class: "tag bad" }, result.error);
  return result.unknown ? h("span", { class: "tag unsure" }, "unknown") : result.class;
}

const probabilityCell = (result) => (result.error ? "" : percent(result.nearest[0].probability));

function next(result) {
  const other = result.nearest?.[result.unknown ? 0 : 1];
  return other ? `${other.class}, ${percent(other.probability)}` : "\u2013";
}
