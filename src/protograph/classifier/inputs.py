"""What a classifier asks of an encoder, and how it tells images from features.

Shapes: n images, D features, R augmented copies.
"""

from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor


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
