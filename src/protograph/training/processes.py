"""Several processes of one machine that train one model together, as torchrun starts them: each on its own GPU, or on a CPU.

A step is that of a single process but for rounding. Each process draws the whole step by the same seed and takes its part of
the episodes or images:

* random numbers are drawn for all images of the step, and each process uses those of its part;
* batch norm uses the statistics of the images of all processes, by `SharedStatistics`: PyTorch's SyncBatchNorm needs GPUs;
* the gradient and the loss are means over the processes, whose parts are equally large.

So weights stay equal everywhere. The first process alone validates and writes the run folder.
"""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed, nn

from protograph._internal.errors import InputError
from protograph.data.augmentation import Portion

LONGEST_WAIT = timedelta(days=1)  # of a process for the others; torchrun ends all of them as soon as one fails
FIRST_SPEAKS = 10.0  # seconds in which the first process says what all of them meet


@dataclass(frozen=True)
class Processes:
    """The processes of a training, and which of them this is.

    Attributes:
        number: The number of this process, counted from 0.
        count: How many there are.

    """

    number: int = 0
    count: int = 1

    @classmethod
    def current(cls) -> "Processes":
        """Return those that this process has joined; itself alone if it has joined none."""
        if not (distributed.is_available() and distributed.is_initialized()):
            return cls()
        return cls(distributed.get_rank(), distributed.get_world_size())

    @classmethod
    def launched(cls) -> "Processes":
        """Return those that torchrun started; this process alone if it did not."""
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            return cls()
        return cls(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))

    @property
    def alone(self) -> bool:
        """Whether there is no other process."""
        return self.count == 1

    @property
    def leads(self) -> bool:
        """Whether this is the first process."""
        return self.number == 0

    def part(self, whole: int) -> tuple[int, int]:
        """Return the first row of this process's part of `whole` rows, and the row after its last."""
        size = whole // self.count
        return self.number * size, (self.number + 1) * size

    def portion(self, sizes: Sequence[int], device: torch.device) -> Portion | None:
        """Return which images of a step are this process's, from groups of its own images of these sizes; None: all are."""
        if self.alone:
            return None
        rows, first = [], 0
        for size in sizes:
            rows.append(torch.arange(size, device=device) + (first + self.number * size))
            first += size * self.count
        return Portion(first, torch.cat(rows))

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by their means over all processes."""
        kept = list(tensors)
        together = torch.cat([tensor.flatten() for tensor in kept])
        distributed.all_reduce(together)
        for tensor, mean in zip(kept, torch.split(together / self.count, [each.numel() for each in kept]), strict=True):
            tensor.copy_(mean.view(tensor.shape))

    def agreed(self, answer: bool) -> bool:
        """Return the answer of the first process, in all of them."""
        if self.alone:
            return answer
        said = torch.tensor(int(answer))
        distributed.broadcast(said, 0)
        return bool(said)

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        """Let the first process do something, such as fill a cache, before the others do."""
        if not self.leads:
            self.agreed(True)
        yield
        if self.leads:
            self.agreed(True)


def leave_to_first() -> None:
    """Give the first process time to say what went wrong: all of them meet it, and torchrun ends this one after the first."""
    if not Processes.launched().leads:
        time.sleep(FIRST_SPEAKS)


@contextmanager
def joined(device: str) -> Iterator[str]:
    """Join the processes that torchrun started with this one, if it did, and give the name of this process's device.

    Args:
        device: The device by the name a user gives.

    Raises:
        InputError: There are too few GPUs, a device of one of them is named, or the processes run on several machines.

    """
    launched = Processes.launched()
    if launched.alone:
        yield device
        return
    if int(os.environ["LOCAL_WORLD_SIZE"]) != launched.count:
        raise InputError("torchrun started processes on several machines: train on the GPUs of one, without --nnodes")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda"):
        raise InputError(f"--device {device} would be the same for all processes of torchrun: give cuda or cpu")
    if device == "cuda":
        if torch.cuda.device_count() < launched.count:
            raise InputError(
                f"torchrun started {launched.count} processes, and there are {torch.cuda.device_count()} GPUs: give one "
                "--nproc-per-node for each, or --device cpu"
            )
        torch.cuda.set_device(launched.number)
        device = f"cuda:{launched.number}"
    distributed.init_process_group("gloo" if device == "cpu" else "cpu:gloo,cuda:nccl", timeout=LONGEST_WAIT)
    yield device
    distributed.destroy_process_group()  # not after an error: the process ends, and torchrun ends the others


class SharedStatistics(nn.modules.batchnorm._BatchNorm):
    """Batch norm that uses, in training, the statistics of the images of all processes; each has equally many."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the normalised inputs [n, C, ...]."""
        if not self.training:
            return super().forward(inputs)
        outputs: Tensor
        outputs, mean, variance = _SharedNorm.apply(inputs, self.weight, self.bias, self.eps)  # type: ignore[no-untyped-call]
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            momentum = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
            count = inputs.numel() // inputs.shape[1] * Processes.current().count
            self.running_mean.lerp_(mean.to(self.running_mean), momentum)
            self.running_var.lerp_((variance * (count / (count - 1))).to(self.running_var), momentum)
        return outputs


class _SharedNorm(torch.autograd.Function):
    r"""Batch norm by the moments of all processes.

    With :math:`\hat x = (x - \mu) / \sigma` and m values of a channel in all processes, the gradient of the sum of losses is

    .. math:: \frac{\gamma}{\sigma} \Big(g - \frac1m \sum g - \frac{\hat x}{m} \sum g \hat x\Big)

    with sums over all processes. Those of the weights are sums over this process: they are averaged with all other gradients.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        axes, shape = [0, *range(2, inputs.ndim)], [1, -1, *[1] * (inputs.ndim - 2)]
        wide = inputs if inputs.dtype == torch.float64 else inputs.float()
        moments = torch.stack(torch.var_mean(wide, axes, correction=0))  # [2, C]
        processes = Processes.current().count
        everywhere = moments.new_empty(processes, *moments.shape)
        distributed.all_gather(list(everywhere.unbind()), moments)
        variances, means = everywhere.unbind(1)
        mean = means.mean(0)
        variance = (variances + (means - mean).square()).mean(0)
        scale = (variance + eps).rsqrt()
        normed = (wide - mean.view(shape)) * scale.view(shape)
        outputs = normed if weight is None else normed * weight.view(shape)
        if bias is not None:
            outputs = outputs + bias.view(shape)
        ctx.save_for_backward(inputs, weight, mean, scale)
        ctx.count = inputs.numel() // inputs.shape[1] * processes
        ctx.mark_non_differentiable(mean, variance)
        return outputs.to(inputs.dtype), mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        inputs, weight, mean, scale = ctx.saved_tensors
        axes, shape = [0, *range(2, inputs.ndim)], [1, -1, *[1] * (inputs.ndim - 2)]
        gradient = gradients[0].to(mean.dtype)
        normed = (inputs.to(mean.dtype) - mean.view(shape)) * scale.view(shape)
        own = torch.stack([gradient.sum(axes), (gradient * normed).sum(axes)])
        shared = own.clone()
        distributed.all_reduce(shared)
        total, product = (sums.view(shape) / ctx.count for sums in shared)
        factor = scale if weight is None else scale * weight
        result = (gradient - total - normed * product) * factor.view(shape)
        bias_gradient, weight_gradient = (None, None) if weight is None else own.to(weight.dtype).unbind()
        return result.to(inputs.dtype), weight_gradient, bias_gradient, None


_KINDS: dict[type, type] = {
    kind: type(f"Shared{kind.__name__}", (SharedStatistics, kind), {})
    for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
}


def share_statistics(network: nn.Module) -> None:
    """Let every batch norm inside a network use the statistics of all processes, if there are several."""
    if Processes.current().alone:
        return
    for module in network.modules():
        if type(module) in _KINDS:
            module.__class__ = _KINDS[type(module)]
