"""The paper's figures, read back from what is drawn."""

import math
from pathlib import Path

import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.container import ErrorbarContainer

from paper.made_up import make_ledger
from protograph.data import Dataset
from protograph.paper.grid import FIGURE_SHOTS, FIGURE_VARIANTS
from protograph.paper.ledger import read_ledger, scores
from protograph.paper.plots import SEED, STYLES, fullest_recipe, missing_shots, semantic_figure, semantic_operator, shots_figure
from protograph.paper.published import Cell, published


def test_the_figure_has_what_the_ledger_has_and_the_papers_numbers(tmp_path: Path) -> None:
    values = {
        (Cell("cub", 1, "gcgpn-aux"), "fast"): {"joint_joint": [47.0, 49.0]},
        (Cell("cub", 3, "gcgpn-aux"), "fast"): {"joint_joint": [50.0]},
        (Cell("cub", 10, "dfslwof-att"), "fast"): {"joint_joint": [46.0]},
        (Cell("cub", 2, "gcgpn-aux", ("words",)), "fast"): {"joint_joint": [99.0]},
    }
    known = scores(read_ledger(make_ledger(tmp_path / "results", values)), "fast")
    axes = shots_figure(known).axes[0]
    plt.close("all")
    own = dict(zip(FIGURE_VARIANTS, [each for each in axes.containers if isinstance(each, ErrorbarContainer)], strict=True))
    for variant, container in own.items():
        line, _, bars = container.lines
        expected = {cell.shots: known[cell]["joint_joint"] for cell in known if cell.variant == variant and not cell.relations}
        assert [min(FIGURE_SHOTS, key=lambda k, x=x: abs(k - x)) for x in line.get_xdata()] == list(FIGURE_SHOTS)
        means = [expected[k].mean if k in expected else math.nan for k in FIGURE_SHOTS]  # the line is broken at the others
        assert line.get_ydata().tolist() == pytest.approx(means, nan_ok=True)
        drawn = [segment for segment in bars[0].get_segments() if len(segment)]
        halves = [half for segment in drawn if math.isfinite(half := (segment[1][1] - segment[0][1]) / 2)]
        assert halves == pytest.approx([expected[k].ci95 for k in sorted(expected)])  # however many seeds there are
    dots = [value for line in axes.lines if line.get_markersize() == SEED["markersize"] for value in line.get_ydata()]
    assert dots == [47.0, 49.0]  # of a single seed the mean says all
    hollow = [line for line in axes.lines if line.get_markerfacecolor() == "none"]
    for variant, line in zip(FIGURE_VARIANTS, hollow, strict=True):
        assert line.get_ydata().tolist() == [published()[Cell("cub", k, variant)]["joint_joint"].mean for k in (1, 5)]
    missing = missing_shots(known)
    assert len(missing) == 5 * 6 - 3
    assert Cell("cub", 2, "gcgpn-aux") in missing


def test_without_colour_the_lines_still_differ_and_the_letters_can_be_read() -> None:
    assert len({(look["marker"], str(look["linestyle"])) for look in STYLES.values()}) == len(STYLES)
    assert len({look["marker"] for look in STYLES.values()}) == len(STYLES)
    figure = shots_figure({})
    axes = figure.axes[0]
    labels = [*axes.get_xticklabels(), *axes.get_yticklabels(), axes.xaxis.label, *figure.legends[0].get_texts()]
    assert all(text.get_fontsize() >= 7 for text in labels)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "2", "3", "5", "10"]
    plt.close("all")


def test_the_legend_names_what_is_drawn(tmp_path: Path) -> None:
    cell = Cell("letters", 1, "gcgpn-aux")
    models = 6
    for dataset, seeds, expected in (
        ("cub", [], ["bars: 95 % over episodes", "hollow: the paper"]),
        ("letters", [47.0], ["bars: 95 % over episodes"]),
        ("letters", [47.0, 49.0], ["bars: 95 % over episodes", "dots: single seeds"]),
    ):
        values = {(cell, "demo"): {"joint_joint": seeds}} if seeds else {}
        known = scores(read_ledger(make_ledger(tmp_path / f"{dataset}-{len(seeds)}", values), new=True), "demo")
        texts = [text.get_text() for text in shots_figure(known, dataset).legends[0].get_texts()]
        assert texts[models:] == expected
    plt.close("all")


def test_the_semantic_operator_is_a_softmax_at_temperature_one() -> None:
    similarities = torch.rand(9, 9, generator=torch.Generator().manual_seed(0))
    classes = torch.tensor([[0, 1, 2, 3, 7, 5]])
    found = semantic_operator(similarities, classes, 4)
    for row, one in enumerate(classes[0].tolist()):
        exponentials = [float(similarities[one, other].double().exp()) for other in classes[0].tolist()]
        assert found[row].tolist() == pytest.approx([value / sum(exponentials) for value in exponentials])


def test_the_semantic_figure_is_of_a_test_episode(toy: Dataset) -> None:
    figure = semantic_figure(toy, "kinship", ways=3)
    (image,) = figure.axes[0].images
    assert image.get_array().shape == (toy.seen + 3,) * 2
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert sorted(names[: toy.seen]) == sorted(toy.classes[: toy.seen])
    assert set(names[toy.seen :]) <= {toy.classes[int(place)] for place in toy.novel_test.classes}
    plt.close("all")


def test_the_recipe_with_most_cells_is_drawn(tmp_path: Path) -> None:
    one, two = (Cell("cub", k, "gcgpn-aux") for k in (1, 2))
    measured = {"joint_joint": [40.0]}
    assert fullest_recipe({}, "cub") == "fast"
    assert fullest_recipe({}, "letters") == "demo"
    more = make_ledger(tmp_path / "results", {(one, "fast"): measured, (one, "paper"): measured, (two, "paper"): measured})
    assert fullest_recipe(read_ledger(more), "cub") == "paper"
