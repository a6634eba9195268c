/** Enough?: what the examples say of the classifier, each asked as if it had not been one. */

import { get } from "../api.js";
import { h } from "../dom.js";
import { bar, loadInto, prose } from "../parts.js";
import { refreshModel, store } from "../store.js";
import { sortable } from "../tables.js";
import { thumbnail } from "../thumbnails.js";
import { counted, percent, sentence } from "../words.js";
import { startPanel } from "./start.js";

const ADVICE = 8; // sentences, and classes to add to, that are shown at once
const PICTURES = 24; // images that were answered wrongly
const KINDS = { learned: "good", "needs images": "bad", "too few to tell": "unsure", "not asked": "unsure" };

export function createCheck() {
  const content = h("div");
  const element = h("section", { class: "view" }, h("h1", {}, "Have I taught it enough?"), content);
  const load = () =>
    loadInto(content, "Asking every example as if it had not been one\u2026", async () => {
      const model = store.model ?? (await refreshModel());
      return model.classes > 1 ? shown(await get("/api/check")) : startPanel(model.classes);
    });
  return { element, show: load, refresh: load };
}

function shown(check) {
  return [verdict(check), advice(check), classTable(check), pairs(check), wrongImages(check), notes(check)];
}

function verdict({ verdict: words, accuracy }) {
  const kind = words.startsWith("Yes") ? "good" : words.startsWith("Not yet") ? "bad" : "unsure";
  const [, first, rest] = /^(.*?)[.:]\s(.*)$/s.exec(words) ?? [null, words, ""];
  return h(
    "section",
    { class: `card verdict-card ${kind}`, role: "status" },
    h("h2", {}, sentence(first)),
    rest && h("p", {}, sentence(rest)),
    accuracy !== null &&
      h(
        "p",
        { class: "hint" },
        kind === "good" ? "" : `Right in the mean over classes: ${percent(accuracy)}. `,
        "Each example was asked as if it had not been one.",
      ),
  );
}

function advice({ advice: lines, classes, pairs: confused }) {
  if (!lines.length) return null;
  const needy = worstFirst(classes.filter((row) => row.verdict !== "learned")).map((row) => String(row.class));
  const partners = confused.filter(({ first, second }) => needy.includes(String(first)) || needy.includes(String(second)));
  const names = [...new Set([...needy, ...partners.flatMap(({ first, second }) => [String(first), String(second)])])];
  const list = (shown) =>
    h(
      "ul",
      { class: "sentences" },
      shown.map((text) => h("li", {}, prose(text))),
    );
  const rest = lines.slice(ADVICE);
  return h(
    "section",
    { class: "card" },
    h("h2", {}, "What to add"),
    list(lines.slice(0, ADVICE)),
    rest.length ? h("details", { class: "rest" }, h("summary", {}, `${rest.length} more`), list(rest)) : null,
    h(
      "p",
      { class: "chips" },
      names.slice(0, ADVICE).map((name) => h("a", { class: "chip", href: link(name) }, `Add to '${name}'`)),
    ),
  );
}

function classTable({ classes, covers_fitted: all }) {
  const covered = classes.filter((row) => all || row.added || row.asked);
  const table = sortable({
    caption: "Classes",
    columns: [
      { title: "Class", value: (row) => String(row.class), cell: (row) => h("a", { href: link(row.class) }, row.class) },
      { title: "Examples", value: (row) => row.examples, number: true },
      {
        title: "Right",
        value: (row) => row.accuracy,
        number: true,
        cell: (row) => (row.asked ? [`${row.right} of ${row.asked}`, bar(row.accuracy)] : "\u2013"),
      },
      {
        title: "Taken for",
        value: (row) => row.taken_for[0]?.class ?? null,
        cell: (row) =>
          row.taken_for.length
            ? h(
                "span",
                {},
                row.taken_for
                  .slice(0, 3)
                  .map((other, place) => [place ? ", " : "", h("bdi", {}, other.class), `: ${other.images}`]),
              )
            : "\u2013",
      },
      {
        title: "Verdict",
        value: (row) => row.verdict,
        cell: (row) => h("span", { class: `tag ${KINDS[row.verdict]}` }, row.verdict),
      },
    ],
  });
  table.show(worstFirst(covered));
  return h("section", { class: "card" }, h("h2", {}, "Class by class"), table.element);
}

function pairs({ pairs: confused }) {
  if (!confused.length) return null;
  const row = ({ first, second, times, asked, times_back: back, asked_back: askedBack }) =>
    h(
      "li",
      {},
      h("a", { href: link(first) }, first),
      ` is taken for `,
      h("a", { href: link(second) }, second),
      ` ${times} of ${asked} times`,
      back ? `, and the other way round ${back} of ${askedBack} times.` : ".",
    );
  return h(
    "section",
    { class: "card" },
    h("h2", {}, "What it confuses"),
    h("ul", { class: "sentences" }, confused.slice(0, 10).map(row)),
  );
}

function wrongImages({ images }) {
  const wrong = images.filter((row) => row.answer !== row.class).sort((a, b) => b.probability - a.probability);
  if (!wrong.length || !store.model?.has?.thumbnails) return null;
  return h(
    "section",
    { class: "card" },
    h("h2", {}, "Examples that it got wrong"),
    h("p", { class: "hint" }, `${counted(wrong.length, "example")}, the surest first. Look whether each is where it belongs.`),
    h(
      "ul",
      { class: "thumbs captioned" },
      wrong
        .slice(0, PICTURES)
        .map((row) =>
          h(
            "li",
            {},
            h(
              "a",
              { href: link(row.class), "aria-label": `Example ${row.index + 1} of ${row.class}` },
              thumbnail(row.class, row.index),
            ),
            h("span", { class: "clamped", title: row.class }, row.class),
            h("span", { class: "hint clamped", title: row.answer }, takenFor(row)),
          ),
        ),
    ),
  );
}

function notes({ notes: lines }) {
  return lines?.length
    ? h(
        "section",
        { class: "plain-notes" },
        lines.map((text) => h("p", { class: "hint" }, prose(text))),
      )
    : null;
}

const takenFor = ({ answer }) =>
  answer === store.model.unknown_label ? "called unknown" : ["taken for ", h("bdi", {}, answer)];

const worstFirst = (classes) => [...classes].sort((a, b) => (a.accuracy ?? 2) - (b.accuracy ?? 2));

const link = (name) => `#/class?${new URLSearchParams({ name })}`;
