"""Batch norm, ReLU and 2x2 max-pooling as one function, in four Triton kernels, for training on a GPU.

The three layers are bound by memory, and apart from one another they write and read the full-size activations many times.
Here the moments take one pass over them; a second picks the largest of four normalised values as it reads them. The gradient
of pooling and ReLU is zero but for the picked values, so its sums need only these, and one last pass writes the whole gradient.
The numbers are those of the three layers.

Shapes: n pictures in G parts, C channels (a power of two), H x W values, h x w after pooling; m values of a channel in a part.
Everything is channels-last.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

PROGRAMS = 256  # of a reduction, for each part
TILE = 4096  # numbers a program holds at a time


def norm_relu_pool(inputs: Tensor, norm: nn.BatchNorm2d, relu: bool, parts: Sequence[int]) -> Tensor:
    """[n, C, H, W] -> [n, C, h, w] in training mode; batch norm sees each of the `parts` of the n pictures apart.

    Running statistics are updated part by part, as if each had been passed on its own.
    """
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    values = inputs.shape[2] * inputs.shape[3]
    with torch.no_grad():  # the gradient through the moments is part of the function's own
        sums = _sums(inputs, parts, values)
        counts = [count * values for count in parts]
        means = torch.stack([total / count for total, count in zip(sums[:, 0], counts, strict=True)])  # [G, C]
        squares = torch.stack([total / count for total, count in zip(sums[:, 1], counts, strict=True)])
        variances = (squares - means.square()).clamp_min(0)
        update_statistics(norm, means, variances, counts)
        deviations = (variances + norm.eps).rsqrt()
    outputs: Tensor = _NormReluPool.apply(  # type: ignore[no-untyped-call]
        inputs, norm.weight, norm.bias, means, deviations, relu, tuple(parts)
    )
    return outputs


class _NormReluPool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        means: Tensor,
        deviations: Tensor,
        relu: bool,
        parts: tuple[int, ...],
    ) -> Tensor:
        count, channels, height, width = inputs.shape
        shape = (count, channels, height // 2, width // 2)
        outputs, picked, places = (
            torch.empty(shape, dtype=kind, device=inputs.device, memory_format=torch.channels_last)
            for kind in (inputs.dtype, inputs.dtype, torch.uint8)
        )
        scale = weight * deviations
        shift = bias - means * scale
        rows = count * shape[2] * shape[3]
        block = TILE // channels
        _pool_kernel[(triton.cdiv(rows, block),)](
            inputs, scale, shift, outputs, picked, places, rows, height, width, shape[2], shape[3], second_begins(parts),
            CHANNELS=channels, BLOCK=block, RELU=relu, PARTS=len(parts),
        )  # fmt: skip
        ctx.save_for_backward(inputs, picked, places, weight, scale, shift, means, deviations)
        ctx.parts, ctx.relu = parts, relu
        return outputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None, None]:
        inputs, picked, places, weight, scale, shift, means, deviations = ctx.saved_tensors
        parts: tuple[int, ...] = ctx.parts
        count, channels, height, width = inputs.shape
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        small, block = gradient.shape[2] * gradient.shape[3], TILE // channels
        partial = torch.empty(len(parts), PROGRAMS, 2, channels, device=inputs.device, dtype=torch.float32)
        _gradient_sums_kernel[(len(parts), PROGRAMS)](
            gradient, picked, scale, shift, means, deviations, partial, small, count, second_begins(parts),
            CHANNELS=channels, BLOCK=block, RELU=ctx.relu, PARTS=len(parts), STRIDE=PROGRAMS,
        )  # fmt: skip
        sums = partial.sum(1)  # [G, 2, C]
        shared = torch.stack([sums[part] / (own * height * width) for part, own in enumerate(parts)])
        result = torch.empty_like(inputs)
        high, wide = (height + 1) // 2, (width + 1) // 2  # with the odd last row and column, which pooling ignores
        rows = count * high * wide
        _gradient_kernel[(triton.cdiv(rows, block),)](
            inputs, gradient, picked, places, scale, shift, means, deviations, shared, result,
            rows, height, width, gradient.shape[2], gradient.shape[3], high, wide, second_begins(parts),
            CHANNELS=channels, BLOCK=block, RELU=ctx.relu, PARTS=len(parts),
        )  # fmt: skip
        total = sums.sum(0)
        return result, total[1].to(weight.dtype), total[0].to(weight.dtype), None, None, None, None


def update_statistics(norm: nn.BatchNorm2d, means: Tensor, variances: Tensor, counts: Sequence[int]) -> None:
    """Running statistics from the means and variances [G, C] of each part's `counts` values, part by part."""
    if norm.track_running_stats:
        assert norm.momentum is not None
        for part, count in enumerate(counts):
            norm.running_mean.lerp_(means[part], norm.momentum)  # type: ignore[union-attr]
            norm.running_var.lerp_(variances[part] * (count / (count - 1)), norm.momentum)  # type: ignore[union-attr]
        norm.num_batches_tracked.add_(len(counts))  # type: ignore[union-attr]


def second_begins(parts: Sequence[int]) -> int:
    """Where the second part begins: kernels tell two parts apart by this one number."""
    if len(parts) > 2:
        raise ValueError(f"pictures come in one or two parts, not {len(parts)}")
    return parts[0]


def _sums(inputs: Tensor, parts: Sequence[int], values: int) -> Tensor:
    """Sums and sums of squares [G, 2, C] of every channel in each part."""
    channels = inputs.shape[1]
    partial = torch.empty(len(parts), PROGRAMS, 2, channels, device=inputs.device, dtype=torch.float32)
    _sums_kernel[(len(parts), PROGRAMS)](
        inputs, partial, values, inputs.shape[0], second_begins(parts),
        CHANNELS=channels, BLOCK=TILE // channels, PARTS=len(parts), STRIDE=PROGRAMS,
    )  # fmt: skip
    return partial.sum(1)


@triton.jit  # type: ignore[untyped-decorator]
def bounds(part, per_picture, pictures, split, PARTS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """First and last row of a part."""
    first = tl.where(part == 0, 0, split * per_picture)
    last = pictures * per_picture if PARTS == 1 else tl.where(part == 0, split * per_picture, pictures * per_picture)
    return first, last


@triton.jit  # type: ignore[untyped-decorator]
def _sums_kernel(  # type: ignore[no-untyped-def]
    inputs, partial, per_picture, pictures, split,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, STRIDE: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Partial sums of values and squares: program (part, p) takes every STRIDE-th block of the part's rows."""
    part, program = tl.program_id(0), tl.program_id(1)
    first, last = bounds(part, per_picture, pictures, split, PARTS)
    channel = tl.arange(0, CHANNELS)
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
def _pool_kernel(  # type: ignore[no-untyped-def]
    inputs, scale, shift, outputs, picked, places, rows, height, width, high, wide, split,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, RELU: tl.constexpr, PARTS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Each row is a pooled position: normalise its four values, keep the largest, what it was, and which."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (row < rows)[:, None]
    picture = row // (high * wide)
    i, j = (row // wide) % high, row % wide
    channel = tl.arange(0, CHANNELS)[None, :]
    own = channel + ((picture >= split).to(tl.int32) * CHANNELS)[:, None] if PARTS == 2 else channel + 0 * row[:, None]
    a, b = tl.load(scale + own, mask=inside, other=0.0), tl.load(shift + own, mask=inside, other=0.0)
    corner = ((picture.to(tl.int64) * height + 2 * i) * width + 2 * j)[:, None] * CHANNELS + channel
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
    gradient, picked, scale, shift, means, deviations, partial, per_picture, pictures, split,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, RELU: tl.constexpr, PARTS: tl.constexpr, STRIDE: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Partial sums of the gradient, and of the gradient times the normalised value, over the picked values of a part."""
    part, program = tl.program_id(0), tl.program_id(1)
    first, last = bounds(part, per_picture, pictures, split, PARTS)
    channel = tl.arange(0, CHANNELS)
    own = part * CHANNELS + channel
    a, b = tl.load(scale + own)[None, :], tl.load(shift + own)[None, :]
    mean, deviation = tl.load(means + own)[None, :], tl.load(deviations + own)[None, :]
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
def _gradient_kernel(  # type: ignore[no-untyped-def]
    inputs, gradient, picked, places, scale, shift, means, deviations, shared, result,
    rows, height, width, high, wide, all_high, all_wide, split,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, RELU: tl.constexpr, PARTS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Each row is a 2 x 2 square of the input: the gradient of its four values, one of which was picked."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    valid = row < rows
    picture = row // (all_high * all_wide)
    i, j = (row // all_wide) % all_high, row % all_wide
    pooled = (valid & (i < high) & (j < wide))[:, None]
    channel = tl.arange(0, CHANNELS)[None, :]
    part = (picture >= split).to(tl.int32)[:, None] if PARTS == 2 else 0 * row[:, None]
    own = channel + part * CHANNELS
    inside = valid[:, None]
    a, b = tl.load(scale + own, mask=inside, other=0.0), tl.load(shift + own, mask=inside, other=0.0)
    mean, deviation = tl.load(means + own, mask=inside, other=0.0), tl.load(deviations + own, mask=inside, other=0.0)
    mean_sum = tl.load(shared + channel + part * 2 * CHANNELS, mask=inside, other=0.0)
    mean_product = tl.load(shared + channel + (part * 2 + 1) * CHANNELS, mask=inside, other=0.0)
    at = ((picture.to(tl.int64) * high + i) * wide + j)[:, None] * CHANNELS + channel
    slope = tl.load(gradient + at, mask=pooled, other=0.0).to(tl.float32)
    if RELU:
        slope = tl.where(tl.load(picked + at, mask=pooled, other=0.0).to(tl.float32) * a + b > 0, slope, 0.0)
    place = tl.load(places + at, mask=pooled, other=255)
    corner = ((picture.to(tl.int64) * height + 2 * i) * width + 2 * j)[:, None] * CHANNELS + channel
    for which in tl.static_range(0, 4):
        here = inside & ((2 * i + which // 2 < height) & (2 * j + which % 2 < width))[:, None]
        offset = ((which // 2) * width + which % 2) * CHANNELS
        value = tl.load(inputs + corner + offset, mask=here, other=0.0).to(tl.float32)
        standard = (value - mean) * deviation
        change = a * (tl.where(place == which, slope, 0.0) - mean_sum - standard * mean_product)
        tl.store(result + corner + offset, change.to(result.dtype.element_ty), mask=here)
