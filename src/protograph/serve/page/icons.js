/** Icons of 24 units, drawn by lines in the colour of the text. Words beside them, or labels, say what they mean. */

import { s } from "./dom.js";

const LINES = {
  ask: "M4 8V5a1 1 0 0 1 1-1h3M16 4h3a1 1 0 0 1 1 1v3M20 16v3a1 1 0 0 1-1 1h-3M8 20H5a1 1 0 0 1-1-1v-3M12 8.5a3.5 3.5 0 1 1 0 7 3.5 3.5 0 0 1 0-7Z",
  teach: "M12 5v14M5 12h14",
  classes: "M4 4h7v7H4ZM13 4h7v7h-7ZM4 13h7v7H4ZM13 13h7v7h-7Z",
  check: "M12 3a9 9 0 1 1 0 18 9 9 0 0 1 0-18ZM8 12.5l2.8 2.8L16 9.5",
  map: "M6 6.5a2 2 0 1 1 0-.01M18 8.5a2 2 0 1 1 0-.01M11 18.5a2 2 0 1 1 0-.01M6.6 8.4 8.6 16.6M8 6.8l8 1.4M10.6 17l6-7",
  many: "M4 5h16M4 12h16M4 19h16M9 5v14",
  history: "M4 5v5h5M4.6 10A8 8 0 1 1 4 13M12 8v4.5l3 2",
  undo: "M8 5 4 9l4 4M4 9h10a5.5 5.5 0 0 1 0 11h-3",
  redo: "M16 5l4 4-4 4M20 9H10a5.5 5.5 0 0 0 0 11h3",
  camera:
    "M4 8h3.5L9 5.5h6L16.5 8H20a1 1 0 0 1 1 1v9a1 1 0 0 1-1 1H4a1 1 0 0 1-1-1V9a1 1 0 0 1 1-1ZM12 10a3.2 3.2 0 1 1 0 6.4 3.2 3.2 0 0 1 0-6.4Z",
  image: "M4 4h16v16H4ZM4 16l5-5 4 4 3-3 4 4M9 7.5a1.2 1.2 0 1 1 0 2.4 1.2 1.2 0 0 1 0-2.4Z",
  folder: "M3 6a1 1 0 0 1 1-1h5l2 2.5h9a1 1 0 0 1 1 1V18a1 1 0 0 1-1 1H4a1 1 0 0 1-1-1Z",
  close: "M6 6l12 12M18 6 6 18",
  back: "M14 6l-6 6 6 6",
  edit: "M5 19l1-4L16 5l3 3L9 18l-4 1Z",
  remove: "M5 7h14M9 7V4.5h6V7M7 7l1 13h8l1-13",
  download: "M12 4v11M7.5 11l4.5 4.5 4.5-4.5M5 20h14",
  plus: "M12 6v12M6 12h12",
  minus: "M6 12h12",
  fit: "M4 9V4h5M20 9V4h-5M4 15v5h5M20 15v5h-5",
};

/** Return an icon that screen readers pass over. */
export const icon = (name) =>
  s("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" }, s("path", { d: LINES[name] }));
