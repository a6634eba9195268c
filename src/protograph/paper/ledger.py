"""What was measured: one JSON file per cell, recipe and seed, and a lock so that one grid at a time writes them.

results/{dataset}/{shots}-shot/{variant}/{recipe}-{seed}.json
results/{dataset}/{shots}-shot/{variant}/{relation}-and-{relation}/{recipe}-{seed}.json, with others than the dataset's own
results/notes.json, what people found out about cells, by {dataset}/{shots}-shot/{variant}, or by {dataset} about all of its
results/trials.csv, what other settings brought on validation classes
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, stdev

from protograph._internal.errors import InputError
from protograph._internal.files import UNFINISHED, unfinished, write_json
from protograph._internal.locks import hold_lock
from protograph.data import DATASETS
from protograph.evaluation.metrics import MEASURES, Measure, Measures
from protograph.paper.grid import Task
from protograph.paper.published import Cell
from protograph.paper.trials import Trials, read_trials, trials_path
from protograph.relations import relation_label
from protograph.training.config import RunConfig
from protograph.training.run import Run
from protograph.variants import VARIANTS, find_variant

KEYS = ("dataset", "shots", "variant", "recipe", "seed", "measures")


@dataclass(frozen=True)
class Entry:
    """One file of the ledger.

    measures, epoch: of the epoch that validation chose; `last` are those of the last one
    learned: temperatures and scales of the chosen epoch, by name; none where they were not kept
    """

    task: Task
    measures: Measures
    epoch: int
    last: Measures
    last_epoch: int
    config: RunConfig
    versions: str
    learned: Mapping[str, float] = field(default_factory=dict)


def table_path(results: Path) -> Path:
    """Where the tables of a ledger are written: beside it, by its name. That of results/ is RESULTS.md."""
    folder = results.resolve()
    return folder.with_name(f"{folder.name.upper()}.md")


def entry_path(results: Path, task: Task) -> Path:
    """Where a task's numbers are kept."""
    return results / task.place.parent / f"{task.place.name}.json"


def record(results: Path, task: Task, folder: Path) -> Entry:
    """Copy what a finished run measured into the ledger, with all that its numbers depend on."""
    run = Run.open(folder)
    config, measured = run.config, run.measures
    if measured is None:
        raise InputError(f"{folder} is not finished: run the same command again")
    relations = tuple(map(relation_label, config.relations))
    others = relations if task.cell.relations else ()
    own = Task(Cell(config.dataset, config.shots, config.variant, others), config.recipe.name, config.seed)
    if own != task:
        raise InputError(f"{folder} holds {own}, not {task}: choose another --runs, or remove the folder")
    chosen = [line for line in run.history if line["epoch"] == measured["epoch"]]
    if not (folder / "environment.json").exists():
        raise InputError(f"{folder} has no environment.json: it says by what it was made, so train again into another folder")
    finished = datetime.fromtimestamp((folder / "measures.json").stat().st_mtime, UTC)
    content = {
        **{name: measured[name] for name in KEYS},
        **({"relations": list(others)} if others else {}),
        **{name: value for name, value in measured.items() if name not in KEYS},
        **({"learned": chosen[0]["learned"]} if chosen else {}),
        "fingerprint": config.fingerprint,
        "finished": finished.isoformat(timespec="seconds"),
        "configuration": {**config.to_dict(), "relations": list(relations)},  # by label: paths mean nothing elsewhere
        "environment": json.loads((folder / "environment.json").read_text(encoding="utf-8")),
    }
    path = entry_path(results, task)
    write_json(path, content)
    return read_entry(results, path)


def read_entry(results: Path, path: Path) -> Entry:
    """One file, which must be whole and say what its place says."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        cell = Cell(content["dataset"], content["shots"], content["variant"], tuple(content.get("relations", ())))
        task = Task(cell, content["recipe"], content["seed"])
        measures, last = _measures(content["measures"]), content.get("last_epoch", content)
        last_measures = _measures(last["measures"])
        config = RunConfig.from_dict(content["configuration"])
        environment = content["environment"]
        versions = f"protograph {environment['protograph']}, torch {environment['torch']}, {environment['gpu'] or 'CPU'}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({error}): remove it and run the same command again") from error
    if entry_path(results, task) != path:
        raise InputError(f"{path} holds the numbers of {task}: move it back to {entry_path(results, task)}, or remove it")
    learned = content.get("learned", {})
    return Entry(task, measures, content["epoch"], last_measures, last["epoch"], config, versions, learned)


def _measures(content: Mapping[str, Mapping[str, float]]) -> Measures:
    measures = {name: Measure(**content[name]) for name in MEASURES}
    if not all(math.isfinite(number) for measure in measures.values() for number in (measure.mean, measure.ci95)):
        raise ValueError("a measure is not a finite number")
    return measures


def read_ledger(results: Path, new: bool = False) -> dict[Task, Entry]:
    """All that was recorded; where the folder may be `new`, it need not be there."""
    if not new and not results.is_dir():
        raise InputError(f"no ledger at {results}: name the folder that `protograph reproduce` fills")
    found = sorted((*results.glob("*/*-shot/*/[!.]*.json"), *results.glob("*/*-shot/*/*/[!.]*.json")))
    paths = [path for path in found if not path.with_name("config.json").exists()]  # a run lies there, if it does
    if found and not paths and not new:
        raise InputError(f"{results} holds runs, and is no ledger: name the folder that `protograph reproduce` fills, or a run")
    return {entry.task: entry for entry in (read_entry(results, path) for path in paths)}


@dataclass(frozen=True)
class Notes:
    """What people found out about why cells fall short: of one and, point by point, of all of a dataset; what they tried."""

    cells: Mapping[Cell, str] = field(default_factory=dict)
    datasets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    trials: Trials = field(default_factory=dict)


def read_notes(results: Path) -> Notes:
    """What people found out after looking into cells: as they wrote it into notes.json, and the runs in trials.csv."""
    path, trials = results / "notes.json", read_trials(trials_path(results))
    if not path.exists():
        return Notes(trials=trials)
    cells, datasets = {}, {}
    try:
        for key, note in json.loads(path.read_text(encoding="utf-8")).items():
            points = tuple(" ".join(point.split()) for point in (note if isinstance(note, list) else [note]))
            if "/" in key:
                dataset, shots, variant = key.split("/")
                cells[Cell(dataset, int(shots.removesuffix("-shot")), variant)] = " ".join(points)
            else:
                datasets[key] = points
    except (ValueError, AttributeError) as error:
        example = '{"cub/1-shot/gcgpn-aux": "what is known", "cub": ["what is known of all its cells", "and more"]}'
        raise InputError(f"{path} does not hold notes by cell ({error}): write them as {example}") from error
    odd = [str(cell) for cell in cells if cell.variant not in VARIANTS or cell.dataset not in DATASETS]
    if odd := [*odd, *(name for name in datasets if name not in DATASETS)]:
        raise InputError(f"{path} has a note on '{odd[0]}', which is no cell: mend its name")
    return Notes(cells, datasets, trials)


@dataclass(frozen=True)
class Score:
    """One measure of a cell over its seeds.

    values: of each seed
    ci95: 95 % interval over test episodes, of one seed (the mean of those of several)
    draws: by what chance each value came about, where other cells may share it: the first stage that a seed began from; "", or
           none at all, where it has nothing in common with others
    further: whether seeds drew more after what they share, since all of it was trained further
    """

    values: tuple[float, ...]
    ci95: float
    draws: tuple[str, ...] = ()
    further: bool = False

    @property
    def mean(self) -> float:
        """Over seeds."""
        return fmean(self.values)

    @property
    def spread(self) -> float:
        """The standard deviation between seeds; of one seed, its interval over episodes."""
        return stdev(self.values) if len(self.values) > 1 else self.ci95

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.spread:.2f}"


Scores = dict[str, Score]


def scores(ledger: Mapping[Task, Entry], recipe: str) -> dict[Cell, Scores]:
    """What the ledger knows of each cell by one recipe, over all seeds it has."""
    found: dict[Cell, list[Entry]] = {}
    for task, entry in sorted(ledger.items()):
        if task.recipe == recipe:
            found.setdefault(task.cell, []).append(entry)
    return {cell: {name: _score(seeds, name) for name in MEASURES} for cell, seeds in found.items()}


def _score(seeds: Sequence[Entry], name: str) -> Score:
    measured = [entry.measures[name] for entry in seeds]
    values, draws = tuple(one.mean for one in measured), tuple(entry.config.start for entry in seeds)
    further = find_variant(seeds[0].task.cell.variant).after is None  # what a recipe gives to start from is trained further
    return Score(values, fmean(one.ci95 for one in measured), draws, further)


@contextmanager
def locked(results: Path) -> Iterator[None]:
    """Keep every other grid off a results folder; refused while another one is at work there."""
    results.mkdir(parents=True, exist_ok=True)
    with hold_lock(results / ".lock", results, "wait for it, or choose another --results"):
        table = table_path(results)
        ending = f".*.json.*{UNFINISHED}"
        scratch = *results.glob(f"*/*/*/{ending}"), *results.glob(f"*/*/*/*/{ending}"), *unfinished(table)
        for left in scratch:  # by a grid that was killed while writing
            left.unlink(missing_ok=True)
        yield
