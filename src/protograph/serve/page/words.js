/** Numbers, counts and times in words. */

const NARROW = "\u00a0";

/** Return a share in per cent; what is not quite nothing or all is not rounded to it. */
export function percent(share) {
  if (share > 0 && share < 0.005) return `<${NARROW}1${NARROW}%`;
  if (share < 1 && share >= 0.995) return `>${NARROW}99${NARROW}%`;
  return `${Math.round(100 * share)}${NARROW}%`;
}

/** Return a number with a noun: "1 class", "2 classes". */
export function counted(number, noun) {
  const plural = noun.endsWith("s") ? `${noun}es` : `${noun}s`;
  return `${number.toLocaleString("en")}${NARROW}${number === 1 ? noun : plural}`;
}

/** Return what a class is made of; that it was fitted is said only where others were added. */
export const madeOf = ({ examples, added }, model) =>
  [examples === null || examples === undefined ? null : counted(examples, "example"), added || !model?.added ? null : "fitted"]
    .filter(Boolean)
    .join(", ");

const SOURCES = { wordnet: "WordNet", prototypes: "their images" };
const FILES = /^(attributes|embeddings|edges)_(.+)$/; // labels of relations that were read from a file

/** Return what says that classes are alike: a relation by its label, or the classes' own images. */
export const sourceName = (label) => `by ${SOURCES[label] ?? label.replace(/^by /, "").replace(FILES, "$1 ($2)")}`;

/** Return a number with its sign, by the typographic minus. */
export const signed = (value) => `${value < 0 ? "\u2212" : "+"}${Math.abs(value).toFixed(1)}`;

const RIGHT_TO_LEFT = /[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}]/u;

/** Return a text in which names that are written from right to left do not move the numbers beside them. */
export const isolated = (text) => (RIGHT_TO_LEFT.test(text) ? text.replace(/'[^']*'/g, "\u2068$&\u2069") : text);

/** Return a text that begins with a capital and ends with a full stop. */
export function sentence(text) {
  const begun = isolated(text.charAt(0).toUpperCase() + text.slice(1));
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}

/** Return a size in bytes in a unit that one can grasp. */
export const megabytes = (bytes) => `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)}${NARROW}MB`;

/** Return a moment as the reader's own clock shows it, with how long ago that was. */
export function moment(iso, now = Date.now()) {
  const time = new Date(iso);
  const seconds = Math.max(0, (now - time.getTime()) / 1000);
  const clock = time.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
  if (seconds < 60) return { clock, ago: "just now" };
  if (seconds < 3600) return { clock, ago: `${counted(Math.floor(seconds / 60), "minute")} ago` };
  if (seconds < 86400) return { clock, ago: `${counted(Math.floor(seconds / 3600), "hour")} ago` };
  return { clock, ago: `${counted(Math.floor(seconds / 86400), "day")} ago` };
}
