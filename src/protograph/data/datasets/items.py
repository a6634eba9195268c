"""Datasets in memory: Hugging Face `datasets`, torchvision-style `Dataset`s, any sequence of pairs."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from protograph._internal.errors import InputError
from protograph._internal.progress import Progress, Silent
from protograph.data.augmentation import Augmentation
from protograph.data.dataset import Dataset, assemble
from protograph.data.decode import is_grey, to_rgb
from protograph.data.images import IMAGE_NORMALISATION, IMAGE_SIZE, Images
from protograph.data.splits import check_roles, check_sizes, split_freely
from protograph.data.store import ImageStore
from protograph.relations import Relation

ARRAYS = (((), "uint8"), ((), "uint16"), ((3,), "uint8"), ((4,), "uint8"))  # of images: shape behind [H, W], and type


def from_items(
    items: Any,
    image: str = "image",
    label: str = "label",
    split: Mapping[str, str] | None = None,
    relations: dict[str, Relation] | None = None,
    size: int = IMAGE_SIZE,
    progress: Progress | None = None,
) -> Dataset:
    """Return a dataset of labelled images in memory.

    Args:
        items: a Hugging Face `datasets.Dataset`, whose columns `image` and `label` name; or anything with a length whose items
            are (image, label) pairs, such as a torchvision dataset. Images are PIL images, uint8 arrays [H, W, 3] or
            [H, W], or tensors [C, H, W] (uint8, or floats from 0 to 1); labels are names or numbers.
        image: The column of images.
        label: The column of labels.
        split: "seen", "novel-validation" or "novel-test" by class name; drawn by rule if not given.
        relations: Side information by name.
        size: Images are resized to size x size.
        progress: Shows how far reading is.

    """
    if isinstance(items, Mapping):
        raise InputError(f"these are several datasets ({', '.join(map(str, items))}): give one of them")
    names = _class_names(items, label)
    pixels, digests, sizes, grey = [], [], [], []
    members: dict[str, list[int]] = {}
    with (progress or Silent()).task("read images", len(items), "images") as advance:
        for row in range(len(items)):
            content, label_value = _pair(items[row], row, image, label)
            opened = to_image(content, f"image {row}")
            sizes.append(opened.size)
            grey.append(is_grey(opened))
            pixels.append(np.asarray(to_rgb(opened, size)).transpose(2, 0, 1))
            digests.append(hashlib.sha256(np.ascontiguousarray(pixels[-1]).data).hexdigest())
            members.setdefault(_name(label_value, names, row), []).append(row)
            advance(1)
    check_sizes(members, "images")
    members = {name: members[name] for name in sorted(members)}
    if split is not None:
        check_roles(split, members, "the split")
    divided = split_freely(members, split)
    store = ImageStore(torch.from_numpy(np.stack(pixels)), IMAGE_NORMALISATION)
    images = Images(
        store, [str(row) for row in range(len(pixels))], np.array(digests, "S64"), np.array(sizes, np.int32), np.array(grey), {}
    )
    return assemble("own", divided, images, Augmentation(pad=8, flip=True), relations or {}, drawn_split=True)


def _class_names(items: Any, label: str) -> list[str] | None:
    """Return class names by number, where the source knows them: `features[label].names` or `classes`."""
    described = getattr(items, "features", None)
    if isinstance(described, Mapping) and label in described:
        return getattr(described[label], "names", None)
    return getattr(items, "classes", None)


def _pair(item: Any, row: int, image: str, label: str) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        if lacking := [column for column in (image, label) if column not in item]:
            raise InputError(f"there is no column '{lacking[0]}', but {', '.join(item)}: say which with `image` and `label`")
        return item[image], item[label]
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise InputError(f"item {row} is a {type(item).__name__}, not a pair of image and label: give pairs")
    return item[0], item[1]


def _name(label: Any, names: list[str] | None, row: int) -> str:
    if isinstance(label, torch.Tensor | np.generic):
        label = label.item()
    if not isinstance(label, int) or names is None:
        return str(label)
    if not 0 <= label < len(names):
        raise InputError(f"item {row} has the label {label}, but there are names for 0 to {len(names) - 1}: leave it out")
    return str(names[label])


def to_image(image: Any, name: str) -> Image.Image:
    """Return an image of any supported kind as a PIL image; `name` stands for it in error messages."""
    if isinstance(image, torch.Tensor) and image.ndim == 3 and image.shape[0] in (1, 3):
        array = image.permute(1, 2, 0).cpu()
        if array.is_floating_point():
            if not bool(((array >= 0) & (array <= 1)).all()):
                raise InputError(f"{name} has values outside 0 to 1: give images before they are normalised")
            array = (255 * array).round().to(torch.uint8)
        image = array.numpy()
    if isinstance(image, np.ndarray) and image.ndim == 3 and image.shape[2] == 1:
        image = image[:, :, 0]
    if isinstance(image, np.ndarray) and image.size and image.ndim > 1 and _layout(image) in ARRAYS:
        image = Image.fromarray(np.ascontiguousarray(image))
    if not isinstance(image, Image.Image):
        raise InputError(
            f"{name} is a {type(image).__name__} that cannot be read as one: give PIL images, uint8 arrays [H, W, 3], or "
            "tensors [C, H, W]"
        )
    return image


def _layout(array: NDArray[Any]) -> tuple[tuple[int, ...], str]:
    return array.shape[2:], array.dtype.name
