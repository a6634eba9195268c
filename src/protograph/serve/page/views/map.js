/** Map: the classes by how alike their prototypes are, and their relations as lines; to look around in. */

import { get } from "../api.js";
import { h, replace, s } from "../dom.js";
import { icon } from "../icons.js";
import { askHowAlike } from "../lines.js";
import { loadInto } from "../parts.js";
import { refreshModel, store } from "../store.js";
import { shownExamples, thumbnail, thumbnailBlob } from "../thumbnails.js";
import { madeOf, percent, sourceName } from "../words.js";
import { startPanel } from "./start.js";

const MARGIN = 60;
const RADIUS = 7;
const PICTURE_RADIUS = 21; // of a class that is shown by one of its examples
const MOST_PICTURES = [60, 20]; // classes up to which that is done, and on a phone
const LONGEST_LABEL = 28; // letters of a name that are written on the map; the panel has all
const EDGE = 6; // pixels between a label and the edge
const STEP = 1.35; // of one zoom
const DRAGGED = 6; // pixels from which a press on a class draws a line
const [LEAST, MOST] = [0.5, 24];
const ARROWS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

export function createMap() {
  const content = h("div");
  const element = h("section", { class: "view" }, h("h1", {}, "Map of the classes"), content);
  let drawn = null;
  const load = () =>
    loadInto(content, "Drawing the map\u2026", async () => {
      const model = store.model ?? (await refreshModel());
      if (model.classes < 2) return startPanel(model.classes);
      const [map, { classes }] = await Promise.all([get("/api/map"), get("/api/classes")]);
      drawn = drawing(map, new Map(classes.map((row) => [String(row.class), row])), drawn);
      return drawn.content;
    });
  new ResizeObserver(() => drawn?.draw()).observe(content);
  return { element, show: load, refresh: load };
}

function drawing({ labels, edges }, classes, earlier) {
  const nodes = labels.map((label) => ({ ...label, name: String(label.class), lines: [] }));
  const byName = new Map(nodes.map((node) => [node.name, node]));
  const lines = edges.map((edge) => ({ ...edge, ends: [byName.get(String(edge.from)), byName.get(String(edge.to))] }));
  for (const line of lines) for (const end of line.ends) end.lines.push(line);
  const bounds = extent(nodes);
  let view = earlier?.view() ?? { scale: 1, x: 0, y: 0 };
  let selected = byName.get(earlier?.selected()) ?? null;
  let engaged = false;

  let begin = null; // the class that a line is drawn from, as long as it has no end
  const drawn = s("line", { class: "map-drawn", visibility: "hidden" });
  const lineLayer = s("g", { class: "map-lines" });
  const nodeLayer = s("g");
  const svg = s(
    "svg",
    {
      class: "map",
      role: "group",
      "aria-label": "Map of the classes. Arrow keys move from class to class, plus and minus zoom.",
    },
    lineLayer,
    drawn,
    nodeLayer,
  );
  const panel = h("div", { class: "map-panel", role: "status" });
  for (const line of lines) {
    line.element = s("line", { "stroke-width": 1 + 2.5 * Math.min(1, Math.max(0, line.weight)) });
    lineLayer.append(line.element);
  }
  const mostPictures = MOST_PICTURES[Number(matchMedia("(max-width: 46rem)").matches)];
  for (const node of nodes) {
    const pictured = nodes.length <= mostPictures ? shownExamples(classes.get(node.name))[0] : undefined;
    node.radius = pictured === undefined ? RADIUS : PICTURE_RADIUS;
    const letters = [...node.name];
    node.title = letters.length > LONGEST_LABEL ? `${letters.slice(0, LONGEST_LABEL - 1).join("")}\u2026` : node.name;
    node.wide = widthOf(node.title);
    node.label = s("text", {}, node.title);
    node.element = s(
      "g",
      {
        class: `map-node ${node.added ? "added" : "fitted"}`,
        role: "button",
        tabindex: -1,
        "aria-label": `${node.name}${
          node.lines.length
            ? `, related to ${related(node)
                .slice(0, 5)
                .map(({ name }) => name)
                .join(", ")}`
            : ""
        }`,
        onfocus: () => select(node),
        onclick: () => (begin ? endLine(node) : select(node)),
        onkeydown: (event) => pressed(event, node),
      },
      s("circle", { class: "halo", r: Math.max(19, node.radius + 5) }),
      s("circle", { r: node.radius }),
      pictured !== undefined && picture(node.name, pictured),
      node.label,
    );
    nodeLayer.append(node.element);
  }
  nodes[0].element.setAttribute("tabindex", 0);

  function screen(node) {
    const { width, height } = size();
    const unit = Math.min((width - 2 * MARGIN) / bounds.width, (height - 2 * MARGIN) / bounds.height);
    return {
      x: width / 2 + view.x + (node.x - bounds.x) * unit * view.scale,
      y: height / 2 + view.y + (node.y - bounds.y) * unit * view.scale,
    };
  }

  const size = () => ({ width: svg.clientWidth || 800, height: svg.clientHeight || 500 });

  function draw() {
    for (const node of nodes) {
      node.at = screen(node);
      node.element.setAttribute("transform", `translate(${node.at.x.toFixed(1)} ${node.at.y.toFixed(1)})`);
    }
    for (const line of lines) {
      const [from, to] = line.ends;
      for (const [name, value] of [
        ["x1", from.at.x],
        ["y1", from.at.y],
        ["x2", to.at.x],
        ["y2", to.at.y],
      ])
        line.element.setAttribute(name, value.toFixed(1));
      line.element.setAttribute("class", selected ? (line.ends.includes(selected) ? "near" : "far") : "");
    }
    showLabels();
  }

  /** Labels that would cover others wait until there is room: those of the selected class, its neighbours and well-related classes come first. */
  function showLabels() {
    const near = new Set(selected ? [selected, ...related(selected).map(({ node }) => node)] : []);
    const { width } = size();
    const taken = nodes.map(({ at, radius }) => [at.x - radius, at.y - radius, at.x + radius, at.y + radius]);
    for (const node of [...nodes].sort((a, b) => near.has(b) - near.has(a) || b.lines.length - a.lines.length)) {
      const free = ({ box }) =>
        box[0] > EDGE &&
        box[2] < width - EDGE &&
        taken.every((other) => box[0] > other[2] || box[2] < other[0] || box[1] > other[3] || box[3] < other[1]);
      const places = labelPlaces(node.at, node.wide, node.radius + 5);
      const place = places.find(free) ?? (node === selected ? within(places.at(-1), width) : null);
      node.label.classList.toggle("hidden", !place);
      if (!place) continue;
      for (const name of ["x", "y", "text-anchor"]) node.label.setAttribute(name, place[name]);
      taken.push(place.box);
    }
  }

  function select(node) {
    if (selected === node) return;
    selected?.element.classList.remove("selected");
    selected = node;
    for (const other of nodes) other.element.setAttribute("tabindex", other === node ? 0 : -1);
    node.element.classList.add("selected");
    // Those above it move below it: it would lose the focus if it moved itself.
    while (node.element.nextSibling) nodeLayer.insertBefore(node.element.nextSibling, node.element);
    draw();
    showPanel();
  }

  function beginLine(node) {
    begin = node;
    svg.classList.add("drawing");
    node.element.focus();
    showPanel();
  }

  /** End the line at a class, or nowhere. */
  function endLine(node) {
    const first = begin;
    begin = null;
    svg.classList.remove("drawing");
    drawn.setAttribute("visibility", "hidden");
    if (selected) showPanel();
    if (node && node !== first) askHowAlike(first.name, node.name);
  }

  function drawLineTo(event) {
    const box = svg.getBoundingClientRect();
    drawn.setAttribute("visibility", "visible");
    for (const [name, value] of [
      ["x1", begin.at.x],
      ["y1", begin.at.y],
      ["x2", event.clientX - box.left],
      ["y2", event.clientY - box.top],
    ])
      drawn.setAttribute(name, value.toFixed(1));
  }

  const nodeOf = (element) => nodes.find((node) => node.element === element?.closest(".map-node"));

  function showPanel() {
    if (begin) return showLinePanel();
    const row = classes.get(selected.name);
    const shown = shownExamples(row);
    replace(
      panel,
      h("h2", {}, selected.name),
      row && h("p", { class: "hint" }, madeOf(row, store.model)),
      shown.length
        ? h(
            "div",
            { class: "class-thumbs" },
            shown.map((index) => thumbnail(selected.name, index)),
          )
        : null,
      selected.lines.length
        ? h("ul", { class: "sentences" }, related(selected).map(relation))
        : h("p", { class: "hint" }, "No line leads to it."),
      h(
        "p",
        { class: "row" },
        h("a", { class: "button small", href: link(selected.name) }, "Open"),
        h("button", { type: "button", class: "small quiet", onclick: () => beginLine(selected) }, "Draw a line\u2026"),
      ),
    );
  }

  function showLinePanel() {
    replace(
      panel,
      h("h2", {}, `What is '${begin.name}' like?`),
      h("p", { class: "hint" }, "Choose another class on the map, or go to it by the arrow keys and press Enter."),
      h("p", {}, h("button", { type: "button", class: "small quiet", onclick: () => endLine(null) }, "Cancel")),
    );
  }

  function pressed(event, node) {
    if (event.key in ARROWS) towards(node, ARROWS[event.key])?.element.focus();
    else if (event.key === "Escape" && begin) endLine(null);
    else if (event.key === "Enter" || event.key === " ") begin ? endLine(node) : (location.hash = link(node.name));
    else if (event.key === "+" || event.key === "=") zoom(STEP);
    else if (event.key === "-") zoom(1 / STEP);
    else if (event.key === "0") fit();
    else return;
    event.preventDefault();
    keepInSight(selected);
  }

  /** Return the nearest class in a direction, within 60 degrees of it. */
  function towards(from, [dx, dy]) {
    let best = null;
    for (const node of nodes) {
      const [x, y] = [node.at.x - from.at.x, node.at.y - from.at.y];
      const [along, across] = [x * dx + y * dy, Math.abs(x * dy) + Math.abs(y * dx)];
      if (node === from || along <= 0 || across > 1.8 * along) continue;
      const far = along + 2 * across;
      if (!best || far < best.far) best = { node, far };
    }
    return best?.node;
  }

  function keepInSight(node) {
    const { width, height } = size();
    const out = (at, length) => (at < MARGIN / 2 ? MARGIN / 2 - at : at > length - MARGIN / 2 ? length - MARGIN / 2 - at : 0);
    view = { ...view, x: view.x + out(node.at.x, width), y: view.y + out(node.at.y, height) };
    draw();
  }

  /** Zoom about a point, as seen from the middle. */
  function zoom(factor, x = 0, y = 0) {
    const scale = Math.min(MOST, Math.max(LEAST, view.scale * factor));
    const change = scale / view.scale;
    view = { scale, x: x + (view.x - x) * change, y: y + (view.y - y) * change };
    draw();
  }

  function fit() {
    view = { scale: 1, x: 0, y: 0 };
    draw();
  }

  const fromMiddle = (event) => {
    const box = svg.getBoundingClientRect();
    return [event.clientX - box.left - box.width / 2, event.clientY - box.top - box.height / 2];
  };
  const pointers = new Map();
  let held = null; // a class, and where it was held
  svg.addEventListener("pointerdown", (event) => {
    engaged = true;
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
    const node = nodeOf(event.target);
    held = node && pointers.size === 1 ? { node, at: [event.clientX, event.clientY] } : null;
    if (!node) svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    if (held) return dragFromClass(event);
    const last = pointers.get(event.pointerId);
    if (!last) return;
    const before = [...pointers.values()];
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
    const after = [...pointers.values()];
    if (after.length === 2) zoom(distance(after) / Math.max(1, distance(before)), ...fromMiddle(middle(after)));
    view = {
      ...view,
      x: view.x + (event.clientX - last[0]) / after.length,
      y: view.y + (event.clientY - last[1]) / after.length,
    };
    draw();
  });
  /** Draw a line from the held class to where the pointer is. */
  function dragFromClass(event) {
    if (distance([held.at, [event.clientX, event.clientY]]) < DRAGGED) return;
    if (!held.drawn) {
      svg.setPointerCapture(event.pointerId);
      begin = held.node;
      held.drawn = true;
    }
    drawLineTo(event);
  }
  svg.addEventListener("pointerup", (event) => {
    if (held?.drawn) endLine(nodeOf(document.elementFromPoint(event.clientX, event.clientY)));
  });
  for (const type of ["pointerup", "pointercancel", "pointerleave"])
    svg.addEventListener(type, (event) => {
      pointers.delete(event.pointerId);
      if (held?.drawn && begin) endLine(null);
      held = null;
    });
  svg.addEventListener("pointerleave", () => (engaged = svg.contains(document.activeElement)));
  svg.addEventListener("focusin", () => (engaged = true));
  svg.addEventListener(
    "wheel",
    (event) => {
      if (!engaged && !event.ctrlKey) return; // the page scrolls until someone has clicked into the map
      event.preventDefault();
      zoom(Math.exp(-event.deltaY / 400), ...fromMiddle(event));
    },
    { passive: false },
  );

  const tools = h(
    "div",
    { class: "map-tools", role: "group", "aria-label": "Zoom" },
    h("button", { type: "button", class: "bare", "aria-label": "Zoom in", onclick: () => zoom(STEP) }, icon("plus")),
    h("button", { type: "button", class: "bare", "aria-label": "Zoom out", onclick: () => zoom(1 / STEP) }, icon("minus")),
    h("button", { type: "button", class: "bare", "aria-label": "Show all", onclick: fit }, icon("fit")),
  );
  const hint = h(
    "p",
    { class: "hint" },
    "Near classes look alike. Lines join related ones, thicker where they are more alike. ",
    "Draw a line from one class to another to say how alike they are. ",
    h("span", { class: "by-mouse" }, "Drag the background to move it, click into the map and scroll to zoom."),
  );
  replace(panel, h("p", { class: "hint" }, "Choose a class to see what it is related to."));
  const list = h(
    "details",
    { class: "card" },
    h("summary", {}, "The map as a list"),
    h(
      "ul",
      { class: "sentences" },
      [...nodes]
        .sort((a, b) => a.name.localeCompare(b.name))
        .map((node) =>
          h(
            "li",
            {},
            h("a", { href: link(node.name) }, node.name),
            node.lines.length ? ": " : "",
            related(node).map(({ name, line }, place) => `${place ? ", " : ""}${name} (${percent(line.weight)})`),
          ),
        ),
    ),
  );
  if (selected) {
    const again = selected;
    selected = null;
    queueMicrotask(() => select(again));
    if (earlier.focused()) requestAnimationFrame(() => again.element.focus({ preventScroll: true }));
  }
  requestAnimationFrame(draw);
  return {
    content: [
      hint,
      h(
        "div",
        { class: "map-grid" },
        h("div", { class: "map-frame card" }, svg, tools),
        h("aside", { class: "card", "aria-label": "The chosen class" }, panel),
      ),
      list,
    ],
    draw: () => svg.isConnected && draw(),
    view: () => view,
    selected: () => selected?.name,
    focused: () => svg.contains(document.activeElement),
  };
}

const measure = document.createElement("canvas").getContext("2d");

/** Return how many pixels wide a label is, at its boldest. */
function widthOf(text) {
  measure.font = `650 14px ${getComputedStyle(document.body).fontFamily}`;
  return measure.measureText(text).width;
}

/** Return a round picture of an example. */
function picture(name, index) {
  const edge = 2 * (PICTURE_RADIUS - 2);
  const image = s("image", { x: -edge / 2, y: -edge / 2, width: edge, height: edge, preserveAspectRatio: "xMidYMid slice" });
  thumbnailBlob(name, index).then(
    (blob) => {
      const url = URL.createObjectURL(blob);
      image.onload = image.onerror = () => URL.revokeObjectURL(url);
      image.setAttribute("href", url);
    },
    () => null,
  ); // then the circle alone stands for it
  return image;
}

/** Return where a label may stand: right, left, above or below its class. */
function labelPlaces({ x, y }, wide, gap) {
  const high = 9;
  const beside = (left, anchor, from) => ({
    x: from,
    y: 5,
    "text-anchor": anchor,
    box: [left, y - high, left + wide, y + high],
  });
  const over = (from) => ({
    x: 0,
    y: from + 5,
    "text-anchor": "middle",
    box: [x - wide / 2, y + from - high, x + wide / 2, y + from + high],
  });
  return [beside(x + gap, "start", gap), beside(x - gap - wide, "end", -gap), over(-gap - high), over(gap + high)];
}

/** Return a place that is moved sideways as far as it would leave the map. */
function within(place, width) {
  const [left, , right] = place.box;
  return { ...place, x: place.x + Math.max(0, EDGE - left) - Math.max(0, right + EDGE - width) };
}

function extent(nodes) {
  const [xs, ys] = [nodes.map((node) => node.x), nodes.map((node) => node.y)];
  const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  return { x: (left + right) / 2, y: (top + bottom) / 2, width: right - left || 1, height: bottom - top || 1 };
}

/** Return the classes to which lines lead, the most alike first. */
function related(node) {
  return node.lines
    .map((line) => ({ line, node: line.ends.find((end) => end !== node) ?? node }))
    .map((row) => ({ ...row, name: row.node.name }))
    .sort((a, b) => b.line.weight - a.line.weight);
}

const relation = ({ name, line }) =>
  h(
    "li",
    {},
    h("a", { href: link(name) }, name),
    ` ${percent(line.weight)}`,
    " ",
    line.relation && h("span", { class: "source" }, sourceName(line.relation)),
  );

const link = (name) => `#/class?${new URLSearchParams({ name })}`;
const distance = ([a, b]) => Math.hypot(a[0] - b[0], a[1] - b[1]);
const middle = ([a, b]) => ({ clientX: (a[0] + b[0]) / 2, clientY: (a[1] + b[1]) / 2 });
