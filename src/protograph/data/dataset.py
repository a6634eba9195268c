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
from protograph.data.images import Images
from protograph.data.splits import DATASET_PARTS, Split
from protograph.data.store import Store
from protograph.relations import Relation, as_relation


@dataclass(frozen=True)
class Pool:
    """Classes with the images that may be drawn of each. C classes, M images of a class at most.

    Attributes:
        classes: Class ids [C].
        images: Image indices [C, M], padded with -1 behind the last.
        counts: Number of images of each class [C].

    """

    classes: Tensor
    images: Tensor
    counts: Tensor

    @classmethod
    def from_members(cls, members: dict[int, list[int]]) -> "Pool":
        """Return a pool of image indices by class id."""
        counts = torch.tensor([len(images) for images in members.values()])
        rows = torch.full((len(members), max(1, int(counts.max())) if len(members) else 1), -1)
        for row, images in zip(rows, members.values(), strict=True):
            row[: len(images)] = torch.tensor(images)
        return cls(torch.tensor(list(members), dtype=torch.long), rows, counts)

    def __len__(self) -> int:
        return len(self.classes)

    def to(self, device: torch.device) -> "Pool":
        """Return the same pool with its tensors on a device."""
        return Pool(self.classes.to(device), self.images.to(device), self.counts.to(device))

    def by_class(self) -> list[Tensor]:
        """Return the image indices of each class."""
        return [images[:count] for images, count in zip(self.images, self.counts.tolist(), strict=True)]

    def all_images(self) -> Tensor:
        """Return every image index of the pool, ascending."""
        return self.images[self.images >= 0].sort().values


@dataclass(frozen=True, repr=False)
class Dataset:
    """Images with their class split and relations.

    Attributes:
        name: Name of the dataset.
        classes: Class names by class id.
        store: What network input is gathered from.
        train: Training images of the seen classes.
        seen_validation: Images of the same classes, held out for validation.
        novel_validation: All images of the novel classes for validation, which training never meets.
        seen_test: Images of the seen classes, held out for test.
        novel_test: All images of the novel classes for test.
        augmentation: How training images are changed at random.
        relations: Side information by name.
        fingerprint: A digest of the images and of what each is used for.
        titles: Class names as a person would write them, where they differ.
        images: The files behind the store; None where there are none.
        default_relations: Names of the relations that are used where none is named; by default all.
        drawn_split: Whether the classes were split by `split_freely`, so that another version of the images may be split
            otherwise. A run keeps such a split.

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
    drawn_split: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "relations", {name: as_relation(source) for name, source in self.relations.items()})
        if self.default_relations is None:
            object.__setattr__(self, "default_relations", tuple(self.relations))

    def __repr__(self) -> str:
        classes = f"{self.seen} seen and {len(self.novel_validation)} + {len(self.novel_test)} novel classes"
        return f"Dataset({self.name}: {len(self.store)} images, {classes}, relations {list(self.relations)})"

    @property
    def seen(self) -> int:
        """Number S of seen classes; their ids are 0 .. S-1."""
        return len(self.train)

    def held_out(self, split: str) -> tuple[Pool, Pool]:
        """Return the seen and the novel pool of the split `validation` or `test`."""
        if split == "validation":
            return self.seen_validation, self.novel_validation
        if split == "test":
            return self.seen_test, self.novel_test
        raise ValueError(f"unknown split '{split}': use validation or test")

    def title(self, class_id: int) -> str:
        """Return the name of a class as a person would write it."""
        name = self.classes[class_id]
        return self.titles.get(name, name)


def pools(split: Split) -> dict[str, Any]:
    """Return the five pools of a split by name, with class ids in the order of its classes."""
    ids = {name: class_id for class_id, name in enumerate(split.classes)}
    if len(ids) != len(split.classes):
        repeated = next(name for name in split.classes if split.classes.count(name) > 1)
        raise InputError(f"class '{repeated}' is both seen and novel, or novel twice: give it to one part")
    return {
        part: Pool.from_members({ids[name]: list(members) for name, members in getattr(split, part).items()})
        for part in DATASET_PARTS
    }


def assemble(
    name: str,
    split: Split,
    images: Images,
    augmentation: Augmentation,
    relations: dict[str, Relation],
    titles: Mapping[str, str] | None = None,
    default_relations: tuple[str, ...] | None = None,
    drawn_split: bool = False,
) -> Dataset:
    """Return the dataset of images that were read and split.

    Args:
        name: Name of the dataset.
        split: Image indices by class name, for each part.
        images: The images.
        augmentation: How training images are changed at random.
        relations: Side information by name.
        titles: Class names as a person would write them, where they differ.
        default_relations: Names of the relations that are used where none is named; by default all.
        drawn_split: Whether `split` was drawn by `split_freely`.

    """
    return Dataset(
        name=name,
        classes=split.classes,
        store=images.store,
        **pools(split),
        augmentation=augmentation,
        relations=relations,
        fingerprint=images_fingerprint(images, split),
        titles=titles or {},
        images=images,
        default_relations=default_relations,
        drawn_split=drawn_split,
    )


def images_fingerprint(images: Images, split: Split) -> str:
    """Return a digest of the contents of every image and of what each is used for, wherever the files are."""
    digests = images.digests.tolist()
    used = [
        [[name, [digests[index].decode() for index in members]] for name, members in getattr(split, part).items()]
        for part in DATASET_PARTS
    ]
    return hashlib.sha256(json.dumps([list(images.store.image_shape), used]).encode()).hexdigest()[:16]


def features_fingerprint(features: Tensor, split: Split) -> str:
    """Return a digest of features [P, D] and of what each is used for."""
    used = [[[name, list(members)] for name, members in getattr(split, part).items()] for part in DATASET_PARTS]
    return hashlib.sha256(features.numpy().tobytes() + json.dumps(used).encode()).hexdigest()[:16]


def report_bad(images: Images, skip_bad: bool, progress: Progress) -> None:
    """Say how many images cannot be read.

    Raises:
        InputError: There are some, and `skip_bad` does not allow to leave them out.

    """
    if not images.errors:
        return
    row, error = next(iter(images.errors.items()))
    count = len(images.errors)
    if not skip_bad:
        rest = f" and {count - 1} more" if count > 1 else ""
        raise InputError(f"image {images.names[row]}{rest} cannot be read ({error}): repair or remove it, or use --skip-bad")
    progress.say(f"left out {count} of {len(images.names)} images that cannot be read, such as {images.names[row]} ({error})")


def without_bad(split: Split, images: Images, skip_bad: bool, progress: Progress) -> Split:
    """Return the split without the images that cannot be read.

    Raises:
        InputError: There are some and `skip_bad` does not allow to leave them out, or a class has no image left in a part.

    """
    report_bad(images, skip_bad, progress)
    left = split.without(set(images.errors))
    for part in DATASET_PARTS:
        for name, members in getattr(left, part).items():
            if not members:
                raise InputError(f"class '{name}' has no image for {part.replace('_', ' ')}: give it more")
    return left
