"""Trainings that are killed, and what two runs must share."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from protograph._internal.progress import Advance, Silent
from protograph.training.run_folder import Run


def outcome(folder: Path) -> dict[str, Any]:
    """All that two runs with the same configuration must share: everything but the time they took."""
    run = Run.open(folder)
    checkpoint, measures = run.load(), run.measures
    assert checkpoint is not None
    assert measures is not None
    lines = (folder / "epochs.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == checkpoint.history
    return {
        "tensors": {name: (value.dtype, value.shape, value.numpy().tobytes()) for name, value in checkpoint.tensors.items()},
        "progress": (checkpoint.step, checkpoint.best_epoch, checkpoint.best_score, checkpoint.history),
        "measures": {name: value for name, value in measures.items() if not name.endswith("_seconds")},
    }


class Killed(BaseException):
    """What a test throws in the place of a signal."""


class Stopping(Silent):
    """Progress that kills the training at given steps, or when a task begins or a line is said that starts with `at`."""

    def __init__(self, steps: tuple[int, ...] = (), at: str = "\0") -> None:
        self.steps, self.at = steps, at

    @contextmanager
    def task(self, title: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        if title.startswith(self.at):
            raise Killed
        count = done

        def advance(by: int) -> None:
            nonlocal count
            count += by
            if unit == "steps" and count in self.steps:
                raise Killed

        yield advance

    def say(self, line: str) -> None:
        if line.startswith(self.at):
            raise Killed


def parts(weights: dict[str, torch.Tensor], *names: str) -> dict[str, torch.Tensor]:
    return {name: value for name, value in weights.items() if name.split(".")[0] in names}
