r"""A backbone's first block, pictures to pooled activations, as one function, in three Triton kernels, for training on a GPU.

Of all activations those of the first convolution are by far the largest, and here they are never written. It has few inputs:
with the patch :math:`p_x`, the 9 C numbers under the filter at place x, a channel is :math:`v_x = w^\top p_x`. So batch norm's
moments follow from those of the patches, which are small and the same for all channels,

.. math:: P = \sum_x p_x, \quad M = \sum_x p_x p_x^\top, \quad
    \mu = \frac{w^\top P}{m}, \quad \sigma^2 = \frac{w^\top M w}{m} - \mu^2,

and one pass computes, normalises and pools the convolution at once. With the gradient :math:`g_x` behind the norm, zero but at
the picked places where the ReLU let it pass, all sums that the gradient needs follow from :math:`S = \sum_x g_x` and
:math:`Q = \sum_x g_x p_x`, since :math:`\sum_x g_x v_x = w^\top Q`:

.. math:: \hat g = \frac{w^\top Q - \mu S}{\sigma}, \quad \frac{\partial L}{\partial w} = \frac{\gamma}{\sigma} \Big(
    Q - \frac{S}{m} P - \frac{\hat g}{m \sigma} (M w - \mu P) \Big), \quad
    \frac{\partial L}{\partial \gamma} = \hat g, \quad \frac{\partial L}{\partial \beta} = S.

The numbers are those of the four layers, but that the convolution is not rounded to bfloat16 before the norm.

Shapes: n pictures in G parts, C channels, H x W values, h x w after pooling; O channels behind the convolution, a power of two.
Patches are padded to K = 32 numbers, the one behind the 9 C a constant 1, so that M holds P and Q holds S. The four that are
pooled share most of their numbers, so kernels read the square of 4 x 4 places below them, padded to L = 64. Channels-last.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from protograph.nn.fused import PROGRAMS, TILE, bounds, second_begins, update_statistics

TAPS = tl.constexpr(32)  # K
SQUARE = tl.constexpr(64)  # L
ROWS = 128  # patches a program holds at a time for their moments
WINDOWS = tuple((slice(a, a + 3), slice(b, b + 3)) for a in (0, 1) for b in (0, 1))  # the four patches in a square


def opens(conv: nn.Conv2d, pictures: Tensor, parts: Sequence[int]) -> bool:
    """Whether this function serves for a first convolution of pictures that need no gradient, in bfloat16."""
    plain = (conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups, conv.bias) == (
        (3, 3), (1, 1), (1, 1), (1, 1), 1, None,
    )  # fmt: skip
    half = pictures.is_cuda and torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
    outputs = conv.out_channels
    fits = 9 * conv.in_channels < TAPS.value and 16 <= outputs <= 256 and outputs & (outputs - 1) == 0
    return plain and half and fits and len(parts) <= 2 and not pictures.requires_grad


def conv_norm_relu_pool(pictures: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d, parts: Sequence[int]) -> Tensor:
    """[n, C, H, W] -> [n, O, h, w] as bfloat16 in training mode; batch norm sees each of the `parts` of the n apart."""
    pictures = pictures.contiguous(memory_format=torch.channels_last)
    counts = [count * pictures.shape[2] * pictures.shape[3] for count in parts]
    with torch.no_grad():
        moments = _moments(pictures, parts)  # [G, K, K]
        taps = _taps(conv.weight).double()  # [K, O]
        one = 9 * conv.in_channels
        numbers = moments[:, one, one, None]  # m of each part
        means = moments[:, one] @ taps / numbers  # [G, O]
        variances = ((moments @ taps * taps).sum(1) / numbers - means.square()).clamp_min(0)
        update_statistics(norm, means.float(), variances.float(), counts)
        deviations = (variances + norm.eps).rsqrt()
    outputs: Tensor = _Opening.apply(  # type: ignore[no-untyped-call]
        pictures, conv.weight, norm.weight, norm.bias, moments, means, deviations, tuple(parts)
    )
    return outputs


class _Opening(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        pictures: Tensor,
        weight: Tensor,
        gamma: Tensor,
        beta: Tensor,
        moments: Tensor,
        means: Tensor,
        deviations: Tensor,
        parts: tuple[int, ...],
    ) -> Tensor:
        count, channels, height, width = pictures.shape
        shape = (count, len(weight), height // 2, width // 2)
        outputs, places = (
            torch.empty(shape, dtype=kind, device=pictures.device, memory_format=torch.channels_last)
            for kind in (torch.bfloat16, torch.uint8)
        )
        scale = gamma * deviations.float()
        shift = beta - means.float() * scale
        block = TILE // len(weight)
        _forward_kernel[(len(parts), triton.cdiv(max(parts) * shape[2] * shape[3], block))](
            pictures, _filters(weight), scale, shift, outputs, places, height, width, shape[2], shape[3], count,
            second_begins(parts),
            CHANNELS=channels, OUTPUTS=len(weight), BLOCK=block, PARTS=len(parts), num_warps=8,
        )  # fmt: skip
        ctx.save_for_backward(pictures, weight, gamma, moments, means, deviations, outputs, places)
        ctx.parts = parts
        return outputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor, Tensor, None, None, None, None]:
        pictures, weight, gamma, moments, means, deviations, outputs, places = ctx.saved_tensors
        parts: tuple[int, ...] = ctx.parts
        count, channels, height, width = pictures.shape
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        partial = torch.empty(len(parts), PROGRAMS, 4, SQUARE.value, len(weight), device=pictures.device, dtype=torch.float32)
        _backward_kernel[(len(parts), PROGRAMS)](
            pictures, gradient, outputs, places, partial, height, width, gradient.shape[2], gradient.shape[3], count,
            second_begins(parts), CHANNELS=channels, OUTPUTS=len(weight), BLOCK=TILE // len(weight), PARTS=len(parts),
            STRIDE=PROGRAMS, num_warps=8,
        )  # fmt: skip
        one = 9 * channels
        numbers = moments[:, one, one, None, None]
        products = _patch_sums(partial.sum(1, dtype=torch.float64), channels)  # Q [G, K, O]
        filters = _taps(weight).double()
        means, deviations = means[:, None], deviations[:, None]  # [G, 1, O]
        totals, places_sum = products[:, one : one + 1], moments[:, :, one : one + 1]  # S [G, 1, O], P [G, K, 1]
        standard = ((filters * products).sum(1, keepdim=True) - means * totals) * deviations
        change = gamma * deviations * (
            products
            - totals / numbers * places_sum
            - standard / numbers * deviations * (moments @ filters - means * places_sum)
        )  # fmt: skip
        shape = (3, 3, channels, len(weight))
        return (
            None,
            change.sum(0)[:one].view(shape).permute(3, 2, 0, 1).to(weight.dtype),
            standard.sum((0, 1)).to(gamma.dtype),
            totals.sum((0, 1)).to(gamma.dtype),
            None, None, None, None,
        )  # fmt: skip


def _taps(weight: Tensor) -> Tensor:
    """Filters [O, C, 3, 3] as bfloat16 columns [K, O], in the order in which patches are read."""
    columns = weight.detach().permute(2, 3, 1, 0).flatten(0, 2).bfloat16()
    return nn.functional.pad(columns, (0, 0, 0, TAPS.value - len(columns))).contiguous()


def _filters(weight: Tensor) -> Tensor:
    """Filters [O, C, 3, 3] as bfloat16 columns [4, L, O], laid into the square at each of the four places."""
    channels = weight.shape[1]
    laid = weight.new_zeros(4, SQUARE.value, len(weight), dtype=torch.bfloat16)
    for own, (rows, columns) in zip(laid, WINDOWS, strict=True):
        own[: 16 * channels].view(4, 4, channels, -1)[rows, columns] = weight.detach().permute(2, 3, 1, 0)
    return laid


def _patch_sums(sums: Tensor, channels: int) -> Tensor:
    """Sums over the squares below four places, [G, 4, L, O], as sums over patches [G, K, O]."""
    patches = sums.new_zeros(len(sums), TAPS.value, sums.shape[3])
    for place, (rows, columns) in enumerate(WINDOWS):
        square = sums[:, place, : 16 * channels].view(len(sums), 4, 4, channels, -1)
        patches[:, : 9 * channels] += square[:, rows, columns].flatten(1, 3)
    patches[:, 9 * channels] = sums[:, :, 16 * channels].sum(1)
    return patches


def _moments(pictures: Tensor, parts: Sequence[int]) -> Tensor:
    """Sums over all places of products of two numbers of a patch, [G, K, K]."""
    count, channels, height, width = pictures.shape
    taps = TAPS.value
    partial = torch.empty(len(parts), PROGRAMS, taps, taps, device=pictures.device, dtype=torch.float32)
    _moments_kernel[(len(parts), PROGRAMS)](
        pictures, partial, height, width, count, second_begins(parts),
        CHANNELS=channels, BLOCK=ROWS, PARTS=len(parts), STRIDE=PROGRAMS,
    )  # fmt: skip
    return partial.sum(1, dtype=torch.float64)


@triton.jit  # type: ignore[untyped-decorator]
def _patches(  # type: ignore[no-untyped-def]
    pictures, picture, i, j, inside, height, width,
    CHANNELS: tl.constexpr, SIDE: tl.constexpr, SIZE: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Squares [rows, SIZE] of SIDE x SIDE places from (i - 1, j - 1) on, zero beyond the edges, with a 1 behind them."""
    tap = tl.arange(0, SIZE)[None, :]
    row, column = i[:, None] + tap // CHANNELS // SIDE - 1, j[:, None] + tap // CHANNELS % SIDE - 1
    known = inside[:, None] & (tap < SIDE * SIDE * CHANNELS)
    shown = known & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    first = pictures + picture.to(tl.int64)[:, None] * (height * width * CHANNELS)
    value = tl.load(first + ((row * width + column) * CHANNELS + tap % CHANNELS), mask=shown, other=0.0).to(tl.float32)
    return tl.where(inside[:, None] & (tap == SIDE * SIDE * CHANNELS), 1.0, value).to(tl.bfloat16)


@triton.jit  # type: ignore[untyped-decorator]
def _moments_kernel(  # type: ignore[no-untyped-def]
    pictures, partial, height, width, count, split,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, STRIDE: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Partial sums of the products of patches: program (part, p) takes every STRIDE-th block of the part's places."""
    part, program = tl.program_id(0), tl.program_id(1)
    first, last = bounds(part, height * width, count, split, PARTS)
    total = tl.zeros((TAPS, TAPS), tl.float32)
    for start in range(first + program * BLOCK, last, STRIDE * BLOCK):
        row = start + tl.arange(0, BLOCK)
        patch = _patches(
            pictures, row // (height * width), (row // width) % height, row % width, row < last, height, width,
            CHANNELS, 3, TAPS,
        )  # fmt: skip
        total += tl.dot(tl.trans(patch), patch)
    tap = tl.arange(0, TAPS)
    tl.store(partial + (part * STRIDE + program) * TAPS * TAPS + tap[:, None] * TAPS + tap[None, :], total)


@triton.jit  # type: ignore[untyped-decorator]
def _forward_kernel(  # type: ignore[no-untyped-def]
    pictures, filters, scale, shift, outputs, places, height, width, high, wide, count, split,
    CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Each row is a pooled position: filter the square below its four places, normalise, keep the largest, and which."""
    part = tl.program_id(0)
    first, last = bounds(part, high * wide, count, split, PARTS)
    row = first + tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = row < last
    picture = row // (high * wide)
    i, j = 2 * ((row // wide) % high), 2 * (row % wide)
    output = tl.arange(0, OUTPUTS)[None, :]
    a, b = tl.load(scale + part * OUTPUTS + output), tl.load(shift + part * OUTPUTS + output)
    square = _patches(pictures, picture, i, j, inside, height, width, CHANNELS, 4, SQUARE)
    own = filters + tl.arange(0, SQUARE)[:, None] * OUTPUTS + output
    best = tl.dot(square, tl.load(own)) * a + b
    place = tl.zeros((BLOCK, OUTPUTS), tl.uint8)
    for other in tl.static_range(1, 4):
        normal = tl.dot(square, tl.load(own + other * SQUARE * OUTPUTS)) * a + b
        larger = normal > best
        best, place = tl.where(larger, normal, best), tl.where(larger, other, place).to(tl.uint8)
    best = tl.where(best < 0, 0.0, best)  # unlike the maximum this keeps NaN, by which divergence is found
    at = row.to(tl.int64)[:, None] * OUTPUTS + output
    tl.store(outputs + at, best.to(tl.bfloat16), mask=inside[:, None])
    tl.store(places + at, place, mask=inside[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def _backward_kernel(  # type: ignore[no-untyped-def]
    pictures, gradient, outputs, places, partial, height, width, high, wide, count, split,
    CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, STRIDE: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Partial sums of the gradient times the square below it, over a part's pooled positions, for each picked place apart."""
    part, program = tl.program_id(0), tl.program_id(1)
    first, last = bounds(part, high * wide, count, split, PARTS)
    output = tl.arange(0, OUTPUTS)[None, :]
    total_0 = tl.zeros((SQUARE, OUTPUTS), tl.float32)
    total_1 = tl.zeros((SQUARE, OUTPUTS), tl.float32)
    total_2 = tl.zeros((SQUARE, OUTPUTS), tl.float32)
    total_3 = tl.zeros((SQUARE, OUTPUTS), tl.float32)
    for start in range(first + program * BLOCK, last, STRIDE * BLOCK):
        row = start + tl.arange(0, BLOCK)
        inside = row < last
        picture = row // (high * wide)
        i, j = 2 * ((row // wide) % high), 2 * (row % wide)
        at = row.to(tl.int64)[:, None] * OUTPUTS + output
        slope = tl.load(gradient + at, mask=inside[:, None], other=0.0).to(tl.float32)
        passed = tl.load(outputs + at, mask=inside[:, None], other=0.0).to(tl.float32) > 0
        place = tl.load(places + at, mask=inside[:, None], other=255)
        slope = tl.where(passed, slope, 0.0)
        square = tl.trans(_patches(pictures, picture, i, j, inside, height, width, CHANNELS, 4, SQUARE))
        total_0 += tl.dot(square, tl.where(place == 0, slope, 0.0).to(tl.bfloat16))
        total_1 += tl.dot(square, tl.where(place == 1, slope, 0.0).to(tl.bfloat16))
        total_2 += tl.dot(square, tl.where(place == 2, slope, 0.0).to(tl.bfloat16))
        total_3 += tl.dot(square, tl.where(place == 3, slope, 0.0).to(tl.bfloat16))
    at = partial + ((part * STRIDE + program) * 4 * SQUARE + tl.arange(0, SQUARE)[:, None]) * OUTPUTS + output
    tl.store(at, total_0)
    tl.store(at + SQUARE * OUTPUTS, total_1)
    tl.store(at + 2 * SQUARE * OUTPUTS, total_2)
    tl.store(at + 3 * SQUARE * OUTPUTS, total_3)
