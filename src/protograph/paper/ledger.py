"""The ledger: one JSON file of measures per cell, recipe and seed, and a lock that lets one grid at a time write.

results/{dataset}/{shots}-shot/{variant}/{recipe}-{seed}.json
results/{dataset}/{shots}-shot/{variant}/{relation}-and-{relation}/{recipe}-{seed}.json, for other than the default relations
results/notes/, the experiment log of people; notes/gaps.md has the known gaps, one heading each
results/trials.csv, what other settings brought on validation classes
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from protograph._internal.errors import InputError
from protograph._internal.files import UNFINISHED, parse_json, read_plain_file, unfinished, write_json
from protograph._internal.locks import hold_lock
from protograph._internal.old_names import RECIPE_SETTINGS, renamed
from protograph.evaluation.metrics import PAPER_MEASURES, Measure, Measures, stored_measures
from protograph.paper.grid import Task
from protograph.paper.published import Cell
from protograph.paper.statistics import Score, Scores
from protograph.paper.trials import trials_path, write_trials
from protograph.relations import relation_label
from protograph.training.run_config import FORMAT, RunConfig
from protograph.training.run_folder import Run
from protograph.variants import find_variant

MAX_ENTRY_BYTES = 10_000_000  # of a file; one has some 5,000
LEDGER_FORMAT = 2  # of a file; one without a number has format 1, and the old names of settings


@dataclass(frozen=True)
class Entry:
    """One file of the ledger.

    Attributes:
        task: The cell, recipe and seed.
        measures: The measures of the epoch that validation selected.
        epoch: That epoch.
        last: The measures of the last epoch.
        last_epoch: The last epoch.
        config: The configuration of the run.
        versions: The versions and the device that the run used, as text.
        learned: The temperatures and scales of the selected epoch by name; empty where they were not kept.
        statistics: What batch norm used in evaluation, where that is a choice.
        by_statistics: The measures with each of the statistics that batch norm may use; empty where that is no choice.

    """

    task: Task
    measures: Measures
    epoch: int
    last: Measures
    last_epoch: int
    config: RunConfig
    versions: str
    learned: Mapping[str, float] = field(default_factory=dict)
    statistics: str = ""
    by_statistics: Mapping[str, Measures] = field(default_factory=dict)


def table_path(results: Path) -> Path:
    """Return the path of a ledger's tables, beside it and by its name: RESULTS.md for results/."""
    folder = results.resolve()
    return folder.with_name(f"{folder.name.upper()}.md")


def entry_path(results: Path, task: Task) -> Path:
    """Return the path of a task's file."""
    return results / task.path.parent / f"{task.path.name}.json"


def record_run(results: Path, task: Task, folder: Path) -> Entry:
    """Copy the measures of a finished run into the ledger, with everything that they depend on.

    Args:
        results: The folder of the ledger.
        task: The task that the run is expected to be.
        folder: The run folder.

    Raises:
        InputError: If the run is not finished, or is not of this task.

    """
    run = Run.open(folder)
    if run.measures is None:
        raise InputError(f"{folder} is not finished: run the same command again")
    if (trained := task_of(run.config, with_relations=bool(task.cell.relations))) != task:
        raise InputError(f"{folder} holds {trained}, not {task}: choose another --runs, or remove the folder")
    path, content = entry_path(results, task), _content(task, run, run.measures)
    entry = _entry_of(content, results, path)  # before it is written: a file that cannot be read would stop the ledger
    write_json(path, content)
    return entry


def task_of(config: RunConfig, with_relations: bool) -> Task:
    """Return the task that a configuration trains; its relations belong to the cell if they are not the default ones."""
    relations = tuple(map(relation_label, config.relations)) if with_relations else ()
    return Task(Cell(config.dataset, config.shots, config.variant, relations), config.recipe.name, config.seed)


def _content(task: Task, run: Run, measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a file of the ledger."""
    selected = [line for line in run.history if line["epoch"] == measured["epoch"]]
    finished = datetime.fromtimestamp((run.folder / "measures.json").stat().st_mtime, UTC)
    stored = {name: _stored(value) for name, value in measured.items()}
    config = run.config
    trained = {"dataset": config.dataset, "shots": config.shots, "variant": config.variant, "recipe": config.recipe.name}
    keys = {**trained, "seed": config.seed, "measures": stored["measures"]}
    return {
        "format": LEDGER_FORMAT,
        **keys,
        **({"relations": list(task.cell.relations)} if task.cell.relations else {}),
        **{name: value for name, value in stored.items() if name not in keys},
        **({"learned": selected[0].get("learned", {})} if selected else {}),
        "fingerprint": run.config.fingerprint,
        "finished": finished.isoformat(timespec="seconds"),
        # Relations are stored by label, since paths mean nothing on other machines.
        "configuration": {**run.config.to_dict(), "relations": [relation_label(name) for name in run.config.relations]},
        "environment": run.environment,
    }


def _stored(value: Any) -> Any:
    """Return a value of measures.json without measures other than the paper's, which a ledger does not store."""
    if not isinstance(value, dict):
        return value
    if "novel_novel" in value:
        return {name: value[name] for name in stored_measures(value.keys()) if name in value}
    return {name: _stored(inner) for name, inner in value.items()}


def read_entry(results: Path, path: Path) -> Entry:
    """Return one file of the ledger.

    Args:
        results: The folder of the ledger.
        path: The file.

    Raises:
        InputError: If the file is damaged, or its path is not that of its task.

    """
    return _entry_of(_read_content(path), results, path)


def _read_content(path: Path) -> Any:
    content = read_plain_file(path, "file of a ledger", MAX_ENTRY_BYTES)
    try:
        return parse_json(content)
    except ValueError as error:
        raise _damaged(path, error) from error


def _entry_of(stored: Any, results: Path, path: Path) -> Entry:
    """Return what a file of the ledger stores, with the errors of `read_entry`."""
    try:
        content = _with_todays_names(stored)
        newer = content["format"] > LEDGER_FORMAT
    except _DAMAGE as error:
        raise _damaged(path, error) from error
    if newer:
        raise InputError(
            f"{path} has format {content['format']}, and this version reads up to {LEDGER_FORMAT}: install a newer one"
        )
    try:
        cell = Cell(content["dataset"], content["shots"], content["variant"], tuple(content.get("relations", ())))
        task = Task(cell, content["recipe"], content["seed"])
        place = entry_path(results, task)
        measures, last = _measures(content["measures"]), content.get("last_epoch", content)
        last_measures = _measures(last["measures"])
        others = {name: _measures(other["measures"]) for name, other in content.get("other_statistics", {}).items()}
        config = RunConfig.from_dict(content["configuration"])
        environment = content["environment"]
        versions = f"protograph {environment['protograph']}, torch {environment['torch']}, {environment['gpu'] or 'CPU'}"
        epochs = _epoch(content), _epoch(last)
        learned = {str(name): float(value) for name, value in content.get("learned", {}).items()}
        statistics = str(content.get("statistics", ""))
        by_statistics = {statistics: measures, **others} if others else {}
    except _DAMAGE as error:
        raise _damaged(path, error) from error
    if place != path:
        raise InputError(f"{path} holds the numbers of {task}: move it back to {place}, or remove it")
    return Entry(task, measures, epochs[0], last_measures, epochs[1], config, versions, learned, statistics, by_statistics)


_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, OverflowError)  # what reading a damaged file raises


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(f"{path} is damaged ({error}): remove it and run the same command again")


def _with_todays_names(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a file with today's names of settings; numbers stay as they are."""
    if "format" in content:
        return dict(content)
    configuration = content["configuration"]
    if "format" not in configuration:
        recipe = renamed(configuration["recipe"], RECIPE_SETTINGS)
        configuration = {"format": FORMAT, **configuration, "recipe": recipe}
    return {"format": LEDGER_FORMAT, **content, "configuration": configuration}


def _measures(content: Mapping[str, Mapping[str, float]]) -> Measures:
    measures = {name: Measure(**content[name]) for name in stored_measures(content.keys())}
    if not all(math.isfinite(number) for measure in measures.values() for number in (measure.mean, measure.ci95)):
        raise ValueError("a measure is not a finite number")
    return measures


def _epoch(content: Mapping[str, Any]) -> int:
    epoch = content["epoch"]
    if type(epoch) is not int or epoch < 0:
        raise ValueError(f"{epoch!r:.100} is not the number of an epoch")
    return epoch


def read_ledger(results: Path, new: bool = False) -> dict[Task, Entry]:
    """Return all entries of a ledger.

    Args:
        results: The folder of the ledger.
        new: Whether the folder may be missing or without a file.

    """
    if not new and not results.is_dir():
        raise InputError(f"no ledger at {results}: name the folder that `protograph reproduce` fills")
    if not new and any(results.glob("*/*-shot/*/*/config.json")) and not _entry_paths(results):
        raise InputError(
            f"{results} holds runs and is not a ledger: name the folder that `protograph reproduce` fills, or a run"
        )
    return {entry.task: entry for entry in (read_entry(results, path) for path in _entry_paths(results))}


def _entry_paths(results: Path) -> list[Path]:
    """Return the files of a ledger, without those of run folders beside them."""
    paths = sorted((*results.glob("*/*-shot/*/[!.]*.json"), *results.glob("*/*-shot/*/*/[!.]*.json")))
    return [path for path in paths if not path.with_name("config.json").exists()]


def upgrade_ledger(results: Path) -> list[Path]:
    """Give the files of a ledger that an older version wrote, and its trials, today's names; numbers stay as they are.

    Args:
        results: The folder of the ledger.

    Returns:
        The files of cells that were rewritten.

    """
    rewritten = []
    for path in _entry_paths(results):
        content = _read_content(path)
        _entry_of(content, results, path)
        if "format" not in content:
            write_json(path, _with_todays_names(content))
            rewritten.append(path)
    if trials_path(results).exists():
        write_trials(trials_path(results), [])
    return rewritten


def read_gaps(results: Path) -> list[tuple[str, str]]:
    """Return the questions and answers of notes/gaps.md: its headings of level 2, and the first paragraph below each."""
    path = results / "notes" / "gaps.md"
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    sections = (section.strip().split("\n\n") for section in f"\n{text}".split("\n## ")[1:])
    return [(heading, answer) for heading, answer, *_ in (section for section in sections if len(section) > 1)]


def scores_by_statistics(ledger: Mapping[Task, Entry], recipe: str) -> dict[str, dict[Cell, Scores]]:
    """Return `scores` by what batch norm used in evaluation, of the cells where that is a choice."""
    names = sorted({name for entry in ledger.values() for name in entry.by_statistics})
    return {
        name: scores(
            {
                task: replace(entry, measures=entry.by_statistics[name])
                for task, entry in ledger.items()
                if name in entry.by_statistics
            },
            recipe,
        )
        for name in names
    }


def scores(ledger: Mapping[Task, Entry], recipe: str) -> dict[Cell, Scores]:
    """Return the scores of each cell by one recipe, over all seeds of the ledger."""
    by_cell: dict[Cell, list[Entry]] = {}
    for task, entry in sorted(ledger.items()):
        if task.recipe == recipe:
            by_cell.setdefault(task.cell, []).append(entry)
    return {
        cell: {name: _score(seeds, name) for name in PAPER_MEASURES if all(name in entry.measures for entry in seeds)}
        for cell, seeds in by_cell.items()
    }


def _score(seeds: Sequence[Entry], name: str) -> Score:
    measures, draws = [entry.measures[name] for entry in seeds], tuple(entry.config.start for entry in seeds)
    # A start that the recipe names, not the variant, is trained further as a whole.
    trained_further = find_variant(seeds[0].task.cell.variant).after is None
    values = tuple(measure.mean for measure in measures)
    return Score(values, fmean(measure.ci95 for measure in measures), draws, trained_further)


@contextmanager
def lock_ledger(results: Path) -> Iterator[None]:
    """Keep every other grid from writing to a ledger.

    Raises:
        InputError: If another grid writes to it.

    """
    results.mkdir(parents=True, exist_ok=True)
    with hold_lock(results / ".lock", results, "wait for it, or choose another --results"):
        table = table_path(results)
        ending = f".*.json.*{UNFINISHED}"
        tables = *results.glob(f".*.csv.*{UNFINISHED}"), *unfinished(table)
        scratch = *results.glob(f"*/*/*/{ending}"), *results.glob(f"*/*/*/*/{ending}"), *tables
        for path in scratch:  # left by a grid that was killed while writing
            path.unlink(missing_ok=True)
        yield
