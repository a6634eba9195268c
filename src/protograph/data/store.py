"""All images of a dataset as one uint8 tensor, or all features of one, indexed by image.

Shapes: P images, C channels, H x W pixels, D features.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from protograph.data.augmentation import Augmentation, Drawing, Portion, erased, recoloured, warped
from protograph.device import TRITON


@dataclass(frozen=True)
class Normalisation:
    """Normalisation of each channel: pixel / 255, minus `mean`, divided by `std`."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class Store(Protocol):
    """A source of network input, by image index."""

    def __len__(self) -> int: ...

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape of an image: C, H, W, or D."""
        ...

    @property
    def device(self) -> torch.device:
        """Device of the gathered images."""
        ...

    def to(self, device: torch.device) -> "Store":
        """Return the same images for use on a device."""
        ...

    def gather(
        self,
        indices: Tensor,
        augmentation: Augmentation | None = None,
        generator: torch.Generator | None = None,
        portion: Portion | None = None,
    ) -> Tensor:
        """Return the network input [n, ...] of the images `indices` [n]."""
        ...


MEMORY_SHARE = 0.8  # share of a device's free memory that images may take


class ImageStore:
    """Images [P, C, H, W] as uint8, gathered by index and made into network input on a device.

    The pixels are kept on that device. Where they do not fit, they stay where they are and are fetched when gathered.
    """

    def __init__(self, pixels: Tensor, normalisation: Normalisation, device: torch.device | None = None) -> None:
        if pixels.dtype != torch.uint8 or pixels.ndim != 4:
            raise ValueError(f"images must be uint8 [P, C, H, W], not {pixels.dtype} {tuple(pixels.shape)}")
        if len(normalisation.mean) != pixels.shape[1] or len(normalisation.std) != pixels.shape[1]:
            raise ValueError(f"{pixels.shape[1]} channels need as many means and stds, not {normalisation}")
        self.pixels = pixels.contiguous()  # as the kernels for GPUs need them
        self.normalisation = normalisation
        self.device = device or pixels.device
        mean, std = (
            torch.tensor(values, device=self.device).view(1, -1, 1, 1) for values in (normalisation.mean, normalisation.std)
        )
        self._scale, self._shift = 1 / (255 * std), -mean / std

    @classmethod
    def open(cls, path: Path, normalisation: Normalisation) -> "ImageStore":
        """Return a store of the array in a file, mapped into memory: pages are read when touched."""
        return cls(torch.from_numpy(np.load(path, mmap_mode="c")), normalisation)

    def __len__(self) -> int:
        return self.pixels.shape[0]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image."""
        _, channels, height, width = self.pixels.shape
        return channels, height, width

    def to(self, device: torch.device) -> "ImageStore":
        """Return the same images for use on a device: kept there if they fit, otherwise fetched from where they are."""
        fits = device.type != "cuda" or self.pixels.nbytes < MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]
        return ImageStore(self.pixels.to(device) if fits else self.pixels, self.normalisation, device)

    def gather(
        self,
        indices: Tensor,
        augmentation: Augmentation | None = None,
        generator: torch.Generator | None = None,
        portion: Portion | None = None,
    ) -> Tensor:
        """Return images as normalised floats [n, C, H, W].

        Args:
            indices: Image indices [n].
            augmentation: How each image is changed at random; None: not at all.
            generator: Source of the random numbers.
            portion: Of which images these are some, if numbers are drawn for others with them.

        """
        if augmentation is None or augmentation == Augmentation():
            return self._normalised(self._pick(indices))
        _, height, width = self.image_shape
        drawing = Drawing(len(indices), height, width, self.device, generator, portion=portion)
        size = (augmentation.image_size or height, augmentation.image_size or width)
        changed = replace(drawing, height=size[0], width=size[1])
        if augmentation.warps and self.pixels.is_cuda and TRITON:
            from protograph.kernels.crop import warp

            drawn = drawing.maps(augmentation), changed.colours(augmentation), changed.squares(augmentation)
            return warp(self.pixels, indices, *drawn, self._scale.flatten(), self._shift.flatten(), size)
        if augmentation.warps:
            images = warped(self._normalised(self._pick(indices)), drawing.maps(augmentation), size)
        else:
            images = self._moved(indices, *drawing.crops(augmentation))
        colours, squares = changed.colours(augmentation), changed.squares(augmentation)
        images = images if colours is None else recoloured(images, colours)
        return images if squares is None else erased(images, squares)

    def _moved(self, indices: Tensor, offsets: Tensor, flips: Tensor) -> Tensor:
        """Return images [n, C, H, W], cropped and flipped, as normalised floats."""
        if self.pixels.is_cuda and TRITON:
            from protograph.kernels.crop import crop

            return crop(self.pixels, indices, offsets, flips, self._scale.flatten(), self._shift.flatten())
        return self._normalised(self._cropped(indices, offsets, flips))

    def _normalised(self, picked: Tensor) -> Tensor:
        floats = picked.to(torch.float32).mul_(self._scale).add_(self._shift)
        # Last, since products by channel are slow in this order. A copy, since `contiguous` would leave the strides of grey
        # images, by which convolutions round.
        return torch.empty_like(floats, memory_format=torch.channels_last).copy_(floats)

    def _cropped(self, indices: Tensor, offsets: Tensor, flips: Tensor) -> Tensor:
        """Crop and flip as index arithmetic: one gather, no loop over images.

        The padding is black in pixels, as if the image had been padded before it was normalised.
        """
        count, device = len(indices), self.device
        channels, height, width = self.image_shape
        rows = torch.arange(height, device=device) + offsets[0][:, None]  # [n, H]
        columns = torch.arange(width, device=device).expand(count, -1)
        columns = torch.where(flips[:, None], columns.flip(1), columns) + offsets[1][:, None]  # [n, W]
        inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
        pixel = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
        flat = self._pick(indices).view(count, channels, height * width)
        cut = flat.gather(2, pixel.view(count, 1, -1).expand(-1, channels, -1)).view(count, channels, height, width)
        return cut * inside[:, None]

    def _pick(self, indices: Tensor) -> Tensor:
        return self.pixels[indices.to(self.pixels.device)].to(self.device)


class FeatureStore:
    """Features [P, D] in place of images.

    Args:
        features: The features [P, D].
        copies: Features [P, R, D] of each image changed at random R times; training takes one of them at random.

    """

    def __init__(self, features: Tensor, copies: Tensor | None = None) -> None:
        if not features.is_floating_point() or features.ndim != 2:
            raise ValueError(f"features must be floats [P, D], not {features.dtype} {tuple(features.shape)}")
        if copies is not None and (copies.ndim != 3 or copies[:, :1].shape != features[:, None].shape):
            raise ValueError(f"copies of features {tuple(features.shape)} must be [P, R, D], not {tuple(copies.shape)}")
        self.features, self.copies = features, copies

    def __len__(self) -> int:
        return len(self.features)

    @property
    def device(self) -> torch.device:
        """Device of the features."""
        return self.features.device

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape of a feature vector: D."""
        return (self.features.shape[1],)

    def to(self, device: torch.device) -> "FeatureStore":
        """Return the same features on a device."""
        return FeatureStore(self.features.to(device), None if self.copies is None else self.copies.to(device))

    def gather(
        self,
        indices: Tensor,
        augmentation: Augmentation | None = None,
        generator: torch.Generator | None = None,
        portion: Portion | None = None,
    ) -> Tensor:
        """Return the features [n, D] of `indices` [n]; with copies and a `generator`, a random copy of each."""
        if self.copies is None or generator is None:
            return self.features[indices]
        count = len(indices) if portion is None else portion.whole
        chosen = torch.randint(0, self.copies.shape[1], (count,), device=self.device, generator=generator)
        return self.copies[indices, chosen if portion is None else chosen[portion.rows]]
