"""What a classifier asks of an encoder, and how it tells images from features.

Shapes: n images, D features, R augmented copies.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from protograph._internal.progress import Progress
from protograph.encoders import open_encoder


class Encoder(Protocol):
    """Images -> features, by a network that stays as it is. Images are paths, PIL images, arrays or tensors."""

    @property
    def features(self) -> int:
        """D."""
        ...

    def encode(self, images: Sequence[Any], progress: Progress | None = None) -> Tensor:
        """Features [n, D], float32."""
        ...

    def encode_augmented(self, images: Sequence[Any], copies: int, seed: int, progress: Progress | None = None) -> Tensor:
        """Features [n, R, D] of R copies of each image, changed at random by this seed."""
        ...

    def description(self) -> dict[str, Any]:
        """JSON with all that is needed to open it again, besides `tensors`."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Weights that go into a model file; none where they are found elsewhere."""
        ...


class KeptEncoder:
    """The encoder of a model file, opened when a first image comes: who has features, or only looks, does without it."""

    def __init__(self, description: Mapping[str, Any], tensors: Mapping[str, Tensor], features: int) -> None:
        self.features = features
        self._description, self._tensors = dict(description), dict(tensors)
        self._opened: Encoder | None = None

    def encode(self, images: Sequence[Any], progress: Progress | None = None) -> Tensor:
        """Features [n, D]."""
        return self._open().encode(images, progress)

    def encode_augmented(self, images: Sequence[Any], copies: int, seed: int, progress: Progress | None = None) -> Tensor:
        """Features [n, R, D]."""
        return self._open().encode_augmented(images, copies, seed, progress)

    def description(self) -> dict[str, Any]:
        """As the file has it."""
        return self._description

    def tensors(self) -> dict[str, Tensor]:
        """As the file has them."""
        return self._tensors

    def _open(self) -> Encoder:
        self._opened = self._opened or open_encoder(self._description, self._tensors)
        return self._opened


def as_images(given: Any) -> Sequence[Any] | None:
    """What was given as a list of images; None where it is features: numbers in a table, or one vector of them."""
    if isinstance(given, str | PathLike | Image.Image):
        return [given]
    if isinstance(given, np.ndarray) and given.dtype == np.uint8 and given.ndim > 1:
        return [given] if given.ndim == 2 or (given.ndim == 3 and given.shape[2] == 3) else list(given)
    if isinstance(given, Tensor) and given.ndim >= 3:
        return [given] if given.ndim == 3 else list(given)
    if isinstance(given, np.ndarray) and given.dtype.kind in "OU":
        given = given.tolist()
    if isinstance(given, list | tuple) and len(given) and _is_image(given[0]):
        return list(given)
    return None


def _is_image(one: Any) -> bool:
    if isinstance(one, str | PathLike | Image.Image):
        return True
    return isinstance(one, np.ndarray | Tensor) and one.ndim >= 2


def as_table(given: Any) -> Any:
    """Features as something that scikit-learn checks: tensors become arrays."""
    if isinstance(given, Tensor):
        return given.detach().cpu().numpy()
    if isinstance(given, list | tuple) and len(given) and all(isinstance(one, Tensor) for one in given):
        return torch.stack([one.detach().cpu() for one in given]).numpy()
    return given
