"""A dataset: pictures, classes, and who may see what.

Class ids are ordered: the S seen classes first, then the novel classes for validation, then those for test. So the id of a
seen class is also its row in the learned prototypes, and every similarity matrix is indexed by class id.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from protograph.data.store import Augmentation, ImageStore
from protograph.relations import Relation


@dataclass(frozen=True)
class Pool:
    """Classes with the pictures that may be drawn of each.

    classes:  [C] class ids
    pictures: [C, M] picture indices, padded with -1 behind the last
    counts:   [C] pictures of each class
    """

    classes: Tensor
    pictures: Tensor
    counts: Tensor

    @classmethod
    def of(cls, members: dict[int, list[int]]) -> "Pool":
        """From a class id -> picture indices mapping."""
        counts = torch.tensor([len(pictures) for pictures in members.values()])
        rows = torch.full((len(members), max(1, int(counts.max())) if len(members) else 1), -1)
        for row, pictures in zip(rows, members.values(), strict=True):
            row[: len(pictures)] = torch.tensor(pictures)
        return cls(torch.tensor(list(members), dtype=torch.long), rows, counts)

    def __len__(self) -> int:
        return len(self.classes)

    def to(self, device: torch.device) -> "Pool":
        """The same pool with its tensors on a device."""
        return Pool(self.classes.to(device), self.pictures.to(device), self.counts.to(device))

    def all_pictures(self) -> Tensor:
        """Every picture index of the pool, ascending."""
        return self.pictures[self.pictures >= 0].sort().values


@dataclass(frozen=True)
class Dataset:
    """Pictures with their class split.

    train:                            training pictures of the seen classes
    seen_validation, seen_test:       held-out pictures of the same classes
    novel_validation, novel_test:     all pictures of classes that training never meets
    """

    name: str
    classes: tuple[str, ...]
    store: ImageStore
    train: Pool
    seen_validation: Pool
    novel_validation: Pool
    seen_test: Pool
    novel_test: Pool
    augmentation: Augmentation
    relations: dict[str, Relation]
    fingerprint: str

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
