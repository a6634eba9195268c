r"""A backbone's first block, from images to pooled activations, as one function of six Triton kernels, for training on a GPU.

The activations of the first convolution are by far the largest, and are never written here. The convolution has few inputs.
With the patch :math:`p_x`, the 9 C numbers under the filter at position x, a channel is :math:`v_x = w^\top p_x`. So batch
norm's moments follow from those of the patches, which are small and the same for all channels,

.. math:: P = \sum_x p_x, \quad M = \sum_x p_x p_x^\top, \quad
    \mu = \frac{w^\top P}{m}, \quad \sigma^2 = \frac{w^\top M w}{m} - \mu^2 + \epsilon,

and one pass computes, normalises and pools the convolution. The gradient :math:`g_x` behind the norm is zero except at the
picked positions where the ReLU is not zero. With it, all sums that the gradient needs follow from :math:`S = \sum_x g_x` and
:math:`Q = \sum_x g_x p_x`, since :math:`\sum_x g_x v_x = w^\top Q`:

.. math:: \hat g = \frac{w^\top Q - \mu S}{\sigma}, \quad \frac{\partial L}{\partial w} = \frac{\gamma}{\sigma} \Big(
    Q - \frac{S}{m} P - \frac{\hat g}{m \sigma} (M w - \mu P) \Big), \quad
    \frac{\partial L}{\partial \gamma} = \hat g, \quad \frac{\partial L}{\partial \beta} = S.

The numbers are those of the four layers, except that the convolution is not rounded to bfloat16 before the norm.

The four patches that are pooled share most of their numbers: all lie in a square of 4 x 4 pixels. So one kernel writes these
squares, and the others read them instead of images. A filter is written into the square once for each of the four positions.
With w so written, and P, M of squares, the equations hold as they stand, summed over the four.

Shapes: n images in G parts, C channels, H x W values, both even, h x w after pooling, m values of a channel in a part; O
channels behind the convolution, a power of two. A square is L = 64 numbers: four rows of 16, of which 4 C are used; the number
after those of the first row is a constant 1, so that M holds P, and Q holds S. Channels-last.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from protograph.kernels.norm_pool import (
    load_running,
    norm_arguments,
    part_bounds,
    plan_programs,
    rows_of,
    second_start,
    store_norm,
    store_running,
    value_counts,
)

SQUARE = tl.constexpr(64)  # L
SQUARE_ROW = tl.constexpr(16)  # numbers of one row of a square
BLOCK_DTYPE = torch.bfloat16  # of squares, filters and outputs
BLOCK_CHANNELS = 16  # channels of a program that adds sums
# The fastest on an H200 for O = 64: programs of the two reductions, two for each of its 132 processors, and rows per program.
BLOCK_PROGRAMS = 264
BLOCK_ROWS = 64


def warps(outputs: int) -> int:
    """Return the warps of a program that holds all channels of some rows: few enough to leave each the registers it needs."""
    return 4 if outputs <= 64 else 8


def can_fuse_first_block(conv: nn.Conv2d, images: Tensor) -> bool:
    """Return whether `conv_norm_relu_pool` serves for a convolution: a first one on a GPU, in bfloat16."""
    plain = (conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups, conv.bias) == (
        (3, 3), (1, 1), (1, 1), (1, 1), 1, None,
    )  # fmt: skip
    half = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == BLOCK_DTYPE
    even = images.shape[2] % 2 == images.shape[3] % 2 == 0
    fits = 4 * conv.in_channels < SQUARE_ROW.value and 16 <= conv.out_channels <= 128
    return plain and half and even and fits and not images.requires_grad


def conv_norm_relu_pool(images: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d, parts: Sequence[int]) -> Tensor:
    """Return the block of images [n, C, H, W] as [n, O, h, w], in training mode; batch norm sees each of the `parts` alone."""
    outputs: Tensor = _FirstBlock.apply(  # type: ignore[no-untyped-call]
        images.contiguous(memory_format=torch.channels_last), conv.weight, norm.weight, norm.bias, norm, tuple(parts)
    )
    return outputs


class _FirstBlock(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, norm: nn.BatchNorm2d, parts: tuple[int, ...]
    ) -> Tensor:
        count, channels, height, width = images.shape
        shape = (count, len(weight), height // 2, width // 2)
        small, second, device = shape[2] * shape[3], second_start(parts, count), images.device
        rows = count * small
        squares = torch.empty(rows, SQUARE.value, dtype=BLOCK_DTYPE, device=device)
        _squares_kernel[(triton.cdiv(rows, BLOCK_ROWS),)](
            images, squares, rows, height, width, shape[2], shape[3], CHANNELS=channels, BLOCK=BLOCK_ROWS
        )
        partial = torch.empty(len(parts), BLOCK_PROGRAMS, SQUARE.value, SQUARE.value, dtype=torch.float32, device=device)
        _products_kernel[(BLOCK_PROGRAMS,)](
            squares, partial, small, count, second, BLOCK=2 * BLOCK_ROWS, PARTS=len(parts), STRIDE=BLOCK_PROGRAMS
        )
        products = partial.sum(1)  # M
        filters = _filters_in_squares(weight)
        norms = torch.empty(len(parts), 4, len(weight), dtype=torch.float32, device=device)
        _norm_kernel[(len(weight) // BLOCK_CHANNELS,)](
            products, filters, norms, *norm_arguments(norm), *value_counts(parts, height * width),
            ONE=4 * channels, OUTPUTS=len(weight), BLOCK=BLOCK_CHANNELS, PARTS=len(parts), TRACK=norm.track_running_stats,
        )  # fmt: skip
        outputs, positions = (
            torch.empty(shape, dtype=kind, device=device, memory_format=torch.channels_last)
            for kind in (BLOCK_DTYPE, torch.uint8)
        )
        programs, row_arguments = plan_programs(parts, small, BLOCK_ROWS)
        _forward_kernel[(programs,)](
            squares,
            filters,
            norms,
            outputs,
            positions,
            *row_arguments,
            OUTPUTS=len(weight),
            BLOCK=BLOCK_ROWS,
            num_warps=warps(len(weight)),
        )
        ctx.save_for_backward(squares, products, filters, norms, outputs, positions)
        ctx.parts, ctx.shape, ctx.dtypes = parts, images.shape, (weight.dtype, gamma.dtype)
        return outputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor, Tensor, None, None]:
        squares, products, filters, norms, outputs, positions = ctx.saved_tensors
        parts: tuple[int, ...] = ctx.parts
        count, channels, height, width = ctx.shape
        channels_out, device = filters.shape[2], squares.device
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        partial = torch.empty(len(parts), BLOCK_PROGRAMS, 4, SQUARE.value, channels_out, dtype=torch.float32, device=device)
        _backward_kernel[(BLOCK_PROGRAMS,)](
            squares, gradient, outputs, positions, partial, gradient.shape[2] * gradient.shape[3], count, parts[0],
            OUTPUTS=channels_out, BLOCK=BLOCK_ROWS, PARTS=len(parts), STRIDE=BLOCK_PROGRAMS, num_warps=warps(channels_out),
        )  # fmt: skip
        change = torch.empty(len(parts), 4 * SQUARE.value, channels_out, dtype=torch.float32, device=device)
        slopes = torch.empty(2, channels_out, dtype=torch.float32, device=device)
        _change_kernel[(channels_out // BLOCK_CHANNELS,)](
            products, partial.sum(1), filters, norms, change, slopes, *value_counts(parts, height * width),
            ONE=4 * channels, OUTPUTS=channels_out, BLOCK=BLOCK_CHANNELS, PARTS=len(parts),
        )  # fmt: skip
        taps = change[:, _slots(channels, device)].sum((0, 1)).view(3, 3, channels, channels_out)
        kinds = ctx.dtypes
        return None, taps.permute(3, 2, 0, 1).to(kinds[0]), slopes[0].to(kinds[1]), slopes[1].to(kinds[1]), None, None


@cache
def _slots(channels: int, device: torch.device) -> Tensor:
    """Return the indices [4, 9 C] of a filter's 9 C numbers in the four squares [4 L]."""
    row, column, channel = torch.meshgrid(torch.arange(3), torch.arange(3), torch.arange(channels), indexing="ij")
    first = row * SQUARE_ROW.value + column * channels + channel
    corners = [position * SQUARE.value + position // 2 * SQUARE_ROW.value + position % 2 * channels for position in range(4)]
    return torch.stack([first.flatten() + corner for corner in corners]).to(device)


def _filters_in_squares(weight: Tensor) -> Tensor:
    """Return filters [O, C, 3, 3] as columns [4, L, O], written into the square at each of the four positions."""
    columns = weight.new_zeros(4 * SQUARE.value, len(weight), dtype=BLOCK_DTYPE)
    columns[_slots(weight.shape[1], weight.device)] = weight.permute(2, 3, 1, 0).flatten(0, 2).to(BLOCK_DTYPE)
    return columns.view(4, SQUARE.value, len(weight))


@triton.jit  # type: ignore[untyped-decorator]
def _squares_kernel(  # type: ignore[no-untyped-def]
    images, squares, rows, height, width, high, wide,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Store the 4 x 4 pixels below each pooled position, zero beyond the edges, and a 1."""
    row = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[:, None]
    slot = tl.arange(0, SQUARE)[None, :]
    offset = slot % SQUARE_ROW
    i, j = 2 * ((row // wide) % high) - 1, 2 * (row % wide) - 1  # where the square begins
    y, x = i + slot // SQUARE_ROW, j + offset // CHANNELS
    shown = (row < rows) & (offset < 4 * CHANNELS) & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    at = ((row // (high * wide)).to(tl.int64) * height + y) * width + j
    value = tl.load(images + at * CHANNELS + offset, mask=shown, other=0.0).to(tl.float32)
    value = tl.where(slot == 4 * CHANNELS, 1.0, value)
    tl.store(squares + row.to(tl.int64) * SQUARE + slot, value.to(squares.dtype.element_ty), mask=row < rows)


@triton.jit  # type: ignore[untyped-decorator]
def _products_kernel(  # type: ignore[no-untyped-def]
    squares, partial, per_image, images, second,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, STRIDE: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Store partial sums of the products of squares; a program takes every STRIDE-th block of each part's rows."""
    program, slot = tl.program_id(0), tl.arange(0, SQUARE)
    for part in tl.static_range(PARTS):
        first, last = part_bounds(per_image, images, second, part, PARTS)
        total = tl.zeros((SQUARE, SQUARE), tl.float32)
        for start in range(first + program * BLOCK, last, STRIDE * BLOCK):
            row = start + tl.arange(0, BLOCK)
            square = tl.load(squares + row.to(tl.int64)[:, None] * SQUARE + slot, mask=(row < last)[:, None], other=0.0)
            total += tl.dot(tl.trans(square), square)
        tl.store(partial + ((part * STRIDE + program) * SQUARE + slot[:, None]) * SQUARE + slot, total)


@triton.jit  # type: ignore[untyped-decorator]
def _norm_kernel(  # type: ignore[no-untyped-def]
    products, filters, norms, weight, bias, running_mean, running_var, batches, eps, momentum, first_count, last_count,
    ONE: tl.constexpr, OUTPUTS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, TRACK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Store the norm and the running statistics of channels, computed from the products of squares."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.arange(0, SQUARE)[:, None]
    means, variances = load_running(running_mean, running_var, channel, TRACK)
    for part in tl.static_range(PARTS):
        count = first_count if part == 0 else last_count
        first = products + part * SQUARE * SQUARE
        matrix, sums = tl.load(first + slot * SQUARE + tl.arange(0, SQUARE)[None, :]), tl.load(first + slot * SQUARE + ONE)
        mean = tl.zeros((BLOCK,), tl.float32)
        square = tl.zeros((BLOCK,), tl.float32)
        for position in tl.static_range(4):
            position_filter = tl.load(filters + (position * SQUARE + slot) * OUTPUTS + channel[None, :]).to(tl.float32)
            mean += tl.sum(position_filter * sums, 0) / count
            square += tl.sum(position_filter * tl.dot(matrix, position_filter, input_precision="tf32x3"), 0) / count
        means, variances = store_norm(
            mean, square - mean * mean, count, part, channel, norms, weight, bias, means, variances, eps, momentum, OUTPUTS
        )
    store_running(running_mean, running_var, batches, channel, means, variances, PARTS, TRACK)


@triton.jit  # type: ignore[untyped-decorator]
def _forward_kernel(  # type: ignore[no-untyped-def]
    squares, filters, norms, outputs, positions, rows, second_row, second_program,
    OUTPUTS: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Filter the square of each pooled position at four positions, normalise; store the largest, and its position."""
    row, exists, part = rows_of(tl.program_id(0), rows, second_row, second_program, BLOCK)
    inside = exists[:, None]
    slot, output = tl.arange(0, SQUARE), tl.arange(0, OUTPUTS)[None, :]
    norm = norms + part * 4 * OUTPUTS + output
    a, b = tl.load(norm + 2 * OUTPUTS), tl.load(norm + 3 * OUTPUTS)
    square = tl.load(squares + row.to(tl.int64)[:, None] * SQUARE + slot[None, :], mask=inside, other=0.0)
    filter_columns = filters + slot[:, None] * OUTPUTS + output
    best = tl.dot(square, tl.load(filter_columns)) * a + b
    position = tl.zeros((BLOCK, OUTPUTS), tl.uint8)
    for candidate in tl.static_range(1, 4):
        normal = tl.dot(square, tl.load(filter_columns + candidate * SQUARE * OUTPUTS)) * a + b
        larger = normal > best
        best, position = tl.where(larger, normal, best), tl.where(larger, candidate, position).to(tl.uint8)
    best = tl.where(best < 0, 0.0, best)  # unlike the maximum this keeps NaN, so that divergence is noticed
    at = row.to(tl.int64)[:, None] * OUTPUTS + output
    tl.store(outputs + at, best.to(outputs.dtype.element_ty), mask=inside)
    tl.store(positions + at, position, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _backward_kernel(  # type: ignore[no-untyped-def]
    squares, gradient, outputs, positions, partial, per_image, images, second,
    OUTPUTS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, STRIDE: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Store partial sums of the gradient times the square below it, over each part's rows, for each of the four positions."""
    program = tl.program_id(0)
    slot, output = tl.arange(0, SQUARE), tl.arange(0, OUTPUTS)[None, :]
    for part in tl.static_range(PARTS):
        first, last = part_bounds(per_image, images, second, part, PARTS)
        total_0 = tl.zeros((SQUARE, OUTPUTS), tl.float32)
        total_1 = tl.zeros((SQUARE, OUTPUTS), tl.float32)
        total_2 = tl.zeros((SQUARE, OUTPUTS), tl.float32)
        total_3 = tl.zeros((SQUARE, OUTPUTS), tl.float32)
        for start in range(first + program * BLOCK, last, STRIDE * BLOCK):
            row = start + tl.arange(0, BLOCK)
            inside = (row < last)[:, None]
            at = row.to(tl.int64)[:, None] * OUTPUTS + output
            slope = tl.load(gradient + at, mask=inside, other=0.0)
            passed = tl.load(outputs + at, mask=inside, other=0.0) > 0
            position = tl.load(positions + at, mask=inside, other=255)
            slope = tl.where(passed, slope, 0.0)
            square = tl.load(squares + row.to(tl.int64)[:, None] * SQUARE + slot[None, :], mask=inside, other=0.0)
            across = tl.trans(square)
            total_0 += tl.dot(across, tl.where(position == 0, slope, 0.0))
            total_1 += tl.dot(across, tl.where(position == 1, slope, 0.0))
            total_2 += tl.dot(across, tl.where(position == 2, slope, 0.0))
            total_3 += tl.dot(across, tl.where(position == 3, slope, 0.0))
        sums = partial + ((part * STRIDE + program) * 4 * SQUARE + slot[:, None]) * OUTPUTS + output
        tl.store(sums, total_0)
        tl.store(sums + SQUARE * OUTPUTS, total_1)
        tl.store(sums + 2 * SQUARE * OUTPUTS, total_2)
        tl.store(sums + 3 * SQUARE * OUTPUTS, total_3)


@triton.jit  # type: ignore[untyped-decorator]
def _change_kernel(  # type: ignore[no-untyped-def]
    products, sums, filters, norms, change, slopes, first_count, last_count,
    ONE: tl.constexpr, OUTPUTS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Store the gradient of the filters in squares by each part [G, 4 L, O], and of the norm's weight and bias [2, O]."""
    channel = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[None, :]
    slot = tl.arange(0, SQUARE)[:, None]
    all_standard = tl.zeros((1, BLOCK), tl.float32)
    all_total = tl.zeros((1, BLOCK), tl.float32)
    for part in tl.static_range(PARTS):
        count = first_count if part == 0 else last_count
        norm = norms + part * 4 * OUTPUTS + channel
        mean, deviation, scale = tl.load(norm), tl.load(norm + OUTPUTS), tl.load(norm + 2 * OUTPUTS)
        first = products + part * SQUARE * SQUARE
        matrix, below = tl.load(first + slot * SQUARE + tl.arange(0, SQUARE)[None, :]), tl.load(first + slot * SQUARE + ONE)
        total = tl.zeros((1, BLOCK), tl.float32)
        product = tl.zeros((1, BLOCK), tl.float32)
        for position in tl.static_range(4):
            at = (position * SQUARE + slot) * OUTPUTS + channel
            sum_of_products = tl.load(sums + part * 4 * SQUARE * OUTPUTS + at)
            total += tl.load(sums + (part * 4 + position) * SQUARE * OUTPUTS + ONE * OUTPUTS + channel)
            product += tl.sum(tl.load(filters + at).to(tl.float32) * sum_of_products, 0)[None, :]
        standard = (product - mean * total) * deviation
        all_standard += standard
        all_total += total
        for position in tl.static_range(4):
            at = (position * SQUARE + slot) * OUTPUTS + channel
            sum_of_products = tl.load(sums + part * 4 * SQUARE * OUTPUTS + at)
            filtered = tl.dot(matrix, tl.load(filters + at).to(tl.float32), input_precision="tf32x3")
            share = standard * deviation / count * (filtered - mean * below)
            tl.store(change + part * 4 * SQUARE * OUTPUTS + at, scale * (sum_of_products - total / count * below - share))
    tl.store(slopes + channel, all_standard)
    tl.store(slopes + OUTPUTS + channel, all_total)
