"""Trains in float64 into folders, alone or as one of the processes of torchrun: `several.py FOLDER [STEP]`.

With STEP, the first training is killed behind that step.
"""

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protograph.data import Dataset, ImageStore
from protograph.nn.backbones import ResNet12, register_backbone
from protograph.training import loop
from protograph.training.processes import joined
from protograph.training.recipes import Recipe
from protograph.training.run_config import RunConfig
from protograph.training.stages import train
from toy import make_toy
from training.interrupted import Stopping

BACKBONE = "resnet-of-several"
SHORT = Recipe(
    "short", epochs=2, steps=3, episodes=2, batch_size=12, ways=3, novel_queries=2, seen_queries=6, learning_rate=0.1,
    validation_episodes=4, test_queries=6, dropout=0.2, drop_block=0.3, ema=0.5, zoom=1.2, colour=0.2, erase=0.4,
)  # fmt: skip
CONFIGS = {
    "classify": RunConfig("toy", "linear", 1, 0, BACKBONE, (), replace(SHORT, rotation=0.5), "toy-1"),
    "episodes": RunConfig("toy", "gcgpn-cos", 1, 0, BACKBONE, (), SHORT, "toy-1"),
}


class DoubleStore(ImageStore):
    """Images in float64, so that rounding hides no mistake."""

    def to(self, device: torch.device) -> "DoubleStore":
        return self

    def gather(self, *arguments: Any, **named: Any) -> Tensor:
        return super().gather(*arguments, **named).double()


@contextmanager
def in_float64() -> Iterator[Dataset]:
    """The toy dataset, where numbers are in float64 unless something else is asked for, and tests are short."""
    toy, sizes = make_toy(), loop.EvaluationSizes
    register_backbone(BACKBONE, lambda channels, last_relu: ResNet12(channels, mirror=True, widths=(4, 4, 6, 8)))
    torch.set_default_dtype(torch.float64)
    loop.EvaluationSizes = functools.partial(sizes, episodes=20)  # type: ignore[assignment, misc]
    try:
        yield replace(toy, store=DoubleStore(toy.store.pixels, toy.store.normalisation))  # type: ignore[attr-defined]
    finally:
        torch.set_default_dtype(torch.float32)
        loop.EvaluationSizes = sizes  # type: ignore[misc]


def train_all(folder: Path, killed_at: tuple[int, ...] = ()) -> None:
    """Train each configuration into a folder of its own."""
    with in_float64() as toy:
        for name, config in CONFIGS.items():
            train(config, toy, folder / name, progress=Stopping(killed_at))


if __name__ == "__main__":
    loop.SAVE_EVERY = -1.0
    with joined("cpu"):
        train_all(Path(sys.argv[1]), tuple(map(int, sys.argv[2:])))
