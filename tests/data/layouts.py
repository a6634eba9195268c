"""Small images in the layouts in which the real datasets are handed around."""

import csv
import io
import pickle
import struct
import tarfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from protograph.data.datasets import cub
from protograph.relations.mini_imagenet import mini_imagenet_classes

Pixels = NDArray[np.uint8]
SPLITS = ("train", "val", "test")
IMAGES = 8  # of a miniImageNet class
CUB_IMAGES = {"train": 4, "seen_validation": 1, "seen_test": 2, "novel": 4}


def blocks(height: int, width: int, *seed: int) -> Pixels:
    """Coloured blocks [H, W, 3]: different for every seed, and quickly compressed."""
    random = np.random.default_rng(seed)
    side = 7
    coarse = random.integers(0, 256, (-(-height // side), -(-width // side), 3), np.uint8)
    return coarse.repeat(side, 0).repeat(side, 1)[:height, :width]


def save(path: Path, pixels: Pixels, mode: str = "RGB", **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".png":
        options.setdefault("compress_level", 1)
    Image.fromarray(pixels).convert(mode).save(path, **options)
    return path


def write_rows(path: Path, *rows: Sequence[str]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


def write_folder(root: Path, counts: Mapping[str, int], size: tuple[int, int] = (12, 10)) -> Path:
    """Class folders with so many images each."""
    for number, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True)
        for place in range(count):
            save(root / name / f"{place:03d}.png", blocks(*size, number, place))
    return root


# miniImageNet: the same images by all of these.


@cache
def mini_pixels(count: int = IMAGES, salt: int = 0) -> dict[str, Pixels]:
    """Class -> images [n, 84, 84, 3], in the order of the split."""
    return {
        wnid: np.stack([blocks(84, 84, salt, number, place) for place in range(count)])
        for number, wnid in enumerate(mini_imagenet_classes())
    }


def mini_split(split: str) -> list[str]:
    return [wnid for wnid, known in mini_imagenet_classes().items() if known.split == split]


def mini_name(wnid: str, place: int) -> str:
    return f"{wnid}{place:08d}.png"


def write_csvs(root: Path) -> Path:
    for split in SPLITS:
        rows = [(mini_name(wnid, place), wnid) for wnid in mini_split(split) for place in range(IMAGES)]
        root.mkdir(parents=True, exist_ok=True)
        write_rows(root / f"{split}.csv", ("filename", "label"), *rows)
    for wnid, own in mini_pixels().items():
        for place, pixels in enumerate(own):
            save(root / "images" / mini_name(wnid, place), pixels)
    return root


def write_class_folders(root: Path) -> Path:
    for wnid, own in mini_pixels().items():
        for place, pixels in enumerate(own):
            save(root / wnid / mini_name(wnid, place), pixels)
    return root


def write_split_folders(root: Path) -> Path:
    for wnid, own in mini_pixels().items():
        for place, pixels in enumerate(own):
            save(root / mini_imagenet_classes()[wnid].split / wnid / mini_name(wnid, place), pixels)
    return root


class Python2Pickler(pickle._Pickler):
    """Writes strings and bytes as Python 2 wrote its `str`."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_text(self, text: str | bytes) -> None:
        raw = text.encode("latin1") if isinstance(text, str) else text
        self.write(pickle.BINSTRING + struct.pack("<i", len(raw)) + raw)
        self.memoize(text)

    dispatch[str] = dispatch[bytes] = save_text


def python2_pickle(value: Any) -> bytes:
    buffer = io.BytesIO()
    Python2Pickler(buffer, 2).dump(value)
    return buffer.getvalue().replace(b"cnumpy._core.", b"cnumpy.core.")


def dump(path: Path, value: Any, python2: bool = False, protocol: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(python2_pickle(value) if python2 else pickle.dumps(value, protocol))
    return path


def write_cache_pickles(root: Path, python2: bool = False) -> Path:
    for split in SPLITS:
        wnids = mini_split(split)
        data = np.concatenate([mini_pixels()[wnid] for wnid in wnids])
        places = {wnid: list(range(IMAGES * number, IMAGES * (number + 1))) for number, wnid in enumerate(wnids)}
        dump(root / f"mini-imagenet-cache-{split}.pkl", {"image_data": data, "class_dict": places}, python2)
    return root


def write_category_pickles(root: Path, extra: Sequence[str] = ("val", "test"), python2: bool = False) -> Path:
    """With further images of the seen classes, 2 for `val` and 3 for `test`, there in the opposite order of classes."""

    def write(name: str, wnids: list[str], pixels: Mapping[str, Pixels]) -> None:
        labels = [number for number, wnid in enumerate(wnids) for _ in pixels[wnid]]
        content = {
            "data": np.concatenate([pixels[wnid] for wnid in wnids]),
            "labels": labels,
            "catname2label": {wnid: number for number, wnid in enumerate(wnids)},
        }
        dump(root / f"miniImageNet_category_split_{name}.pickle", content, python2)

    write("train_phase_train", mini_split("train"), mini_pixels())
    write("val", mini_split("val"), mini_pixels())
    write("test", mini_split("test"), mini_pixels())
    for part, count in (("val", 2), ("test", 3)):
        if part in extra:
            write(f"train_phase_{part}", mini_split("train")[::-1], mini_pixels(count, salt=count))
    return root


# CUB: all 200 classes, and of the official image numbers a few of each list.


def cub_class(number: int) -> str:
    return f"{number:03d}.Kind_{number}_of_Bird"


@cache
def cub_numbers() -> dict[int, list[int]]:
    """Class number -> image numbers, so dealt out that the stored lists hold some of every seen class."""
    stored = cub.read_lists()
    novel = {*stored["novel_test"], *stored["novel_validation"]}
    listed = {*stored["seen_test"], *stored["seen_validation"]}
    supply = {
        "train": iter(number for number in range(1, 11_789) if number not in listed),
        "seen_validation": iter(stored["seen_validation"]),
        "seen_test": iter(stored["seen_test"]),
    }
    supply["novel"] = supply["train"]

    def take(part: str) -> list[int]:
        return [next(supply[part]) for _ in range(CUB_IMAGES[part])]

    return {
        number: sorted(take("novel") if number in novel else take("train") + take("seen_validation") + take("seen_test"))
        for number in range(1, 201)
    }


def cub_attributes() -> NDArray[np.float64]:
    return np.random.default_rng(1).uniform(0, 100, (200, 312)).round(3)


def write_cub(root: Path) -> Path:
    """The tree in `root`/CUB_200_2011; the first image of each of the first eight classes is greyscale."""
    tree = root / "CUB_200_2011"
    files: dict[int, str] = {}
    for number, images in cub_numbers().items():
        for place, image in enumerate(images):
            files[image] = f"{cub_class(number)}/Bird_{place:04d}_{image}.jpg"
            mode = "L" if number <= 8 and place == 0 else "RGB"
            save(tree / "images" / files[image], blocks(20 + place, 28, number, place), mode)
    label = {image: number for number, images in cub_numbers().items() for image in images}
    (tree / "images.txt").write_text("".join(f"{image} {files[image]}\n" for image in sorted(files)))
    (tree / "image_class_labels.txt").write_text("".join(f"{image} {label[image]}\n" for image in sorted(files)))
    (tree / "classes.txt").write_text("".join(f"{number} {cub_class(number)}\n" for number in range(1, 201)))
    (tree / "attributes").mkdir()
    np.savetxt(tree / "attributes" / "class_attribute_labels_continuous.txt", cub_attributes(), fmt="%.3f")
    return root


def write_tgz(path: Path, tree: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for child in sorted(tree.iterdir()):
            archive.add(child, child.name)
    return path
