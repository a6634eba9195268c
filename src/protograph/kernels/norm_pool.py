r"""Batch norm, ReLU and 2x2 max-pooling as one function of six Triton kernels, for training on a GPU.

The three layers are bound by memory bandwidth. One after the other, they write and read the full-size activations many times.
Here, one pass over them computes the moments, and a second pass normalises four values and picks the largest as it reads them.
The gradient of pooling and ReLU is zero except at the picked values. So its sums need only these, and one last pass writes the
full gradient. The numbers are those of the three layers.

Shapes: n images in G parts, C channels (a power of two), H x W values, h x w after pooling; m values of a channel in a part.
All tensors are channels-last. A norm [G, 4, C] holds, for every channel of each part, with batch norm's epsilon in the
deviation,

.. math:: \mu, \quad \frac{1}{\sigma}, \quad a = \frac{\gamma}{\sigma}, \quad b = \beta - a \mu.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

POOL_PROGRAMS = 512  # of a reduction: a power of two
POOL_TILE = 4096  # numbers that a program of a reduction holds at a time
POOL_PASS = 1024  # numbers of a program of a pass over activations: eight per thread, so that many programs run at once
POOL_CHANNELS = 8  # channels of a program that adds partial sums


def norm_relu_pool(inputs: Tensor, norm: nn.BatchNorm2d, relu: bool, parts: Sequence[int]) -> Tensor:
    """Return batch norm, ReLU (if `relu`) and 2x2 max-pooling of inputs [n, C, H, W], in training mode, as [n, C, h, w].

    Batch norm sees each of the one or two parts of the n images alone. Running statistics are updated part by part, as by one
    call for each part.
    """
    outputs: Tensor = _NormReluPool.apply(  # type: ignore[no-untyped-call]
        inputs.contiguous(memory_format=torch.channels_last), norm.weight, norm.bias, norm, relu, tuple(parts)
    )
    return outputs


class _NormReluPool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        norm: nn.BatchNorm2d,
        relu: bool,
        parts: tuple[int, ...],
    ) -> Tensor:
        count, channels, height, width = inputs.shape
        second = second_start(parts, count)
        partial = torch.empty(len(parts), POOL_PROGRAMS, 2, channels, device=inputs.device, dtype=torch.float32)
        _sums_kernel[(POOL_PROGRAMS,)](
            inputs, partial, height * width, count, second,
            CHANNELS=channels, BLOCK=rows_in(POOL_TILE, channels), PARTS=len(parts), STRIDE=POOL_PROGRAMS,
        )  # fmt: skip
        norms = torch.empty(len(parts), 4, channels, device=inputs.device, dtype=torch.float32)
        portion = min(POOL_CHANNELS, channels)
        _norm_kernel[(channels // portion,)](
            partial, norms, *norm_arguments(norm), *value_counts(parts, height * width),
            CHANNELS=channels, BLOCK=portion, PARTS=len(parts), STRIDE=POOL_PROGRAMS, TRACK=norm.track_running_stats,
        )  # fmt: skip
        shape = (count, channels, height // 2, width // 2)
        outputs, picked, positions = (
            torch.empty(shape, dtype=kind, device=inputs.device, memory_format=torch.channels_last)
            for kind in (inputs.dtype, inputs.dtype, torch.uint8)
        )
        block = rows_in(POOL_PASS, channels)
        programs, rows = plan_programs(parts, shape[2] * shape[3], block)
        _pool_kernel[(programs,)](
            inputs, norms, outputs, picked, positions, *rows, height, width, shape[2], shape[3],
            CHANNELS=channels, BLOCK=block, RELU=relu,
        )  # fmt: skip
        ctx.save_for_backward(inputs, picked, positions, norms)
        ctx.parts, ctx.relu, ctx.dtype = parts, relu, weight.dtype
        return outputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        inputs, picked, positions, norms = ctx.saved_tensors
        parts: tuple[int, ...] = ctx.parts
        count, channels, height, width = inputs.shape
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        small = gradient.shape[2] * gradient.shape[3]
        partial = torch.empty(len(parts), POOL_PROGRAMS, 2, channels, device=inputs.device, dtype=torch.float32)
        _gradient_sums_kernel[(POOL_PROGRAMS,)](
            gradient, picked, norms, partial, small, count, parts[0],
            CHANNELS=channels, BLOCK=rows_in(POOL_TILE, channels), RELU=ctx.relu, PARTS=len(parts), STRIDE=POOL_PROGRAMS,
        )  # fmt: skip
        shared = torch.empty(len(parts), 2, channels, device=inputs.device, dtype=torch.float32)
        total = torch.empty(2, channels, device=inputs.device, dtype=torch.float32)
        portion = min(POOL_CHANNELS, channels)
        _totals_kernel[(channels // portion,)](
            partial, shared, total, *value_counts(parts, height * width),
            CHANNELS=channels, BLOCK=portion, PARTS=len(parts), STRIDE=POOL_PROGRAMS,
        )  # fmt: skip
        result = torch.empty_like(inputs)
        high, wide = (height + 1) // 2, (width + 1) // 2  # with the odd last row and column that pooling ignores
        block = rows_in(POOL_PASS, channels)
        programs, rows = plan_programs(parts, high * wide, block)
        _gradient_kernel[(programs,)](
            inputs, gradient, picked, positions, norms, shared, result,
            *rows, height, width, gradient.shape[2], gradient.shape[3], high, wide,
            CHANNELS=channels, BLOCK=block, RELU=ctx.relu,
        )  # fmt: skip
        return result, total[1].to(ctx.dtype), total[0].to(ctx.dtype), None, None, None


def rows_in(numbers: int, channels: int) -> int:
    """Return how many rows of all channels hold so many numbers; at least one."""
    return max(1, numbers // channels)


def second_start(parts: Sequence[int], count: int) -> int:
    """Return the index of the first image of the second part; kernels tell two parts apart by this number."""
    if len(parts) > 2:
        raise ValueError(f"images come in one or two parts, not {len(parts)}")
    if sum(parts) != count:
        raise ValueError(f"parts have {sum(parts)} of {count} images")
    return parts[0]


def plan_programs(parts: Sequence[int], per_image: int, block: int) -> tuple[int, tuple[int, int, int]]:
    """Return how many programs of `block` rows the parts need, each with rows of one part, and the arguments of `rows_of`."""
    rows, second = sum(parts) * per_image, parts[0] * per_image
    before = triton.cdiv(second, block)
    return before + triton.cdiv(rows - second, block), (rows, second, before)


def value_counts(parts: Sequence[int], per_image: int) -> tuple[float, float]:
    """Return how many values m a channel has in the first and in the last part."""
    return float(parts[0] * per_image), float(parts[-1] * per_image)


def norm_arguments(norm: nn.BatchNorm2d) -> tuple[Any, ...]:
    """Return the arguments of a batch norm for `store_norm` and the kernels that call it."""
    if not norm.track_running_stats:
        return norm.weight, norm.bias, None, None, None, norm.eps, 0.0
    assert norm.momentum is not None
    return norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.num_batches_tracked, norm.eps, norm.momentum


@triton.jit  # type: ignore[untyped-decorator]
def part_bounds(per_image, images, second, part: tl.constexpr, PARTS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Return the first row of a part, and the row after its last."""
    first = 0 if part == 0 else second * per_image
    last = second * per_image if part < PARTS - 1 else images * per_image
    return first, last


@triton.jit  # type: ignore[untyped-decorator]
def rows_of(program, rows, second_row, second_program, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Return the rows of a program, whether each exists, and the part that all of them belong to."""
    later = program >= second_program
    row = tl.where(later, second_row + (program - second_program) * BLOCK, program * BLOCK) + tl.arange(0, BLOCK)
    return row, row < tl.where(later, rows, second_row), later.to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def store_norm(  # type: ignore[no-untyped-def]
    mean, variance, count, part, channel, norms, weight, bias, running_mean, running_var, eps, momentum,
    CHANNELS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Store the norm of channels in a part, computed from their moments; return the updated running statistics."""
    variance = tl.where(variance < 0, 0.0, variance)
    deviation = 1 / tl.sqrt(variance + eps)
    scale = tl.load(weight + channel).to(tl.float32) * deviation
    at = norms + part * 4 * CHANNELS + channel
    tl.store(at, mean)
    tl.store(at + CHANNELS, deviation)
    tl.store(at + 2 * CHANNELS, scale)
    tl.store(at + 3 * CHANNELS, tl.load(bias + channel).to(tl.float32) - mean * scale)
    unbiased = variance * (count / (count - 1))
    return running_mean + momentum * (mean - running_mean), running_var + momentum * (unbiased - running_var)


@triton.jit  # type: ignore[untyped-decorator]
def load_running(running_mean, running_var, channel, TRACK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Return the running statistics of channels, or zeros."""
    if TRACK:
        means, variances = tl.load(running_mean + channel), tl.load(running_var + channel)
    else:
        means, variances = 0.0 * channel, 0.0 * channel
    return means, variances


@triton.jit  # type: ignore[untyped-decorator]
def store_running(  # type: ignore[no-untyped-def]
    running_mean, running_var, batches, channel, means, variances,
    PARTS: tl.constexpr, TRACK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Store the running statistics of channels."""
    if TRACK:
        tl.store(running_mean + channel, means)
        tl.store(running_var + channel, variances)
        if tl.program_id(0) == 0:
            tl.store(batches, tl.load(batches) + PARTS)


@triton.jit  # type: ignore[untyped-decorator]
def _sums_kernel(  # type: ignore[no-untyped-def]
    inputs, partial, per_image, images, second,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, STRIDE: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Store partial sums of values and squares; a program takes every STRIDE-th block of each part's rows."""
    program = tl.program_id(0)
    channel = tl.arange(0, CHANNELS)
    for part in tl.static_range(PARTS):
        first, last = part_bounds(per_image, images, second, part, PARTS)
        total = tl.zeros((BLOCK, CHANNELS), tl.float32)
        square = tl.zeros((BLOCK, CHANNELS), tl.float32)
        for start in range(first + program * BLOCK, last, STRIDE * BLOCK):
            row = start + tl.arange(0, BLOCK)
            at = row.to(tl.int64)[:, None] * CHANNELS + channel[None, :]
            value = tl.load(inputs + at, mask=(row < last)[:, None], other=0.0).to(tl.float32)
            total += value
            square += value * value
        target = partial + (part * STRIDE + program) * 2 * CHANNELS + channel
        tl.store(target, tl.sum(total, 0))
        tl.store(target + CHANNELS, tl.sum(square, 0))


@triton.jit  # type: ignore[untyped-decorator]
def _norm_kernel(  # type: ignore[no-untyped-def]
    partial, norms, weight, bias, running_mean, running_var, batches, eps, momentum, first_count, last_count,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, STRIDE: tl.constexpr, TRACK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Store the norm and the running statistics, computed from the partial sums."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    means, variances = load_running(running_mean, running_var, channel, TRACK)
    for part in tl.static_range(PARTS):
        count = first_count if part == 0 else last_count
        at = partial + (part * STRIDE + tl.arange(0, STRIDE))[:, None] * 2 * CHANNELS + channel[None, :]
        mean = tl.sum(tl.load(at), 0) / count
        square = tl.sum(tl.load(at + CHANNELS), 0) / count
        means, variances = store_norm(
            mean, square - mean * mean, count, part, channel, norms, weight, bias, means, variances, eps, momentum, CHANNELS
        )
    store_running(running_mean, running_var, batches, channel, means, variances, PARTS, TRACK)


@triton.jit  # type: ignore[untyped-decorator]
def _pool_kernel(  # type: ignore[no-untyped-def]
    inputs, norms, outputs, picked, positions, rows, second_row, second_program, height, width, high, wide,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, RELU: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Normalise the four values of each pooled position; store the largest, its value before, and its position."""
    row, exists, part = rows_of(tl.program_id(0), rows, second_row, second_program, BLOCK)
    inside = exists[:, None]
    image = row // (high * wide)
    i, j = (row // wide) % high, row % wide
    channel = tl.arange(0, CHANNELS)[None, :]
    norm = norms + part * 4 * CHANNELS + channel
    a, b = tl.load(norm + 2 * CHANNELS), tl.load(norm + 3 * CHANNELS)
    corner = ((image.to(tl.int64) * height + 2 * i) * width + 2 * j)[:, None] * CHANNELS + channel
    raw = tl.load(inputs + corner, mask=inside, other=0.0)
    best = raw.to(tl.float32) * a + b
    position = tl.zeros((BLOCK, CHANNELS), tl.uint8)
    for candidate in tl.static_range(1, 4):
        offset = ((candidate // 2) * width + candidate % 2) * CHANNELS
        value = tl.load(inputs + corner + offset, mask=inside, other=0.0)
        normal = value.to(tl.float32) * a + b
        larger = normal > best
        best, raw = tl.where(larger, normal, best), tl.where(larger, value, raw)
        position = tl.where(larger, candidate, position).to(tl.uint8)
    if RELU:
        best = tl.where(best < 0, 0.0, best)  # unlike the maximum this keeps NaN, so that divergence is noticed
    at = row.to(tl.int64)[:, None] * CHANNELS + channel
    tl.store(outputs + at, best.to(outputs.dtype.element_ty), mask=inside)
    tl.store(picked + at, raw, mask=inside)
    tl.store(positions + at, position, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _gradient_sums_kernel(  # type: ignore[no-untyped-def]
    gradient, picked, norms, partial, per_image, images, second,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, RELU: tl.constexpr, PARTS: tl.constexpr, STRIDE: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Store partial sums, over picked values, of the gradient and of the gradient times the normalised value."""
    program = tl.program_id(0)
    channel = tl.arange(0, CHANNELS)
    for part in tl.static_range(PARTS):
        first, last = part_bounds(per_image, images, second, part, PARTS)
        norm = norms + part * 4 * CHANNELS + channel[None, :]
        mean, deviation = tl.load(norm), tl.load(norm + CHANNELS)
        a, b = tl.load(norm + 2 * CHANNELS), tl.load(norm + 3 * CHANNELS)
        total = tl.zeros((BLOCK, CHANNELS), tl.float32)
        product = tl.zeros((BLOCK, CHANNELS), tl.float32)
        for start in range(first + program * BLOCK, last, STRIDE * BLOCK):
            row = start + tl.arange(0, BLOCK)
            inside = (row < last)[:, None]
            at = row.to(tl.int64)[:, None] * CHANNELS + channel[None, :]
            value = tl.load(picked + at, mask=inside, other=0.0).to(tl.float32)
            slope = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
            if RELU:
                slope = tl.where(value * a + b > 0, slope, 0.0)
            total += slope
            product += slope * (value - mean) * deviation
        target = partial + (part * STRIDE + program) * 2 * CHANNELS + channel
        tl.store(target, tl.sum(total, 0))
        tl.store(target + CHANNELS, tl.sum(product, 0))


@triton.jit  # type: ignore[untyped-decorator]
def _totals_kernel(  # type: ignore[no-untyped-def]
    partial, shared, total, first_count, last_count,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, STRIDE: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Store both sums, of each part divided by m [G, 2, C], and of all parts [2, C]."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for index in tl.static_range(2):
        all_total = tl.zeros((BLOCK,), tl.float32)
        for part in tl.static_range(PARTS):
            count = first_count if part == 0 else last_count
            row = (part * STRIDE + tl.arange(0, STRIDE)) * 2 + index
            part_total = tl.sum(tl.load(partial + row[:, None] * CHANNELS + channel[None, :]), 0)
            tl.store(shared + (part * 2 + index) * CHANNELS + channel, part_total / count)
            all_total += part_total
        tl.store(total + index * CHANNELS + channel, all_total)


@triton.jit  # type: ignore[untyped-decorator]
def _gradient_kernel(  # type: ignore[no-untyped-def]
    inputs, gradient, picked, positions, norms, shared, result,
    rows, second_row, second_program, height, width, high, wide, all_high, all_wide,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, RELU: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Store the gradient of the four values of each 2 x 2 square of the input, one of which was picked."""
    row, exists, part = rows_of(tl.program_id(0), rows, second_row, second_program, BLOCK)
    image = row // (all_high * all_wide)
    i, j = (row // all_wide) % all_high, row % all_wide
    inside, pooled = exists[:, None], (exists & (i < high) & (j < wide))[:, None]
    channel = tl.arange(0, CHANNELS)[None, :]
    norm = norms + part * 4 * CHANNELS + channel
    mean, deviation = tl.load(norm), tl.load(norm + CHANNELS)
    a, b = tl.load(norm + 2 * CHANNELS), tl.load(norm + 3 * CHANNELS)
    mean_sum = tl.load(shared + part * 2 * CHANNELS + channel)
    mean_product = tl.load(shared + (part * 2 + 1) * CHANNELS + channel)
    at = ((image.to(tl.int64) * high + i) * wide + j)[:, None] * CHANNELS + channel
    slope = tl.load(gradient + at, mask=pooled, other=0.0).to(tl.float32)
    if RELU:
        slope = tl.where(tl.load(picked + at, mask=pooled, other=0.0).to(tl.float32) * a + b > 0, slope, 0.0)
    position = tl.load(positions + at, mask=pooled, other=255)
    corner = ((image.to(tl.int64) * height + 2 * i) * width + 2 * j)[:, None] * CHANNELS + channel
    for index in tl.static_range(0, 4):
        here = inside & ((2 * i + index // 2 < height) & (2 * j + index % 2 < width))[:, None]
        offset = ((index // 2) * width + index % 2) * CHANNELS
        value = tl.load(inputs + corner + offset, mask=here, other=0.0).to(tl.float32)
        standard = (value - mean) * deviation
        change = a * (tl.where(position == index, slope, 0.0) - mean_sum - standard * mean_product)
        tl.store(result + corner + offset, change.to(result.dtype.element_ty), mask=here)
