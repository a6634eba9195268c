"""Gather, augment and normalise images on a GPU in one Triton kernel, which writes each pixel once.

Crops and flips read each pixel once, too. Warps compute a pixel from sixteen.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

CROP_BLOCK = 1024  # pixels that a program of a crop writes
WARP_BLOCK = 256  # pixels that a program of a warp writes


def crop(pixels: Tensor, indices: Tensor, offsets: Tensor, flips: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return cropped, flipped and normalised images [n, C, H, W] as floats, channels-last.

    Args:
        pixels: the pixels [P, C, H, W] of all images
        indices: the images [n]
        offsets: offsets [2, n] of rows and columns; pixels beyond the edges are black
        flips: whether each image is flipped [n]
        scale: the factor of each channel [C]
        shift: what is then added to each channel [C]

    """
    count, (channels, height, width) = len(indices), pixels.shape[1:]
    shape = (count, channels, height, width)
    indices = indices.to(pixels.device, torch.int64).contiguous()
    result = torch.empty(shape, device=pixels.device, memory_format=torch.channels_last)
    _crop_kernel[(count, triton.cdiv(height * width, CROP_BLOCK))](
        pixels, indices, offsets, flips, scale, shift, result, count, height, width, CHANNELS=channels, BLOCK=CROP_BLOCK
    )
    return result


@triton.jit  # type: ignore[untyped-decorator]
def _crop_kernel(  # type: ignore[no-untyped-def]
    pixels, indices, offsets, flips, scale, shift, result, count, height, width,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Write block b of image n by program (n, b)."""
    n = tl.program_id(0)
    position = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = position < height * width
    row = position // width + tl.load(offsets + n)
    column = position % width
    column = tl.where(tl.load(flips + n) != 0, width - 1 - column, column) + tl.load(offsets + count + n)
    shown = inside & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    source = pixels + tl.load(indices + n) * CHANNELS * height * width
    for channel in tl.static_range(CHANNELS):
        value = tl.load(source + channel * height * width + row * width + column, mask=shown, other=0).to(tl.float32)
        value = value * tl.load(scale + channel) + tl.load(shift + channel)
        tl.store(result + (n * height * width + position) * CHANNELS + channel, value, mask=inside)


def warp(
    pixels: Tensor,
    indices: Tensor,
    maps: Tensor,
    colours: Tensor | None,
    squares: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    size: tuple[int, int],
) -> Tensor:
    """Return warped, recoloured, erased and normalised images [n, C, *size] as floats, channels-last.

    Args:
        pixels: the pixels [P, C, H, W] of all images
        indices: the images [n]
        maps: the warps [n, 4], as `Drawing` draws them
        colours: the changes of colour [3, n]
        squares: the erased squares [3, n]
        scale: the factor of each channel [C]
        shift: what is then added to each channel [C]
        size: the height and width of the result

    """
    count, (channels, height, width) = len(indices), pixels.shape[1:]
    indices = indices.to(pixels.device, torch.int64).contiguous()
    result = torch.empty((count, channels, *size), device=pixels.device, memory_format=torch.channels_last)
    _warp_kernel[(count, triton.cdiv(size[0] * size[1], WARP_BLOCK))](
        pixels, indices, maps, maps if colours is None else colours, maps if squares is None else squares, scale, shift, result,
        count, height, width, *size, CHANNELS=channels, WIDE=triton.next_power_of_2(channels), COLOURS=colours is not None,
        SQUARES=squares is not None, BLOCK=WARP_BLOCK,
    )  # fmt: skip
    return result


@triton.jit  # type: ignore[untyped-decorator]
def _warp_kernel(  # type: ignore[no-untyped-def]
    pixels, indices, maps, colours, squares, scale, shift, result, count, height, width, rows, columns,
    CHANNELS: tl.constexpr, WIDE: tl.constexpr, COLOURS: tl.constexpr, SQUARES: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Write block b of image n by program (n, b), all channels side by side, padded to `WIDE`, a power of two."""
    n = tl.program_id(0)
    position = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.arange(0, WIDE)[None, :]
    exists = (position < rows * columns)[:, None] & (channel < CHANNELS)
    row, column = position // columns, position % columns
    # The source of the pixel: from -1 to 1, as in maps, then in pixels.
    x = tl.load(maps + 4 * n) * ((2 * column + 1) / columns - 1) + tl.load(maps + 4 * n + 1)
    y = tl.load(maps + 4 * n + 2) * ((2 * row + 1) / rows - 1) + tl.load(maps + 4 * n + 3)
    x, y = ((x + 1) * width - 1) / 2, ((y + 1) * height - 1) / 2
    left, top = tl.floor(x), tl.floor(y)
    source = pixels + tl.load(indices + n) * CHANNELS * height * width + channel * height * width
    value = tl.zeros((BLOCK, WIDE), tl.float32)
    for down in tl.static_range(4):
        line = _mirrored(top.to(tl.int32) + (down - 1), height) * width
        high = _cubic(y - top, down)
        for right in tl.static_range(4):
            at = line + _mirrored(left.to(tl.int32) + (right - 1), width)
            weight = high * _cubic(x - left, right)
            value += weight[:, None] * tl.load(source + at[:, None], mask=exists, other=0).to(tl.float32)
    value = value * tl.load(scale + channel, mask=channel < CHANNELS, other=0)
    value += tl.load(shift + channel, mask=channel < CHANNELS, other=0)
    if COLOURS:
        grey = (tl.sum(tl.where(exists, value, 0.0), 1) / CHANNELS)[:, None]
        value = grey + (1 + tl.load(colours + n)) * (value - grey)
        value = (1 + tl.load(colours + count + n)) * value + tl.load(colours + 2 * count + n)
    if SQUARES:
        half = tl.load(squares + n)
        inside = tl.abs(row + 0.5 - tl.load(squares + count + n)) < half
        inside = inside & (tl.abs(column + 0.5 - tl.load(squares + 2 * count + n)) < half)
        value = tl.where(inside[:, None], 0.0, value)
    tl.store(result + (n * rows * columns + position[:, None]) * CHANNELS + channel, value, mask=exists)


@triton.jit
def _mirrored(position, size):  # type: ignore[no-untyped-def]
    """Return the position mirrored at the edges; the pixel at an edge is its own neighbour."""
    turn = (position % (2 * size) + 2 * size) % (2 * size)
    return tl.where(turn < size, turn, 2 * size - 1 - turn)


@triton.jit  # type: ignore[untyped-decorator]
def _cubic(after, PIXEL: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Return the cubic weight, A = -0.75, of pixel -1, 0, 1 or 2 as 0 to 3; the point lies `after` pixel 0."""
    if PIXEL == 0 or PIXEL == 3:
        distance = after + 1 if PIXEL == 0 else 2 - after
        return ((-0.75 * distance + 3.75) * distance - 6.0) * distance + 3.0
    distance = after if PIXEL == 1 else 1 - after
    return (1.25 * distance - 2.25) * distance * distance + 1.0
