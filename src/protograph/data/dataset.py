"""A dataset: images, classes, and who may see what.

Class ids are ordered: the S seen classes first, then the novel classes for validation, then those for test. So the id of a
seen class is also its row in the learned prototypes, and every similarity matrix is indexed by class id.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph._internal.progress import Progress
from protograph.data.augmentation import Augmentation
from protograph.data.reading import Images
from protograph.data.splits import PARTS, Split
from protograph.data.store import Store
from protograph.relations import Relation, as_relation


@dataclass(frozen=True)
class Pool:
    """Classes with the images that may be drawn of each.

    classes:  [C] class ids
    images: [C, M] image indices, padded with -1 behind the last
    counts:   [C] images of each class
    """

    classes: Tensor
    images: Tensor
    counts: Tensor

    @classmethod
    def of(cls, members: dict[int, list[int]]) -> "Pool":
        """From a class id -> image indices mapping."""
        counts = torch.tensor([len(images) for images in members.values()])
        rows = torch.full((len(members), max(1, int(counts.max())) if len(members) else 1), -1)
        for row, images in zip(rows, members.values(), strict=True):
            row[: len(images)] = torch.tensor(images)
        return cls(torch.tensor(list(members), dtype=torch.long), rows, counts)

    def __len__(self) -> int:
        return len(self.classes)

    def to(self, device: torch.device) -> "Pool":
        """The same pool with its tensors on a device."""
        return Pool(self.classes.to(device), self.images.to(device), self.counts.to(device))

    def by_class(self) -> list[Tensor]:
        """The image indices of each class."""
        return [images[:count] for images, count in zip(self.images, self.counts.tolist(), strict=True)]

    def all_images(self) -> Tensor:
        """Every image index of the pool, ascending."""
        return self.images[self.images >= 0].sort().values


@dataclass(frozen=True, repr=False)
class Dataset:
    """Images with their class split.

    train:                            training images of the seen classes
    seen_validation, seen_test:       held-out images of the same classes
    novel_validation, novel_test:     all images of classes that training never meets
    relations:                        side information by name
    default_relations:                those of them that are used where none is named; by default all
    titles:                           class names as a person would write them, where they differ
    images:                         the files behind the store, where there are some
    """

    name: str
    classes: tuple[str, ...]
    store: Store
    train: Pool
    seen_validation: Pool
    novel_validation: Pool
    seen_test: Pool
    novel_test: Pool
    augmentation: Augmentation
    relations: dict[str, Relation]
    fingerprint: str
    titles: Mapping[str, str] = field(default_factory=dict)
    images: Images | None = None
    default_relations: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "relations", {name: as_relation(source) for name, source in self.relations.items()})
        if self.default_relations is None:
            object.__setattr__(self, "default_relations", tuple(self.relations))

    def __repr__(self) -> str:
        classes = f"{self.seen} seen and {len(self.novel_validation)} + {len(self.novel_test)} novel classes"
        return f"Dataset({self.name}: {len(self.store)} images, {classes}, relations {list(self.relations)})"

    @property
    def seen(self) -> int:
        """S, the number of seen classes; their ids are 0 .. S-1."""
        return len(self.train)

    def held_out(self, split: str) -> tuple[Pool, Pool]:
        """The seen and novel pools of `validation` or `test`."""
        if split == "validation":
            return self.seen_validation, self.novel_validation
        if split == "test":
            return self.seen_test, self.novel_test
        raise ValueError(f"unknown split '{split}': use validation or test")

    def title(self, class_id: int) -> str:
        """A class as a person would write it."""
        name = self.classes[class_id]
        return self.titles.get(name, name)


def pools(split: Split) -> dict[str, Any]:
    """The five pools of a split, by name, with class ids in the order of its classes."""
    ids = {own: class_id for class_id, own in enumerate(split.classes)}
    if len(ids) != len(split.classes):
        twice = next(own for own in split.classes if split.classes.count(own) > 1)
        raise InputError(f"class '{twice}' is both seen and novel, or novel twice: give it to one part")
    return {part: Pool.of({ids[own]: list(rows) for own, rows in getattr(split, part).items()}) for part in PARTS}


def assemble(
    name: str,
    split: Split,
    images: Images,
    augmentation: Augmentation,
    relations: dict[str, Relation],
    titles: Mapping[str, str] | None = None,
    default_relations: tuple[str, ...] | None = None,
) -> Dataset:
    """A dataset of images that were read and split.

    Its fingerprint stands for the contents of every image and what each is used for, wherever they lie.
    """
    digests = images.digests.tolist()
    used = [[[own, [digests[row].decode() for row in rows]] for own, rows in getattr(split, part).items()] for part in PARTS]
    shape = list(images.store.image_shape)
    return Dataset(
        name=name,
        classes=split.classes,
        store=images.store,
        **pools(split),
        augmentation=augmentation,
        relations=relations,
        fingerprint=hashlib.sha256(json.dumps([shape, used]).encode()).hexdigest()[:16],
        titles=titles or {},
        images=images,
        default_relations=default_relations,
    )


def report_bad(images: Images, skip_bad: bool, progress: Progress) -> None:
    """Say how many images could not be read, or complain if they may not be left out."""
    if not images.errors:
        return
    row, error = next(iter(images.errors.items()))
    count = len(images.errors)
    if not skip_bad:
        more = f" and {count - 1} more" if count > 1 else ""
        raise InputError(
            f"image {images.names[row]}{more} cannot be read ({error}): repair or remove it, or go on with --skip-bad"
        )
    progress.say(f"left out {count} of {len(images.names)} images that cannot be read, such as {images.names[row]} ({error})")


def without_bad(split: Split, images: Images, skip_bad: bool, progress: Progress) -> Split:
    """The split without the images that could not be read, if those may be left out; every class keeps some for each part."""
    report_bad(images, skip_bad, progress)
    left = split.without(set(images.errors))
    for part in PARTS:
        for own, rows in getattr(left, part).items():
            if not rows:
                raise InputError(f"class '{own}' has no image for {part.replace('_', ' ')}: give it more")
    return left
