"""The same step again and again: on a GPU recorded once and replayed, so that no time goes into launching its kernels."""

from collections.abc import Callable
from contextlib import nullcontext

import torch

from protograph._internal.errors import InputError

WARM_UP = 3  # steps before one is recorded, in which libraries choose and allocate what they need


class Repeated:
    """Calls `step` with a generator seeded for each call.

    On a GPU, if it may be captured, a call after the first few is recorded as a CUDA graph, and this and all later ones replay
    it. What the step reads and writes must then keep its place in memory, and its shapes their size.
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
        """One step."""
        self.generator.manual_seed(seed)
        self.calls += 1
        # Triton launches its kernels on the current device, and the current stream is that device's.
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            if not self.capture:
                self.step(self.generator)
            elif self.calls <= WARM_UP:
                self._aside()
            else:
                if self.graph is None:
                    self.graph = self._recorded()
                    self.generator.manual_seed(seed)  # recording has used it
                self.graph.replay()

    def _aside(self) -> None:
        """One step on a stream of its own, as recording will be; always the same, since each keeps what memory it had."""
        self.stream = self.stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.step(self.generator)
        torch.cuda.current_stream().wait_stream(self.stream)

    def _recorded(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        try:
            with torch.cuda.graph(graph):
                self.step(self.generator)
        except torch.AcceleratorError as error:
            raise InputError(
                f"a training step cannot be recorded on the GPU ({str(error).splitlines()[0]}): where an own operator asks the "
                "host, as by .item() or sizes that depend on numbers, set the variable PROTOGRAPH_PLAIN=1"
            ) from error
        return graph
