"""CUB-200-2011: 11,788 images of 200 bird species with 312 attributes each, with the split of Morgado & Vasconcelos.

150 classes are seen and 50 novel in that split; 20 of the 150 serve as novel classes for validation here. The seen classes hold
out the images of the split's testRecg list (24.9 %) for test and 10 % of each class for validation; `cub-stratified` takes
25 % of each class for test instead. The lists are in cub.json, images by their numbers in images.txt.

Its side information are the attributes. Where a folder `relations` lies beside the images, the word vectors and the tree of
kinds in it can be named, too: `words` (cub-word2vec-500d.txt) and `tree` (cub-wordnet-hierarchy.txt).
"""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph._internal.progress import Progress
from protograph.data.augmentation import Augmentation
from protograph.data.dataset import Dataset, assemble, without_bad
from protograph.data.images import IMAGE_NORMALISATION, IMAGE_SIZE
from protograph.data.reading import read_images, unpacked
from protograph.data.splits import ImagesByClass, Split, draw_by_index, split_seen
from protograph.relations import AttributeRelation, EdgeRelation, EmbeddingRelation, Relation

NOVEL_VALIDATION = 20  # of the 150 classes
VALIDATION = 0.10  # of a seen class's images
STRATIFIED_TEST = 0.25


def open_cub(root: Path, progress: Progress, skip_bad: bool) -> Dataset:
    """Return CUB with the lists that the paper cites."""
    return _open("cub", root, progress, skip_bad, stratified=False)


def open_cub_stratified(root: Path, progress: Progress, skip_bad: bool) -> Dataset:
    """Return CUB with a quarter of every seen class held out for test."""
    return _open("cub-stratified", root, progress, skip_bad, stratified=True)


def cub_verdict(dataset: Dataset) -> str:
    """Return one sentence on whether these are the images and classes of the paper."""
    if dataset.images is None or len(dataset.images.names) != 11_788 or len(dataset.classes) != 200:
        return "This is not the paper's dataset: CUB-200-2011 has 11,788 images of 200 classes."
    small = dataset.images.sizes.min(axis=1).max() < 100
    copy = "a smaller copy of the images" if small else "the images"
    if dataset.name != "cub":
        return f"This is {copy} the paper used, with a quarter of every seen class held out instead of the cited lists."
    return (
        f"This is {copy} and the split the paper used; which 20 classes validate and which images of seen classes do is not "
        "published: they are drawn here once and stored."
    )


def read_lists() -> dict[str, list[int]]:
    """Return the stored lists: class numbers `novel_test`, `novel_validation`; image numbers `seen_test`, `seen_validation`."""
    stored: dict[str, list[int]] = json.loads(
        files("protograph.data.datasets").joinpath("cub.json").read_text(encoding="utf-8")
    )
    return stored


def draw_lists(classes: dict[int, str], images: dict[int, list[int]], cited: dict[str, list[int]]) -> dict[str, list[int]]:
    """Return the lists that are stored, as they were drawn.

    Args:
        classes: Class names by class number.
        images: Image numbers by class number.
        cited: The `novel_test` classes and `seen_test` images of the split as published.
    """
    numbers = [number for number in classes if number not in cited["novel_test"]]
    novel_validation = draw_by_index(numbers, NOVEL_VALIDATION, 0, "cub", "novel_validation")
    held = set(cited["seen_test"])
    seen_validation = []
    for number in numbers:
        if number not in novel_validation:
            rest = [image for image in images[number] if image not in held]
            count = round(VALIDATION * len(images[number]))
            seen_validation += draw_by_index(rest, count, 0, classes[number], "validation")
    return {**cited, "novel_validation": novel_validation, "seen_validation": seen_validation}


def _open(name: str, root: Path, progress: Progress, skip_bad: bool, stratified: bool) -> Dataset:
    folder = _find(root, progress)
    numbered, named, labelled = (_table(folder / f"{table}.txt") for table in ("images", "classes", "image_class_labels"))
    if set(numbered) != set(labelled):
        raise InputError(f"{folder}: images.txt and image_class_labels.txt number different images: unpack it again")
    if odd := set(labelled.values()) - set(named):
        raise InputError(f"{folder}: classes.txt lacks class {min(odd)} of image_class_labels.txt: unpack it again")
    classes = {int(number): class_name for number, class_name in named.items()}
    labels = {int(image): int(number) for image, number in labelled.items()}
    names = {int(image): file for image, file in numbered.items()}
    images = read_images(folder / "images", list(names.values()), IMAGE_SIZE, IMAGE_NORMALISATION, progress)
    row_of = {image: row for row, image in enumerate(names)}
    members: dict[int, list[int]] = {number: [] for number in classes}
    for image, number in labels.items():
        members[number].append(image)
    split = _split(classes, members, row_of, stratified)
    return assemble(
        name,
        without_bad(split, images, skip_bad, progress),
        images,
        Augmentation(pad=8, flip=True),
        {"attributes": _attributes(folder, list(classes.values())), **_further(root, list(classes.values()))},
        {class_name: class_name.partition(".")[2].replace("_", " ") for class_name in classes.values()},
        default_relations=("attributes",),
    )


def _split(classes: dict[int, str], members: dict[int, list[int]], row_of: dict[int, int], stratified: bool) -> Split:
    stored = read_lists()
    novel_test, novel_validation = set(stored["novel_test"]), set(stored["novel_validation"])
    test, validation = set(stored["seen_test"]), set(stored["seen_validation"])

    def rows(numbers: set[int]) -> dict[str, list[int]]:
        return {classes[number]: [row_of[image] for image in members[number]] for number in classes if number in numbers}

    def chosen(keep: Any) -> ImagesByClass:
        return {
            classes[number]: [row_of[image] for image in members[number] if keep(image)] for number in classes if number in seen
        }

    seen = set(classes) - novel_test - novel_validation
    parts: tuple[ImagesByClass, ImagesByClass, ImagesByClass]
    if stratified:
        parts = split_seen(rows(seen), VALIDATION, STRATIFIED_TEST)
    else:
        parts = (
            chosen(lambda p: p not in test and p not in validation),
            chosen(validation.__contains__),
            chosen(test.__contains__),
        )
    return Split(*parts, rows(novel_validation), rows(novel_test))


def _find(root: Path, progress: Progress) -> Path:
    for folder in (root, root / "CUB_200_2011"):
        if (folder / "images.txt").is_file():
            for needed in ("classes.txt", "image_class_labels.txt", "images"):
                if not (folder / needed).exists():
                    raise InputError(f"{folder} lacks {needed}: unpack CUB_200_2011.tgz again")
            return folder
    archives = [root] if root.is_file() else sorted((*root.glob("CUB_200_2011*.tgz"), *root.glob("CUB_200_2011*.tar.gz")))
    if archives:
        return _find(unpacked(archives[:1], progress), progress)
    raise InputError(f"no CUB at {root}: give the folder with CUB_200_2011 or CUB_200_2011.tgz in it")


def _table(path: Path) -> dict[str, str]:
    """Return the values of a file by their numbers."""
    rows = [line.split(maxsplit=1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if any(len(row) != 2 or not row[0].isdigit() for row in rows):
        raise InputError(f"{path} is not a list of numbers with values: unpack CUB_200_2011.tgz again")
    return {row[0]: row[1].strip() for row in rows}


def _attributes(folder: Path, names: list[str]) -> AttributeRelation:
    path = folder / "attributes" / "class_attribute_labels_continuous.txt"
    if not path.is_file():
        raise InputError(f"{folder} lacks attributes/{path.name}: unpack CUB_200_2011.tgz again")
    return AttributeRelation(_numbers(path), names, source="attributes")


def _further(root: Path, names: list[str]) -> dict[str, Relation]:
    """Return the relations in the folder `relations` beside the images."""
    folder = (root.parent if root.is_file() or root.name == "CUB_200_2011" else root) / "relations"
    words, tree = folder / "cub-word2vec-500d.txt", folder / "cub-wordnet-hierarchy.txt"
    relations: dict[str, Relation] = {}
    if words.is_file():
        relations["words"] = EmbeddingRelation(_numbers(words), names, source="words")
    if tree.is_file():
        relations["tree"] = EdgeRelation(_tree(tree), source="tree")
    return relations


def _tree(path: Path) -> list[tuple[str, str, float]]:
    """Return the edges of a tree of kinds, with the names of classes as its leaves.

    The file has two lines for every node, its id, words, parent and children; and the classes below it:
    `n02058221 albatross, mollymawk : n02057731 : 3 : n02058747 ...` and `--- 3 : 001.Black_footed_Albatross ...`.
    """
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    parents, called = {}, {}
    try:
        for node, below in zip(lines[::2], lines[1::2], strict=True):
            words, parent, children = node.split(" : ")[:3]
            node_id = words.split()[0]
            parents[node_id] = parent.strip()
            called[node_id] = below.split(" : ")[1].strip() if int(children.split()[0]) == 0 else node_id
    except (ValueError, IndexError) as error:
        raise InputError(f"{path} is not a tree of kinds ({error}): copy it again") from error
    return [(called[node_id], called[parent], 1.0) for node_id, parent in parents.items() if parent in called]


def _numbers(path: Path) -> Tensor:
    """Return a table of numbers, one row per class."""
    try:
        return torch.tensor([[float(value) for value in line.split()] for line in path.read_text("utf-8").splitlines()])
    except ValueError as error:
        raise InputError(f"{path} is not a table of numbers ({error}): unpack or copy it again") from error
