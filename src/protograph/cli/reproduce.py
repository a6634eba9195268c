"""protograph reproduce"""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from protograph._internal.errors import InputError, unknown_name
from protograph.cli.display import ShownProgress, reported, show
from protograph.cli.jobs import Engine, Processes, run_each
from protograph.cli.options import RECIPE_SETTINGS, AsJson, Device, Root, find_device, parse_changes
from protograph.data import find_source, open_dataset
from protograph.paper.conclusions import conclusions, summary
from protograph.paper.grid import OTHER_TABLES, Selection, plan
from protograph.paper.ledger import entry_path, locked, read_ledger, table_path
from protograph.paper.published import TITLES
from protograph.paper.reproduce import Grid, beside, reproduce
from protograph.paper.table import write_table
from protograph.training.config import RECIPES

ENGINES = ("local", "ray")


@reported
def reproduce_command(
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="Only this dataset; repeatable. letters run the same grid on a CPU. (default: the paper's two)"),
    ] = None,
    shots: Annotated[
        list[int] | None, typer.Option(help="Only this K; repeatable. (default: 1 and 5)", show_default=False)
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(help="Only this model, see `protograph variants`; repeatable. (default: those of the tables)"),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Only the cells of this table: {', '.join(TITLES)} of the paper's, "
            + ", ".join(f"{name} ({what})" for name, what in OTHER_TABLES.items())
            + "; repeatable. (default: the paper's)"
        ),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help=f"How to train: {', '.join(RECIPES)}. (default: fast; letters: demo)")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="How many seeds of every cell. (default: 1; with neither --recipe nor --seeds, first every cell once, then "
            "the further seeds and the paper recipe, the cells the paper argues with before the others, and the strong recipe "
            "last)",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(help="How many runs at once; with --engine ray, on each GPU.", min=1)] = 1,
    root: Root = None,
    results: Annotated[
        Path, typer.Option(help="Folder of the ledger. Its tables are written beside it: of results, RESULTS.md.")
    ] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Folder for the run folders.")] = Path("runs"),
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help=f"Change a setting of the recipe wherever it has a use, such as --set epochs=5; repeatable. {RECIPE_SETTINGS}",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="Where to run: local, or ray for the cluster that RAY_ADDRESS names, with shared folders.")
    ] = "local",
    device: Device = "auto",
    listing: Annotated[bool, typer.Option("--list", help="Only say what is done and what is missing.")] = False,
    table_only: Annotated[bool, typer.Option("--table-only", help="Only write RESULTS.md from the ledger.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train the paper's tables, or any part of them, and put the numbers beside the published ones.

    Every cell that is finished is kept under --results; RESULTS.md beside it has the tables and what they say of the paper's
    conclusions. The same command goes on where it was interrupted and skips what is done. A run that fails does not stop the
    others.
    """  # fmt: skip
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    if table_only:
        given = {
            "dataset": dataset, "shots": shots, "variant": variant, "table": table, "recipe": recipe, "seeds": seeds,
            "root": root, "set": change, "list": listing, "jobs": jobs > 1, "engine": engine != "local",
            "device": device != "auto",
        }  # fmt: skip
        for name, value in given.items():
            if value:
                raise InputError(f"--{name} would be ignored with --table-only: leave it out")
        path = write_table(results, read_ledger(results))
        return show({"table": str(path)}, None, as_json) if as_json else print(path)
    selection = Selection(dataset or (), shots or (), variant or (), table or ())
    if engine == "local" and not listing:  # once, so that no run takes the CPU if the GPU breaks down on the way
        device = str(find_device(device))
    grid = Grid(plan(selection, recipe, seeds), results, runs, parse_changes(change), root, device)
    datasets = dict.fromkeys(task.cell.dataset for task in grid.tasks)
    if root and all(find_source(name).built_in for name in datasets):
        raise InputError(f"{' and '.join(datasets)} are built in: leave out --root")
    if listing:
        return show_list(grid, as_json)
    progress = ShownProgress(quiet=as_json)
    with locked(results):
        ledger = read_ledger(results)
        needed = {task.cell.dataset for task in grid.missing(ledger)}
        for name in datasets:
            if name in needed or root:  # decoded once, before many need it
                opened = open_dataset(name, None if find_source(name).built_in else root, progress)
                grid.check_images(ledger, opened)
        where = open_engine(engine, jobs, device, progress)
        failures = reproduce(
            grid, ledger, lambda commands, done, failed, after: run_each(commands, where, done, failed, after), progress
        )
    if as_json:
        show(
            {"done": len(grid.tasks) - len(grid.missing(ledger)), "failed": failures, "table": str(table_path(results))},
            None,
            True,
        )
    else:
        print("\n".join([*summary(conclusions(ledger)), str(table_path(results))]))
    if failures:
        reasons = "; ".join(f"{name}: {reason.rstrip('.')}" for name, reason in failures.items())
        cells = sum(str(task) in failures for task in grid.tasks)
        others = "" if cells == len(grid.tasks) else "; the others are recorded"
        raise InputError(
            f"{cells} of {len(grid.tasks)} cells failed ({reasons}){others}: mend it and run the same command again"
        )
    return None


def open_engine(name: str, jobs: int, device: str, progress: ShownProgress) -> Engine:
    """The engine of that name."""
    if name == "local":
        return Processes(jobs, progress)
    from protograph.cli.cluster import Cluster

    return Cluster(jobs, device)


def show_list(grid: Grid, as_json: bool) -> None:
    """What is done, with its numbers, and what is missing."""
    ledger = read_ledger(grid.results, new=True)
    missing = grid.missing(ledger)
    if as_json:
        return show(
            {
                "done": [str(entry_path(grid.results, task)) for task in grid.tasks if task not in missing],
                "missing": [str(entry_path(grid.results, task)) for task in missing],
            },
            None,
            True,
        )
    title = f"{len(grid.tasks) - len(missing)} of {len(grid.tasks)} are in {grid.results}, in the order in which they are run"
    listed = Table("dataset", "shots", "variant", "recipe", "seed", "", title=title, title_justify="left")
    for task in grid.tasks:
        cell = task.cell
        state = "missing" if task not in ledger else beside(ledger[task].measures, None)
        variant = f"{cell.variant}, {' and '.join(cell.relations)}" if cell.relations else cell.variant
        listed.add_row(cell.dataset, str(cell.shots), variant, task.recipe, str(task.seed), state)
    return show(None, listed, False)
