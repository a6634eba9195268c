/** Names of classes, as they are typed: the known ones are offered. */

import { get } from "./api.js";
import { h, replace } from "./dom.js";
import { store } from "./store.js";

const list = h("datalist", { id: "class-names" });
let names = null;

store.addEventListener("changed", () => (names = null));

/** Return the name in a field as the server keeps it. */
export const typedName = (field) => field.value.normalize("NFC").trim();

/** Return the names of all classes. */
export async function classNames() {
  if (names === null) {
    const { classes } = await get("/api/classes");
    names = classes.map((row) => String(row.class));
    replace(
      list,
      names.map((name) => h("option", { value: name })),
    );
    if (!list.isConnected) document.body.append(list);
  }
  return names;
}

/** Return a field for the name of a class, which offers the known ones. */
export function nameField(attributes) {
  classNames().catch(() => null); // then it offers none
  return h("input", {
    type: "text",
    list: "class-names",
    autocomplete: "off",
    autocapitalize: "off",
    spellcheck: "false",
    maxlength: 200,
    onfocus: () => classNames().catch(() => null),
    ...attributes,
  });
}
