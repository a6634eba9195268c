/** Image files as people give them: chosen, photographed, dropped (folders, too) or pasted. */

import { store } from "./store.js";

const SUFFIX = /\.(avif|bmp|gif|heic|heif|jp2|jpe?g|pbm|pgm|png|ppm|tiff?|webp)$/i;
const QUALITY = 0.92;
const SURELY_FINE = 4e6; // bytes of an image that has too many pixels for no server, unless it was made to

const isImage = (file) => file.type.startsWith("image/") || SUFFIX.test(file.name);

/** Split files into images and how many others there are. */
export function imagesAmong(files) {
  const images = [...files].filter(isImage);
  return { images, others: files.length - images.length };
}

/** Return all files of a drop, those in folders, too, in the order of their names. */
export async function droppedFiles(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.length) return [...transfer.files];
  return (await Promise.all(entries.map(filesOf))).flat();
}

async function filesOf(entry) {
  if (entry.isFile) return [await new Promise((resolve, reject) => entry.file(resolve, reject))];
  const reader = entry.createReader();
  const inside = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject)); // at most a hundred at a time
    if (!some.length) break;
    inside.push(...some);
  }
  inside.sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
  return (await Promise.all(inside.map(filesOf))).flat();
}

/**
 * Return the image as it is sent: as it is, so that the page answers as the command does. Only one that the server would
 * refuse for its size is made smaller first.
 */
export async function prepared(file) {
  const { bytes = Infinity, pixels = Infinity } = store.model?.limits ?? {};
  if (file.size < Math.min(SURELY_FINE, 0.9 * bytes)) return file;
  const bitmap = await createImageBitmap(file).catch(() => null);
  if (bitmap === null) return file; // the server may know its format
  try {
    const excess = Math.max(file.size / (0.9 * bytes), (bitmap.width * bitmap.height) / pixels);
    return excess > 1 ? await smaller(bitmap, file.name, Math.min(1, 2000 / Math.max(bitmap.width, bitmap.height))) : file;
  } finally {
    bitmap.close();
  }
}

async function smaller(bitmap, name, scale) {
  const canvas = new OffscreenCanvas(Math.round(bitmap.width * scale), Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  const blob = await canvas.convertToBlob({ type: "image/jpeg", quality: QUALITY });
  return new File([blob], name.replace(/\.\w+$/, ".jpg"), { type: blob.type });
}

/** Return a small picture of a file as a canvas; a grey one where the browser cannot read it. */
export async function preview(file, edge) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = edge;
  const bitmap = await createImageBitmap(file).catch(() => null);
  if (bitmap === null) return canvas;
  const side = Math.min(bitmap.width, bitmap.height);
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, (bitmap.width - side) / 2, (bitmap.height - side) / 2, side, side, 0, 0, edge, edge);
  bitmap.close();
  return canvas;
}

const inSight = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      inSight.unobserve(target);
      preview(fileOf.get(target), EDGE).then((canvas) => target.append(canvas));
    }
  },
  { rootMargin: "200px" },
);
const fileOf = new WeakMap();
const EDGE = 88;

/** Return a very small picture of a file, drawn when it comes into sight. */
export function smallPicture(file) {
  const place = document.createElement("span");
  place.className = "small-picture";
  place.setAttribute("aria-hidden", "true");
  fileOf.set(place, file);
  inSight.observe(place);
  return place;
}
