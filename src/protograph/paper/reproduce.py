"""The grid as runs of the command: which are missing, how each is trained, and what becomes of those that finish."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from protograph._internal.errors import InputError
from protograph._internal.progress import Progress
from protograph.data import DATASETS, Dataset, find_root, find_source
from protograph.evaluation.metrics import Measures
from protograph.paper.grid import Task
from protograph.paper.ledger import Entry, record, table_path
from protograph.paper.published import published
from protograph.paper.table import write_table
from protograph.training.config import Recipe, has_use, recipe_for, stage_before
from protograph.training.run import place
from protograph.variants import find_variant

# (commands, done, failed, after), as `cli.jobs.run_each` takes them behind its engine
RunEach = Callable[
    [Mapping[str, Sequence[str]], Callable[[str, str], None], Callable[[str, str], None], Mapping[str, str]], None
]


@dataclass(frozen=True)
class Grid:
    """What is to be run, and where its traces go.

    tasks:   in the order in which they are begun
    changes: to the recipe, for the variants that have a use for them
    device, root: as `train` takes them
    """

    tasks: Sequence[Task]
    results: Path
    runs: Path
    changes: Mapping[str, str] = field(default_factory=dict)
    root: Path | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        recipes = [(find_variant(task.cell.variant), self.recipe(task)) for task in self.tasks]  # finds wrong names and values
        for name in self.changes:
            if not any(has_use(variant, recipe, name) for variant, recipe in recipes):
                raise InputError(f"none of the cells has a use for the recipe's setting '{name}': leave it out")

    def recipe(self, task: Task) -> Recipe:
        """The recipe a task is trained by."""
        own, source = find_variant(task.cell.variant), DATASETS[task.cell.dataset]
        return recipe_for(own, task.recipe, self.changes, source.changes)

    def missing(self, ledger: Mapping[Task, Entry]) -> list[Task]:
        """The tasks the ledger has not. Numbers beside them that came about otherwise are refused: tables would mix them."""
        beside = {(task.cell.dataset, task.recipe) for task in self.tasks}
        for task, entry in ledger.items():
            if (task.cell.dataset, task.recipe) in beside:
                self._check(task, entry)
        return [task for task in self.tasks if task not in ledger]

    def _check(self, task: Task, entry: Entry) -> None:
        """Complain of an entry that was trained by other settings than this grid would train it by."""
        there = {"backbone": entry.config.backbone, **vars(entry.config.recipe)}
        here = {"backbone": DATASETS[task.cell.dataset].backbone_for(task.recipe), **vars(self.recipe(task))}
        if there != here:
            other = next(name for name in here if here[name] != there[name])
            raise InputError(
                f"{self.results} has {task} with {other} {there[other]!r}, not {here[other]!r}: "
                "choose another --results and --runs, or give the same --set"
            )

    def check_images(self, ledger: Mapping[Task, Entry], dataset: Dataset) -> None:
        """Complain of entries that were trained on other images of a dataset's than this grid would be."""
        for task, entry in ledger.items():
            if task.cell.dataset == dataset.name and entry.config.fingerprint != dataset.fingerprint:
                raise InputError(
                    f"{self.results} has {task} on other images than are here (fingerprint {entry.config.fingerprint}, not "
                    f"{dataset.fingerprint}): choose another --results and --runs, or the --root it had"
                )

    def folder(self, task: Task) -> Path:
        """The run folder of a task."""
        return self.runs / task.place

    def commands(self, tasks: Sequence[Task]) -> tuple[dict[str, list[str]], dict[str, str]]:
        """Lines of arguments by name; and of a name, the one that has to be done before.

        The stage before is a command of its own ahead of the first that needs it: it is trained once, the same for every K and
        every variant that starts from it.
        """
        lines: dict[str, list[str]] = {}
        after: dict[str, str] = {}
        for task in tasks:
            variant, own = task.cell.variant, [f"--shots={task.cell.shots}"]
            own += [f"--relations={name}" for name in task.cell.relations]
            if before := stage_before(find_variant(variant), self.recipe(task)):
                where = place(task.cell.dataset, None, before.name, task.recipe, task.seed)
                first = f"{task.cell.dataset} {before.name} {task.recipe}-{task.seed}"
                lines.setdefault(first, self._train(task, before.name, [], self.runs / where))
                after[str(task)] = first
                own.append(f"--start={(self.runs / where).resolve()}")
            lines[str(task)] = self._train(task, variant, own, self.folder(task))
        return lines, after

    def _train(self, task: Task, variant: str, more: Sequence[str], out: Path) -> list[str]:
        built_in = find_source(task.cell.dataset).built_in
        place = None if built_in else find_root(self.root)
        root = [f"--root={place.resolve()}"] if place else []  # said, since another machine may not have the variable
        stage, recipe = find_variant(variant), self.recipe(task)
        used = [f"--set={name}={value}" for name, value in self.changes.items() if has_use(stage, recipe, name)]
        return [
            "train", f"--dataset={task.cell.dataset}", f"--variant={variant}", f"--recipe={task.recipe}", f"--seed={task.seed}",
            f"--device={self.device}", f"--out={out.resolve()}", *more, *root, *used,
        ]  # fmt: skip


def reproduce(grid: Grid, ledger: dict[Task, Entry], run_each: RunEach, progress: Progress) -> dict[str, str]:
    """Run what is missing, adding each cell to the ledger as it finishes; why the others failed, by name."""
    missing = grid.missing(ledger)
    named = {str(task): task for task in missing}
    commands, after = grid.commands(missing)
    failures: dict[str, str] = {}
    write_table(grid.results, ledger)
    with progress.task("cells", len(grid.tasks), "cells", done=len(grid.tasks) - len(missing)) as advance:

        def done(name: str, _: str) -> None:
            if name not in named:  # a first stage: no cell
                return
            task = named[name]
            try:
                entry = record(grid.results, task, grid.folder(task))
            except InputError as error:
                failed(name, str(error))
                return
            ledger[task] = entry
            try:
                write_table(grid.results, ledger)
            except InputError as error:  # in what people wrote: no reason to stop
                progress.say(f"{table_path(grid.results)} is not written: {error}")
            advance(1)
            progress.say(f"{name}: {beside(entry.measures, published().get(task.cell))}")

        def failed(name: str, reason: str) -> None:
            failures[name] = reason
            progress.say(f"{name} failed: {reason}")

        run_each(commands, done, failed, after)
    return failures


def beside(measures: Measures, paper: Measures | None) -> str:
    """The two measures that count most, beside the paper's where it has them."""
    shown = []
    for name, label in (("h_mean", "H-Mean"), ("joint_joint", "Joint-Joint")):
        shown.append(f"{label} {measures[name]}" + (f" (paper {paper[name]})" if paper else ""))
    return ", ".join(shown)
