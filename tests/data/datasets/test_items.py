from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from data.layouts import blocks, save
from protograph._internal.errors import InputError
from protograph.data import Dataset, from_items
from protograph.data.splits import DATASET_PARTS
from protograph.relations import MatrixRelation

CLASSES = [f"kind {number}" for number in range(9)]
PIXELS = [blocks(14, 14, number, place) for number in range(9) for place in range(6)]
LABELS = [number for number in range(9) for _ in range(6)]
SPLIT = {name: "seen" if place < 5 else "novel-validation" if place < 7 else "novel-test" for place, name in enumerate(CLASSES)}


def make(items: Any, **options: Any) -> Dataset:
    return from_items(items, size=14, **options)


class Torchvision:
    """As torchvision's datasets are: pairs, and names by number in `classes`."""

    classes = CLASSES

    def __len__(self) -> int:
        return len(PIXELS)

    def __getitem__(self, row: int) -> tuple[Image.Image, int]:
        return Image.fromarray(PIXELS[row]), LABELS[row]


class HuggingFace:
    """As Hugging Face's datasets are: rows by column, and names by number in the label's feature."""

    def __init__(self, image: str = "image", label: str = "label", names: list[str] | None = CLASSES) -> None:
        self.columns = image, label
        self.features = {image: object(), label: SimpleNamespace(names=names) if names else object()}

    def __len__(self) -> int:
        return len(PIXELS)

    def __getitem__(self, row: int) -> dict[str, Any]:
        image, label = self.columns
        return {image: Image.fromarray(PIXELS[row]), label: LABELS[row], "id": row}


@pytest.fixture(scope="module")
def expected() -> Dataset:
    return make([(image, CLASSES[label]) for image, label in zip(PIXELS, LABELS, strict=True)])


def test_pairs_become_a_dataset(expected: Dataset) -> None:
    assert (expected.name, sorted(expected.classes)) == ("own", CLASSES)
    assert [len(getattr(expected, part)) for part in DATASET_PARTS] == [5, 5, 5, 2, 2]
    assert np.array_equal(expected.store.pixels, np.stack(PIXELS).transpose(0, 3, 1, 2))
    for part in DATASET_PARTS:
        pool = getattr(expected, part)
        for class_id, rows in zip(pool.classes.tolist(), pool.images.tolist(), strict=True):
            assert {CLASSES[LABELS[row]] for row in rows if row >= 0} == {expected.classes[class_id]}


def tensors(scale: float | None) -> list[torch.Tensor]:
    whole = [torch.from_numpy(image).permute(2, 0, 1) for image in PIXELS]
    return whole if scale is None else [image.double() / scale for image in whole]


SOURCES: dict[str, Any] = {
    "torchvision": Torchvision(),
    "hugging face": HuggingFace(),
    "pairs of arrays and names": list(zip(PIXELS, [CLASSES[label] for label in LABELS], strict=True)),
    "lists of tensors and names": [[image, CLASSES[label]] for image, label in zip(tensors(None), LABELS, strict=True)],
    "floats": list(zip(tensors(255), [CLASSES[label] for label in LABELS], strict=True)),
    "rows without features": [{"image": p, "label": CLASSES[label]} for p, label in zip(PIXELS, LABELS, strict=True)],
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_every_source_gives_the_same_dataset(expected: Dataset, source: Any) -> None:
    assert make(source).fingerprint == expected.fingerprint


def test_columns_can_have_other_names(expected: Dataset) -> None:
    assert make(HuggingFace("img", "fine_label"), image="img", label="fine_label").fingerprint == expected.fingerprint


@pytest.mark.parametrize("kind", [int, np.int64, torch.tensor, np.array])
def test_labels_without_names_are_named_by_their_numbers(kind: Any) -> None:
    dataset = make([(image, kind(label)) for image, label in zip(PIXELS, LABELS, strict=True)])
    assert sorted(dataset.classes) == list("012345678")


def test_a_split_and_relations_can_be_given() -> None:
    relation = MatrixRelation(torch.eye(9), CLASSES)
    dataset = make(Torchvision(), split=SPLIT, relations={"own": relation})
    assert dataset.classes == tuple(CLASSES)
    assert [len(getattr(dataset, part)) for part in DATASET_PARTS] == [5, 5, 5, 2, 2]
    assert dataset.relations == {"own": relation}


def test_images_are_resized_and_made_rgb() -> None:
    grey = np.arange(200, dtype=np.uint8).reshape(20, 10)
    turned = torch.from_numpy(grey)[None]
    items = [((grey, turned, Image.fromarray(grey))[row % 3], label) for row, label in enumerate(LABELS)]
    dataset = from_items(items)
    assert dataset.store.image_shape == (3, 84, 84)
    resized = np.asarray(Image.fromarray(grey).resize((84, 84), Image.Resampling.BILINEAR))
    assert all(np.array_equal(channel, resized) for image in dataset.store.pixels for channel in image)
    assert dataset.images is not None
    assert dataset.images.grey.all()
    assert dataset.images.sizes.tolist() == [[10, 20]] * 54


def test_opened_files_are_left_as_they_were(tmp_path: Path) -> None:
    """A large JPEG that is not loaded yet would let itself be made smaller."""
    path = save(tmp_path / "large.jpg", blocks(400, 600, 1))
    opened = [Image.open(path) for _ in LABELS]
    make(list(zip(opened, LABELS, strict=True)))
    assert {image.size for image in opened} == {(600, 400)}
    for image in opened:
        image.close()


def changed(row: int, item: Any) -> list[Any]:
    items: list[Any] = list(zip(PIXELS, LABELS, strict=True))
    items[row] = item
    return items


@pytest.mark.parametrize(
    ("items", "named"),
    [
        (changed(7, ("a.jpg", 1)), "image 7 is a str that cannot be read"),
        (changed(7, (PIXELS[0].astype(float), 1)), "image 7 is a ndarray that cannot be read"),
        (changed(7, (PIXELS[0][..., :2], 1)), "image 7 is a ndarray that cannot be read"),
        (changed(7, (torch.zeros(4, 5, 5), 1)), "image 7 is a Tensor that cannot be read"),
        (changed(7, (torch.full((3, 5, 5), -0.5), 1)), "image 7 has values outside 0 to 1: .* before they are normalised"),
        (changed(7, (torch.full((3, 5, 5), torch.nan), 1)), "image 7 has values outside 0 to 1"),
        (changed(7, (PIXELS[0], 1, 2)), "item 7 is a tuple, not a pair of image and label"),
        (changed(7, PIXELS[0]), "item 7 is a ndarray, not a pair of image and label"),
        (changed(7, (PIXELS[0], 0)), "class '1' has 5 images: give every class at least 6"),
        ([], "0 classes are too few"),
        (list(zip(PIXELS[:36], LABELS, strict=False)), "6 classes are too few"),
        ({"train": Torchvision(), "test": Torchvision()}, r"several datasets \(train, test\): give one of them"),
        (HuggingFace("img"), "no column 'image', but img, label, id: say which with `image` and `label`"),
        (HuggingFace(label="fine"), "no column 'label', but image, fine, id"),
        (HuggingFace(names=CLASSES[:7]), "item 42 has the label 7, but there are names for 0 to 6"),
    ],
    ids=range(15),
)
def test_items_that_do_not_fit_are_named(items: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        make(items)


def test_images_without_a_label_are_not_taken_for_the_last_class() -> None:
    """Hugging Face gives test images whose label is secret the label -1."""

    class Secret(HuggingFace):
        def __getitem__(self, row: int) -> dict[str, Any]:
            return super().__getitem__(row) | ({"label": -1} if row == 3 else {})

    with pytest.raises(InputError, match="item 3 has the label -1, but there are names for 0 to 8: leave it out"):
        make(Secret())


@pytest.mark.parametrize(
    ("split", "named"),
    [
        (SPLIT | {"kind 0": "train"}, "unknown split of class 'kind 0' in the split 'train'"),
        ({name: kind for name, kind in SPLIT.items() if name != "kind 3"}, "the split does not assign class 'kind 3'"),
        (SPLIT | {"other": "seen"}, "the split names class 'other'"),
        (dict.fromkeys(SPLIT, "seen"), "the split has no class for 'novel-validation'"),
    ],
    ids=range(4),
)
def test_a_split_that_does_not_fit_is_named(split: dict[str, str], named: str) -> None:
    with pytest.raises(InputError, match=named):
        make(Torchvision(), split=split)
