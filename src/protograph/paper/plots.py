"""The paper's figures: Joint-Joint against the number of shots, and the semantic operators."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from protograph.data import Dataset
from protograph.episodes import sample
from protograph.evaluation.metrics import EVALUATION_SEED, evaluation_spec
from protograph.nn.operators import Context, SideInformation, Softmax
from protograph.paper.grid import FIGURE_SHOTS, FIGURE_VARIANTS, Task, default_recipe
from protograph.paper.ledger import Entry, scores
from protograph.paper.published import MODEL_OF, PAPER_DATASETS, Cell, published
from protograph.paper.statistics import Scores
from protograph.relations import check_similarities
from protograph.report.figures import COLUMN, similarity_figure
from protograph.training.recipes import RECIPES

# Each variant has its own colour, marker and line style, so that the lines differ for colour-blind readers and in grey.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#000000")
STYLES: dict[str, dict[str, Any]] = {
    variant: {"color": colour, "marker": marker, "linestyle": line, "linewidth": 1}
    for variant, colour, marker, line in zip(
        FIGURE_VARIANTS, _COLOURS, "os^vDX", ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), "-"), strict=True
    )
}
HOLLOW: dict[str, Any] = {
    "marker": "o", "linestyle": "", "markersize": 6, "markerfacecolor": "none", "markeredgewidth": 0.8,
}  # fmt: skip
BAR: dict[str, Any] = {"marker": "|", "linestyle": "", "markersize": 8, "markeredgewidth": 0.8}
SEED: dict[str, Any] = {"marker": "o", "linestyle": "", "markersize": 2, "markeredgewidth": 0, "alpha": 0.7}


def figure_cells(dataset: str) -> list[Cell]:
    """Return the cells of the figure of Joint-Joint against K."""
    return [Cell(dataset, shots, variant) for shots in FIGURE_SHOTS for variant in FIGURE_VARIANTS]


def missing_shots(known: Mapping[Cell, Scores], dataset: str = "cub") -> list[Cell]:
    """Return the cells of the figure that are not known."""
    return [cell for cell in figure_cells(dataset) if cell not in known]


def missing_text(missing: Sequence[Cell]) -> str:
    """Return missing cells of the figure as text, by K."""
    by_shots: dict[int, list[str]] = {}
    for cell in missing:
        by_shots.setdefault(cell.shots, []).append(cell.variant)
    return "; ".join(
        f"{shots}-shot {'all' if len(variants) == len(FIGURE_VARIANTS) else ', '.join(variants)}"
        for shots, variants in by_shots.items()
    )


def fullest_recipe(ledger: Mapping[Task, Entry], dataset: str) -> str:
    """Return the recipe with the most cells of a dataset's figure; the default one, if several have as many."""
    counts = {recipe: -len(missing_shots(scores(ledger, recipe), dataset)) for recipe in (default_recipe(dataset), *RECIPES)}
    return max(counts, key=lambda recipe: counts[recipe])


def shots_figure(known: Mapping[Cell, Scores], dataset: str = "cub") -> Figure:
    """Draw Joint-Joint against the number of shots.

    Each point is the mean over seeds with its 95 % interval over test episodes; dots are single seeds, and hollow markers are
    the paper's numbers. Cells that are not known are left out.
    """
    with matplotlib.rc_context({"font.size": 8, "xtick.labelsize": 7, "ytick.labelsize": 7}):
        figure, axes = plt.subplots(figsize=(COLUMN, 3.3), layout="constrained")
        for index, variant in enumerate(FIGURE_VARIANTS):
            shift = 1.04 ** (index - 2.5)  # side by side, so that intervals do not overlap
            _draw_line(axes, known, dataset, variant, shift)
        axes.set_xscale("log")
        axes.set_xticks(FIGURE_SHOTS, [str(shots) for shots in FIGURE_SHOTS], minor=False)
        axes.set_xticks([], minor=True)
        axes.set_xlim(0.85, 11.8)
        axes.set(xlabel="shots K", ylabel="Joint-Joint [%]")
        axes.grid(alpha=0.3, linewidth=0.5)
        handles = [Line2D([], [], markersize=4, label=MODEL_OF[variant], **STYLES[variant]) for variant in FIGURE_VARIANTS]
        handles.append(Line2D([], [], color="0.3", label="bars: 95 % over episodes", **BAR))
        if any(len(known[cell]["joint_joint"].values) > 1 for cell in figure_cells(dataset) if cell in known):
            handles.append(Line2D([], [], color="0.3", label="dots: single seeds", **SEED))
        if dataset in PAPER_DATASETS:
            handles.append(Line2D([], [], color="0.3", label="hollow: the paper", **HOLLOW))
        figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=7, frameon=False, handlelength=3.2)
    return figure


def _draw_line(axes: Axes, known: Mapping[Cell, Scores], dataset: str, variant: str, shift: float) -> None:
    cells = {k: Cell(dataset, k, variant) for k in FIGURE_SHOTS}
    points = {k * shift: known[cell]["joint_joint"] if cell in known else None for k, cell in cells.items()}
    means = [score.mean if score else math.nan for score in points.values()]  # the line has a gap where a cell is not known
    intervals = [score.ci95 if score else math.nan for score in points.values()]
    axes.errorbar(list(points), means, intervals, markersize=4, elinewidth=0.8, capsize=1.5, **STYLES[variant])
    seeds = [(k, value) for k, score in points.items() if score and len(score.values) > 1 for value in score.values]
    axes.plot([1.018 * k for k, _ in seeds], [value for _, value in seeds], color=STYLES[variant]["color"], **SEED)
    paper = {k * shift: published()[cell]["joint_joint"].mean for k, cell in cells.items() if cell in published()}
    axes.plot(list(paper), list(paper.values()), **{**STYLES[variant], **HOLLOW, "marker": STYLES[variant]["marker"]})


def semantic_figure(dataset: Dataset, relation: str, ways: int = 5, column: bool = False) -> Figure:
    """Draw the semantic operator of a relation for the first test episode, before training: at temperature 1."""
    spec = evaluation_spec(dataset, "test", ways, 1, 1)
    episode = sample(spec, EVALUATION_SEED, 0)
    similarities = check_similarities(dataset.relations[relation].similarities(dataset.classes), dataset.classes, relation)
    operator = semantic_operator(similarities, episode.classes, episode.seen)
    names = [dataset.title(int(class_id)) for class_id in episode.classes[0]]
    title = f"{dataset.name}, {relation}" if column else f"{dataset.name}: operator of '{relation}' at temperature 1"
    return similarity_figure(operator, names, episode.seen, title, "weight", column)


@torch.inference_mode()
def semantic_operator(similarities: Tensor, classes: Tensor, seen: int) -> Tensor:
    """Return the operator [V, V] of an untrained model from similarities [C, C], for an episode of `classes` [1, V]."""
    prototypes = torch.zeros(1, classes.shape[1], 1)
    support = torch.zeros(1, classes.shape[1] - seen, 1, 1)
    context = Context(prototypes, support, torch.ones(support.shape[:3], dtype=torch.bool), classes, seen)
    (weights,) = Softmax(SideInformation(similarities), "semantic").weights(context)
    return weights.dense(classes.shape[1]).reshape(classes.shape[1], -1)
