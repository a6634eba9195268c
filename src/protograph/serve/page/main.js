/** The page: its views by the address behind the #, its header, and what follows when the classifier changes. */

import { showButtons } from "./changes.js";
import { focus, h, replace } from "./dom.js";
import { icon } from "./icons.js";
import { follow } from "./live.js";
import { leaveNotices, notify, showBanners } from "./notices.js";
import { takeToken } from "./session.js";
import { store } from "./store.js";
import { createAsk } from "./views/ask.js";
import { createCheck } from "./views/check.js";
import { createClass } from "./views/class.js";
import { createClasses } from "./views/classes.js";
import { createHistory } from "./views/history.js";
import { createMany } from "./views/many.js";
import { createMap } from "./views/map.js";
import { createTeach } from "./views/teach.js";
import { counted } from "./words.js";

// A view is made once and then hidden and shown, so that nothing typed or chosen is lost on the way.
const VIEWS = {
  ask: { tab: "Ask", create: createAsk },
  teach: { tab: "Teach", create: createTeach },
  classes: { tab: "Classes", create: createClasses },
  class: { within: "classes", create: createClass },
  check: { tab: "Enough?", create: createCheck },
  map: { tab: "Map", create: createMap },
  many: { tab: "Many", create: createMany },
  history: { create: createHistory },
};

const made = new Map();
const main = document.getElementById("main");
let current = null;

function open() {
  const [, name = "", query = ""] = /^#\/(\w*)\??(.*)$/.exec(location.hash) ?? [];
  const key = name in VIEWS ? name : "ask";
  if (!made.has(key)) {
    made.set(key, { ...VIEWS[key].create(), stale: false });
    main.append(made.get(key).element);
  }
  const moved = current !== null;
  for (const [other, view] of made) view.element.hidden = other !== key;
  current = key;
  const view = made.get(key);
  showTabs(VIEWS[key].within ?? key);
  view.show?.(new URLSearchParams(query));
  if (view.stale) refresh(view);
  const title = view.element.querySelector("h1");
  document.title = `${title.textContent} \u00b7 Protograph`;
  if (moved) {
    leaveNotices();
    scrollTo(0, 0);
    focus(title, { preventScroll: true });
  }
}

function refresh(view) {
  view.stale = false;
  view.refresh?.();
}

function showTabs(key) {
  const tabs = Object.entries(VIEWS).filter(([, { tab }]) => tab);
  replace(
    document.getElementById("tabs"),
    tabs.map(([name, { tab }]) =>
      h("a", { href: `#/${name}`, "aria-current": name === key ? "page" : null }, icon(name), h("span", {}, tab)),
    ),
  );
}

function showFile() {
  const { file, classes } = store.model;
  replace(
    document.getElementById("file"),
    h("span", { class: "file-name" }, file),
    h("span", { class: "hint" }, ` \u00b7 ${counted(classes, "class")}`),
  );
}

takeToken();
showBanners();
showButtons(document.getElementById("changes"));
store.addEventListener("model", showFile);
store.addEventListener("changed", ({ detail }) => {
  if (detail.what) notify(`Changed elsewhere: ${detail.what}`);
  for (const [key, view] of made) {
    view.stale = true;
    if (key === current) refresh(view);
  }
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address behind the # is that of the view
  focus(main);
});
for (const type of ["dragover", "drop"]) addEventListener(type, (event) => event.preventDefault()); // a missed drop leaves the page as it is
addEventListener("hashchange", open);
open();
follow();
