"""The page on all results: what RESULTS.md says, and the paper's figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from protograph._internal.errors import InputError
from protograph._internal.progress import Progress
from protograph.data import find_root, find_source, open_dataset
from protograph.paper.grid import Task
from protograph.paper.ledger import Entry, read_ledger, read_notes, scores
from protograph.paper.plots import figure_cells, fullest_recipe, listed, missing_shots, semantic_figure, shots_figure
from protograph.paper.published import PAPER_DATASETS
from protograph.paper.table import STANDING, document
from protograph.report.document import Block, Figure, Heading, Paragraph, plain
from protograph.report.figures import drawn


def results_document(results: Path, root: Path | None, progress: Progress) -> list[Block]:
    """All of a ledger, with the figures before its tables.

    Operators are drawn of datasets whose files are there, at `root` or where PROTOGRAPH_DATA says. Of the paper's datasets
    nothing is said where all cells are of others.
    """
    ledger = read_ledger(results)
    own = dict.fromkeys(task.cell.dataset for task in sorted(ledger))
    datasets = own if own and not own.keys() & set(PAPER_DATASETS) else dict.fromkeys([*PAPER_DATASETS, *own])
    figures: list[Block] = [Heading(2, "Figures")]
    for name in datasets:
        figures += _shots(ledger, name)
    for name in datasets:
        figures += _operators(name, root, progress)
    blocks = document(ledger, read_notes(results), results.resolve().name)
    place = _after_standing(blocks)
    return [*blocks[:place], *figures, *blocks[place:]]


def _after_standing(blocks: Sequence[Block]) -> int:
    """Where the section behind the one on where we stand begins; without that one, the first section."""
    sections = [place for place, block in enumerate(blocks) if isinstance(block, Heading) and block.level == 2]
    ahead = [place for place in sections if blocks[place] != Heading(2, STANDING)]
    return ahead[0] if ahead else len(blocks)


def _shots(ledger: Mapping[Task, Entry], dataset: str) -> list[Block]:
    recipe = fullest_recipe(ledger, dataset)
    known = scores(ledger, recipe)
    missing = missing_shots(known, dataset)
    there = {cell.shots for cell in figure_cells(dataset) if cell in known}
    if len(there) < (1 if dataset == "cub" else 3):  # two points are no curve, but the paper has one of CUB
        return []
    said = f" Missing: {listed(missing)}." if missing else ""
    caption = (
        f"Joint-Joint on {dataset} against the number of shots, by the `{recipe}` recipe. Bars are 95 % intervals over test "
        f"episodes; dots are single seeds, where there are several.{said}"
    )
    return [Figure(drawn(shots_figure(known, dataset), "svg"), "svg+xml", caption)]


def _operators(dataset: str, root: Path | None, progress: Progress) -> list[Block]:
    built_in = find_source(dataset).built_in
    if not built_in and find_root(root) is None:
        return [Paragraph(f"The operator of {dataset} is drawn where its files are: give `--root`.")]
    try:
        opened = open_dataset(dataset, None if built_in else root, progress)
    except InputError as error:
        return [Paragraph(f"The operator of {dataset} is drawn where its files are: {plain(str(error))}.")]
    return [
        Figure(
            drawn(semantic_figure(opened, relation, column=True), "svg"),
            "svg+xml",
            f"The operator that a fresh model makes of {relation} in a test episode of {dataset}, similar classes side by "
            "side. The colours end where 99.5 % of the weights off the diagonal lie below.",
        )
        for relation in opened.default_relations or ()
    ]
