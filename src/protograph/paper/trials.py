"""What was tried on validation classes: runs by what they change of their recipe, and never a measure of test classes.

results/trials.csv, one line per run, as `protograph compare --out` writes it
"""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from protograph._internal.errors import InputError
from protograph._internal.files import write_atomically
from protograph.data import find_source
from protograph.evaluation.metrics import MEASURES, Measure, Measures
from protograph.relations import relation_label
from protograph.training.config import RunConfig, recipe_for
from protograph.training.run import Run
from protograph.variants import find_variant

OWN_DATA = ("folder", "features")  # datasets of which every user has others


@dataclass(frozen=True, order=True)
class Try:
    """What was tried.

    changes: to the recipe and the network the dataset has with it, as NAME=VALUE; empty for the recipe as it is. A second stage
             also names the first by the beginning of its weights' digest: another first stage, another trial. So are other
             contents of the user's own data and files of relations
    epoch: the last one that ended, which is the one that is measured
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


Trials = dict[Try, dict[str, float]]  # measures on validation classes, in per cent; not all six where only some are known


def trial_of(run: Run) -> tuple[Try, Measures]:
    """What a run changes, and what came of it on the validation classes after its last epoch."""
    config, history = run.config, run.history
    if not history:
        raise InputError(f"{run.folder} has no finished epoch yet: let it go on, or leave it out")
    data = config.fingerprint if config.dataset in OWN_DATA else ""
    digests = [("start", config.start), ("data", data), *(("relation", digest) for digest in config.relation_digests)]
    told = [f"{name}={digest[:8]}" for name, digest in digests if digest]
    tried = Try(
        config.dataset,
        config.shots,
        config.variant,
        config.recipe.name,
        " and ".join(map(relation_label, config.relations)),
        ", ".join(filter(None, (changes(config), *told))),
        config.seed,
        history[-1]["epoch"],
    )
    return tried, {name: Measure(**history[-1]["validation"][name]) for name in MEASURES}


def changes(config: RunConfig) -> str:
    """What a run changes of its recipe and of the network the dataset has with it, as NAME=VALUE, with commas between."""
    source = find_source(config.dataset)
    usual = recipe_for(find_variant(config.variant), config.recipe.name, {}, source.changes)
    changed = {"backbone": config.backbone} if config.backbone != source.backbone_for(config.recipe.name) else {}
    changed |= {name: value for name, value in vars(config.recipe).items() if value != getattr(usual, name)}
    return ", ".join(f"{name}={value}" for name, value in changed.items())


def trials_path(results: Path) -> Path:
    """Beside the cells of a ledger."""
    return results / "trials.csv"


def read_trials(path: Path) -> Trials:
    """All that was written down; none where there is no file."""
    if not path.exists():
        return {}
    trials: Trials = {}
    lines = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    try:
        for row in lines:
            tried = Try(**{part.name: _typed(row[part.name], part.type) for part in fields(Try)})
            trials[tried] = {name: float(row[name]) for name in MEASURES if row[name]}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged in line {lines.line_num} ({error!r}): mend or remove that line") from error
    return trials


def write_trials(path: Path, trials: Iterable[tuple[Try, Measures]]) -> None:
    """Add runs to a file, in place of what it says of the same settings and seed."""
    together = read_trials(path)
    for tried, measures in trials:
        together = {other: own for other, own in together.items() if _settings(other) != _settings(tried)}
        together[tried] = {name: measure.mean for name, measure in measures.items()}
    text = io.StringIO()
    lines = csv.DictWriter(text, [*(part.name for part in fields(Try)), *MEASURES], lineterminator="\n")
    lines.writeheader()
    for tried, means in sorted(together.items()):
        lines.writerow({**vars(tried), **{name: f"{mean:g}" for name, mean in means.items()}})
    write_atomically(path, text.getvalue().encode())


def _settings(tried: Try) -> dict[str, object]:
    """All of it but how far it has come."""
    return {name: value for name, value in vars(tried).items() if name != "epoch"}


def _typed(text: str, kind: object) -> Any:
    return int(text) if kind is int else text
