"""The rows of CSV files, recomputed naively."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median, stdev

import pytest

from paper.made_up import epoch_line, make_ledger, make_run, rows_of
from protograph.evaluation.metrics import MEASURES
from protograph.nn.few_shot.methods import FEW_SHOT_METHODS
from protograph.paper.claims import CONCLUSIONS
from protograph.paper.grid import Task
from protograph.paper.ledger import read_ledger, record_run, scores
from protograph.paper.published import FEW_SHOT_VARIANT_OF, UNPUBLISHED, Cell, few_shot_rows, published
from protograph.paper.tables import few_shot_table_rows, interval_position, shortfalls
from protograph.paper.verdicts import check_conclusions
from protograph.variants import VARIANTS

AUX, FC = Cell("cub", 1, "gcgpn-aux"), Cell("cub", 1, "gcgpn-aux-fc")
SPLIT = Cell("mini-imagenet", 5, "gcgpn-aux-split")


def test_the_edges_of_the_interval_are_within() -> None:
    paper = published()[AUX]["h_mean"]
    assert interval_position(paper.mean + paper.ci95, paper) == interval_position(paper.mean - paper.ci95, paper) == "within"
    assert interval_position(paper.mean + paper.ci95 + 0.01, paper) == "above"
    assert interval_position(paper.mean - paper.ci95 - 0.01, paper) == "below"


def test_rows_of_the_summary_are_those_of_a_naive_recomputation(tmp_path: Path) -> None:
    around = {"seen_seen": -3.0, "novel_novel": -0.1, "joint_joint": 0.1, "seen_joint": 3.0, "novel_joint": 0.0, "h_mean": -0.9}
    values = {
        name: [published()[AUX][name].mean + shift, published()[AUX][name].mean + shift + 0.2] for name, shift in around.items()
    }
    results = make_ledger(tmp_path / "results", {(AUX, "fast"): values})
    rows = rows_of(results, "summary", recipe="fast")
    assert len(rows) == 6
    for row, name in zip(rows, MEASURES, strict=True):
        mean, paper, interval = fmean(values[name]), published()[AUX][name].mean, published()[AUX][name].ci95
        assert {key: row[key] for key in ("dataset", "shots", "variant", "relations", "seeds", "ci95")} == {
            "dataset": "cub", "shots": 1, "variant": "gcgpn-aux", "relations": "", "seeds": 2, "ci95": "0.50"
        }  # fmt: skip
        assert (row["mean"], row["deviation_of_seeds"]) == (f"{mean:.2f}", f"{stdev(values[name]):.2f}")
        assert row["minus_published"] == f"{mean - paper:+.2f}"
        side = "below" if mean < paper - interval else "above" if mean > paper + interval else "within"
        assert row["published_interval"] == side
        judged = name in ("h_mean", "joint_joint")
        assert row["lacks"] == (f"{max(0.0, paper - interval - mean):.2f}" if judged else "")
    paper_rows = rows_of(results, "summary", recipe="published")
    assert {row["dataset"] for row in paper_rows} == {"cub"}, "the ledger has no other dataset"
    assert len(paper_rows) == 24 * 6


def test_cells_fall_short_by_what_they_lack(tmp_path: Path) -> None:
    paper, mini_paper = published()[AUX], published()[SPLIT]
    results = make_ledger(
        tmp_path / "results",
        {
            (AUX, "fast"): {"h_mean": [paper["h_mean"].mean - 1.0], "joint_joint": [paper["joint_joint"].mean]},
            (FC, "fast"): {"h_mean": [60.0], "joint_joint": [60.0], "seen_seen": [1.0]},  # which does not count
            (SPLIT, "fast"): {
                "h_mean": [mini_paper["h_mean"].mean - 1.8],
                "joint_joint": [mini_paper["joint_joint"].mean - 2.5],
            },
        },
    )
    short = shortfalls(scores(read_ledger(results), "fast"))
    assert short == {
        AUX: {"h_mean": pytest.approx(1.0 - paper["h_mean"].ci95)},
        SPLIT: {"joint_joint": pytest.approx(2.5 - mini_paper["joint_joint"].ci95 - 1.5)},
    }
    lacking = {row["variant"]: row["lacks"] for row in rows_of(results, "summary", recipe="fast", measure="Joint-Joint")}
    assert lacking == {"gcgpn-aux": "0.00", "gcgpn-aux-fc": "0.00", "gcgpn-aux-split": f"{short[SPLIT]['joint_joint']:.2f}"}


def test_gaps_are_means_and_medians_over_the_cells_of_a_dataset(tmp_path: Path) -> None:
    shifts = {AUX: 2.0, FC: -4.0, replace(FC, shots=5): 5.0, SPLIT: -1.2}
    values = {
        (cell, "fast"): {name: [measure.mean + shifts[cell]] for name, measure in published()[cell].items()} for cell in shifts
    }
    for row in rows_of(make_ledger(tmp_path / "results", values), "gaps"):
        of_dataset = [shift for cell, shift in shifts.items() if cell.dataset == row["dataset"]]
        assert row["cells"] == len(of_dataset)
        assert (row["mean"], row["median"]) == (f"{fmean(of_dataset):+.2f}", f"{median(of_dataset):+.2f}")


def test_the_few_shot_rows_are_the_published_ones_and_ours(tmp_path: Path) -> None:
    results = make_ledger(
        tmp_path / "results", {(SPLIT, "fast"): {"novel_novel": [74.0, 75.0]}, (AUX, "fast"): {"h_mean": [1.0]}}
    )
    rows = list(few_shot_table_rows(read_ledger(results), ["fast"]))
    of_paper = [row for row in rows if row["recipe"] == "published"]
    assert [row["method"] for row in of_paper] == [row.model for row in few_shot_rows() for _ in (1, 5)]
    first = of_paper[0]
    assert (first["method"], first["mean"], first["ci95"]) == ("Matching Network", "46.60", ""), "published without an interval"
    (ours,) = [row for row in rows if row["recipe"] == "fast"]
    assert (ours["method"], ours["shots"], ours["mean"], ours["deviation_of_seeds"]) == ("GcGPN-aux-split", 5, "74.50", "0.71")
    assert rows_of(results, "few_shot") == rows


def test_a_few_shot_method_has_a_row_for_each_of_its_statistics(tmp_path: Path) -> None:
    results = tmp_path / "results"
    measured = {"relation-network": (50.0, "running", 52.0, "queries"), "maml": (48.0, "queries", 45.0, "support")}
    for variant, (usual, used, other, statistics) in measured.items():
        task = Task(Cell("mini-imagenet", 1, variant), "fast", 0)
        run = make_run(tmp_path / variant, task, {"novel_novel": {"mean": usual, "ci95": 0.8}})
        content = json.loads((run / "measures.json").read_text())
        others = {statistics: {"measures": {"novel_novel": {"mean": other, "ci95": 0.7}}}}
        (run / "measures.json").write_text(json.dumps({**content, "statistics": used, "other_statistics": others}))
        entry = record_run(results, task, run)
        assert entry.measures.keys() == {"novel_novel"}
        assert {name: of["novel_novel"].mean for name, of in entry.by_statistics.items()} == {used: usual, statistics: other}
    rows = [row for row in few_shot_table_rows(read_ledger(results), ["fast"]) if row["shots"] == 1]
    found = {(row["method"], row["recipe"], row["statistics"]): row["mean"] for row in rows}
    assert found["Relation Net", "published", "queries"] == "50.44"
    assert found["Relation Net", "fast", "queries"] == "52.00"
    assert found["Relation Net", "fast", "running"] == "50.00"
    assert found["MAML, second order", "fast", "queries"] == "48.00"
    assert ("MAML, second order", "published", "") not in found
    assert rows_of(results, "last_epochs") == [], "it has no measure of the joint label space"
    assert {row["measure"] for row in rows_of(results, "summary", recipe="fast")} == {"Novel-Novel"}


def test_every_quoted_few_shot_method_is_a_variant() -> None:
    quoted = [row.model for row in few_shot_rows() if row.kind == "FSL"]
    assert list(FEW_SHOT_VARIANT_OF) == quoted
    methods = {method.name for method in FEW_SHOT_METHODS}
    assert methods == {*FEW_SHOT_VARIANT_OF.values(), *UNPUBLISHED.values()}
    assert all(VARIANTS[name].method is not None for name in methods)


def test_every_claim_has_a_row_for_the_paper_s_numbers_and_for_each_recipe(tmp_path: Path) -> None:
    results = make_ledger(tmp_path / "results", {(AUX, "fast"): {"h_mean": [44.0]}, (FC, "fast"): {"h_mean": [60.0]}})
    findings = check_conclusions(read_ledger(results))
    rows = rows_of(results, "claims")
    assert [(row["claim"], row["recipe"]) for row in rows] == [
        (conclusion.claim, recipe) for conclusion in CONCLUSIONS for recipe in ("published", "fast")
    ]
    for finding in findings:
        (row,) = [row for row in rows if (row["claim"], row["recipe"]) == (finding.conclusion.claim, "fast")]
        assert row["verdict"] == finding.ours.verdict
        assert row["compared"] + row["missing"] == len(finding.conclusion.comparisons)
    fuller = [row for row in rows_of(results, "comparisons", recipe="fast") if "full transforms" in row["claim"]]
    assert [(row["comparison"], row["difference"], row["as_claimed"]) for row in fuller] == [
        ("cub 1-shot Joint-Joint: gcgpn-aux-fc > gcgpn-aux", "+0.00", False),
        ("cub 1-shot H-Mean: gcgpn-aux-fc > gcgpn-aux", "+16.00", True),
    ]
    assert all(row["covers_seeds"] is False for row in fuller), "one seed shows no spread"


def test_other_side_information_is_compared_with_the_default_and_with_none(tmp_path: Path) -> None:
    words = replace(AUX, relations=("words",))
    values = {(AUX, "fast"): {"h_mean": [44.0]}, (words, "fast"): {"h_mean": [45.0]}}
    results = make_ledger(tmp_path / "results", values)
    assert (results / "cub" / "1-shot" / "gcgpn-aux" / "words" / "fast-0.json").exists()
    (row,) = rows_of(results, "relations", measure="H-Mean")
    assert (row["relations"], row["compared_with"], row["difference"], row["half_interval"]) == (
        "words",
        "attributes",
        "+1.00",
        "0.71",
    )
    values[replace(AUX, variant="gcgpn-cos-aux"), "fast"] = {"h_mean": [42.0]}
    rows = rows_of(make_ledger(tmp_path / "more", values), "relations", measure="H-Mean")
    assert [(row["compared_with"], row["difference"]) for row in rows] == [
        ("attributes", "+1.00"),
        ("none (gcgpn-cos-aux)", "+3.00"),
    ]


def test_what_operators_weigh_is_kept_where_it_is_known(tmp_path: Path) -> None:
    results = tmp_path / "results"
    learned = {"operators.0.temperature": 3.059, "scale attributes": 0.908, "scale identity-nn": -0.75}
    for seed, known in ((0, learned), (1, None)):
        task = Task(AUX, "fast", seed)
        folder = make_run(tmp_path / str(seed), task)
        if known:
            (folder / "epochs.jsonl").write_text(epoch_line(3, known))
        record_run(results, task, folder)
    rows = rows_of(results, "learned")
    assert {row["parameter"]: row["value"] for row in rows} == {name: f"{value:.4f}" for name, value in learned.items()}
    assert {row["seed"] for row in rows} == {0}


def test_the_last_epoch_stands_beside_the_selected_one(tmp_path: Path) -> None:
    results = make_ledger(tmp_path / "results", {(AUX, "fast"): {"h_mean": [44.0], "joint_joint": [47.0]}})
    (path,) = results.glob("*/*/gcgpn-aux/*.json")
    content = json.loads(path.read_text())
    content["last_epoch"] = {"epoch": 12, "measures": {name: {"mean": 41.0, "ci95": 0.4} for name in MEASURES}}
    path.write_text(json.dumps(content))
    shown = ("kind", "epoch", "h_mean", "h_mean_ci95", "joint_joint", "joint_joint_ci95")
    assert [tuple(row[key] for key in shown) for row in rows_of(results, "last_epochs")] == [
        ("selected", 3, "44.00", "0.50", "47.00", "0.50"), ("last", 12, "41.00", "0.40", "41.00", "0.40")
    ]  # fmt: skip
