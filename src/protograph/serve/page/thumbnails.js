/** Small pictures of the examples that the model keeps, fetched when they come into sight. */

import { getBlob } from "./api.js";
import { h } from "./dom.js";
import { store } from "./store.js";

const seen = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      wanted.get(target)();
      wanted.delete(target);
    }
  },
  { rootMargin: "200px" },
);

const SHOWN = 4; // examples that stand for a class
const wanted = new WeakMap();
const kept = new Map(); // blobs by class and index, of the version shown
let keptOf = null;

/** Return the picture of an example; words beside it, or a label, say what it shows. */
export function thumbnail(name, index) {
  const image = h("img", { class: "thumb", alt: "", width: 80, height: 80, decoding: "async" });
  wanted.set(image, () => load(image, name, index));
  seen.observe(image);
  return image;
}

/** Return the place of an example without a picture. */
export const blank = (text = "no picture") => h("span", { class: "thumb blank" }, text);

/** Return the picture of an example as bytes. */
export function thumbnailBlob(name, index) {
  if (keptOf !== store.model?.version) {
    kept.clear();
    keptOf = store.model?.version;
  }
  const key = JSON.stringify([name, index]);
  if (!kept.has(key)) {
    const blob = getBlob("/api/classes/thumbnail", { class: name, index });
    blob.catch(() => kept.delete(key));
    kept.set(key, blob);
  }
  return kept.get(key);
}

async function load(image, name, index) {
  try {
    const url = URL.createObjectURL(await thumbnailBlob(name, index));
    image.onload = image.onerror = () => URL.revokeObjectURL(url);
    image.src = url;
  } catch {
    image.replaceWith(blank());
  }
}

/** Return the indices of the examples that stand for a class, of the row that the list of classes has. */
export const shownExamples = ({ shown, thumbnails = 0 } = {}) =>
  shown ?? Array.from({ length: Math.min(thumbnails, SHOWN) }, (_, index) => index);
