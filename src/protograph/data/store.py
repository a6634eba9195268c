"""All pictures of a dataset as one uint8 tensor, indexed by picture.

Shapes: P pictures, C channels, H x W pixels.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Augmentation:
    """Random changes in training: zero-pad by `pad`, crop back at random, flip left-right."""

    pad: int = 0
    flip: bool = False


@dataclass(frozen=True)
class Normalisation:
    """Per channel: pixel / 255, minus `mean`, divided by `std`."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class ImageStore:
    """Pictures [P, C, H, W] as uint8, gathered by index and made into network input on their device."""

    def __init__(self, pixels: Tensor, normalisation: Normalisation) -> None:
        if pixels.dtype != torch.uint8 or pixels.ndim != 4:
            raise ValueError(f"pictures must be uint8 [P, C, H, W], not {pixels.dtype} {tuple(pixels.shape)}")
        if len(normalisation.mean) != pixels.shape[1] or len(normalisation.std) != pixels.shape[1]:
            raise ValueError(f"{pixels.shape[1]} channels need as many means and stds, not {normalisation}")
        self.pixels = pixels
        self.normalisation = normalisation
        shape = (1, pixels.shape[1], 1, 1)
        self._scale = 1 / (255 * torch.tensor(normalisation.std, device=pixels.device)).view(shape)
        self._shift = -(
            torch.tensor(normalisation.mean, device=pixels.device) / torch.tensor(normalisation.std, device=pixels.device)
        ).view(shape)

    @classmethod
    def open(cls, path: Path, normalisation: Normalisation) -> "ImageStore":
        """Map a stored array of pictures into memory; pages are read when touched."""
        return cls(torch.from_numpy(np.load(path, mmap_mode="c")), normalisation)

    def __len__(self) -> int:
        return self.pixels.shape[0]

    @property
    def picture_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every picture."""
        _, channels, height, width = self.pixels.shape
        return channels, height, width

    def to(self, device: torch.device) -> "ImageStore":
        """The same pictures, resident on a device."""
        return ImageStore(self.pixels.to(device), self.normalisation)

    def gather(
        self, indices: Tensor, augmentation: Augmentation | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Pictures [n, C, H, W] of `indices` [n] as normalised floats.

        With an `augmentation`, each is cropped and flipped at random from `generator`.
        """
        if augmentation is None or augmentation == Augmentation():
            picked = self.pixels[indices]
        else:
            picked = self._augmented(indices, augmentation, generator)
        floats = picked.to(torch.float32, memory_format=torch.channels_last)
        return floats.mul_(self._scale).add_(self._shift)

    def _augmented(self, indices: Tensor, augmentation: Augmentation, generator: torch.Generator | None) -> Tensor:
        """Crop and flip as index arithmetic: one gather, no loop over pictures.

        The padding is black in pixels, as if the picture had been padded before it was normalised.
        """
        count, device, pad = len(indices), indices.device, augmentation.pad
        channels, height, width = self.picture_shape
        draw = torch.randint(0, 2 * pad + 1, (2, count, 1), device=device, generator=generator) - pad
        rows = torch.arange(height, device=device) + draw[0]  # [n, H]
        columns = torch.arange(width, device=device) + draw[1]  # [n, W]
        if augmentation.flip:
            flip = torch.randint(0, 2, (count, 1), device=device, generator=generator).bool()
            columns = torch.where(flip, columns.flip(1), columns)
        inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
        pixel = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
        flat = self.pixels[indices].view(count, channels, height * width)
        cut = flat.gather(2, pixel.view(count, 1, -1).expand(-1, channels, -1)).view(count, channels, height, width)
        return cut * inside[:, None]
