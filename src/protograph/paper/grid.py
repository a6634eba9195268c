"""Which cells there are, and in which order they are run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from protograph.config import find_recipe
from protograph.data import find_source
from protograph.errors import InputError, unknown
from protograph.paper.published import TITLES, VARIANT_OF, Cell, gfsl_rows, published
from protograph.runs import place
from protograph.variants import find_variant

SHOTS = (1, 5)
# The cells the paper argues with come first when seeds are added.
ARGUED = (
    *(Cell("mini-imagenet", shots, "gcgpn-aux-split") for shots in SHOTS),
    Cell("cub", 1, "gcgpn-aux"),
    Cell("cub", 1, "gcgpn-aux-fc"),
    Cell("cub", 5, "gcgpn-aux"),
    *(Cell(dataset, shots, "dfslwof-att") for dataset in ("mini-imagenet", "cub") for shots in SHOTS),
)
# What the figure of Joint-Joint against K has beside the tables.
FIGURE = tuple(
    Cell("cub", shots, variant)
    for shots in (2, 3, 10)
    for variant in ("dfslwof-att", "gcgpn", "gcgpn-aux", "gcgpn-split", "gcgpn-aux-split", "gcgpn-cos-aux")
)


@dataclass(frozen=True, order=True)
class Task:
    """A cell to be trained by a recipe from a seed: one file of the ledger."""

    cell: Cell
    recipe: str
    seed: int

    @property
    def place(self) -> Path:
        """Where its run and its numbers belong, each in a folder of their own."""
        return place(self.cell.dataset, self.cell.shots, self.cell.variant, self.recipe, self.seed)

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
            if name not in TITLES:
                raise unknown("table", name, TITLES)
        if bad := [shots for shots in self.shots if shots < 1]:
            raise InputError(f"shots must be at least 1, not {bad[0]}")

    def has(self, cell: Cell) -> bool:
        """Whether the cell is asked for."""
        return (
            (not self.datasets or cell.dataset in self.datasets)
            and (not self.shots or cell.shots in self.shots)
            and (not self.variants or cell.variant in self.variants)
            and (not self.tables or any(row.cell == cell and row.table in self.tables for row in gfsl_rows()))
        )

    def cells(self) -> list[Cell]:
        """The cells asked for: of the paper's tables and, where a dataset is named, of the same grid on it.

        A variant named together with a dataset is a cell whether or not the paper has it; so is any K.
        """
        paper = {cell.dataset for cell in published()}
        known = list(published()) + (list(FIGURE) if self.shots else [])
        others = [name for name in self.datasets if name not in paper]
        if not self.tables:
            known += [Cell(*parts) for parts in product(others, self.shots or SHOTS, self.variants or VARIANT_OF.values())]
            if self.datasets and self.variants:
                known += [Cell(*parts) for parts in product(self.datasets, self.shots or SHOTS, self.variants)]
        found = list(dict.fromkeys(cell for cell in known if self.has(cell)))
        if not found:
            raise InputError("no cell of the paper's tables is all of this: leave an option out, or name dataset and variant")
        return found


def plan(selection: Selection, recipe: str | None = None, seeds: int | None = None) -> list[Task]:
    """What to run, the most telling first.

    With neither recipe nor seeds named, the paper's datasets follow `priorities`, any other one its own recipe from one seed.
    """
    cells = selection.cells()
    if recipe is not None:
        find_recipe(recipe)
    if seeds is not None and seeds < 1:
        raise InputError(f"seeds must be at least 1, not {seeds}")
    paper = {cell.dataset for cell in published()}
    recipes = {cell: recipe or ("fast" if cell.dataset in paper else find_source(cell.dataset).recipe) for cell in cells}
    wide = recipe is None and seeds is None
    tasks = [task for task in priorities() if selection.has(task.cell)] if wide else []
    return list(dict.fromkeys(tasks + in_order(recipes, seeds or 1)))


def in_order(recipes: Mapping[Cell, str], seeds: int) -> list[Task]:
    """Every cell once, by its recipe; then the further seeds, of the cells the paper argues with before the others."""
    further = [cell for cell in recipes if cell in ARGUED], [cell for cell in recipes if cell not in ARGUED]
    first = [Task(cell, recipe, 0) for cell, recipe in recipes.items()]
    return first + [Task(cell, recipes[cell], seed) for group in further for seed in range(1, seeds) for cell in group]


def priorities() -> list[Task]:
    """All that the paper's claims rest on, in the order in which it says most."""
    tables = list(published())
    argued = [Task(cell, "fast", seed) for seed in (1, 2) for cell in ARGUED]
    rest = [Task(cell, "fast", seed) for seed in (1, 2) for cell in tables if cell not in ARGUED]
    once = [Task(cell, "fast", 0) for cell in tables]
    return once + argued + [Task(c, "paper", 0) for c in ARGUED] + [Task(c, "fast", 0) for c in FIGURE] + rest
