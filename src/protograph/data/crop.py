"""Gather, crop, flip and normalise pictures on a GPU in one Triton kernel: each pixel is read once and written once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # pixels a program writes


def crop(pixels: Tensor, indices: Tensor, offsets: Tensor, flips: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Pictures [n, C, H, W] as floats, channels-last, of pixels [P, C, H, W].

    indices [n]; offsets [2, n] of rows and columns, beyond the edges black; flips [n]; scale and shift [C].
    """
    count, (channels, height, width) = len(indices), pixels.shape[1:]
    shape = (count, channels, height, width)
    indices = indices.to(pixels.device, torch.int64).contiguous()
    result = torch.empty(shape, device=pixels.device, memory_format=torch.channels_last)
    _crop_kernel[(count, triton.cdiv(height * width, BLOCK))](
        pixels, indices, offsets, flips, scale, shift, result, count, height, width, CHANNELS=channels, BLOCK=BLOCK
    )
    return result


@triton.jit  # type: ignore[untyped-decorator]
def _crop_kernel(  # type: ignore[no-untyped-def]
    pixels, indices, offsets, flips, scale, shift, result, count, height, width,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Program (n, b) writes block b of picture n."""
    n = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < height * width
    row = place // width + tl.load(offsets + n)
    column = place % width
    column = tl.where(tl.load(flips + n) != 0, width - 1 - column, column) + tl.load(offsets + count + n)
    shown = inside & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    source = pixels + tl.load(indices + n) * CHANNELS * height * width
    for channel in tl.static_range(CHANNELS):
        value = tl.load(source + channel * height * width + row * width + column, mask=shown, other=0).to(tl.float32)
        value = value * tl.load(scale + channel) + tl.load(shift + channel)
        tl.store(result + (n * height * width + place) * CHANNELS + channel, value, mask=inside)
