"""Figures of a run (learning curves, one test episode, the operator of that episode) and of similarities."""

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

matplotlib.use("Agg")
matplotlib.rcParams["text.parse_math"] = False  # a class name may hold dollar signs

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from protograph._internal.files import write_atomically
from protograph.data import Dataset, ImageStore
from protograph.episodes import Episodes, sample
from protograph.evaluation.metrics import EVALUATION_SEED, PAPER_MEASURES, evaluation_spec, extract
from protograph.nn.model import EpisodeModel, GraphPrototypeNetwork
from protograph.nn.operators import Context, Operator
from protograph.training.run_config import RunConfig
from protograph.training.run_folder import Run

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # colour-blind readers can tell these apart, and in grey
RIGHT, WRONG = "#009e73", "#d55e00"
COLUMN = 3.3  # inches of a column of text
SMALL = 7  # points, the smallest readable size

Histories = Mapping[str, list[dict[str, Any]]]  # by run: the lines of epochs.jsonl


def draw_curves(histories: Histories, path: Path) -> None:
    """Draw training loss and validation H-Mean by epoch, one line per run."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    _draw_loss(left, histories)
    _draw_validation(right, histories)
    save(figure, path)


def curves(histories: Histories) -> list[Figure]:
    """Return training loss and validation H-Mean as two figures, for pages too narrow to show them side by side."""
    figures = []
    for draw in (_draw_loss, _draw_validation):
        figure, axes = plt.subplots(figsize=(4.6, 3.2), layout="constrained")
        draw(axes, histories)
        figures.append(figure)
    return figures


def _draw_loss(axes: Axes, histories: Histories) -> None:
    for (name, history), colour in zip(histories.items(), COLOURS * len(histories), strict=False):
        losses = [epoch["loss"] for epoch in history]
        axes.plot([epoch["epoch"] for epoch in history], losses, color=colour, marker="o", markersize=3, label=name)
    _finish_curve(axes, "training loss")


def _draw_validation(axes: Axes, histories: Histories) -> None:
    joint = all("h_mean" in epoch["validation"] for history in histories.values() for epoch in history)
    measure = "h_mean" if joint else "novel_novel"  # some models classify among novel classes alone
    for (name, history), colour in zip(histories.items(), COLOURS * len(histories), strict=False):
        epochs = [epoch["epoch"] for epoch in history]
        means, spread = (np.array([epoch["validation"][measure][key] for epoch in history]) for key in ("mean", "ci95"))
        axes.plot(epochs, means, color=colour, marker="o", markersize=3, label=name)
        axes.fill_between(epochs, means - spread, means + spread, color=colour, alpha=0.2, linewidth=0)
    _finish_curve(axes, f"validation {PAPER_MEASURES[measure]} [%]")
    axes.legend(frameon=False)


def _finish_curve(axes: Axes, label: str) -> None:
    axes.set(xlabel="epoch", ylabel=label)
    axes.grid(alpha=0.3)
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)


@torch.inference_mode()
def draw_episode(model: GraphPrototypeNetwork, dataset: Dataset, config: RunConfig, path: Path, queries: int = 6) -> None:
    """Draw one test episode: the examples of each novel class, and queries with their answers in the joint label space."""
    episode, context = _test_episode(model, dataset, config)
    features = extract(model, dataset.store, episode.queries[0])
    logits = model.classifier(features[None], model.joint_prototypes(context))
    answers, targets = logits[0].argmax(-1), episode.targets[0]
    rows = list(range(episode.seen, episode.classes.shape[1]))
    per_class = len(targets) // 2 // len(rows)
    queries = min(queries, per_class)
    seen_queries = torch.arange(len(rows) * queries).view(len(rows), queries)
    shots = episode.support.shape[2]
    columns = shots + 2 * queries + 2  # a gap before each group of queries
    width, height = (0.95, 1.6) if _wordy(dataset) else (0.62, 0.92)  # of an image with its title
    figure, grid = plt.subplots(
        len(rows), columns, squeeze=False, figsize=(width * columns, height * len(rows) + 0.7), layout="constrained"
    )
    for axes in grid.flat:
        axes.axis("off")
    for line, row in enumerate(rows):
        first = len(targets) // 2 + line * per_class
        for shot in range(shots):
            _show(grid[line, shot], dataset, int(episode.support[0, line, shot]), _name(dataset, episode, row), "black")
        novel = range(first, first + queries)
        for group, shown in enumerate((novel, seen_queries[line].tolist())):
            for column, query in enumerate(shown):
                right = bool(answers[query] == targets[query])
                truth, answer = _name(dataset, episode, int(targets[query])), _name(dataset, episode, int(answers[query]))
                axes = grid[line, shots + 1 + group * (queries + 1) + column]
                _show(
                    axes,
                    dataset,
                    int(episode.queries[0, query]),
                    truth if right else f"{truth}{chr(10) if _wordy(dataset) else ''}→{answer}",
                    RIGHT if right else WRONG,
                )
    right_share = (answers == targets).float().mean()
    figure.suptitle(
        f"{config.variant}, {config.shots}-shot, one test episode among {len(episode.classes[0])} classes: "
        f"examples of the novel classes | queries of them | queries of seen classes\ngreen: right, orange: true→answered "
        f"({100 * right_share:.0f} % of all {len(targets)} right)",
        fontsize=8,
    )
    save(figure, path)


@torch.inference_mode()
def draw_operator(model: GraphPrototypeNetwork, dataset: Dataset, config: RunConfig, path: Path, strongest: int = 10) -> None:
    """Draw the learned operators of one test episode: their matrices, and the strongest relations of the novel classes.

    Each operator between classes has a row. A variant without such operators gets no figure.
    """
    episode, context = _test_episode(model, dataset, config)
    classes = episode.classes.shape[1]
    related: dict[str, Tensor] = {}
    for operator in model.operators:
        assert isinstance(operator, Operator)
        first, *rest = operator.labels
        label = first.rpartition("-")[0] if rest else first  # an operator split into blocks has a label for each
        if not label.startswith("identity"):
            parts = [weights.dense(classes).reshape(-1, classes, classes)[0] for weights in operator.weights(context)]
            related[label] = torch.stack(parts).sum(0)
    if not related:
        return
    figure, grid = plt.subplots(
        len(related), 2, figsize=(11, 4.6 * len(related)), layout="constrained", width_ratios=(1, 1.15), squeeze=False
    )
    for (left, right), (label, matrix) in zip(grid, related.items(), strict=True):
        _draw_matrix(left, matrix, episode.seen, f"operator '{label}', similar classes side by side (large values clipped)")
        _draw_strongest(right, matrix, episode, dataset, strongest)
    save(figure, path)


def _draw_matrix(axes: Axes, matrix: Tensor, seen: int, title: str) -> None:
    """Draw an operator with lines between seen and novel classes."""
    classes = len(matrix)
    order = side_by_side(matrix, seen)
    ordered = matrix[order][:, order]
    off_diagonal = ordered[~torch.eye(classes, dtype=torch.bool)]
    highest = float(off_diagonal.quantile(0.995))
    image = axes.imshow(ordered.numpy(), cmap="viridis", vmin=0, vmax=highest, interpolation="nearest")
    axes.axhline(seen - 0.5, color="white", linewidth=0.8)
    axes.axvline(seen - 0.5, color="white", linewidth=0.8)
    middle, end = seen / 2, seen + (classes - seen) / 2
    axes.set_xticks([middle, end], [f"{seen} seen", "novel"])
    axes.set_yticks([middle, end], ["seen", "novel"], rotation=90, va="center")
    axes.set_title(title, fontsize=9)
    axes.figure.colorbar(image, ax=axes, shrink=0.8, extend="max")


def _draw_strongest(axes: Axes, matrix: Tensor, episode: Episodes, dataset: Dataset, strongest: int) -> None:
    novel = matrix[episode.seen :]
    count = min(strongest, matrix.shape[1])
    values, columns = novel.topk(count, dim=1)
    axes.imshow(values.numpy(), cmap="viridis", vmin=0, aspect="auto")
    for row in range(len(novel)):
        for rank in range(count):
            dark = values[row, rank] > 0.6 * values.max()
            text = f"{_name(dataset, episode, int(columns[row, rank]))}\n{100 * values[row, rank]:.0f} %"
            size = 4.5 if _wordy(dataset) else 8
            axes.text(rank, row, text, ha="center", va="center", fontsize=size, color="black" if dark else "white")
    names = [_name(dataset, episode, episode.seen + row) for row in range(len(novel))]
    axes.set_yticks(range(len(novel)), names, fontsize=8 if _wordy(dataset) else 12)
    axes.set_xticks([])
    axes.set_title(f"the {count} strongest relations of each novel class", fontsize=9)


def draw_similarities(similarities: Tensor, names: Sequence[str], seen: int, path: Path, title: str) -> None:
    """Draw `similarity_figure` into a file."""
    save(similarity_figure(similarities, names, seen, title), path)


def similarity_figure(
    similarities: Tensor,
    names: Sequence[str],
    seen: int,
    title: str,
    label: str = "similarity",
    column: bool = False,
) -> Figure:
    """Return a figure of a similarity matrix, in which similar classes are side by side.

    The colours end at the quantile 99.5 % of the values off the diagonal; an arrow at the colour bar stands for larger values.
    Rows have names if there is room for them.

    Args:
        similarities: [V, V], dense or sparse, the S seen classes first.
        names: The V class names.
        seen: S.
        title: The title of the figure.
        label: The label of the colour bar.
        column: Whether the figure fits into a column of text. Then the novel classes and some of the seen ones have names.
    """
    matrix = similarities.to_dense()
    classes = len(names)
    order = side_by_side(matrix, seen)
    off_diagonal = matrix[~torch.eye(classes, dtype=torch.bool)]
    low, high = (float(off_diagonal.quantile(share)) for share in (0.0, 0.995)) if classes > 1 else (0.0, 1.0)
    named = classes <= 140  # beyond that a name would be too small to read
    size = max(0.13 * classes, 4.5) if named else 8
    small = SMALL if column else None
    figure, axes = plt.subplots(figsize=(COLUMN, 2.65) if column else (size + 2, size), layout="compressed")
    shown = matrix[order][:, order].numpy()
    image = axes.imshow(shown, cmap="viridis", vmin=low, vmax=max(high, low + 1e-6), interpolation="nearest")
    parts = [(start, stop, part) for start, stop, part in ((0, seen, "seen"), (seen, classes, "novel")) if stop > start]
    middles = [(start + stop - 1) / 2 for start, stop, _ in parts]
    labels = [f"{stop - start} {part}" for start, stop, part in parts] if len(parts) > 1 else [f"{classes} classes"]
    if len(parts) > 1:
        axes.axhline(seen - 0.5, color="white", linewidth=1)
        axes.axvline(seen - 0.5, color="white", linewidth=1)
    axes.set_xticks(middles, labels, fontsize=small)
    if column:
        _name_some(axes, [names[int(index)] for index in order], seen)
    elif named:
        axes.set_yticks(range(classes), [names[int(index)] for index in order], fontsize=min(60 * size / classes, 9))
    else:
        axes.set_yticks(middles, labels, rotation=90, va="center")
    axes.tick_params(length=2 if column else 0)
    axes.set_title(title, fontsize=8 if column else 9)
    position = {"location": "bottom", "aspect": 30} if column else {"location": "right"}
    clipped = shown.max() > image.get_clim()[1]
    bar = figure.colorbar(image, ax=axes, shrink=0.9 if column else 0.8, extend="max" if clipped else "neither", **position)
    bar.set_label(f"{label}, large ones clipped" if clipped else label, fontsize=small)
    bar.ax.tick_params(labelsize=small)
    return figure


def _name_some(axes: Axes, names: Sequence[str], seen: int) -> None:
    """Name rows of a matrix in a column of text: the novel classes, fanned out, and above them some of the seen ones."""
    classes = len(names)
    step = classes / 15  # rows to a line of letters
    novel = range(seen, classes, max(1, math.ceil((classes - seen) / 7)))
    heights = [(seen + classes - 1) / 2 + step * (line - (len(novel) - 1) / 2) for line in range(len(novel))]
    rows = [row for row in range(0, seen, math.ceil(step)) if row <= min(heights, default=classes) - step]
    axes.set_yticks(rows, [names[row] for row in rows], fontsize=SMALL)
    axes.tick_params(axis="y", pad=6)
    line = {"arrowstyle": "-", "linewidth": 0.5, "relpos": (1, 0.5), "patchA": None, "shrinkA": 1, "shrinkB": 0}
    looks: dict[str, Any] = {"arrowprops": line, "annotation_clip": False, "ha": "right", "va": "center", "fontsize": SMALL}
    for row, height in zip(novel, heights, strict=True):
        axes.annotate(names[row], (-0.5, row), (-8, height), textcoords=("offset points", "data"), **looks)


def draw_run(model: EpisodeModel, dataset: Dataset, run: Run) -> None:
    """Draw all figures of a finished run into its folder."""
    draw_curves({run.config.variant: run.history}, run.folder / "curves.png")
    if not isinstance(model, GraphPrototypeNetwork):  # a few-shot method has no operators and no joint prototypes to show
        return
    draw_operator(model, dataset, run.config, run.folder / "operator.png")
    if isinstance(dataset.store, ImageStore):
        draw_episode(model, dataset, run.config, run.folder / "episode.png")  # last: where it exists, all do


def _test_episode(model: GraphPrototypeNetwork, dataset: Dataset, config: RunConfig) -> tuple[Episodes, Context]:
    """Return the first test episode and its context for the operators. Model and images are on the CPU."""
    spec = evaluation_spec(dataset, "test", config.recipe.ways, config.shots, config.recipe.test_queries)
    episode = sample(spec, EVALUATION_SEED, 0)
    support = extract(model, dataset.store, episode.support.flatten()).view(*episode.support.shape, -1)
    return episode, model.context(support, episode.mask, episode.classes, episode.seen)


def side_by_side(matrix: Tensor, seen: int) -> Tensor:
    """Return an order [V] that puts similar classes next to each other: the S seen classes, then the novel ones."""
    symmetric = (matrix + matrix.T).double().numpy() / 2
    parts = [_clustered(symmetric[start:stop, start:stop]) for start, stop in ((0, seen), (seen, len(matrix)))]
    return torch.tensor([*parts[0], *(seen + index for index in parts[1])], dtype=torch.long)


def _clustered(similarity: NDArray[np.float64]) -> list[int]:
    """Return an order of classes, in which the groups of greatest mean similarity are joined first, at their similar ends."""
    mean, groups = similarity.copy(), [[index] for index in range(len(similarity))]
    np.fill_diagonal(mean, -np.inf)
    for _ in range(len(groups) - 1):
        low, high = sorted(divmod(int(mean.argmax()), len(mean)))
        left, right = groups[low], groups[high]
        joined = [(a, b) for a in (left, left[::-1]) for b in (right, right[::-1])]
        first, second = max(joined, key=lambda pair: similarity[pair[0][-1], pair[1][0]])
        row = (len(left) * mean[low] + len(right) * mean[high]) / (len(left) + len(right))
        groups[low] = first + second
        mean[low], mean[:, low] = row, row
        mean[high], mean[:, high], mean[low, low] = -np.inf, -np.inf, -np.inf
    return groups[0] if groups else []


def _show(axes: Axes, dataset: Dataset, image: int, title: str, colour: str) -> None:
    assert isinstance(dataset.store, ImageStore)
    pixels = dataset.store.pixels[image]
    shown = pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)
    axes.imshow(shown.numpy(), cmap="gray", vmin=0, vmax=255)
    axes.set_title(title, fontsize=6 if _wordy(dataset) else 8, color=colour, pad=2)


def _wordy(dataset: Dataset) -> bool:
    """Return whether class names are too long to stand side by side in a line."""
    return max(len(dataset.title(class_id)) for class_id in range(len(dataset.classes))) > 3


def _name(dataset: Dataset, episode: Episodes, row: int) -> str:
    """Return the name of a class of the episode, broken into short lines."""
    return textwrap.fill(dataset.title(int(episode.classes[0, row])), 13)


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of its path's suffix; without a suffix, as both .png and .pdf."""
    for suffix in [path.suffix] if path.suffix else [".png", ".pdf"]:
        write_atomically(path.with_name(path.name.removesuffix(suffix) + suffix), drawn(figure, suffix.removeprefix(".")))


def drawn(figure: Figure, kind: str) -> bytes:
    """Return a figure as a file of that format, the same bytes every time."""
    plt.close(figure)  # matplotlib keeps open ones
    content = io.BytesIO()
    dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    with matplotlib.rc_context({"svg.hashsalt": "protograph", "pdf.fonttype": 42}):
        figure.savefig(content, format=kind, dpi=300 if figure.get_figwidth() <= COLUMN else 150, metadata=dates.get(kind))
    return content.getvalue()
