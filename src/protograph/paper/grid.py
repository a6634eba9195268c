"""Which cells there are, and in which order they are run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from protograph._internal.errors import InputError, unknown_name
from protograph.data import find_source
from protograph.paper.published import PAPER_DATASETS, TITLES, VARIANT_OF, Cell, gfsl_rows, published
from protograph.training.config import find_recipe
from protograph.training.run import place
from protograph.variants import find_variant

SHOTS = (1, 5)
# The cells the paper argues with come first when seeds are added.
ARGUED = (
    *(Cell("mini-imagenet", shots, "gcgpn-aux-split") for shots in SHOTS),
    Cell("cub", 1, "gcgpn-aux"),
    Cell("cub", 1, "gcgpn-aux-fc"),
    Cell("cub", 5, "gcgpn-aux"),
    *(Cell(dataset, shots, "dfslwof-att") for dataset in PAPER_DATASETS for shots in SHOTS),
)
# The figure of Joint-Joint against K, and which of its cells no table has.
FIGURE_SHOTS = (1, 2, 3, 5, 10)
FIGURE_VARIANTS = ("gcgpn-aux", "gcgpn-aux-split", "gcgpn", "gcgpn-split", "gcgpn-cos-aux", "dfslwof-att")
FIGURE = tuple(Cell("cub", shots, variant) for shots in FIGURE_SHOTS if shots not in SHOTS for variant in FIGURE_VARIANTS)
# Which side information is worth how much, by dataset, in one variant at one shot; () is the dataset's own.
STUDY_VARIANT = "gcgpn-aux"
STUDY: dict[str, tuple[tuple[str, ...], ...]] = {
    "cub": ((), ("words",), ("tree",), ("attributes", "words", "tree")),
    "mini-imagenet": ((), ("names",), ("wordnet", "names")),
    "letters": ((), ("base",), ("accent",)),
}
STUDY_OWN = {"cub": "attributes", "mini-imagenet": "wordnet", "letters": "base and accent"}
# What is between the paper's baselines and GcGPN, at one shot: what the second stage gives, what the metric takes, what needs
# no training at all.
RELATIVES = ("aux-only", "gcgpn-key", "dfslwof-avg", "pn+cos", "teen")
# What --table takes beside the paper's own.
OTHER_TABLES = {
    "shots": "the figure of Joint-Joint against K",
    "relations": "other side information than the paper's",
    "baselines": "the relatives of the paper's baselines",
}


@dataclass(frozen=True, order=True)
class Task:
    """A cell to be trained by a recipe from a seed: one file of the ledger."""

    cell: Cell
    recipe: str
    seed: int

    @property
    def place(self) -> Path:
        """Where its run and its numbers belong, each in a folder of their own."""
        cell = self.cell
        return place(cell.dataset, cell.shots, cell.variant, self.recipe, self.seed, cell.relations)

    def __str__(self) -> str:
        return f"{self.cell} {self.recipe}-{self.seed}"


@dataclass(frozen=True)
class Selection:
    """Which cells a user asked for; what is empty asks for all."""

    datasets: Sequence[str] = ()
    shots: Sequence[int] = ()
    variants: Sequence[str] = ()
    tables: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in self.datasets:
            find_source(name)
        for name in self.variants:
            if find_variant(name).objective == "classify":
                raise InputError(f"'{name}' is the first stage of others and no cell: leave it out, it is trained where needed")
        for name in self.tables:
            if name not in (*TITLES, *OTHER_TABLES):
                raise unknown_name("table", name, (*TITLES, *OTHER_TABLES))
        if bad := [shots for shots in self.shots if shots < 1]:
            raise InputError(f"shots must be at least 1, not {bad[0]}")

    def has(self, cell: Cell) -> bool:
        """Whether the cell is asked for."""
        return (
            (not self.datasets or cell.dataset in self.datasets)
            and (not self.shots or cell.shots in self.shots)
            and (not self.variants or cell.variant in self.variants)
            and (not self.tables or any(cell in table_cells(table, self.datasets) for table in self.tables))
        )

    def cells(self) -> list[Cell]:
        """The cells asked for: of the paper's tables and, where a dataset is named, of the same grid on it.

        A variant named together with a dataset is a cell whether or not the paper has it; so is any K.
        """
        known = list(published()) + (list(FIGURE) if self.shots else [])
        others = [name for name in self.datasets if name not in PAPER_DATASETS]
        if self.tables:
            known = [cell for table in self.tables for cell in table_cells(table, self.datasets)]
        else:
            known += [Cell(*parts) for parts in product(others, self.shots or SHOTS, self.variants or VARIANT_OF.values())]
            if self.datasets and self.variants:
                known += [Cell(*parts) for parts in product(self.datasets, self.shots or SHOTS, self.variants)]
        found = list(dict.fromkeys(cell for cell in known if self.has(cell)))
        if not found:
            raise InputError("no cell of the paper's tables is all of this: leave an option out, or name dataset and variant")
        return found


def table_cells(table: str, datasets: Sequence[str] = ()) -> list[Cell]:
    """The cells of a table, one of the paper's or of ours; ours may be of other datasets, too."""
    if table == "shots":
        return [Cell(name, k, variant) for name in datasets or ("cub",) for k in FIGURE_SHOTS for variant in FIGURE_VARIANTS]
    if table == "relations":
        chosen = [name for name in datasets or ("cub", "mini-imagenet") if name in STUDY]
        return [Cell(name, 1, STUDY_VARIANT, relations) for name in chosen for relations in STUDY[name]]
    if table == "baselines":
        return [Cell(name, 1, variant) for name in datasets or PAPER_DATASETS for variant in RELATIVES]
    of_table = {row.cell for row in gfsl_rows() if row.table == table}
    return [cell for cell in published() if cell in of_table]


def usual_recipe(dataset: str) -> str:
    """What a dataset's cells are trained by unless told otherwise."""
    return "fast" if dataset in PAPER_DATASETS else find_source(dataset).recipe


def plan(selection: Selection, recipe: str | None = None, seeds: int | None = None) -> list[Task]:
    """What to run, the most telling first.

    With neither recipe nor seeds named, the paper's datasets follow `stages`, any other one its own recipe from one seed.
    """
    cells = selection.cells()
    if recipe is not None:
        find_recipe(recipe)
    if seeds is not None and seeds < 1:
        raise InputError(f"seeds must be at least 1, not {seeds}")
    recipes = {cell: recipe or usual_recipe(cell.dataset) for cell in cells}
    wide = recipe is None and seeds is None
    tasks = [task for stage in stages().values() for task in stage if selection.has(task.cell)] if wide else []
    return list(dict.fromkeys(tasks + in_order(recipes, seeds or 1)))


def in_order(recipes: Mapping[Cell, str], seeds: int) -> list[Task]:
    """Every cell once, by its recipe; then the further seeds, of the cells the paper argues with before the others."""
    further = [cell for cell in recipes if cell in ARGUED], [cell for cell in recipes if cell not in ARGUED]
    first = [Task(cell, recipe, 0) for cell, recipe in recipes.items()]
    return first + [Task(cell, recipes[cell], seed) for group in further for seed in range(1, seeds) for cell in group]


def stages() -> dict[str, list[Task]]:
    """All that the paper's claims rest on, and what goes beyond it, in the order in which it says most."""
    tables = list(published())
    rest = [cell for cell in tables if cell not in ARGUED]
    return {
        "every cell of the paper's once": [Task(cell, "fast", 0) for cell in tables],
        "two more seeds of the cells it argues with": [Task(cell, "fast", seed) for seed in (1, 2) for cell in ARGUED],
        "these by the paper recipe": [Task(cell, "paper", 0) for cell in ARGUED],
        "the further K of its figure": [Task(cell, "fast", 0) for cell in FIGURE],
        "two more seeds of the other cells": [Task(cell, "fast", seed) for seed in (1, 2) for cell in rest],
        "other side information": [Task(cell, "fast", 0) for cell in table_cells("relations") if cell.relations],
        "relatives of the baselines": [Task(cell, "fast", 0) for cell in table_cells("baselines")],
        "every cell by the strong recipe": [Task(cell, "strong", 0) for cell in tables],
    }
