/** An image with the scores of its parts over it: red speaks for the class, blue against it, as in the command's figures. */

const RED = [178, 24, 43];
const BLUE = [33, 102, 172];
const STRONGEST = 0.65; // opacity of the colours
const GRID = 128; // edge of the smooth map

/**
 * Draw an image, and over it a heat map if there is one.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {ImageBitmap} bitmap
 * @param {null | {rows: number, columns: number, scores: number[][], crop: number[]}} map
 */
export function drawImage(canvas, bitmap, map) {
  const scale = Math.min(1, 1200 / Math.max(bitmap.width, bitmap.height)) * enlargement(bitmap);
  canvas.width = Math.round(bitmap.width * scale);
  canvas.height = Math.round(bitmap.height * scale);
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  if (!map) return;
  const [left, top, right, bottom] = map.crop;
  const box = [left * canvas.width, top * canvas.height, (right - left) * canvas.width, (bottom - top) * canvas.height];
  greyed(context, canvas);
  fadeOutside(context, canvas, box);
  context.drawImage(coloured(map), ...box);
}

/** The image turns greyish and a little faint, so that the colours over it stand out. */
function greyed(context, canvas) {
  context.save();
  context.globalCompositeOperation = "saturation";
  context.globalAlpha = 0.6;
  context.fillStyle = "gray";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.globalCompositeOperation = "source-over";
  context.globalAlpha = 1;
  context.fillStyle = "rgba(255, 255, 255, 0.15)";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.restore();
}

/** How many times a very small image is enlarged, so that its map can be smooth. */
const enlargement = (bitmap) => Math.max(1, 400 / Math.max(bitmap.width, bitmap.height));

/** What was not looked at fades. */
function fadeOutside(context, canvas, [left, top, width, height]) {
  context.save();
  context.beginPath();
  context.rect(0, 0, canvas.width, canvas.height);
  context.rect(left, top, width, height);
  context.fillStyle = "rgba(127, 127, 127, 0.5)";
  context.fill("evenodd");
  context.restore();
}

function coloured({ rows, columns, scores }) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = GRID;
  const limit = Math.max(1e-9, ...scores.flat().map(Math.abs));
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(GRID, GRID);
  for (let y = 0; y < GRID; y++) {
    for (let x = 0; x < GRID; x++) {
      const score = smooth(scores, rows, columns, ((y + 0.5) / GRID) * rows - 0.5, ((x + 0.5) / GRID) * columns - 0.5) / limit;
      pixels.data.set([...(score > 0 ? RED : BLUE), 255 * STRONGEST * Math.min(1, Math.abs(score))], 4 * (y * GRID + x));
    }
  }
  context.putImageData(pixels, 0, 0);
  return canvas;
}

/** Return the bicubic (Catmull-Rom) value between the scores. */
function smooth(scores, rows, columns, y, x) {
  const row = Math.floor(y);
  const column = Math.floor(x);
  let sum = 0;
  for (let i = -1; i <= 2; i++) {
    const values = scores[clamp(row + i, rows)];
    for (let j = -1; j <= 2; j++) sum += values[clamp(column + j, columns)] * cubic(y - row - i) * cubic(x - column - j);
  }
  return sum;
}

const clamp = (index, count) => Math.min(count - 1, Math.max(0, index));

function cubic(distance) {
  const d = Math.abs(distance);
  if (d < 1) return 1.5 * d ** 3 - 2.5 * d ** 2 + 1;
  return d < 2 ? -0.5 * d ** 3 + 2.5 * d ** 2 - 4 * d + 2 : 0;
}

const overlap = (start, end, from, to) => Math.max(0, Math.min(end, to) - Math.max(start, from));

/** Say in words where the scores are highest, for those who do not see the colours. */
export function strongestPart({ rows, columns, scores }) {
  const parts = Array.from({ length: 3 }, () => [0, 0, 0]);
  const inThird = (place, count, third) => overlap(place / count, (place + 1) / count, third / 3, (third + 1) / 3);
  for (const [y, values] of scores.entries())
    for (const [x, value] of values.entries())
      for (const third of [0, 1, 2])
        for (const other of [0, 1, 2]) parts[third][other] += value * inThird(y, rows, third) * inThird(x, columns, other);
  const [y, x] = [0, 1, 2]
    .flatMap((y) => [0, 1, 2].map((x) => [y, x]))
    .reduce((a, b) => (parts[b[0]][b[1]] > parts[a[0]][a[1]] ? b : a));
  const words = [
    ["top left", "top", "top right"],
    ["left", "middle", "right"],
    ["bottom left", "bottom", "bottom right"],
  ];
  return words[y][x];
}
