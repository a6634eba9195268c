"""Trials on validation classes: what runs change of their recipe and what that brought. Measures of test classes never appear.

results/trials.csv has one line per run, as `protograph compare --out` writes it.
"""

import csv
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from protograph._internal.errors import InputError
from protograph._internal.files import read_text_file, write_atomically
from protograph._internal.old_names import RECIPE_SETTINGS
from protograph.evaluation.metrics import PAPER_MEASURES, Measure, Measures, stored_measures
from protograph.relations import relation_label
from protograph.training.recipes import default_backbone, resolve_recipe
from protograph.training.run_config import RunConfig
from protograph.training.run_folder import Run
from protograph.variants import find_variant

MAX_TRIALS_BYTES = 100_000_000  # of a file
USER_DATASETS = ("folder", "features")  # their contents differ from user to user


@dataclass(frozen=True, order=True)
class Trial:
    """A run that was tried.

    Attributes:
        dataset: The dataset's name.
        shots: K.
        variant: The variant's name.
        recipe: The recipe's name.
        relations: The labels of the relations.
        changes: The changes to the recipe and to its backbone, as NAME=VALUE; empty for the recipe itself. The first stage of
            a second stage, the user's own data and files of relations are named by the beginning of their digests, since
            other contents make another trial.
        seed: The seed.
        epoch: The last finished epoch, which is the one measured.

    """

    dataset: str
    shots: int
    variant: str
    recipe: str
    relations: str
    changes: str
    seed: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.dataset} {self.shots}-shot {self.variant}"


Trials = dict[Trial, dict[str, float]]  # measures on validation classes, in per cent; of some trials, not all six are known


def trial_of(run: Run) -> tuple[Trial, Measures]:
    """Return a run as a trial, with its measures on the validation classes after its last epoch."""
    config, history = run.config, run.history
    if not history:
        raise InputError(f"{run.folder} has no finished epoch yet: let it train, or leave it out")
    try:
        epoch, validation = history[-1]["epoch"], history[-1]["validation"]
        measures = {name: Measure(**validation[name]) for name in stored_measures(validation.keys())}
    except (KeyError, TypeError) as error:
        raise InputError(f"{run.folder / 'epochs.jsonl'} is damaged ({error!r}): train again into another folder") from error
    data = config.fingerprint if config.dataset in USER_DATASETS else ""
    digests = [("start", config.start), ("data", data), *(("relation", digest) for digest in config.relation_digests)]
    contents = [f"{name}={digest[:8]}" for name, digest in digests if digest]
    trial = Trial(
        config.dataset,
        config.shots,
        config.variant,
        config.recipe.name,
        " and ".join(map(relation_label, config.relations)),
        ", ".join(filter(None, (recipe_changes(config), *contents))),
        config.seed,
        epoch,
    )
    return trial, measures


def recipe_changes(config: RunConfig) -> str:
    """Return what a run changes of its recipe and of the recipe's backbone, as NAME=VALUE with commas between."""
    default = resolve_recipe(find_variant(config.variant), config.dataset, config.recipe.name)
    changed = {"backbone": config.backbone} if config.backbone != default_backbone(config.dataset, config.recipe.name) else {}
    changed |= {name: value for name, value in vars(config.recipe).items() if value != getattr(default, name)}
    return ", ".join(f"{name}={value}" for name, value in changed.items())


def trials_path(results: Path) -> Path:
    """Return the path of a ledger's trials."""
    return results / "trials.csv"


def read_trials(path: Path) -> Trials:
    """Return the trials of a file; none if it is missing.

    Raises:
        InputError: If the file is damaged, with the number of the line.

    """
    if not path.exists():
        return {}
    trials: Trials = {}
    lines = csv.DictReader(read_text_file(path, "file of trials", MAX_TRIALS_BYTES).splitlines())
    try:
        for row in lines:
            row["changes"] = _with_todays_names(row["changes"])
            trial = Trial(**{column.name: _typed(row[column.name], column.type) for column in fields(Trial)})
            trials[trial] = {name: float(row[name]) for name in PAPER_MEASURES if row[name]}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged in line {lines.line_num} ({error!r}): correct or remove that line") from error
    return trials


def write_trials(path: Path, trials: Iterable[tuple[Trial, Measures]]) -> None:
    """Add trials to a file; a trial replaces an earlier one of the same settings and seed."""
    combined = read_trials(path)
    for trial, measures in trials:
        combined = {earlier: means for earlier, means in combined.items() if _settings(earlier) != _settings(trial)}
        combined[trial] = {name: measure.mean for name, measure in measures.items()}
    text = io.StringIO()
    lines = csv.DictWriter(text, [*(column.name for column in fields(Trial)), *PAPER_MEASURES], lineterminator="\n")
    lines.writeheader()
    for trial, means in sorted(combined.items()):
        lines.writerow({**vars(trial), **{name: f"{mean:g}" for name, mean in means.items()}})
    write_atomically(path, text.getvalue().encode())


def _settings(trial: Trial) -> dict[str, object]:
    """Return everything but the epoch."""
    return {name: value for name, value in vars(trial).items() if name != "epoch"}


def _with_todays_names(changes: str) -> str:
    """Return changes as NAME=VALUE with today's names of settings; today's names never equal an old one."""
    return re.sub(r"\b(\w+)=", lambda match: f"{RECIPE_SETTINGS.get(match[1], match[1])}=", changes)


def _typed(text: str, kind: object) -> Any:
    return int(text) if kind is int else text
