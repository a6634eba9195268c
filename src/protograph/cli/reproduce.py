"""protograph reproduce"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table

from protograph._internal.errors import InputError, unknown_name
from protograph.cli.display import ShownProgress, reported, show
from protograph.cli.jobs import Engine, LocalProcesses, Resources, run_each
from protograph.cli.options import RECIPE_SETTINGS_HELP, RETRIES, AsJson, Device, Retries, Root, find_device, parse_changes
from protograph.paper.grid import OTHER_TABLES, Selection, plan_tasks
from protograph.paper.ledger import entry_path, lock_ledger, read_ledger, table_path
from protograph.paper.published import TITLES
from protograph.paper.runner import GridRun, key_measures, run_grid
from protograph.paper.summary import write_summary
from protograph.paper.verdicts import check_conclusions
from protograph.training.recipes import RECIPES

ENGINES = ("local", "ray", "slurm")

Datasets = Annotated[
    list[str] | None,
    typer.Option(
        "--dataset", help="Only this dataset; repeatable. letters runs the same grid on a CPU. (default: the paper's two)"
    ),
]
Shots = Annotated[
    list[int] | None, typer.Option("--shots", help="Only this K; repeatable. (default: 1 and 5)", show_default=False)
]
VariantNames = Annotated[
    list[str] | None,
    typer.Option("--variant", help="Only this variant, see `protograph variants`; repeatable. (default: those of the tables)"),
]
Tables = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        help=f"Only the cells of this table; repeatable. The paper's are {', '.join(TITLES)}; the others are "
        + ", ".join(f"{name} ({title})" for name, title in OTHER_TABLES.items())
        + ". (default: the paper's)",
    ),
]
RecipeName = Annotated[
    str | None,
    typer.Option("--recipe", help=f"How to train: {', '.join(RECIPES)}. (default: fast, but see --seeds; letters: demo)"),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        "--seeds",
        help="Seeds per cell. (default: 1. With neither --recipe nor --seeds, every cell is trained once by fast; then come "
        "more seeds and the paper recipe, key cells first, and last the strong recipe)",
        show_default=False,
    ),
]
Jobs = Annotated[
    int, typer.Option("--jobs", help="The number of runs at the same time; with --engine ray, on each GPU.", min=1)
]
LedgerFolder = Annotated[
    Path,
    typer.Option("--results", help="The folder of the ledger. Its summary is written beside it: RESULTS.md for results."),
]
RunsFolder = Annotated[Path, typer.Option("--runs", help="The folder of the run folders.")]
ChangedSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Change a setting of the recipe for all cells that use it, such as --set epochs=5; repeatable. "
        + RECIPE_SETTINGS_HELP,
        show_default=False,
    ),
]
EngineName = Annotated[
    str,
    typer.Option("--engine", help="Where to run: local, ray for the cluster of RAY_ADDRESS, or slurm; machines share folders."),
]
Threads = Annotated[
    int | None,
    typer.Option(
        help="Threads of PyTorch in each run, on which the last digits of numbers depend. (default: as many as a run has here)",
        min=1,
        show_default=False,
    ),
]
SlurmOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--slurm",
        metavar="NAME=VALUE",
        help="With --engine slurm, an option of sbatch, such as --slurm partition=gpu or --slurm time=600; repeatable.",
        show_default=False,
    ),
]
Listing = Annotated[bool, typer.Option("--list", help="Only list what is done and what is missing.")]
TableOnly = Annotated[bool, typer.Option("--table-only", help="Only write RESULTS.md and the CSV files from the ledger.")]


@reported
def reproduce_command(
    dataset: Datasets = None,
    shots: Shots = None,
    variant: VariantNames = None,
    table: Tables = None,
    recipe: RecipeName = None,
    seeds: Seeds = None,
    jobs: Jobs = 1,
    root: Root = None,
    results: LedgerFolder = Path("results"),
    runs: RunsFolder = Path("runs"),
    change: ChangedSettings = None,
    engine: EngineName = "local",
    threads: Threads = None,
    retries: Retries = RETRIES,
    slurm: SlurmOptions = None,
    device: Device = "auto",
    listing: Listing = False,
    table_only: TableOnly = False,
    as_json: AsJson = False,
) -> None:
    """Train the paper's tables, or a part of them, and compare the measures with the published ones.

    Every finished run is stored under --results. At the end, RESULTS.md beside it sums up the cells and the verdicts on the
    paper's claims, and CSV files under --results have all numbers. If interrupted, the same command continues and skips
    finished cells. A failed run does not stop the others.

    Examples:
        protograph reproduce --root DATA --jobs 4
        protograph reproduce --dataset cub --shots 1 --variant gcgpn-aux --seeds 3
        protograph reproduce --table CUB --list
    """
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    if table_only:
        ignored = {
            "dataset": dataset, "shots": shots, "variant": variant, "table": table, "recipe": recipe, "seeds": seeds,
            "root": root, "set": change, "list": listing, "jobs": jobs > 1, "engine": engine != "local",
            "device": device != "auto", "threads": threads, "slurm": slurm, "retries": retries != RETRIES,
        }  # fmt: skip
        for name, value in ignored.items():
            if value:
                raise InputError(f"--{name} would be ignored with --table-only: leave it out")
        path = write_summary(results, read_ledger(results))
        return show({"table": str(path)}, None, as_json) if as_json else print(path)
    selection = Selection(dataset or (), shots or (), variant or (), table or ())
    if engine == "local" and retries != RETRIES:
        raise InputError(f"--retries {retries} would be ignored with --engine local: leave it out")
    if engine != "slurm" and slurm:
        raise InputError(f"--slurm {slurm[0]} would be ignored without --engine slurm: leave it out")
    if engine == "slurm" and jobs > 1:
        raise InputError(f"--jobs {jobs} would be ignored with --engine slurm: leave it out")
    if engine == "local" and not listing:  # once, so that no run falls back to the CPU if the GPU fails in between
        device = str(find_device(device))
    grid = GridRun(plan_tasks(selection, recipe, seeds), results, runs, parse_changes(change), root, device)
    if listing:
        return show_list(grid, as_json)
    return train_grid(grid, EngineOptions(engine, jobs, threads, retries, parse_changes(slurm, "--slurm")), as_json)


@dataclass(frozen=True)
class EngineOptions:
    """What the user says of the engine: its name, runs at the same time, threads and retries of each, options of sbatch."""

    name: str
    jobs: int = 1
    threads: int | None = None
    retries: int = RETRIES
    slurm: Mapping[str, str] = field(default_factory=dict)


def train_grid(grid: GridRun, options: EngineOptions, as_json: bool) -> None:
    """Train what is missing and show what the ledger says of the paper's conclusions.

    Args:
        grid: The tasks and their options.
        options: What runs them.
        as_json: Whether to print JSON.

    Raises:
        InputError: If a run failed; all others are recorded before.

    """
    progress = ShownProgress(quiet=as_json)
    with lock_ledger(grid.results):
        ledger = read_ledger(grid.results)
        grid.open_datasets(ledger, progress)
        opened = open_engine(options, grid, progress)
        failures = run_grid(
            grid, ledger, lambda commands, done, failed, after: run_each(commands, opened, done, failed, after), progress
        )
    path = table_path(grid.results)
    if as_json:
        done = len(grid.tasks) - len(grid.missing(ledger))
        show({"done": done, "failed": failures, "table": str(path)}, None, True)
    else:
        print("\n".join([*map(str, check_conclusions(ledger)), str(path)]))
    if failures:
        reasons = "; ".join(f"{name}: {reason.rstrip('.')}" for name, reason in failures.items())
        cells = sum(str(task) in failures for task in grid.tasks)
        recorded = "" if cells == len(grid.tasks) else "; the others are recorded"
        raise InputError(
            f"{cells} of {len(grid.tasks)} cells failed ({reasons}){recorded}: correct the cause and run the same command again"
        )


def open_engine(options: EngineOptions, grid: GridRun, progress: ShownProgress) -> Engine:
    """Return the engine that the user named."""
    if options.name == "local":
        return LocalProcesses(options.jobs, progress, options.threads)
    resources = Resources(options.threads or torch.get_num_threads(), options.jobs, grid.device, options.retries)
    if options.name == "slurm":
        from protograph.cli.slurm import Slurm

        return Slurm(resources, grid.runs, options.slurm, progress)
    from protograph.cli.cluster import Cluster

    return Cluster(resources, grid.runs, grid.read_paths, progress)


def show_list(grid: GridRun, as_json: bool) -> None:
    """Show what is done, with its measures, and what is missing."""
    ledger = read_ledger(grid.results, new=True)
    missing = grid.missing(ledger)
    if as_json:
        paths = {task: str(entry_path(grid.results, task)) for task in grid.tasks}
        finished = [path for task, path in paths.items() if task not in missing]
        return show({"done": finished, "missing": [paths[task] for task in missing]}, None, True)
    title = f"{len(grid.tasks) - len(missing)} of {len(grid.tasks)} are in {grid.results}, in the order of training"
    table = Table("dataset", "shots", "variant", "recipe", "seed", "", title=title, title_justify="left")
    for task in grid.tasks:
        cell = task.cell
        state = "missing" if task not in ledger else key_measures(ledger[task].measures, None)
        variant = f"{cell.variant}, {' and '.join(cell.relations)}" if cell.relations else cell.variant
        table.add_row(cell.dataset, str(cell.shots), variant, task.recipe, str(task.seed), state)
    return show(None, table, False)
