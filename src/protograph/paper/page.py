"""The page on all results: what RESULTS.md says, and the paper's figures."""

from collections.abc import Mapping
from pathlib import Path

from protograph.data import find_root, find_source, open_dataset
from protograph.document import Block, Heading, Paragraph, Picture, plain
from protograph.errors import InputError
from protograph.figures import drawn
from protograph.paper.grid import Task
from protograph.paper.ledger import Entry, read_ledger, read_notes, scores
from protograph.paper.plots import fullest_recipe, listed, missing_shots, semantic_figure, shots_figure
from protograph.paper.published import PAPER_DATASETS
from protograph.paper.table import document
from protograph.progress import Progress


def results_document(results: Path, root: Path | None, progress: Progress) -> list[Block]:
    """All of a ledger; the operators of datasets whose files are there, at `root` or where PROTOGRAPH_DATA says."""
    ledger = read_ledger(results)
    datasets = list(dict.fromkeys([*PAPER_DATASETS, *(task.cell.dataset for task in sorted(ledger))]))
    blocks = [*document(ledger, read_notes(results), results.resolve().name), Heading(2, "Figures")]
    for name in datasets:
        blocks += _shots(ledger, name)
    for name in datasets:
        blocks += _operators(name, root, progress)
    return blocks


def _shots(ledger: Mapping[Task, Entry], dataset: str) -> list[Block]:
    recipe = fullest_recipe(ledger, dataset)
    known = {cell: own for cell, own in scores(ledger, recipe).items() if cell.dataset == dataset}
    missing = missing_shots(known, dataset)
    if dataset != "cub" and len({cell.shots for cell in known}) < 3:  # two points are no curve
        return []
    said = f" Missing: {listed(missing)}." if missing else ""
    caption = f"Joint-Joint on {dataset} against the number of shots, by the `{recipe}` recipe.{said}"
    return [Picture(drawn(shots_figure(known, dataset), "svg"), "svg+xml", caption)]


def _operators(dataset: str, root: Path | None, progress: Progress) -> list[Block]:
    built_in = find_source(dataset).built_in
    if not built_in and find_root(root) is None:
        return [Paragraph(f"The operator of {dataset} is drawn where its files are: give `--root`.")]
    try:
        opened = open_dataset(dataset, None if built_in else root, progress)
    except InputError as error:
        return [Paragraph(f"The operator of {dataset} is drawn where its files are: {plain(str(error))}.")]
    return [
        Picture(
            drawn(semantic_figure(opened, relation, column=True), "svg"),
            "svg+xml",
            f"The operator that a fresh model makes of {dataset}'s {relation} in a test episode, similar classes side by side.",
        )
        for relation in opened.default_relations or ()
    ]
