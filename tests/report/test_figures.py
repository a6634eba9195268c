"""Orders and figures."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt

from protograph.report.figures import COLUMN, SMALL, curves, draw_curves, drawn, side_by_side, similarity_figure


def grouped(groups: int, size: int, seed: int) -> tuple[torch.Tensor, list[int]]:
    """Similarities of classes in shuffled groups, and the group of each."""
    generator = torch.Generator().manual_seed(seed)
    member = torch.arange(groups).repeat(size)[torch.randperm(groups * size, generator=generator)]
    noise = 0.1 * torch.rand(groups * size, groups * size, generator=generator)
    return (member[:, None] == member).float() + noise, member.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_similar_classes_stand_side_by_side_in_their_part(seed: int) -> None:
    matrix, member = grouped(4, 6, seed)
    seen = 17
    order = side_by_side(matrix, seen).tolist()
    assert sorted(order[:seen]) == list(range(seen))
    assert sorted(order[seen:]) == list(range(seen, 24))
    for part in (order[:seen], order[seen:]):
        runs = [group for group, _ in itertools.groupby(member[index] for index in part)]
        assert len(runs) == len(set(runs))  # no group is torn


def test_groups_are_joined_by_their_greatest_mean_similarity() -> None:
    # 0 and 2 are joined first, then 1 and 4; 3 is likest to the mean of {0, 2}, and lies beside 2, to which it is likest.
    similarity = np.array([
        [1.0, 0.1, 0.9, 0.4, 0.1],
        [0.1, 1.0, 0.1, 0.2, 0.8],
        [0.9, 0.1, 1.0, 0.6, 0.1],
        [0.4, 0.2, 0.6, 1.0, 0.3],
        [0.1, 0.8, 0.1, 0.3, 1.0],
    ])  # fmt: skip
    order = side_by_side(torch.tensor(similarity), 5).tolist()
    assert order in ([0, 2, 3, 4, 1], [1, 4, 3, 2, 0])


@pytest.mark.parametrize(("classes", "seen"), [(1, 1), (2, 1), (3, 0), (4, 4)])
def test_few_classes_have_an_order_too(classes: int, seen: int) -> None:
    assert sorted(side_by_side(torch.rand(classes, classes), seen).tolist()) == list(range(classes))


def test_dollar_signs_in_names_are_shown_as_they_are(tmp_path: Path) -> None:
    names = ["$\\nosuch{$", "a $ b $", "plain"]
    figure = similarity_figure(torch.eye(3), names, 2, "title")
    figure.savefig(tmp_path / "figure.png")  # parsed as mathematics, the first name would end the drawing
    shown = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert sorted(shown) == sorted(names)


def test_a_column_names_the_novel_classes_and_some_seen_ones_in_letters_that_can_be_read() -> None:
    names = [f"class {index}" for index in range(100)]
    matrix = torch.rand(100, 100)
    figure = similarity_figure(matrix, names, 95, "title", column=True)
    axes = figure.axes[0]
    assert figure.get_figwidth() == COLUMN
    ordered = [names[int(index)] for index in side_by_side(matrix, 95)]
    seen = {int(tick): label.get_text() for tick, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)}
    assert 8 <= len(seen) <= 15
    assert all(row < 95 and label == ordered[row] for row, label in seen.items())
    assert {text.xy[1]: text.get_text() for text in axes.texts} == {row: ordered[row] for row in range(95, 100)}
    texts = [*axes.get_yticklabels(), *axes.texts, *axes.get_xticklabels(), axes.title, figure.axes[1].xaxis.label]
    assert all(text.get_fontsize() >= SMALL for text in texts)
    heights = [*seen, *(text.xyann[1] for text in axes.texts)]
    assert all(above + 6 < below for above, below in itertools.pairwise(heights))  # a line of letters is as high as 6 to 7 rows
    whole = similarity_figure(matrix, names, 95, "title").axes[0]
    assert len(whole.get_yticklabels()) == 100
    assert {line.get_ydata()[0] for line in whole.lines} >= {94.5}  # the line between seen and novel
    plt.close("all")


@pytest.mark.parametrize(("classes", "seen", "fanned"), [(30, 0, 6), (30, 30, 0), (3, 2, 1), (60, 20, 7)])
def test_a_column_has_room_for_any_number_of_novel_classes(classes: int, seen: int, fanned: int) -> None:
    axes = similarity_figure(torch.rand(classes, classes), [*map(str, range(classes))], seen, "title", column=True).axes[0]
    assert len(axes.texts) == fanned
    plt.close("all")


def test_what_is_clipped_has_an_arrow_and_is_said() -> None:
    names = [str(index) for index in range(30)]
    for diagonal, end, label in ((9.0, "max", "weight, large ones clipped"), (0.5, "neither", "weight")):
        figure = similarity_figure(torch.full((30, 30), 0.5).fill_diagonal_(diagonal), names, 25, "title", "weight")
        image = figure.axes[0].images[0]
        assert image.get_clim()[1] < 1
        assert (image.colorbar.extend, image.colorbar.ax.get_ylabel()) == (end, label)
    plt.close("all")


HISTORY = [{"epoch": 1, "loss": 2.0, "validation": {"h_mean": {"mean": 30.0, "ci95": 1.0}}}]


@pytest.mark.slow
def test_without_a_suffix_a_figure_is_written_as_png_and_pdf(tmp_path: Path) -> None:
    for folder in (tmp_path / "one", tmp_path / "two"):
        draw_curves({"gcgpn": HISTORY}, folder / "figure")
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["figure.pdf", "figure.png"]
    for name in ("figure.pdf", "figure.png"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    draw_curves({"gcgpn": HISTORY}, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    one, two = ([drawn(figure, "svg") for figure in curves({"gcgpn": HISTORY})] for _ in range(2))
    assert one == two
    assert not plt.get_fignums()


def test_curves_show_every_epoch_at_whole_numbers() -> None:
    loss, validation = (
        figure.axes[0] for figure in curves({"gcgpn": HISTORY, "gcgpn-aux": [*HISTORY, {**HISTORY[0], "epoch": 2}]})
    )
    for axes, value in ((loss, 2.0), (validation, 30.0)):
        assert [list(line.get_xdata()) for line in axes.lines] == [[1], [1, 2]]
        assert [list(line.get_ydata()) for line in axes.lines] == [[value], [value] * 2]
    (single, _) = curves({"gcgpn": HISTORY})
    assert all(tick == int(tick) for tick in single.axes[0].get_xticks())
    plt.close("all")
