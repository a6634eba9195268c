"""RESULTS.md, recomputed naively from a made-up ledger."""

import re
from pathlib import Path

import pytest

from paper.made_up import make_ledger
from protograph.evaluation import MEASURES
from protograph.paper.ledger import read_ledger, scores
from protograph.paper.published import Cell, published
from protograph.paper.table import mark, render, shortfalls, table_path, write_table

AUX, FC = Cell("cub", 1, "gcgpn-aux"), Cell("cub", 1, "gcgpn-aux-fc")
SPLIT = Cell("mini-imagenet", 5, "gcgpn-aux-split")


def test_marks_and_rows_are_those_of_a_naive_recomputation(tmp_path: Path) -> None:
    around = {"seen_seen": -3.0, "novel_novel": -0.1, "joint_joint": 0.1, "seen_joint": 3.0, "novel_joint": 0.0, "h_mean": -0.4}
    values = {name: [round(published()[AUX][name].mean + shift, 4)] for name, shift in around.items()}
    lines = render(read_ledger(make_ledger(tmp_path / "results", {(AUX, "fast"): values})))
    shown = [f"**{m}**" if name == "joint_joint" else str(m) for name, m in published()[AUX].items()]
    place = lines.index("| GcGPN-aux | paper | " + " | ".join(shown) + " |")
    row = [part.strip() for part in lines[place + 1].strip("|").split("|")]
    assert row[:2] == ["", "`fast`, 1 seed"]
    for text, name in zip(row[2:], MEASURES, strict=True):
        ours, paper, interval = values[name][0], published()[AUX][name].mean, published()[AUX][name].ci95
        sign = "▼" if ours < paper - interval else "▲" if ours > paper + interval else "●"
        bold = "**" if name in ("joint_joint", "h_mean") else ""  # the only row of ours is the best
        assert text == f"{bold}{ours:.2f} ± 0.50{bold} {sign}"
    assert "1 of the paper's 44 cells" in "\n".join(lines)


def test_the_edges_of_the_interval_are_within() -> None:
    paper = published()[AUX]["h_mean"]
    assert mark(paper.mean + paper.ci95, paper) == mark(paper.mean - paper.ci95, paper) == "within"
    assert mark(paper.mean + paper.ci95 + 0.01, paper) == "above"
    assert mark(paper.mean - paper.ci95 - 0.01, paper) == "below"


def test_the_best_of_the_papers_rows_is_bold_as_in_the_paper() -> None:
    lines = render({})
    bold = [line for line in lines if "**" in line]
    first = next(line for line in bold if line.startswith("| GcGPN-aux-split"))
    assert re.findall(r"\*\*(.*?)\*\*", first) == ["51.63 ± 0.41", "50.83 ± 0.45"]
    assert "0 of the paper's 44 cells" in "\n".join(lines)


def test_several_seeds_show_their_spread_and_recipes_stand_apart(tmp_path: Path) -> None:
    results = make_ledger(
        tmp_path / "results",
        {(AUX, "fast"): {"h_mean": [44.0, 46.0]}, (FC, "fast"): {"h_mean": [43.0]}, (AUX, "paper"): {"h_mean": [42.0]}},
    )
    text = "\n".join(render(read_ledger(results)))
    assert "| `fast`, 2 seeds |" in text
    assert "**45.00 ± 1.41** ▲" in text
    assert "43.00 ± 0.50 ▼" in text
    assert "**42.00 ± 0.50** ▼" in text
    assert "1 by the `paper` recipe; 2 by the `fast` recipe" in text


def test_cells_that_fall_short_are_listed_with_what_is_allowed(tmp_path: Path) -> None:
    paper, min_paper = published()[AUX], published()[SPLIT]
    results = make_ledger(
        tmp_path / "results",
        {
            (AUX, "fast"): {"h_mean": [paper["h_mean"].mean - 1.0], "joint_joint": [paper["joint_joint"].mean]},
            (FC, "fast"): {"h_mean": [60.0], "joint_joint": [60.0], "seen_seen": [1.0]},  # which does not count
            (SPLIT, "fast"): {"h_mean": [min_paper["h_mean"].mean - 1.8], "joint_joint": [min_paper["joint_joint"].mean - 2.5]},
        },
    )
    ledger = read_ledger(results)
    found = shortfalls(scores(ledger, "fast"))
    assert found.keys() == {AUX, SPLIT}
    assert found[AUX] == {"h_mean": pytest.approx(1.0 - paper["h_mean"].ci95)}
    assert found[SPLIT] == {"joint_joint": pytest.approx(2.5 - min_paper["joint_joint"].ci95 - 1.5)}
    text = "\n".join(render(ledger))
    assert "1 of 3 cells reach the paper (33 %)" in text
    assert f"- {AUX} (1 seed): H-Mean 43.21 ± 0.50, paper 44.21 ± 0.48, 0.52 below what is allowed" in text


def test_other_datasets_have_tables_of_their_own(tmp_path: Path) -> None:
    cell = Cell("letters", 5, "gcgpn-aux")
    text = "\n".join(render(read_ledger(make_ledger(tmp_path / "results", {(cell, "demo"): {"h_mean": [61.0]}}))))
    assert "## letters, 5-shot: not in the paper's tables" in text
    assert "| gcgpn-aux | `demo`, 1 seed |" in text
    assert "0 of the paper's 44 cells" in text


def test_runs_on_different_pictures_are_called_so(tmp_path: Path) -> None:
    results = make_ledger(tmp_path / "results", {(AUX, "fast"): {"h_mean": [44.0]}, (FC, "fast"): {"h_mean": [44.0]}})
    assert "different pictures" not in "\n".join(render(read_ledger(results)))
    (path,) = results.glob("*/*/gcgpn-aux/*.json")
    path.write_text(path.read_text().replace("pictures-1", "pictures-2"))
    assert "different pictures" in "\n".join(render(read_ledger(results)))


def test_the_file_stands_beside_the_ledger(tmp_path: Path) -> None:
    assert write_table(tmp_path / "results", {}) == table_path(tmp_path / "results") == tmp_path / "RESULTS.md"
    assert (tmp_path / "RESULTS.md").read_text().startswith("# Results\n")
