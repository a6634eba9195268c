"""The conclusions, recomputed naively from made-up ledgers and from the paper's own numbers."""

import math
from pathlib import Path

import pytest

from paper.made_up import make_ledger
from protograph.paper.conclusions import CONCLUSIONS, Conclusion, Finding, check, conclusions, difference
from protograph.paper.ledger import Score, read_ledger, scores
from protograph.paper.published import Cell, published
from protograph.paper.table import render

PAPER = {
    cell: {name: Score((measure.mean,), measure.ci95) for name, measure in measures.items()}
    for cell, measures in published().items()
}


def named(part: str) -> Conclusion:
    (found,) = [conclusion for conclusion in CONCLUSIONS if part in conclusion.claim]
    return found


def test_every_comparison_is_of_cells_that_the_tables_have() -> None:
    for conclusion in CONCLUSIONS:
        assert conclusion.comparisons
        for comparison in conclusion.comparisons:
            assert {comparison.one.cell, comparison.other.cell} <= published().keys()


@pytest.mark.parametrize("conclusion", CONCLUSIONS, ids=lambda conclusion: conclusion.claim)
def test_what_the_papers_own_numbers_say(conclusion: Conclusion) -> None:
    found = check(conclusion, "paper", PAPER)
    assert found.differences == found.paper
    assert found.verdict == "holds", str(found)
    assert all(found.agreeing) or (conclusion.mostly and found.agreeing.count(True) > len(found.agreeing) / 2)


def test_a_difference_of_single_seeds_comes_from_the_intervals() -> None:
    found = difference(Score((45.0,), 0.3), Score((44.4, 44.8), 0.4))
    assert found.mean == pytest.approx(0.4)
    assert (found.ci95, found.by_seeds, found.certain) == (pytest.approx(0.5), False, False)


def test_a_difference_of_several_seeds_comes_from_them() -> None:
    one, other = (44.0, 46.0, 45.0), (40.0, 43.0)
    found = difference(Score(one, 9.0), Score(other, 9.0))
    means = [sum(values) / len(values) for values in (one, other)]
    parts = [
        sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)
        for values, mean in zip((one, other), means, strict=True)
    ]
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 2 + parts[1] ** 2 / 1)
    assert 1 <= freedom < 2
    assert found.mean == pytest.approx(3.5)
    assert found.ci95 == pytest.approx(12.71 * math.sqrt(sum(parts)))
    assert found.by_seeds


def findings(tmp_path: Path, part: str, values: dict[tuple[Cell, str], dict[str, list[float]]]) -> list[Finding]:
    found = conclusions(read_ledger(make_ledger(tmp_path / "results", values)))
    return [finding for finding in found if part in finding.conclusion.claim]


def test_a_conclusion_holds_fails_or_waits_for_cells(tmp_path: Path) -> None:
    aux, fc = Cell("cub", 1, "gcgpn-aux"), Cell("cub", 1, "gcgpn-aux-fc")
    low, high = ({name: [value] for name in ("seen_seen", "novel_novel", "h_mean")} for value in (40.0, 42.0))
    (waits,) = findings(tmp_path / "one", "full transforms", {(fc, "fast"): high})
    assert waits.verdict == "not enough cells yet"
    assert waits.differences == (None,) * 3
    (holds,) = findings(tmp_path / "two", "full transforms", {(fc, "fast"): high, (aux, "fast"): low})
    assert (holds.verdict, holds.certain) == ("holds", 3)
    (fails,) = findings(tmp_path / "three", "full transforms", {(fc, "fast"): {**high, "h_mean": [39.9]}, (aux, "fast"): low})
    assert (fails.verdict, fails.agreeing, fails.certain) == ("does not hold", [True, True, False], 2)
    assert "2 of 3 comparisons as claimed" in str(fails)


def test_what_is_generally_so_needs_more_than_half(tmp_path: Path) -> None:
    pairs = [
        (Cell(d, k, f"gcgpn-{one}{aux}"))
        for d in ("cub", "mini-imagenet")
        for k in (1, 5)
        for one in ("l2", "cos")
        for aux in ("", "-aux")
    ]
    for losing, verdict in ((3, "holds"), (4, "does not hold")):
        lost = [cell for cell in pairs if "l2" in cell.variant][:losing]
        values = {
            (cell, "fast"): {"joint_joint": [38.0 if cell in lost else 41.0 if "l2" in cell.variant else 40.0]}
            for cell in pairs
        }
        (found,) = findings(tmp_path / str(losing), "generally", values)
        assert found.verdict == verdict


def test_recipes_are_not_mixed(tmp_path: Path) -> None:
    aux, fc = Cell("cub", 1, "gcgpn-aux"), Cell("cub", 1, "gcgpn-aux-fc")
    found = findings(tmp_path, "full transforms", {(fc, "fast"): {"h_mean": [50.0]}, (aux, "paper"): {"h_mean": [40.0]}})
    assert [(finding.recipe, finding.verdict) for finding in found] == [
        ("paper", "not enough cells yet"),
        ("fast", "not enough cells yet"),
    ]


def test_not_helping_allows_a_gain_that_is_not_certain(tmp_path: Path) -> None:
    cells = [(Cell("cub", k, variant), "fast") for k in (1, 5) for variant in ("gcgpn-aux-split", "gcgpn-aux")]
    for gain, verdict in ((-2.0, "holds"), (0.5, "holds"), (2.0, "does not hold")):
        values = {key: {"joint_joint": [40.0 + (gain if "split" in key[0].variant else 0.0)]} for key in cells}
        (found,) = findings(tmp_path / str(gain), "does not help on CUB", values)
        assert found.verdict == verdict


def test_the_collapse_compares_two_measures_of_one_cell(tmp_path: Path) -> None:
    cells = [(Cell(dataset, k, "pn+"), "fast") for dataset in ("mini-imagenet", "cub") for k in (1, 5)]
    values = {key: {"novel_novel": [60.0], "novel_joint": [20.0]} for key in cells}
    (found,) = findings(tmp_path / "low", "collapses", values)
    assert found.verdict == "holds"
    assert [each.mean for each in found.differences if each] == [10.0] * 4
    values[cells[0]] = {"novel_novel": [60.0], "novel_joint": [31.0]}
    (found,) = findings(tmp_path / "high", "collapses", values)
    assert found.verdict == "does not hold"


def test_results_name_the_cells_and_both_differences(tmp_path: Path) -> None:
    aux, fc = Cell("cub", 1, "gcgpn-aux"), Cell("cub", 1, "gcgpn-aux-fc")
    results = make_ledger(tmp_path / "results", {(fc, "fast"): {"h_mean": [50.0]}, (aux, "fast"): {"h_mean": [40.0]}})
    text = "\n".join(render(read_ledger(results)))
    ours, theirs = 10.0, published()[fc]["h_mean"].mean - published()[aux]["h_mean"].mean
    interval = math.hypot(published()[fc]["h_mean"].ci95, published()[aux]["h_mean"].ci95)
    named_cells = "| cub 1-shot H-Mean: gcgpn-aux-fc > gcgpn-aux |"
    assert f"{named_cells} {ours:+.2f} ± 0.71 * | as claimed, certain | {theirs:+.2f} ± {interval:.2f} |" in text
    assert check(named("full transforms"), "fast", scores(read_ledger(results), "fast")).verdict == "does not hold"
