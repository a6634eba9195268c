"""Images as they were read, and how photographs are normalised by default."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protograph.data.store import ImageStore, Normalisation

IMAGE_SIZE = 84  # pixels of width and height, as in miniImageNet
IMAGE_NORMALISATION = Normalisation(
    mean=(120.396 / 255, 115.594 / 255, 104.540 / 255), std=(70.682 / 255, 68.276 / 255, 72.545 / 255)
)


@dataclass(frozen=True)
class Images:
    """The images of a dataset, with what reading them showed. P images.

    Attributes:
        store: Pixels of all images.
        names: Where each image came from [P].
        digests: SHA-256 of each file [P], or of its pixels where several images share a file.
        sizes: Width and height before resizing [P, 2].
        grey: Whether each image is greyscale [P].
        errors: Why an image cannot be read, by image index; such an image is black and in no pool.

    """

    store: ImageStore
    names: Sequence[str]
    digests: NDArray[np.bytes_]
    sizes: NDArray[np.int32]
    grey: NDArray[np.bool_]
    errors: dict[int, str]

    def duplicates(self) -> list[list[int]]:
        """Return groups of image indices with identical contents."""
        groups = defaultdict(list)
        for index, digest in enumerate(self.digests.tolist()):
            if digest:
                groups[digest].append(index)
        return [indices for indices in groups.values() if len(indices) > 1]
