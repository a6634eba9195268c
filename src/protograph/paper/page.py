"""The page on all results: RESULTS.md and the paper's figures."""

from collections.abc import Mapping
from pathlib import Path

from protograph._internal.errors import InputError
from protograph._internal.progress import Progress
from protograph.data import find_root, find_source, open_dataset
from protograph.paper.grid import Task
from protograph.paper.ledger import Entry, read_ledger, scores
from protograph.paper.plots import figure_cells, fullest_recipe, missing_shots, missing_text, semantic_figure, shots_figure
from protograph.paper.published import PAPER_DATASETS
from protograph.paper.summary import summary_blocks
from protograph.paper.verdicts import check_conclusions
from protograph.report.document import Block, Figure, Heading, Paragraph, plain_text
from protograph.report.figures import drawn


def results_document(results: Path, root: Path | None, progress: Progress) -> list[Block]:
    """Return the contents of the page on a ledger: RESULTS.md, and the figures behind it.

    If all cells are of other datasets than the paper's, the page does not mention the paper's datasets.

    Args:
        results: The folder of the ledger.
        root: The folder of the datasets' files; by default the variable PROTOGRAPH_DATA. Operators are drawn for datasets
            whose files are present.
        progress: Shows the progress of decoding.

    """
    ledger = read_ledger(results)
    present = dict.fromkeys(task.cell.dataset for task in sorted(ledger))
    datasets = present if present and not present.keys() & set(PAPER_DATASETS) else dict.fromkeys([*PAPER_DATASETS, *present])
    figures: list[Block] = [Heading(2, "Figures")]
    for name in datasets:
        figures += _shots(ledger, name)
    for name in datasets:
        figures += _operators(name, root, progress)
    return [*summary_blocks(ledger, check_conclusions(ledger), results), *figures]


def _shots(ledger: Mapping[Task, Entry], dataset: str) -> list[Block]:
    recipe = fullest_recipe(ledger, dataset)
    known = scores(ledger, recipe)
    missing = missing_shots(known, dataset)
    shots = {cell.shots for cell in figure_cells(dataset) if cell in known}
    if len(shots) < (1 if dataset == "cub" else 3):  # two points are no curve, but the paper has one of CUB
        return []
    lacking = f" Missing: {missing_text(missing)}." if missing else ""
    caption = (
        f"Joint-Joint on {dataset} against the number of shots, by the `{recipe}` recipe. Bars are 95 % intervals over test "
        f"episodes; dots are single seeds, for cells with several.{lacking}"
    )
    return [Figure(drawn(shots_figure(known, dataset), "svg"), "svg+xml", caption)]


def _operators(dataset: str, root: Path | None, progress: Progress) -> list[Block]:
    built_in = find_source(dataset).built_in
    if not built_in and find_root(root) is None:
        return [Paragraph(f"The operator of {dataset} is not drawn, since its files are missing: give `--root`.")]
    try:
        opened = open_dataset(dataset, None if built_in else root, progress)
    except InputError as error:
        return [Paragraph(f"The operator of {dataset} is not drawn, since its files are missing: {plain_text(str(error))}.")]
    return [
        Figure(
            drawn(semantic_figure(opened, relation, column=True), "svg"),
            "svg+xml",
            f"The operator of {relation} in a test episode of {dataset}, before training. Similar classes are side by side. "
            "The colour scale ends at the 99.5 % quantile of the weights off the diagonal.",
        )
        for relation in opened.default_relations or ()
    ]
