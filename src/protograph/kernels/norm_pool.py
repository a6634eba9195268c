r"""Batch norm, ReLU and 2x2 max-pooling as one function, in six Triton kernels, for training on a GPU.

The three layers are bound by memory, and apart from one another they write and read the full-size activations many times.
Here the moments take one pass over them; a second picks the largest of four normalised values as it reads them. The gradient
of pooling and ReLU is zero but for the picked values, so its sums need only these, and one last pass writes the whole gradient.
The numbers are those of the three layers.

Shapes: n images in G parts, C channels (a power of two), H x W values, h x w after pooling; m values of a channel in a part.
Everything is channels-last. A norm [G, 4, C] holds of every channel in each part, with batch norm's epsilon in the deviation,

.. math:: \mu, \quad \frac{1}{\sigma}, \quad a = \frac{\gamma}{\sigma}, \quad b = \beta - a \mu.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

PROGRAMS = 512  # of a reduction; a power of two
TILE = 4096  # numbers a program of a reduction holds at a time
PASS = 1024  # and of a pass over activations: eight to a thread, so that many programs run at once
FEW = 8  # channels of a program that puts partial sums together


def norm_relu_pool(inputs: Tensor, norm: nn.BatchNorm2d, relu: bool, parts: Sequence[int]) -> Tensor:
    """[n, C, H, W] -> [n, C, h, w] in training mode; batch norm sees each of the `parts` of the n images apart.

    Running statistics are updated part by part, as if each had been passed on its own.
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
        second = second_begins(parts, count)
        partial = torch.empty(len(parts), PROGRAMS, 2, channels, device=inputs.device, dtype=torch.float32)
        _sums_kernel[(PROGRAMS,)](
            inputs, partial, height * width, count, second,
            CHANNELS=channels, BLOCK=held(TILE, channels), PARTS=len(parts), STRIDE=PROGRAMS,
        )  # fmt: skip
        own = torch.empty(len(parts), 4, channels, device=inputs.device, dtype=torch.float32)
        few = min(FEW, channels)
        _norm_kernel[(channels // few,)](
            partial, own, *settings(norm), *values(parts, height * width),
            CHANNELS=channels, BLOCK=few, PARTS=len(parts), STRIDE=PROGRAMS, TRACK=norm.track_running_stats,
        )  # fmt: skip
        shape = (count, channels, height // 2, width // 2)
        outputs, picked, places = (
            torch.empty(shape, dtype=kind, device=inputs.device, memory_format=torch.channels_last)
            for kind in (inputs.dtype, inputs.dtype, torch.uint8)
        )
        block = held(PASS, channels)
        programs, rows = spread(parts, shape[2] * shape[3], block)
        _pool_kernel[(programs,)](
            inputs, own, outputs, picked, places, *rows, height, width, shape[2], shape[3],
            CHANNELS=channels, BLOCK=block, RELU=relu,
        )  # fmt: skip
        ctx.save_for_backward(inputs, picked, places, own)
        ctx.parts, ctx.relu, ctx.dtype = parts, relu, weight.dtype
        return outputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        inputs, picked, places, own = ctx.saved_tensors
        parts: tuple[int, ...] = ctx.parts
        count, channels, height, width = inputs.shape
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        small = gradient.shape[2] * gradient.shape[3]
        partial = torch.empty(len(parts), PROGRAMS, 2, channels, device=inputs.device, dtype=torch.float32)
        _gradient_sums_kernel[(PROGRAMS,)](
            gradient, picked, own, partial, small, count, parts[0],
            CHANNELS=channels, BLOCK=held(TILE, channels), RELU=ctx.relu, PARTS=len(parts), STRIDE=PROGRAMS,
        )  # fmt: skip
        shared = torch.empty(len(parts), 2, channels, device=inputs.device, dtype=torch.float32)
        total = torch.empty(2, channels, device=inputs.device, dtype=torch.float32)
        few = min(FEW, channels)
        _totals_kernel[(channels // few,)](
            partial, shared, total, *values(parts, height * width),
            CHANNELS=channels, BLOCK=few, PARTS=len(parts), STRIDE=PROGRAMS,
        )  # fmt: skip
        result = torch.empty_like(inputs)
        high, wide = (height + 1) // 2, (width + 1) // 2  # with the odd last row and column, which pooling ignores
        block = held(PASS, channels)
        programs, rows = spread(parts, high * wide, block)
        _gradient_kernel[(programs,)](
            inputs, gradient, picked, places, own, shared, result,
            *rows, height, width, gradient.shape[2], gradient.shape[3], high, wide,
            CHANNELS=channels, BLOCK=block, RELU=ctx.relu,
        )  # fmt: skip
        return result, total[1].to(ctx.dtype), total[0].to(ctx.dtype), None, None, None


def held(numbers: int, channels: int) -> int:
    """How many rows of all channels make so many numbers; at least one."""
    return max(1, numbers // channels)


def second_begins(parts: Sequence[int], count: int) -> int:
    """Where the second part of so many images begins: kernels tell two parts apart by this one number."""
    if len(parts) > 2:
        raise ValueError(f"images come in one or two parts, not {len(parts)}")
    if sum(parts) != count:
        raise ValueError(f"parts have {sum(parts)} of {count} images")
    return parts[0]


def spread(parts: Sequence[int], per_image: int, block: int) -> tuple[int, tuple[int, int, int]]:
    """How many programs of `block` rows all parts need, each with rows of one part alone, and what `rows_of` takes."""
    rows, second = sum(parts) * per_image, parts[0] * per_image
    before = triton.cdiv(second, block)
    return before + triton.cdiv(rows - second, block), (rows, second, before)


def values(parts: Sequence[int], per_image: int) -> tuple[float, float]:
    """How many values m a channel has in the first and in the last part."""
    return float(parts[0] * per_image), float(parts[-1] * per_image)


def settings(norm: nn.BatchNorm2d) -> tuple[Any, ...]:
    """What `settle` and the kernels that call it take of a batch norm."""
    if not norm.track_running_stats:
        return norm.weight, norm.bias, None, None, None, norm.eps, 0.0
    assert norm.momentum is not None
    return norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.num_batches_tracked, norm.eps, norm.momentum


@triton.jit  # type: ignore[untyped-decorator]
def bounds(per_image, images, second, part: tl.constexpr, PARTS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """First and last row of a part."""
    first = 0 if part == 0 else second * per_image
    last = second * per_image if part < PARTS - 1 else images * per_image
    return first, last


@triton.jit  # type: ignore[untyped-decorator]
def rows_of(program, rows, second_row, second_program, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """The rows of a program, whether each is there, and the part they all belong to."""
    later = program >= second_program
    row = tl.where(later, second_row + (program - second_program) * BLOCK, program * BLOCK) + tl.arange(0, BLOCK)
    return row, row < tl.where(later, rows, second_row), later.to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def settle(  # type: ignore[no-untyped-def]
    mean, variance, count, part, channel, own, weight, bias, running_mean, running_var, eps, momentum,
    CHANNELS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Write the norm of channels in a part from their moments; answers the running ones, updated."""
    variance = tl.where(variance < 0, 0.0, variance)
    deviation = 1 / tl.sqrt(variance + eps)
    scale = tl.load(weight + channel).to(tl.float32) * deviation
    at = own + part * 4 * CHANNELS + channel
    tl.store(at, mean)
    tl.store(at + CHANNELS, deviation)
    tl.store(at + 2 * CHANNELS, scale)
    tl.store(at + 3 * CHANNELS, tl.load(bias + channel).to(tl.float32) - mean * scale)
    unbiased = variance * (count / (count - 1))
    return running_mean + momentum * (mean - running_mean), running_var + momentum * (unbiased - running_var)


@triton.jit  # type: ignore[untyped-decorator]
def tracked(running_mean, running_var, channel, TRACK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """The running statistics of channels, or zeros."""
    if TRACK:
        means, variances = tl.load(running_mean + channel), tl.load(running_var + channel)
    else:
        means, variances = 0.0 * channel, 0.0 * channel
    return means, variances


@triton.jit  # type: ignore[untyped-decorator]
def track(  # type: ignore[no-untyped-def]
    running_mean, running_var, batches, channel, means, variances,
    PARTS: tl.constexpr, TRACK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Write the running statistics of channels."""
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
    """Partial sums of values and squares: a program takes every STRIDE-th block of each part's rows."""
    program = tl.program_id(0)
    channel = tl.arange(0, CHANNELS)
    for part in tl.static_range(PARTS):
        first, last = bounds(per_image, images, second, part, PARTS)
        total = tl.zeros((BLOCK, CHANNELS), tl.float32)
        square = tl.zeros((BLOCK, CHANNELS), tl.float32)
        for start in range(first + program * BLOCK, last, STRIDE * BLOCK):
            row = start + tl.arange(0, BLOCK)
            at = row.to(tl.int64)[:, None] * CHANNELS + channel[None, :]
            value = tl.load(inputs + at, mask=(row < last)[:, None], other=0.0).to(tl.float32)
            total += value
            square += value * value
        place = partial + (part * STRIDE + program) * 2 * CHANNELS + channel
        tl.store(place, tl.sum(total, 0))
        tl.store(place + CHANNELS, tl.sum(square, 0))


@triton.jit  # type: ignore[untyped-decorator]
def _norm_kernel(  # type: ignore[no-untyped-def]
    partial, own, weight, bias, running_mean, running_var, batches, eps, momentum, first_count, last_count,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, STRIDE: tl.constexpr, TRACK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """The norm and the running statistics from the partial sums."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    means, variances = tracked(running_mean, running_var, channel, TRACK)
    for part in tl.static_range(PARTS):
        count = first_count if part == 0 else last_count
        at = partial + (part * STRIDE + tl.arange(0, STRIDE))[:, None] * 2 * CHANNELS + channel[None, :]
        mean = tl.sum(tl.load(at), 0) / count
        square = tl.sum(tl.load(at + CHANNELS), 0) / count
        means, variances = settle(
            mean, square - mean * mean, count, part, channel, own, weight, bias, means, variances, eps, momentum, CHANNELS
        )
    track(running_mean, running_var, batches, channel, means, variances, PARTS, TRACK)


@triton.jit  # type: ignore[untyped-decorator]
def _pool_kernel(  # type: ignore[no-untyped-def]
    inputs, own, outputs, picked, places, rows, second_row, second_program, height, width, high, wide,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, RELU: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Each row is a pooled position: normalise its four values, keep the largest, what it was, and which."""
    row, there, part = rows_of(tl.program_id(0), rows, second_row, second_program, BLOCK)
    inside = there[:, None]
    image = row // (high * wide)
    i, j = (row // wide) % high, row % wide
    channel = tl.arange(0, CHANNELS)[None, :]
    norm = own + part * 4 * CHANNELS + channel
    a, b = tl.load(norm + 2 * CHANNELS), tl.load(norm + 3 * CHANNELS)
    corner = ((image.to(tl.int64) * height + 2 * i) * width + 2 * j)[:, None] * CHANNELS + channel
    raw = tl.load(inputs + corner, mask=inside, other=0.0)
    best = raw.to(tl.float32) * a + b
    place = tl.zeros((BLOCK, CHANNELS), tl.uint8)
    for other in tl.static_range(1, 4):
        offset = ((other // 2) * width + other % 2) * CHANNELS
        value = tl.load(inputs + corner + offset, mask=inside, other=0.0)
        normal = value.to(tl.float32) * a + b
        larger = normal > best
        best, raw = tl.where(larger, normal, best), tl.where(larger, value, raw)
        place = tl.where(larger, other, place).to(tl.uint8)
    if RELU:
        best = tl.where(best < 0, 0.0, best)  # unlike the maximum this keeps NaN, by which divergence is found
    at = row.to(tl.int64)[:, None] * CHANNELS + channel
    tl.store(outputs + at, best.to(outputs.dtype.element_ty), mask=inside)
    tl.store(picked + at, raw, mask=inside)
    tl.store(places + at, place, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _gradient_sums_kernel(  # type: ignore[no-untyped-def]
    gradient, picked, own, partial, per_image, images, second,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, RELU: tl.constexpr, PARTS: tl.constexpr, STRIDE: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Partial sums of the gradient, and of the gradient times the normalised value, over the picked values of each part."""
    program = tl.program_id(0)
    channel = tl.arange(0, CHANNELS)
    for part in tl.static_range(PARTS):
        first, last = bounds(per_image, images, second, part, PARTS)
        norm = own + part * 4 * CHANNELS + channel[None, :]
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
        place = partial + (part * STRIDE + program) * 2 * CHANNELS + channel
        tl.store(place, tl.sum(total, 0))
        tl.store(place + CHANNELS, tl.sum(product, 0))


@triton.jit  # type: ignore[untyped-decorator]
def _totals_kernel(  # type: ignore[no-untyped-def]
    partial, shared, total, first_count, last_count,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, STRIDE: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Both sums from the partial ones: of each part over m, [G, 2, C], and of all parts, [2, C]."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for which in tl.static_range(2):
        together = tl.zeros((BLOCK,), tl.float32)
        for part in tl.static_range(PARTS):
            count = first_count if part == 0 else last_count
            row = (part * STRIDE + tl.arange(0, STRIDE)) * 2 + which
            found = tl.sum(tl.load(partial + row[:, None] * CHANNELS + channel[None, :]), 0)
            tl.store(shared + (part * 2 + which) * CHANNELS + channel, found / count)
            together += found
        tl.store(total + which * CHANNELS + channel, together)


@triton.jit  # type: ignore[untyped-decorator]
def _gradient_kernel(  # type: ignore[no-untyped-def]
    inputs, gradient, picked, places, own, shared, result,
    rows, second_row, second_program, height, width, high, wide, all_high, all_wide,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, RELU: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Each row is a 2 x 2 square of the input: the gradient of its four values, one of which was picked."""
    row, there, part = rows_of(tl.program_id(0), rows, second_row, second_program, BLOCK)
    image = row // (all_high * all_wide)
    i, j = (row // all_wide) % all_high, row % all_wide
    inside, pooled = there[:, None], (there & (i < high) & (j < wide))[:, None]
    channel = tl.arange(0, CHANNELS)[None, :]
    norm = own + part * 4 * CHANNELS + channel
    mean, deviation = tl.load(norm), tl.load(norm + CHANNELS)
    a, b = tl.load(norm + 2 * CHANNELS), tl.load(norm + 3 * CHANNELS)
    mean_sum = tl.load(shared + part * 2 * CHANNELS + channel)
    mean_product = tl.load(shared + (part * 2 + 1) * CHANNELS + channel)
    at = ((image.to(tl.int64) * high + i) * wide + j)[:, None] * CHANNELS + channel
    slope = tl.load(gradient + at, mask=pooled, other=0.0).to(tl.float32)
    if RELU:
        slope = tl.where(tl.load(picked + at, mask=pooled, other=0.0).to(tl.float32) * a + b > 0, slope, 0.0)
    place = tl.load(places + at, mask=pooled, other=255)
    corner = ((image.to(tl.int64) * height + 2 * i) * width + 2 * j)[:, None] * CHANNELS + channel
    for which in tl.static_range(0, 4):
        here = inside & ((2 * i + which // 2 < height) & (2 * j + which % 2 < width))[:, None]
        offset = ((which // 2) * width + which % 2) * CHANNELS
        value = tl.load(inputs + corner + offset, mask=here, other=0.0).to(tl.float32)
        standard = (value - mean) * deviation
        change = a * (tl.where(place == which, slope, 0.0) - mean_sum - standard * mean_product)
        tl.store(result + corner + offset, change.to(result.dtype.element_ty), mask=here)
