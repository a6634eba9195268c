"""The built-in dataset: letters of three alphabets, drawn here, so that it needs no download.

Every capital and small letter of the Latin, Greek and Cyrillic alphabets that all sixteen DejaVu and STIX faces shipped with
matplotlib have; letters that look alike (A, Α, А) are one class. Each drawing is bent, shifted, scaled and roughened at
random, and a strip hides part of it: one drawing does not show all there is to know of a letter. Everything after the glyph's
outline is integer arithmetic, so the same seed and library versions give the same images on every machine.

The split holds out whole typefaces: training, validation and test images are set in different faces. It also holds out
classes, accented letters whose base and accent others share: ê is known from one example to someone who knows e, é and ô.
"""

import hashlib
import io
import json
import sys
import unicodedata
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import PIL
from matplotlib.ft2font import FT2Font
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, features

from protograph._internal.files import build_folder, cache_folder, write_json
from protograph._internal.progress import Progress, Silent
from protograph.data.augmentation import Augmentation
from protograph.data.dataset import Dataset, Pool
from protograph.data.splits import DATASET_PARTS
from protograph.data.store import ImageStore, Normalisation
from protograph.relations import UnicodeRelation
from protograph.relations.unicode import joint_traits

FACES = {  # two faces of each family for training, one each for validation and test
    "train": (
        "DejaVuSans.ttf", "DejaVuSans-BoldOblique.ttf", "DejaVuSansMono-Bold.ttf", "DejaVuSansMono-Oblique.ttf",
        "DejaVuSerif.ttf", "DejaVuSerif-BoldItalic.ttf", "STIXGeneralBol.ttf", "STIXGeneralItalic.ttf",
    ),
    "validation": ("DejaVuSans-Oblique.ttf", "DejaVuSansMono.ttf", "DejaVuSerif-Bold.ttf", "STIXGeneralBolIta.ttf"),
    "test": ("DejaVuSans-Bold.ttf", "DejaVuSansMono-BoldOblique.ttf", "DejaVuSerif-Italic.ttf", "STIXGeneral.ttf"),
}  # fmt: skip
DRAWINGS_PER_FACE = {"train": 6, "validation": 5, "test": 5}
NOVEL_VALIDATION_LETTERS, NOVEL_TEST_LETTERS = 40, 60

LETTER_SIZE = 28  # pixels of an image
CANVAS = 2 * LETTER_SIZE  # glyphs are set at twice the size and sampled down
SAME_LETTER = 0.015  # letters with a median cosine distance over the faces below this are one class; no pair is near it
BEND = (0.16, 0.24, 0.12, 0.12, 0.15)  # largest change of scale, shear, bend, twist and shift, in half images
INK, GRAIN, BLOTS = 180, 15, 15  # faintest ink, grey levels of noise by pixel and by patch
STRIP = (7, 14)  # width of the strip that hides part of every letter, in pixels
DRAWINGS_VERSION = 1  # raised whenever the drawings change

Pixels = NDArray[np.uint8]


def open_letters(cache: Path | None = None, progress: Progress | None = None, seed: int = 0) -> Dataset:
    """Return the letters with their class split; they are drawn at the first call and read from the cache afterwards."""
    versions = {
        "drawing": [DRAWINGS_VERSION, LETTER_SIZE, SAME_LETTER, BEND, INK, GRAIN, BLOTS, STRIP, FACES, DRAWINGS_PER_FACE],
        "split": [NOVEL_VALIDATION_LETTERS, NOVEL_TEST_LETTERS],
        "seed": seed,
        "unicode": unicodedata.unidata_version,
        "pillow": PIL.__version__,
        "freetype": features.version("freetype2"),
        "numpy": np.__version__,
        "byteorder": sys.byteorder,
        "faces": [hashlib.sha256(_face_path(face).read_bytes()).hexdigest() for face in _all_faces()],
    }
    key = hashlib.sha256(json.dumps(versions).encode()).hexdigest()[:16]
    folder = (cache or cache_folder()) / f"letters-{key}"
    if not folder.is_dir():
        build_folder(folder, lambda scratch: _draw(scratch, seed, progress or Silent()))
    index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    pools: dict[str, Any] = {
        part: Pool.from_members({int(c): images for c, images in index[part].items()}) for part in DATASET_PARTS
    }
    return Dataset(
        name="letters",
        classes=tuple(index["classes"]),
        store=ImageStore.open(folder / "pixels.npy", Normalisation(mean=(0.2,), std=(0.21,))),
        **pools,
        augmentation=Augmentation(pad=2),
        relations={
            "base": UnicodeRelation({"base": 1.4, "case": 1.0}, index["alike"]),
            "accent": UnicodeRelation({"accent": 1.4, "case": 1.0}, index["alike"]),
        },
        fingerprint=key,
    )


def _all_faces() -> tuple[str, ...]:
    return tuple(face for faces in FACES.values() for face in faces)


def _face_path(face: str) -> Path:
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / face


def _candidates() -> list[str]:
    """Capital and small letters of the three alphabets that every face has, in Unicode's order."""
    shared = set[int].intersection(*(set(FT2Font(str(_face_path(face))).get_charmap()) for face in _all_faces()))
    return [
        letter
        for letter in map(chr, sorted(shared))
        if unicodedata.category(letter) in ("Lu", "Ll")
        and unicodedata.name(letter).split()[0] in ("LATIN", "GREEK", "CYRILLIC")
    ]


def _set_glyph(letter: str, font: ImageFont.FreeTypeFont) -> Pixels:
    """One letter [CANVAS, CANVAS], centred sideways, on a common baseline, so that c and C differ in size."""
    canvas = Image.new("L", (CANVAS, CANVAS))
    ImageDraw.Draw(canvas).text((CANVAS / 2, CANVAS * 0.74), letter, fill=255, font=font, anchor="ms")
    return np.asarray(canvas)


def _merge(candidates: list[str], glyphs: NDArray[np.uint8]) -> dict[str, str]:
    """First of each group of letters that look alike -> the others of the group. `glyphs` [faces, letters, H, W]."""
    distances = np.empty((len(glyphs), len(candidates), len(candidates)), np.float32)
    for face, drawn in enumerate(glyphs.reshape(*glyphs.shape[:2], -1).astype(np.float32)):
        drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
        distances[face] = 1 - drawn @ drawn.T
    alike = np.median(distances, axis=0) < SAME_LETTER
    first = list(range(len(candidates)))
    for letter in range(len(candidates)):
        earlier = [first[index] for index in range(letter) if alike[letter, index]]
        if earlier:  # groups that a letter joins become one
            first = [min(earlier) if group in earlier or at == letter else group for at, group in enumerate(first)]
    return {
        candidates[group]: "".join(candidates[at] for at in range(len(candidates)) if first[at] == group != at)
        for group in sorted(set(first))
    }


def _split(alike: dict[str, str], seed: int) -> tuple[list[str], list[str], list[str]]:
    """Seen, novel-validation and novel-test letters, in Unicode's order.

    A letter can be novel if relations can say something of it: it has an accent, and at least three other letters share its
    base and three its accent. Which of these are novel is drawn at random. Seen are the other letters with such a base.
    """
    described = {letter: joint_traits(letter, lookalikes) for letter, lookalikes in alike.items()}

    def relatives(letter: str, kind: str) -> int:
        traits = {trait for trait in described[letter] if trait[0] == kind}
        return sum(bool(traits & known) for relative, known in described.items() if relative != letter)

    related = [
        letter
        for letter, traits in described.items()
        if ("accent", "NONE") not in traits and min(relatives(letter, "base"), relatives(letter, "accent")) >= 3
    ]
    order = np.random.Generator(np.random.Philox(seed)).permutation(len(related))
    novel = [related[at] for at in order[: NOVEL_VALIDATION_LETTERS + NOVEL_TEST_LETTERS]]
    bases = {trait for letter in related for trait in described[letter] if trait[0] == "base"}
    seen = [letter for letter, traits in described.items() if traits & bases and letter not in novel]
    return seen, sorted(novel[:NOVEL_VALIDATION_LETTERS]), sorted(novel[NOVEL_VALIDATION_LETTERS:])


def _draw(folder: Path, seed: int, progress: Progress) -> None:
    candidates = _candidates()
    fonts = [
        ImageFont.truetype(str(_face_path(face)), round(CANVAS * 0.74), layout_engine=ImageFont.Layout.BASIC)
        for face in _all_faces()
    ]
    with progress.task("set the letters", len(fonts), "faces") as advance:
        rows = []
        for font in fonts:
            rows.append(np.stack([_set_glyph(letter, font) for letter in candidates]))
            advance(1)
    glyphs = np.stack(rows)  # [faces, letters, CANVAS, CANVAS]
    alike = _merge(candidates, glyphs)
    seen, novel_validation, novel_test = _split(alike, seed)
    classes = [*seen, *novel_validation, *novel_test]

    pools: dict[str, dict[int, list[int]]] = {name: {} for name in DATASET_PARTS}
    drawn: list[Pixels] = []
    total = 0
    face_of = {face: at for at, face in enumerate(_all_faces())}
    with progress.task("draw the letters", len(classes), "letters") as advance:
        for class_id, letter in enumerate(classes):
            glyph = candidates.index(letter)
            for part, pool in _parts(class_id, len(seen), len(novel_validation)):
                count = DRAWINGS_PER_FACE[part]
                random = np.random.Generator(np.random.Philox(key=[seed, ord(letter)], counter=list(FACES).index(part) << 128))
                faces = np.repeat([face_of[face] for face in FACES[part]], count)
                drawn.append(_roughen(_bend(glyphs[faces, glyph], random), random))
                pools[pool][class_id] = list(range(total, total + len(faces)))
                total += len(faces)
            advance(1)
    content = io.BytesIO()
    np.save(content, np.concatenate(drawn)[:, None])
    (folder / "pixels.npy").write_bytes(content.getbuffer())  # NumPy's own errors do not tell a full disk
    index: dict[str, Any] = {
        "classes": classes,
        "alike": {letter: lookalikes for letter, lookalikes in alike.items() if lookalikes},
    }
    write_json(folder / "index.json", {**index, **pools})


def _parts(class_id: int, seen: int, novel_validation: int) -> list[tuple[str, str]]:
    """In which typefaces a class is drawn, and for which pool."""
    if class_id < seen:
        return [("train", "train"), ("validation", "seen_validation"), ("test", "seen_test")]
    if class_id < seen + novel_validation:
        return [("validation", "novel_validation")]
    return [("test", "novel_test")]


def _bend(glyphs: Pixels, random: np.random.Generator) -> Pixels:
    """Shift, scale, shear and bend glyphs [n, CANVAS, CANVAS] at random; sampled down to [n, LETTER_SIZE, LETTER_SIZE].

    Output pixel (x, y), measured from the centre, shows the glyph at a quadratic polynomial of x and y. All numbers are
    fixed-point integers with 16 fractional bits.
    """
    one = 1 << 16
    count = len(glyphs)
    grid = (2 * np.arange(LETTER_SIZE, dtype=np.int64) - LETTER_SIZE + 1) * one // LETTER_SIZE  # -1 .. 1
    x, y = grid[None, None, :], grid[None, :, None]

    def at_random(reach: float) -> NDArray[np.int64]:
        edge = round(reach * one)
        return random.integers(-edge, edge + 1, (count, 1, 1), dtype=np.int64)

    def axis(along: NDArray[np.int64], across: NDArray[np.int64]) -> NDArray[np.int64]:
        scale, shear, bend, twist, shift = (at_random(reach) for reach in BEND)
        position = (one + scale) * along + shear * across + bend * (across * across // one) + twist * (x * y // one)
        position = position // one + shift  # in half canvases
        return (position * (CANVAS // 2) + (CANVAS - 1) * one // 2).clip(0, (CANVAS - 1) * one - 1)

    # Averaging 2 x 2 pixels before sampling every second one keeps thin strokes from breaking up.
    wide = np.pad(glyphs, ((0, 0), (0, 1), (0, 1))).astype(np.int64)
    smooth = (wide[:, :-1, :-1] + wide[:, 1:, :-1] + wide[:, :-1, 1:] + wide[:, 1:, 1:]) // 4
    row, column = axis(y, x), axis(x, y)
    top, left = row // one, column // one
    down, right = (row % one) >> 8, (column % one) >> 8
    image = np.arange(count)[:, None, None]
    upper = smooth[image, top, left] * (256 - right) + smooth[image, top, left + 1] * right
    lower = smooth[image, top + 1, left] * (256 - right) + smooth[image, top + 1, left + 1] * right
    sampled: Pixels = ((upper * (256 - down) + lower * down) >> 16).astype(np.uint8)
    return sampled


def _roughen(images: Pixels, random: np.random.Generator) -> Pixels:
    """Uneven ink, grainy paper, blots and a strip across images [n, LETTER_SIZE, LETTER_SIZE]."""
    count = len(images)
    ink = random.integers(INK, 256, (count, 1, 1), dtype=np.int64)
    grain = random.integers(-GRAIN, GRAIN + 1, images.shape, dtype=np.int64)
    blots = (
        random.integers(-BLOTS, BLOTS + 1, (count, 4, 4), dtype=np.int64)
        .repeat(-(-LETTER_SIZE // 4), 1)
        .repeat(-(-LETTER_SIZE // 4), 2)[:, :LETTER_SIZE, :LETTER_SIZE]
    )
    rough = images * ink // 255 + grain + blots
    # The strip hides part of the letter, so that one drawing alone does not show all there is to know.
    position = np.arange(LETTER_SIZE, dtype=np.int64)
    upright = random.integers(0, 2, (count, 1, 1)).astype(bool)
    across = np.where(upright, position[None, :], position[:, None])
    middle, width = random.integers(0, LETTER_SIZE, (count, 1, 1)), random.integers(*STRIP, (count, 1, 1))
    rough = np.where(2 * np.abs(across - middle) < width, 96 + grain, rough)
    clipped: Pixels = rough.clip(0, 255).astype(np.uint8)
    return clipped
