"""protograph figures"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from protograph._internal.errors import InputError, unknown_name
from protograph.cli.display import ShownProgress, escape, reported, show
from protograph.cli.options import AsJson, Root
from protograph.data import find_source, open_dataset
from protograph.paper.grid import Task
from protograph.paper.ledger import Entry, read_ledger, scores
from protograph.paper.plots import fullest_recipe, missing_shots, missing_text, semantic_figure, shots_figure
from protograph.paper.published import PAPER_DATASETS, UNPUBLISHED, Cell
from protograph.paper.tables import PUBLISHED, Row, few_shot_table_rows, published_statistics
from protograph.report.figures import save
from protograph.training.recipes import RECIPES

FIGURES = ("shots", "few-shot", "operators")
LEGEND = (
    "±: 95 % interval over episodes; for several seeds, their standard deviation. Other batch norm: where a method was "
    "published with the statistics of all queries together, those of the support or of training in their place, or the reverse"
)


@dataclass
class FigureWriter:
    """Draws figures into a folder and remembers what it wrote.

    Attributes:
        out: The folder.
        progress: Shows what was written and what is missing.
        answer: The files, the missing cells and the rows of tables, as JSON values.

    """

    out: Path
    progress: ShownProgress
    answer: dict[str, Any] = field(default_factory=lambda: {"files": [], "missing": []})

    def save(self, figure: Any, name: str) -> None:
        """Write a figure as PNG and PDF."""
        path = self.out / name
        save(figure, path)
        self.answer["files"] += [f"{path}.png", f"{path}.pdf"]
        self.progress.say(f"wrote {path}.png and .pdf")

    def draw_shots(self, ledger: Mapping[Task, Entry], dataset: str, recipe: str | None) -> None:
        """Draw Joint-Joint against K, and name the cells that are missing."""
        known = scores(ledger, recipe or fullest_recipe(ledger, dataset))
        self.save(shots_figure(known, dataset), f"shots-{dataset}")
        if missing := missing_shots(known, dataset):
            self.answer["missing"] += [str(cell) for cell in missing]
            command = f"`protograph reproduce --table shots --dataset {dataset}` runs them"
            self.progress.say(f"missing in shots-{dataset}: {missing_text(missing)}; {command}")

    def draw_operators(self, dataset: str, root: Path | None) -> None:
        """Draw the operators of a dataset's default relations, each in full size and for one column."""
        opened = open_dataset(dataset, None if find_source(dataset).built_in else root, self.progress)
        for relation in opened.default_relations or ():
            for column, suffix in ((False, ""), (True, "-column")):
                self.save(semantic_figure(opened, relation, column=column), f"operator-{dataset}-{relation}{suffix}")

    def tabulate_few_shot(self, ledger: Mapping[Task, Entry], recipe: str | None, as_json: bool) -> None:
        """Print Novel-Novel beside few-shot methods, unless the answer is JSON."""
        recipes = [recipe] if recipe else list(RECIPES)
        rows = list(few_shot_table_rows(ledger, recipes))
        self.answer["few-shot"] = rows
        for shots, caption in ((1, None), (5, LEGEND)) if not as_json else ():
            of_shots = [row for row in rows if row["shots"] == shots]
            title = f"{shots}-shot 5-way Novel-Novel on miniImageNet beside few-shot methods"
            show(None, few_shot_table(of_shots, title, caption), False)


@reported
def figures_command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FIGURE]...",
            help="shots: Joint-Joint against K; few-shot: a table of Novel-Novel beside few-shot methods; operators: the "
            "relations of the datasets as heat maps, which needs the datasets' files. (default: all)",
            show_default=False,
        ),
    ] = None,
    results: Annotated[Path, typer.Option(help="The folder of the ledger that `protograph reproduce` fills.")] = Path(
        "results"
    ),
    out: Annotated[Path, typer.Option(help="The folder for the figures, each as PNG and PDF.")] = Path("figures"),
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="Only this dataset; repeatable. (default: cub; operators: the paper's two)", show_default=False),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help=f"The recipe: {', '.join(RECIPES)}. (default: the one with most cells)")
    ] = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Draw the paper's figures from the ledger, and name the cells that are missing.

    Examples:
        protograph figures shots
        protograph figures operators --dataset letters
    """
    chosen = names or FIGURES
    check_options(chosen, dataset or (), recipe, root)
    writer = FigureWriter(out, ShownProgress(quiet=as_json))
    ledger = read_ledger(results)
    if "shots" in chosen:
        for name in dataset or ("cub",):
            writer.draw_shots(ledger, name, recipe)
    if "few-shot" in chosen:
        writer.tabulate_few_shot(ledger, recipe, as_json)
    if "operators" in chosen:
        for name in dataset or PAPER_DATASETS:
            writer.draw_operators(name, root)
    if as_json:
        show(writer.answer, None, True)


def check_options(chosen: Sequence[str], datasets: Sequence[str], recipe: str | None, root: Path | None) -> None:
    """Refuse unknown names, and options that the chosen figures do not use."""
    for name in chosen:
        if name not in FIGURES:
            raise unknown_name("figure", name, FIGURES)
    for name in datasets:
        find_source(name)
    if recipe is not None and recipe not in RECIPES:
        raise unknown_name("recipe", recipe, RECIPES)
    uses = {
        "recipe": (recipe, ("shots", "few-shot")), "dataset": (datasets, ("shots", "operators")),
        "root": (root, ("operators",)),
    }  # fmt: skip
    for option, (value, users) in uses.items():
        if value and not set(chosen) & set(users):
            raise InputError(f"--{option} would be ignored without {' or '.join(users)}: leave it out")


def few_shot_table(rows: Sequence[Row], title: str, caption: str | None = None) -> Table:
    """Return the rows of one K as a table for the terminal: a line for each method, a column for each source of numbers.

    Ours stand in the column of a recipe with batch norm as in the published number, and in another one with other statistics.
    """
    ours = [name for name in RECIPES if any(row["recipe"] == name for row in rows)]
    chosen = any(row["recipe"] in ours and row["statistics"] for row in rows)
    table = Table("method", "kind", title=title, title_justify="left", caption=caption, caption_justify="left")
    headings = [PUBLISHED, *(f"ours by {name}" for name in ours)]
    for heading in [*headings, *(f"by {name}, other batch norm" for name in ours if chosen)]:
        table.add_column(heading, justify="right", overflow="fold")
    for method in dict.fromkeys(row["method"] for row in rows):
        of_method = [row for row in rows if row["method"] == method]
        quoted = next((row for row in of_method if row["recipe"] == PUBLISHED), None)
        alike = quoted["statistics"] if quoted else published_statistics(Cell("", 0, UNPUBLISHED[str(method)]))
        like = {row["recipe"]: number_text(row) for row in of_method if row["statistics"] in ("", alike)}
        other = {row["recipe"]: number_text(row) for row in of_method if row["statistics"] not in ("", alike)}
        texts = [like.get(name, "") for name in (PUBLISHED, *ours)] + [other.get(name, "") for name in ours if chosen]
        table.add_row(escape(str(method)), str(of_method[0]["kind"]), *texts)
    return table


def number_text(row: Row) -> str:
    """Return a mean with its deviation between seeds or, for one seed, with its interval where that is known."""
    spread = row["deviation_of_seeds"] or row["ci95"]
    return f"{row['mean']} ± {spread}" if spread else str(row["mean"])
