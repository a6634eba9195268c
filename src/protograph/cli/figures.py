"""protograph figures"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from protograph._internal.errors import InputError, unknown_name
from protograph.cli.display import ShownProgress, reported, show
from protograph.cli.options import AsJson, Root
from protograph.data import find_source, open_dataset
from protograph.paper.ledger import read_ledger, scores
from protograph.paper.plots import fullest_recipe, listed, missing_shots, semantic_figure, shots_figure
from protograph.paper.published import PAPER_DATASETS
from protograph.paper.table import few_shot_table
from protograph.report.document import MARKS
from protograph.report.document import Table as DocumentTable
from protograph.report.figures import save
from protograph.training.config import RECIPES

FIGURES = ("shots", "few-shot", "operators")
SIGNS = (
    "±: 95 % interval over episodes; of several seeds, their standard deviation\n"
    + ", ".join(f"{sign} {where}" for where, sign in MARKS.items())
    + " the paper's interval"
)


@reported
def figures_command(
    which: Annotated[
        list[str] | None,
        typer.Argument(
            help="shots: Joint-Joint against K; few-shot: Novel-Novel beside few-shot methods, as a table; operators: the "
            "relations of the datasets as heat maps, for which they are opened. (default: all)",
            show_default=False,
        ),
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder of the ledger that `protograph reproduce` fills.")] = Path("results"),
    out: Annotated[Path, typer.Option(help="Folder for the images, each as PNG and PDF.")] = Path("figures"),
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="Of which dataset; repeatable. (default: cub; operators: the paper's two)", show_default=False),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help=f"Of which recipe: {', '.join(RECIPES)}. (default: of which there is most)")
    ] = None,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Draw the paper's figures: those of numbers from the ledger, with what is missing left out and named."""
    for name in which or ():
        if name not in FIGURES:
            raise unknown_name("figure", name, FIGURES)
    for name in dataset or ():
        find_source(name)
    if recipe is not None and recipe not in RECIPES:
        raise unknown_name("recipe", recipe, RECIPES)
    chosen = which or FIGURES
    for option, value, users in (("recipe", recipe, ("shots", "few-shot")), ("dataset", dataset, ("shots", "operators"))):
        if value and not set(chosen) & set(users):
            raise InputError(f"--{option} would be ignored without {' or '.join(users)}: leave it out")
    if root and "operators" not in chosen:
        raise InputError("--root would be ignored without operators: leave it out")
    progress = ShownProgress(quiet=as_json)
    ledger = read_ledger(results)
    answer: dict[str, Any] = {"files": [], "missing": []}

    def wrote(path: Path) -> None:
        answer["files"] += [f"{path}.png", f"{path}.pdf"]
        progress.say(f"wrote {path}.png and .pdf")

    if "shots" in chosen:
        for name in dataset or ("cub",):
            known = scores(ledger, recipe or fullest_recipe(ledger, name))
            save(shots_figure(known, name), out / f"shots-{name}")
            wrote(out / f"shots-{name}")
            if missing := missing_shots(known, name):
                answer["missing"] += [str(cell) for cell in missing]
                way = f"`protograph reproduce --table shots --dataset {name}` runs them"
                progress.say(f"missing in shots-{name}: {listed(missing)}; {way}")
    if "few-shot" in chosen:
        by_recipe = {name: scores(ledger, name) for name in ([recipe] if recipe else RECIPES)}
        table = few_shot_table(by_recipe)
        answer["few-shot"] = [dict(zip(table.head, row, strict=True)) for row in table.rows]
        if not as_json:
            for shots, caption in ((1, None), (5, SIGNS)):
                title = f"{shots}-shot 5-way Novel-Novel on miniImageNet beside few-shot methods"
                show(None, as_table(of_shots(table, shots), title, caption), False)
    if "operators" in chosen:
        for name in dataset or PAPER_DATASETS:
            opened = open_dataset(name, None if find_source(name).built_in else root, progress)
            for relation in opened.default_relations or ():
                for column, size in ((False, ""), (True, "-column")):
                    path = out / f"operator-{name}-{relation}{size}"
                    save(semantic_figure(opened, relation, column=column), path)
                    wrote(path)
    if as_json:
        show(answer, None, True)


def of_shots(grid: DocumentTable, shots: int) -> DocumentTable:
    """Of a table with numbers for several K those for one, without columns that have none: this fits a terminal."""
    of_k = f", {shots}-shot"
    there = [any(row[place] for row in grid.rows) for place in range(len(grid.head))]
    names = [not right for right in grid.right]
    kept = grid.columns(place for place, text in enumerate(grid.head) if names[place] or (of_k in text and there[place]))
    return replace(kept, head=tuple(text.removesuffix(of_k) for text in kept.head))


def as_table(grid: DocumentTable, title: str, caption: str | None = None) -> Table:
    """A document's table for the terminal, bold where it is bold."""
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    for text, right in zip(grid.head, grid.right, strict=True):
        table.add_column(escape(text.replace("`", "")), justify="right" if right else "left", overflow="fold")
    for row in grid.rows:
        table.add_row(*(f"[bold]{escape(text.strip('*'))}[/]" if text.startswith("**") else escape(text) for text in row))
    return table
