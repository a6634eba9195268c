"""The folder one training leaves behind.

    config.json              the configuration as it was resolved
    environment.json         versions and machine
    epochs.jsonl             one line per epoch
    checkpoint.safetensors   last weights, best weights, optimiser, progress: all that a resume needs
    measures.json            the final measures, written last

Each file is whole or absent. The checkpoint is the one source of truth: a killed run goes on from it.
"""

import json
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph._internal.files import UNFINISHED, parse_json, read_plain_file, write_atomically, write_json
from protograph._internal.locks import hold_lock
from protograph._internal.old_names import EPOCH_KEYS, renamed
from protograph._internal.sealed import seal, tensors_digest, unseal, with_prefix
from protograph._version import __version__
from protograph.training.processes import Processes
from protograph.training.run_config import RunConfig, differences

LOCK = ".lock"  # in the folder while a process trains into it
MAX_JSON_BYTES = 100_000_000  # of a file of JSON; a thousand epochs have a hundredth
MAX_CHECKPOINT_BYTES = 16_000_000_000
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError)  # what reading a damaged file raises


def run_path(dataset: str, shots: int | None, variant: str, recipe: str, seed: int, relations: Sequence[str] = ()) -> Path:
    """Return a run's folder within a folder of many: DATASET/K-shot/VARIANT/RECIPE-SEED.

    Args:
        dataset: Name of the dataset.
        shots: K; None for a run that serves every K, which has no folder for it.
        variant: Name of the variant.
        recipe: Name of the recipe.
        seed: The seed.
        relations: Labels of the relations, if they are not the dataset's; their folder lies below the variant's.

    """
    shots_folder = [] if shots is None else [f"{shots}-shot"]
    relations_folder = ["-and-".join(relations)] if relations else []
    return Path(dataset, *shots_folder, variant, *relations_folder, f"{recipe}-{seed}")


@dataclass
class Checkpoint:
    """Where a training stands: tensors by name, and plain values."""

    tensors: dict[str, Tensor]
    step: int = 0
    best_epoch: int = 0
    best_score: float = -1.0
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)

    def part(self, prefix: str) -> dict[str, Tensor]:
        """Tensors whose names start with `prefix`, without it."""
        return with_prefix(self.tensors, prefix)


class Run:
    """A run folder, opened for training or reading."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self.folder, self.config = folder, config

    @classmethod
    def claim(cls, folder: Path, config: RunConfig) -> "Run":
        """The folder for this configuration: new, or one that the same configuration began."""
        found = cls.find(folder, config)
        for left in folder.glob(f".*{UNFINISHED}"):  # by a run that was killed while it wrote a file
            left.unlink(missing_ok=True)
        if found is not None:
            return found
        write_json(folder / "environment.json", environment())
        write_json(folder / "config.json", config.to_dict())
        return cls(folder, config)

    @classmethod
    def find(cls, folder: Path, config: RunConfig, option: str = "--out") -> "Run | None":
        """The run that this configuration began in a folder, None where it may begin one; any other folder is refused.

        A start that the configuration does not yet know is no difference. `option` is where the user named the folder.
        """
        if (folder / "config.json").exists():
            found = cls.open(folder)
            if different := differences(replace(config, start=config.start or found.config.start), found.config):
                raise InputError(
                    f"{folder} was made with another configuration ({'; '.join(different)}): choose another {option}, "
                    "or remove the folder"
                )
            return found
        if folder.exists() and (not folder.is_dir() or _foreign(folder)):
            raise InputError(f"{folder} exists and is not a run folder: choose another {option}")
        return None

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """A folder that some training made."""
        path = folder / "config.json"
        if not path.exists():
            raise InputError(f"{folder} is not a run folder: it has no config.json")
        content = read_plain_file(path, "configuration", MAX_JSON_BYTES)
        try:
            return cls(folder, RunConfig.from_dict(parse_json(content)))
        except _DAMAGE as error:
            raise InputError(f"{path} cannot be read ({error}): train again into another --out") from error

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint, then bring epochs.jsonl up to it."""
        values = {name: value for name, value in vars(checkpoint).items() if name != "tensors"}
        write_atomically(self.folder / "checkpoint.safetensors", seal(checkpoint.tensors, "progress", json.dumps(values)))
        self.write_history(checkpoint)

    def write_history(self, checkpoint: Checkpoint) -> None:
        """Bring epochs.jsonl up to a checkpoint."""
        lines = "".join(json.dumps(epoch) + "\n" for epoch in checkpoint.history)
        write_atomically(self.folder / "epochs.jsonl", lines.encode())

    def load(self) -> Checkpoint | None:
        """The checkpoint, or None before the first; a damaged one is refused."""
        path = self.folder / "checkpoint.safetensors"
        if not path.exists():
            return None
        from protograph.training.run_schema import check_progress

        content = read_plain_file(path, "checkpoint", MAX_CHECKPOINT_BYTES)
        try:
            progress, tensors = unseal(content, "progress")
            values = parse_json(progress)
            check_progress(values)
            return Checkpoint(tensors, **{**values, "history": [renamed(line, EPOCH_KEYS) for line in values["history"]]})
        except _DAMAGE as error:
            raise InputError(f"{path} is damaged ({error}): remove the folder and train again") from error

    def weights(self, which: str) -> dict[str, Tensor]:
        """The `best` or `last` weights."""
        checkpoint = self.load()
        if checkpoint is None:
            raise InputError(f"{self.folder} has no checkpoint yet: train it first")
        found = checkpoint.part(f"{which}.")
        if not found:
            raise InputError(f"{self.folder} has no {which} weights yet: let it finish an epoch")
        for name, value in found.items():
            if value.is_floating_point() and not value.isfinite().all():
                raise InputError(f"the weights '{name}' in {self.folder} hold NaN or infinity: train again into another folder")
        return found

    @property
    def fingerprint(self) -> str:
        """What a run that starts from this one remembers of it: a digest of the best weights."""
        return tensors_digest("", self.weights("best"))

    @property
    def history(self) -> list[dict[str, Any]]:
        """What epochs.jsonl says: one record per epoch that ended."""
        path = self.folder / "epochs.jsonl"
        if not path.exists():
            return []
        from protograph.training.run_schema import check_epochs

        content = read_plain_file(path, "list of epochs", MAX_JSON_BYTES)
        try:
            lines = [renamed(parse_json(line), EPOCH_KEYS) for line in content.splitlines()]
            check_epochs(lines)
        except _DAMAGE as error:
            raise InputError(
                f"{path} is damaged ({error}): remove measures.json beside it and give its training command again, which "
                "writes both anew"
            ) from error
        return lines

    @property
    def measures(self) -> dict[str, Any] | None:
        """What measures.json says, once the run is complete."""
        path = self.folder / "measures.json"
        if not path.exists():
            return None
        from protograph.training.run_schema import check_measures

        content = read_plain_file(path, "file of measures", MAX_JSON_BYTES)
        try:
            values: dict[str, Any] = parse_json(content)
            check_measures(values)
        except _DAMAGE as error:
            raise InputError(f"{path} is damaged ({error}): remove it and run the same command again") from error
        return values

    @property
    def environment(self) -> dict[str, Any]:
        """The contents of environment.json: the versions and the device that the run used."""
        path = self.folder / "environment.json"
        if not path.exists():
            raise InputError(
                f"{self.folder} has no environment.json, which names the versions that the run used: train again into another "
                "folder"
            )
        from protograph.training.run_schema import check_environment

        content = read_plain_file(path, "environment", MAX_JSON_BYTES)
        try:
            values: dict[str, Any] = parse_json(content)
            check_environment(values)
        except _DAMAGE as error:
            raise InputError(f"{path} is damaged ({error}): train again into another folder") from error
        return values


@contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Keep every other process from training into a run folder.

    Raises:
        InputError: Another process trains into it.

    """
    folder.mkdir(parents=True, exist_ok=True)
    with hold_lock(folder / LOCK, folder, "wait for it, or choose another folder"):
        yield


def environment() -> dict[str, Any]:
    """Versions and hardware that numbers may depend on."""
    return {
        "protograph": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "processes": Processes.current().count,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _foreign(folder: Path) -> list[Path]:
    """What lies in a folder besides the traces of a run that was killed while it claimed it."""
    traces = ("environment.json", ".environment.json.", ".config.json.", LOCK)
    return [path for path in folder.iterdir() if not path.name.startswith(traces)]
