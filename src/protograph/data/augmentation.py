"""Random changes of images in training.

Random numbers are drawn apart from the changes they make. So PyTorch's functions, which are here, and the kernels for GPUs
(`kernels/crop.py`) do the same with the same draws.

Shapes: n images, C channels, H x W pixels.
"""

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample


@dataclass(frozen=True)
class Augmentation:
    """Random changes in training, drawn for each image separately.

    With `zoom`, `stretch`, `crop` or `image_size`, images are resampled between their pixels. Then `pad` is how far they move
    at most, by any part of a pixel, and their mirror image lies beyond their edges instead of black. With `crop` they do not
    move beyond their edges at all, and neither `pad` nor `zoom` has a use.

    Attributes:
        pad: Zero-pad by so many pixels and crop back at random.
        flip: Mirror every other image left to right.
        zoom: Scale by a factor from 1 / zoom to zoom.
        stretch: Change the ratio of width to height by a factor from 1 / stretch to stretch.
        crop: Show a random part of each image, of at least this share of its area; 1: the whole image.
        image_size: Side in pixels of the changed images, which become square; 0: as large as they were.
        colour: Change saturation, contrast and brightness by up to this share.
        erase: Blot out a square with a side of up to this share of the image's shorter side.

    """

    pad: int = 0
    flip: bool = False
    zoom: float = 1.0
    stretch: float = 1.0
    crop: float = 1.0
    image_size: int = 0
    colour: float = 0.0
    erase: float = 0.0

    @property
    def warps(self) -> bool:
        """Whether images are resampled between their pixels."""
        return self.zoom > 1 or self.stretch > 1 or self.crop < 1 or self.image_size > 0

    def to_dict(self) -> dict[str, Any]:
        """Return the values that differ from their defaults, and always `pad` and `flip`, as plain JSON values."""
        values = {entry.name: (getattr(self, entry.name), entry.default) for entry in fields(self)}
        return {name: value for name, (value, usual) in values.items() if value != usual or name in ("pad", "flip")}


@dataclass(frozen=True)
class Portion:
    """Images that are some of those for which random numbers are drawn together, such as a process's part of a step.

    Attributes:
        whole: For how many images numbers are drawn.
        rows: Which of them these are [n].

    """

    whole: int
    rows: Tensor


@dataclass(frozen=True)
class Drawing:
    """Random draws for `count` images of height x width, on a device and from a generator of that device.

    With a `portion`, numbers are drawn for its whole, and those of its `count` rows are returned.
    """

    count: int
    height: int
    width: int
    device: torch.device
    generator: torch.Generator | None = None
    dtype: torch.dtype = torch.float32
    portion: Portion | None = None

    def crops(self, augmentation: Augmentation) -> tuple[Tensor, Tensor]:
        """Return by how many pixels [2, n] each image moves up and to the left, within `pad`, and whether it is flipped [n]."""
        pad = augmentation.pad
        offsets = torch.randint(0, 2 * pad + 1, (2, self._drawn), device=self.device, generator=self.generator)
        offsets = self._kept(offsets) - pad
        if not augmentation.flip:
            return offsets, torch.zeros(self.count, dtype=torch.bool, device=self.device)
        return offsets, self._kept(torch.randint(0, 2, (self._drawn,), device=self.device, generator=self.generator)).bool()

    def maps(self, augmentation: Augmentation) -> Tensor:
        r"""Return :math:`(a_x, d_x, a_y, d_y)` [n, 4] for each image: the point shown at (x, y) lies at

        .. math:: (a_x x + d_x, a_y y + d_y) = (\pm x / (z r) + d_x,\ y r / z + d_y)

        where an image reaches from -1 to 1. :math:`\log z` is uniform within :math:`\pm\log \mathrm{zoom}`,
        :math:`2 \log r` within :math:`\pm\log \mathrm{stretch}`, so that width and height take half of it each, and
        :math:`d_x, d_y` within `pad` pixels. With `crop`, :math:`1 / z^2` is the share of the area that is shown, uniform from
        `crop` to 1, the part shown is cut to the image where its ratio makes it wider or higher than that, and
        :math:`d_x, d_y` put it anywhere in the image.
        """
        zoom, stretch, right, down, side = self._evenly(5)
        ratio = torch.exp(0.5 * math.log(augmentation.stretch) * stretch)
        if augmentation.crop < 1:
            shown = (augmentation.crop + (1 - augmentation.crop) * (zoom + 1) / 2).sqrt()
            across, along = (shown / ratio).clamp(max=1), (shown * ratio).clamp(max=1)
            shifts = right * (1 - across), down * (1 - along)
        else:
            scale = torch.exp(math.log(augmentation.zoom) * zoom)
            across, along = 1 / (scale * ratio), ratio / scale
            shifts = right * (2 * augmentation.pad / self.width), down * (2 * augmentation.pad / self.height)
        if augmentation.flip:
            across = torch.copysign(across, side)
        return torch.stack([across, shifts[0], along, shifts[1]], 1)

    def colours(self, augmentation: Augmentation) -> Tensor | None:
        """Return by how much saturation, contrast and brightness [3, n] change; None where they do not."""
        return augmentation.colour * self._evenly(3) if augmentation.colour else None

    def squares(self, augmentation: Augmentation) -> Tensor | None:
        """Return half of a square's side, and the row and column of its middle [3, n], in pixels; None where none is erased.

        The side is drawn from 0 to the share `erase` of the shorter of H and W, the middle from the whole image.
        """
        if not augmentation.erase:
            return None
        drawn = self._kept(torch.rand(3, self._drawn, device=self.device, dtype=self.dtype, generator=self.generator))
        half = 0.5 * augmentation.erase * min(self.height, self.width)
        return torch.stack([half * drawn[0], self.height * drawn[1], self.width * drawn[2]])

    def _evenly(self, numbers: int) -> Tensor:
        """Return uniform random numbers [numbers, n] from -1 to 1."""
        drawn = torch.rand(numbers, self._drawn, device=self.device, dtype=self.dtype, generator=self.generator)
        return 2 * self._kept(drawn) - 1

    @property
    def _drawn(self) -> int:
        return self.count if self.portion is None else self.portion.whole

    def _kept(self, drawn: Tensor) -> Tensor:
        return drawn if self.portion is None else drawn[..., self.portion.rows]


def warped(images: Tensor, maps: Tensor, size: tuple[int, int] | None = None) -> Tensor:
    """Return images [n, C, H, W] resampled by `maps` [n, 4], mirrored beyond their edges, channels-last.

    `size` is the height and width of the result; by default those of the images. The sampling is bicubic: bilinear sampling
    blurs training images, and a network trained on blurred images does worse on the sharp ones of a test.
    """
    matrices = torch.zeros(len(images), 2, 3, device=maps.device, dtype=maps.dtype)
    matrices[:, 0, 0], matrices[:, 0, 2], matrices[:, 1, 1], matrices[:, 1, 2] = maps.unbind(1)
    grid = affine_grid(matrices, [*images.shape[:2], *(size or images.shape[2:])], align_corners=False)
    sampled = grid_sample(images, grid, mode="bicubic", padding_mode="reflection", align_corners=False)
    return sampled.contiguous(memory_format=torch.channels_last)


def recoloured(images: Tensor, colours: Tensor) -> Tensor:
    r"""Return normalised images x [n, C, H, W] as :math:`(1 + k) (\bar x + (1 + s) (x - \bar x)) + b`.

    Saturation s, contrast k and brightness b are `colours` [3, n]; :math:`\bar x` is the mean of channels. An image of one
    channel is its own mean, and has no saturation to change.
    """
    saturation, contrast, brightness = colours[:, :, None, None, None]
    grey = images.mean(1, keepdim=True)
    return torch.lerp(grey, images, 1 + saturation).mul_(1 + contrast).add_(brightness)


def erased(images: Tensor, squares: Tensor) -> Tensor:
    """Return normalised images [n, C, H, W] with a square of `squares` [3, n] in each set to zero, the mean of all images.

    Parts of a square beyond the edges are cut off.
    """
    half, row, column = squares[:, :, None]
    rows, columns = (
        (torch.arange(size, device=images.device) + 0.5 - middle).abs() < half
        for size, middle in zip(images.shape[2:], (row, column), strict=True)
    )
    hidden: Tensor = (rows[:, :, None] & columns[:, None, :])[:, None]
    return images * ~hidden  # `masked_fill` would not keep channels last
