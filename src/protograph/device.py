"""The device, the backbone's precision, the Triton kernels, and training steps recorded as CUDA graphs."""

import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec

import torch

from protograph._internal.errors import InputError

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
WARM_UP = 3  # steps before one is recorded: libraries choose algorithms and allocate memory in them


def has_triton() -> bool:
    """Return whether Triton is installed, as with PyTorch for GPUs on Linux, and the C compiler that it needs."""
    return find_spec("triton") is not None and bool(os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang"))


def plain_requested() -> bool:
    """Return whether the variable PROTOGRAPH_PLAIN asks for PyTorch's own steps on a GPU: no custom kernels, no recording."""
    return os.environ.get("PROTOGRAPH_PLAIN", "0") not in ("", "0")


PLAIN = plain_requested()
TRITON = has_triton() and not PLAIN


def best_device() -> torch.device:
    """Return the GPU if there is one, and the CPU otherwise."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def best_precision(device: torch.device) -> str:
    """Return the backbone's precision that suits a device: bfloat16 where it is fast, float32 otherwise."""
    if device.type != "cuda":
        return "float32"
    with torch.cuda.device(device):  # PyTorch answers for the current device
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"


class RepeatedStep:
    """A step that is called again and again, each time with a generator seeded for that call.

    On a GPU, the first call after `WARM_UP` others is recorded as a CUDA graph. It and all later calls replay the graph, so
    that no time goes into launching kernels. The tensors that the step reads and writes must then keep their addresses and
    shapes.

    Args:
        step: the step
        device: the device it runs on
        capture: whether the step may be recorded; on a CPU it never is

    """

    def __init__(self, step: Callable[[torch.Generator], None], device: torch.device, capture: bool = True) -> None:
        self.step = step
        self.device = device
        self.generator = torch.Generator(device)
        self.capture = capture and device.type == "cuda"
        self.stream: torch.cuda.Stream | None = None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.calls = 0

    def __call__(self, seed: int) -> None:
        """Run the step once."""
        self.generator.manual_seed(seed)
        self.calls += 1
        # Triton launches its kernels on the current device, and the current stream is that device's.
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            if not self.capture:
                self.step(self.generator)
            elif self.calls <= WARM_UP:
                self._run_on_side_stream()
            else:
                if self.graph is None:
                    self.graph = self._record()
                    self.generator.manual_seed(seed)  # recording has used it
                self.graph.replay()

    def _run_on_side_stream(self) -> None:
        """Run the step on a stream of its own, as recording does; always the same one, since each stream keeps its memory."""
        self.stream = self.stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.step(self.generator)
        torch.cuda.current_stream().wait_stream(self.stream)

    def _record(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        try:
            with torch.cuda.graph(graph):
                self.step(self.generator)
        except torch.AcceleratorError as error:
            raise InputError(
                f"a training step cannot be recorded on the GPU ({str(error).splitlines()[0]}): if a custom operator reads "
                "values back to the CPU, by .item() or by sizes that depend on values, set the variable PROTOGRAPH_PLAIN=1"
            ) from error
        return graph
