"""The cells of the tables and figures, and the order in which they are trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from protograph._internal.errors import InputError, unknown_name
from protograph.data import find_source
from protograph.paper.published import (
    FEW_SHOT_VARIANT_OF,
    PAPER_DATASETS,
    TITLES,
    UNPUBLISHED,
    VARIANT_OF,
    Cell,
    gfsl_rows,
    published,
)
from protograph.training.recipes import default_recipe_name, find_recipe
from protograph.training.run_folder import run_path
from protograph.variants import find_variant

SHOTS = (1, 5)
# The cells that the paper argues with; they are the first to get further seeds.
KEY_CELLS = (
    *(Cell("mini-imagenet", shots, "gcgpn-aux-split") for shots in SHOTS),
    Cell("cub", 1, "gcgpn-aux"),
    Cell("cub", 1, "gcgpn-aux-fc"),
    Cell("cub", 5, "gcgpn-aux"),
    *(Cell(dataset, shots, "dfslwof-att") for dataset in PAPER_DATASETS for shots in SHOTS),
)
# The figure of Joint-Joint against K, and those of its cells that are in no table.
FIGURE_SHOTS = (1, 2, 3, 5, 10)
FIGURE_VARIANTS = ("gcgpn-aux", "gcgpn-aux-split", "gcgpn", "gcgpn-split", "gcgpn-cos-aux", "dfslwof-att")
FIGURE_CELLS = tuple(Cell("cub", k, variant) for k in FIGURE_SHOTS if k not in SHOTS for variant in FIGURE_VARIANTS)
# The study of side information, in one variant at one shot: relations by dataset, where () is the dataset's default.
STUDY_VARIANT = "gcgpn-aux"
STUDY_RELATIONS: dict[str, tuple[tuple[str, ...], ...]] = {
    "cub": ((), ("words",), ("tree",), ("attributes", "words", "tree")),
    "mini-imagenet": ((), ("names",), ("wordnet", "names")),
    "letters": ((), ("base",), ("accent",)),
}
STUDY_DEFAULT = {"cub": "attributes", "mini-imagenet": "wordnet", "letters": "base and accent"}
# Variants between the paper's baselines and GcGPN, at one shot. They show what the second stage, the metric and training bring.
RELATED_BASELINES = ("aux-only", "gcgpn-key", "dfslwof-avg", "pn+cos", "teen")
# The tables of --table that are not the paper's.
OTHER_TABLES = {
    "shots": "the figure of Joint-Joint against K",
    "relations": "other side information than the paper's",
    "baselines": "variants related to the paper's baselines",
    "few-shot": "the few-shot methods of the paper's comparison",
}


@dataclass(frozen=True, order=True)
class Task:
    """A cell to be trained by a recipe from a seed: one file of the ledger."""

    cell: Cell
    recipe: str
    seed: int

    @property
    def path(self) -> Path:
        """The path of its run below the folder of runs, and of its file below the ledger."""
        cell = self.cell
        return run_path(cell.dataset, cell.shots, cell.variant, self.recipe, self.seed, cell.relations)

    def __str__(self) -> str:
        return f"{self.cell} {self.recipe}-{self.seed}"


@dataclass(frozen=True)
class Selection:
    """The cells a user selects. An empty attribute selects all.

    Attributes:
        datasets: Names of datasets.
        shots: Values of K.
        variants: Names of variants.
        tables: Names of tables, the paper's or those of `OTHER_TABLES`.

    Raises:
        InputError: If a name is unknown or names no cell.

    """

    datasets: Sequence[str] = ()
    shots: Sequence[int] = ()
    variants: Sequence[str] = ()
    tables: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in self.datasets:
            find_source(name)
        for name in self.variants:
            if find_variant(name).objective == "classify":
                raise InputError(
                    f"'{name}' is the first stage of other variants and has no cell: leave it out, it is trained where needed"
                )
        for name in self.tables:
            if name not in (*TITLES, *OTHER_TABLES):
                raise unknown_name("table", name, (*TITLES, *OTHER_TABLES))
        if bad := [shots for shots in self.shots if shots < 1]:
            raise InputError(f"shots must be at least 1, not {bad[0]}")

    def includes(self, cell: Cell) -> bool:
        """Return whether a cell is selected."""
        return (
            (not self.datasets or cell.dataset in self.datasets)
            and (not self.shots or cell.shots in self.shots)
            and (not self.variants or cell.variant in self.variants)
            and (not self.tables or any(cell in table_cells(table, self.datasets) for table in self.tables))
        )

    def cells(self) -> list[Cell]:
        """Return the selected cells of the paper's tables and, for other datasets that are named, of the same grid on them.

        A variant that is named together with a dataset is a cell even if the paper does not have it; so is any K.
        """
        candidates = list(published()) + (list(FIGURE_CELLS) if self.shots else [])
        further = [name for name in self.datasets if name not in PAPER_DATASETS]
        if self.tables:
            candidates = [cell for table in self.tables for cell in table_cells(table, self.datasets)]
        else:
            candidates += [Cell(*key) for key in product(further, self.shots or SHOTS, self.variants or VARIANT_OF.values())]
            if self.datasets and self.variants:
                candidates += [Cell(*key) for key in product(self.datasets, self.shots or SHOTS, self.variants)]
        selected = list(dict.fromkeys(cell for cell in candidates if self.includes(cell)))
        if not selected:
            raise InputError("no cell of the paper's tables matches all options: leave one out, or name dataset and variant")
        return selected


def table_cells(table: str, datasets: Sequence[str] = ()) -> list[Cell]:
    """Return the cells of one of the paper's tables, or of a table of `OTHER_TABLES` on the given datasets."""
    if table == "shots":
        return [Cell(name, k, variant) for name in datasets or ("cub",) for k in FIGURE_SHOTS for variant in FIGURE_VARIANTS]
    if table == "relations":
        studied = [name for name in datasets or ("cub", "mini-imagenet") if name in STUDY_RELATIONS]
        return [Cell(name, 1, STUDY_VARIANT, relations) for name in studied for relations in STUDY_RELATIONS[name]]
    if table == "baselines":
        return [Cell(name, 1, variant) for name in datasets or PAPER_DATASETS for variant in RELATED_BASELINES]
    if table == "few-shot":
        methods = (*FEW_SHOT_VARIANT_OF.values(), *UNPUBLISHED.values())
        return [Cell(name, k, method) for k in SHOTS for name in datasets or PAPER_DATASETS for method in methods]
    of_table = {row.cell for row in gfsl_rows() if row.table == table}
    return [cell for cell in published() if cell in of_table]


def default_recipe(dataset: str) -> str:
    """Return the recipe that a dataset's cells are trained by if the user names none."""
    return "fast" if dataset in PAPER_DATASETS else default_recipe_name(dataset)


def plan_tasks(selection: Selection, recipe: str | None = None, seeds: int | None = None) -> list[Task]:
    """Return the tasks to run, the most informative first.

    If neither recipe nor seeds are given, the paper's datasets follow `grid_stages`, and any other dataset its own recipe
    from one seed.

    Args:
        selection: The cells.
        recipe: The recipe of all cells.
        seeds: The number of seeds of every cell.

    """
    cells = selection.cells()
    if recipe is not None:
        find_recipe(recipe)
    if seeds is not None and seeds < 1:
        raise InputError(f"seeds must be at least 1, not {seeds}")
    recipes = {cell: recipe or default_recipe(cell.dataset) for cell in cells}
    staged = recipe is None and seeds is None
    tasks = [task for stage in grid_stages().values() for task in stage if selection.includes(task.cell)] if staged else []
    return list(dict.fromkeys(tasks + _in_order(recipes, seeds or 1)))


def _in_order(recipes: Mapping[Cell, str], seeds: int) -> list[Task]:
    """Return every cell once, then its further seeds, those of the key cells before the others."""
    groups = [cell for cell in recipes if cell in KEY_CELLS], [cell for cell in recipes if cell not in KEY_CELLS]
    first = [Task(cell, recipe, 0) for cell, recipe in recipes.items()]
    return first + [Task(cell, recipes[cell], seed) for group in groups for seed in range(1, seeds) for cell in group]


def grid_stages() -> dict[str, list[Task]]:
    """Return the full plan by title: first the tasks that the paper's claims rest on, then those beyond the paper."""
    tables = list(published())
    rest = [cell for cell in tables if cell not in KEY_CELLS]
    return {
        "every cell of the paper once": [Task(cell, "fast", 0) for cell in tables],
        "two more seeds of the key cells, which the paper argues with": [
            Task(cell, "fast", seed) for seed in (1, 2) for cell in KEY_CELLS
        ],
        "the key cells by the paper recipe": [Task(cell, "paper", 0) for cell in KEY_CELLS],
        "the further K of the paper's figure": [Task(cell, "fast", 0) for cell in FIGURE_CELLS],
        "two more seeds of the other cells": [Task(cell, "fast", seed) for seed in (1, 2) for cell in rest],
        "other side information": [Task(cell, "fast", 0) for cell in table_cells("relations") if cell.relations],
        "variants related to the baselines": [Task(cell, "fast", 0) for cell in table_cells("baselines")],
        "every cell by the strong recipe": [Task(cell, "strong", 0) for cell in tables],
    }
