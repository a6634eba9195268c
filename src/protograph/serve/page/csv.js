/** Tables as CSV files. */

import { h } from "./dom.js";

const FORMULA = /^[=+\-@\t\r]/;

/** Return rows as CSV. A text that a spreadsheet would run as a formula, such as a file named "=1+1.jpg", begins with an apostrophe. */
export const asCsv = (rows) => `\ufeff${rows.map((row) => row.map(cell).join(",")).join("\r\n")}\r\n`;

function cell(value) {
  if (typeof value === "number") return String(value);
  const text = FORMULA.test(value ?? "") ? `'${value}` : String(value ?? "");
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Let the browser save a text as a file. */
export function download(text, name, type = "text/csv") {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
