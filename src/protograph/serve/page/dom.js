/** Elements made of plain values. Text becomes text nodes: nothing that was typed, named or sent is ever read as markup. */

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["checked", "disabled", "hidden", "indeterminate", "value"]);

/** Return an HTML element; `on*` attributes are listeners, and what is null or false is left out. */
export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

/** Return an SVG element. */
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (PROPERTIES.has(name)) element[name] = value ?? "";
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...present(children));
  return element;
}

const present = (children) =>
  children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);

/** Put these children in the place of all others. Where they are there already they stay, with the focus that they have. */
export function replace(element, ...children) {
  const next = present(children);
  const same = next.length === element.childNodes.length && next.every((child, place) => child === element.childNodes[place]);
  if (!same) element.replaceChildren(...next);
  return element;
}

let made = 0;

/** Return an id that no other element has. */
export const uniqueId = (stem) => `${stem}-${++made}`;

/** Move the focus to an element that need not be reachable by Tab, such as a heading. */
export function focus(element, options) {
  if (!element.matches("a[href], button, input, select, textarea, [tabindex]")) element.tabIndex = -1;
  element.focus(options);
}
