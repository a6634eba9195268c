"""Which images belong to which class, for any number of classes.

Shapes: n images, C classes, D features.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor

FEATURES_AT_ONCE = 2**24  # features that are computed with together


class Members(Mapping[int, list[int]]):
    """The indices of each class's images, by class id from 0 on.

    Args:
        images: The indices [n] of images, those of a class together, class by class.
        counts: The number of images of each class [C].

    """

    def __init__(self, images: Tensor, counts: Tensor) -> None:
        self.images, self.counts = images, counts
        self._ends = counts.cumsum(0)

    @classmethod
    def of(cls, targets: Tensor, classes: int) -> "Members":
        """Return the members of so many classes from the class [n] of each image."""
        return cls(targets.argsort(stable=True), torch.bincount(targets, minlength=classes))

    @classmethod
    def listed(cls, members: "Members | Sequence[Sequence[int]]") -> "Members":
        """Return the members of classes whose images are listed."""
        if isinstance(members, Members):
            return members
        images = torch.tensor(list(chain.from_iterable(members)), dtype=torch.long)
        return cls(images, torch.tensor([len(rows) for rows in members], dtype=torch.long))

    def __getitem__(self, class_id: int) -> list[int]:
        if not 0 <= class_id < len(self):
            raise KeyError(class_id)
        end = int(self._ends[class_id])
        return self.images[end - int(self.counts[class_id]) : end].tolist()

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.counts)))

    def __len__(self) -> int:
        return len(self.counts)

    def portions(self, features: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the images [m] and the classes [m] of portions, whose features D fit into memory."""
        classes = torch.arange(len(self)).repeat_interleave(self.counts)
        size = max(1, FEATURES_AT_ONCE // max(1, features))
        yield from zip(torch.split(self.images, size), torch.split(classes, size), strict=True)

    def means(self, sums: Tensor) -> Tensor:
        """Return the means [C, D] of sums over the images of each class [C, D]."""
        return sums / self.counts[:, None].to(sums)
