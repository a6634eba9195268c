"""The rows of tables, recomputed naively."""

from pathlib import Path

from paper.made_up import make_ledger, text_of
from protograph.paper.ledger import read_ledger, scores
from protograph.paper.published import Cell, few_shot_rows, published
from protograph.paper.tables import few_shot_table, interval_mark

AUX, FC = Cell("cub", 1, "gcgpn-aux"), Cell("cub", 1, "gcgpn-aux-fc")


SPLIT = Cell("mini-imagenet", 5, "gcgpn-aux-split")


def test_the_edges_of_the_interval_are_within() -> None:
    paper = published()[AUX]["h_mean"]
    assert interval_mark(paper.mean + paper.ci95, paper) == interval_mark(paper.mean - paper.ci95, paper) == "within"
    assert interval_mark(paper.mean + paper.ci95 + 0.01, paper) == "above"
    assert interval_mark(paper.mean - paper.ci95 - 0.01, paper) == "below"


def test_the_few_shot_table_has_the_published_rows_and_ours(tmp_path: Path) -> None:
    results = make_ledger(
        tmp_path / "results", {(SPLIT, "fast"): {"novel_novel": [74.0, 75.0]}, (AUX, "fast"): {"h_mean": [1.0]}}
    )
    table = few_shot_table({"fast": scores(read_ledger(results), "fast")})
    assert [row[0] for row in table.rows] == [row.model for row in few_shot_rows()]
    by_name = {row[0]: row[2:] for row in table.rows}
    assert by_name["Matching Network"] == ("46.60", "60.00", "", "")  # published without intervals
    assert by_name["GcGPN-aux-split"] == ("**60.40 ± 0.71**", "**73.31 ± 0.62**", "", "74.50 ± 0.71 ▲")
    assert by_name["GcGPN-aux"][2:] == ("", "")  # that of CUB is none of miniImageNet
    assert "| Parameter prediction | FSL | 54.53 ± 0.40 | 67.87 ± 0.20 |  |  |" in text_of(results)
