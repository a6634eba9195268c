"""The grid as runs of the command: which are missing, how each is trained, and how finished ones enter the ledger."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protograph._internal.errors import InputError
from protograph._internal.progress import Progress
from protograph.data import Dataset, find_root, find_source, open_dataset
from protograph.evaluation.metrics import PAPER_MEASURES, Measures
from protograph.paper.grid import Task
from protograph.paper.ledger import Entry, record_run
from protograph.paper.published import published
from protograph.paper.summary import check_summary, write_summary
from protograph.training.recipes import Recipe, default_backbone, resolve_recipe, stage_before, uses_setting
from protograph.training.run_folder import run_path
from protograph.variants import find_variant

# (commands, done, failed, after): runs the commands and calls `done` or `failed` as each ends, as `cli.jobs.run_each` does
RunEach = Callable[
    [Mapping[str, Sequence[str]], Callable[[str, str], None], Callable[[str, str], None], Mapping[str, str]], None
]


@dataclass(frozen=True)
class GridRun:
    """The tasks of a grid, and the options they are run with.

    Attributes:
        tasks: The tasks in the order in which they are started.
        results: The folder of the ledger.
        runs: The folder of the run folders.
        changes: Changes to the recipe, for the variants that use the setting.
        root: The dataset's files, as `train` takes them.
        device: The device, as `train` takes it.

    Raises:
        InputError: If a name or value of a change is wrong, or no cell uses the setting.

    """

    tasks: Sequence[Task]
    results: Path
    runs: Path
    changes: Mapping[str, str] = field(default_factory=dict)
    root: Path | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        recipes = [(find_variant(task.cell.variant), self.recipe(task)) for task in self.tasks]
        for name in self.changes:
            if not any(uses_setting(variant, recipe, name) for variant, recipe in recipes):
                raise InputError(f"none of the cells uses the recipe's setting '{name}': leave it out")
        if self.root and all(find_source(name).built_in for name in self.datasets):
            raise InputError(f"dataset '{self.datasets[0]}' is built in and reads no files: leave out --root")

    @property
    def datasets(self) -> list[str]:
        """The names of the datasets."""
        return list(dict.fromkeys(task.cell.dataset for task in self.tasks))

    @property
    def read_paths(self) -> list[Path]:
        """The folders that runs read, which all machines must see."""
        path = None if all(find_source(name).built_in for name in self.datasets) else find_root(self.root)
        return [path.resolve()] if path else []

    def recipe(self, task: Task) -> Recipe:
        """Return the recipe that a task is trained by."""
        return resolve_recipe(find_variant(task.cell.variant), task.cell.dataset, task.recipe, self.changes)

    def missing(self, ledger: Mapping[Task, Entry]) -> list[Task]:
        """Return the tasks that the ledger does not have.

        Raises:
            InputError: If the ledger has cells of the same datasets and recipes that were trained with other settings, since
                tables would mix them.

        """
        planned = {(task.cell.dataset, task.recipe) for task in self.tasks}
        for task, entry in ledger.items():
            if (task.cell.dataset, task.recipe) in planned:
                self._check_settings(task, entry)
        return [task for task in self.tasks if task not in ledger]

    def _check_settings(self, task: Task, entry: Entry) -> None:
        stored: dict[str, Any] = {"backbone": entry.config.backbone, **vars(entry.config.recipe)}
        current = {"backbone": default_backbone(task.cell.dataset, task.recipe), **vars(self.recipe(task))}
        if stored != current:
            name = next(name for name in current if current[name] != stored[name])
            raise InputError(
                f"{self.results} has {task} with {name} {stored[name]!r}, not {current[name]!r}: "
                "choose another --results and --runs, or give the same --set"
            )

    def open_datasets(self, ledger: Mapping[Task, Entry], progress: Progress) -> None:
        """Decode the datasets that runs need, once for all of them, and check that the ledger is of the same images.

        Args:
            ledger: The entries so far.
            progress: Shows the progress of decoding.

        Raises:
            InputError: If a dataset cannot be opened, or the ledger is of other images.

        """
        needed = {task.cell.dataset for task in self.missing(ledger)}
        for name in self.datasets:
            if name in needed or self.root:
                self._check_images(ledger, open_dataset(name, None if find_source(name).built_in else self.root, progress))

    def _check_images(self, ledger: Mapping[Task, Entry], dataset: Dataset) -> None:
        for task, entry in ledger.items():
            if task.cell.dataset == dataset.name and entry.config.fingerprint != dataset.fingerprint:
                raise InputError(
                    f"{self.results} has {task} on other images (fingerprint {entry.config.fingerprint}, not "
                    f"{dataset.fingerprint}): choose another --results and --runs, or the --root it was trained with"
                )

    def folder(self, task: Task) -> Path:
        """Return the run folder of a task."""
        return self.runs / task.path

    def commands(self, tasks: Sequence[Task]) -> tuple[dict[str, list[str]], dict[str, str]]:
        """Return the command lines of tasks by name, and for a name the one that has to be done before it.

        A first stage has a command line of its own, ahead of the first task that needs it. It is trained once for every K and
        every variant that starts from it. The first task with folds trains their starts, and the others wait for it.
        """
        with_folds: dict[str, str] = {}
        commands: dict[str, list[str]] = {}
        after: dict[str, str] = {}
        for task in tasks:
            variant, options = task.cell.variant, [f"--shots={task.cell.shots}"]
            options += [f"--relations={name}" for name in task.cell.relations]
            if before := stage_before(find_variant(variant), self.recipe(task)):
                start = self.runs / run_path(task.cell.dataset, None, before.name, task.recipe, task.seed)
                first = f"{task.cell.dataset} {before.name} {task.recipe}-{task.seed}"
                commands.setdefault(first, self._train(task, before.name, [], start))
                trains_folds = with_folds.setdefault(first, str(task)) if self.recipe(task).folds else str(task)
                after[str(task)] = first if trains_folds == str(task) else trains_folds
                options.append(f"--start={start.resolve()}")
            commands[str(task)] = self._train(task, variant, options, self.folder(task))
        return commands, after

    def _train(self, task: Task, variant: str, options: Sequence[str], out: Path) -> list[str]:
        built_in = find_source(task.cell.dataset).built_in
        path = None if built_in else find_root(self.root)
        root = [f"--root={path.resolve()}"] if path else []  # explicit, since another machine may not have the variable
        stage, recipe = find_variant(variant), self.recipe(task)
        used = [f"--set={name}={value}" for name, value in self.changes.items() if uses_setting(stage, recipe, name)]
        return [
            "train", f"--dataset={task.cell.dataset}", f"--variant={variant}", f"--recipe={task.recipe}", f"--seed={task.seed}",
            f"--device={self.device}", f"--out={out.resolve()}", *options, *root, *used,
        ]  # fmt: skip


def run_grid(grid: GridRun, ledger: dict[Task, Entry], run_each: RunEach, progress: Progress) -> dict[str, str]:
    """Run the missing tasks, add each to the ledger as it finishes, and write RESULTS.md at the end, however that comes.

    Args:
        grid: The tasks and their options.
        ledger: The entries so far; finished tasks are added.
        run_each: Runs command lines.
        progress: Shows what ended.

    Returns:
        The reasons of the runs that failed, by name.

    """
    missing = grid.missing(ledger)
    tasks = {str(task): task for task in missing}
    commands, after = grid.commands(missing)
    failures: dict[str, str] = {}
    check_summary(grid.results)
    with progress.task("cells", len(grid.tasks), "cells", done=len(grid.tasks) - len(missing)) as advance:

        def done(name: str, _: str) -> None:
            if name not in tasks:  # a first stage, which has no cell
                return
            task = tasks[name]
            try:
                entry = ledger[task] = record_run(grid.results, task, grid.folder(task))
            except InputError as error:
                failed(name, str(error))
                return
            advance(1)
            progress.say(f"{name}: {key_measures(entry.measures, published().get(task.cell))}")

        def failed(name: str, reason: str) -> None:
            failures[name] = reason
            progress.say(f"{name} failed: {reason}")

        try:
            run_each(commands, done, failed, after)
        finally:
            write_summary(grid.results, ledger)
    return failures


def key_measures(measures: Measures, paper: Measures | None) -> str:
    """Return H-Mean and Joint-Joint, or without them Novel-Novel, as text, beside the paper's where it has them."""
    texts = []
    for name in ("h_mean", "joint_joint") if "h_mean" in measures else ("novel_novel",):
        label = PAPER_MEASURES[name]
        texts.append(f"{label} {measures[name]}" + (f" (paper {paper[name]})" if paper else ""))
    return ", ".join(texts)
