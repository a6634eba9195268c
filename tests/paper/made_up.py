"""Made-up runs and ledgers."""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import t as students_t

from protograph._internal.files import write_json
from protograph.evaluation.metrics import MEASURES
from protograph.paper.claims import CONCLUSIONS, Conclusion
from protograph.paper.grid import Task
from protograph.paper.ledger import read_ledger, record_run
from protograph.paper.published import Cell
from protograph.paper.statistics import Difference
from protograph.paper.summary import known_scores, summary_blocks
from protograph.paper.tables import csv_tables
from protograph.paper.verdicts import check_conclusions
from protograph.report.document import as_markdown
from protograph.training.recipes import default_backbone, resolve_recipe
from protograph.training.run_config import RunConfig
from protograph.variants import find_variant

ENVIRONMENT = {"protograph": "0", "python": "3", "torch": "2", "platform": "here", "threads": 1, "gpu": None}


def numbers(task: Task) -> dict[str, dict[str, float]]:
    """Six measures that depend on the task alone."""
    digest = hashlib.blake2b(str(task).encode()).digest()
    return {name: {"mean": 30 + digest[place] / 10, "ci95": 0.5} for place, name in enumerate(MEASURES)}


def make_run(folder: Path, task: Task, measures: Mapping[str, Any] | None = None, **more: Any) -> Path:
    """A run folder as a training of the task would leave it behind."""
    recipe = resolve_recipe(find_variant(task.cell.variant), task.cell.dataset, task.recipe)
    cell = task.cell
    network = default_backbone(cell.dataset, task.recipe)
    config = RunConfig(cell.dataset, cell.variant, cell.shots, task.seed, network, cell.relations, recipe, "images-1")
    write_json(folder / "environment.json", ENVIRONMENT)
    write_json(folder / "config.json", {**config.to_dict(), **more})
    said = {"dataset": cell.dataset, "shots": cell.shots, "variant": cell.variant, "recipe": task.recipe, "seed": task.seed}
    measured = {**said, "measures": measures or numbers(task), "epoch": 3, "training_seconds": 1.0}
    write_json(folder / "measures.json", measured)
    return folder


def epoch_line(epoch: int, learned: Mapping[str, float], h_mean: float = 40.0) -> str:
    """A line of epochs.jsonl."""
    validation = {name: {"mean": h_mean, "ci95": 0.5} for name in MEASURES}
    return json.dumps({"epoch": epoch, "loss": 1.0, "validation": validation, "learned": learned}) + "\n"


def make_ledger(results: Path, values: Mapping[tuple[Cell, str], Mapping[str, list[float]]], ci95: float = 0.5) -> Path:
    """A ledger in which a cell by a recipe has, of each measure, these values by seed; 40 where a measure is not given."""
    for (cell, recipe), own in values.items():
        for seed in range(len(next(iter(own.values())))):
            measures = {name: {"mean": own[name][seed] if name in own else 40.0, "ci95": ci95} for name in MEASURES}
            task = Task(cell, recipe, seed)
            record_run(results, task, make_run(results.parent / "made-up" / str(task), task, measures))
    return results


def contents(results: Path) -> dict[str, dict[str, Any]]:
    """Everything in a ledger that two trainings of the same have in common."""
    found = {
        str(path.relative_to(results)): json.loads(path.read_text())
        for path in [*results.glob("*/*/*/*.json"), *results.glob("*/*/*/*/*.json")]
    }
    return {
        name: {key: value for key, value in content.items() if key not in ("finished", "training_seconds", "setup_seconds")}
        for name, content in found.items()
    }


def text_of(results: Path) -> str:
    """What RESULTS.md says of a ledger."""
    ledger = read_ledger(results, new=True)
    return as_markdown(summary_blocks(ledger, check_conclusions(ledger), results))


def rows_of(results: Path, name: str, **columns: object) -> list[dict[str, Any]]:
    """The rows of a CSV file of a ledger that have these values."""
    ledger = read_ledger(results)
    rows = csv_tables(ledger, known_scores(ledger), check_conclusions(ledger))[name]
    return [row for row in rows if all(row[column] == value for column, value in columns.items())]


def named_conclusion(part: str) -> Conclusion:
    """The conclusion whose claim has these words."""
    (found,) = [conclusion for conclusion in CONCLUSIONS if part in conclusion.claim]
    return found


def assert_interval(found: Difference, variances: list[tuple[float, float]], mean: float) -> None:
    """A difference against the formula: variances with the degrees of freedom they are known from."""
    total = sum(variance for variance, _ in variances)
    freedom = total**2 / sum(variance**2 / known for variance, known in variances)
    assert found.mean == pytest.approx(mean)
    assert found.half() == pytest.approx(students_t.ppf(0.975, min(freedom, 1e9)) * math.sqrt(total))
