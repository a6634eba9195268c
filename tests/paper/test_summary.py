"""RESULTS.md, recomputed naively from a made-up ledger."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from paper.made_up import make_ledger, make_run, rows_of, text_of
from protograph._internal.errors import InputError
from protograph.paper.claims import CONCLUSIONS
from protograph.paper.grid import Task
from protograph.paper.ledger import read_gaps, read_ledger, record_run, table_path
from protograph.paper.published import Cell, published
from protograph.paper.summary import RECIPE_TEXTS, write_summary
from protograph.training.recipes import RECIPES

ROOT = Path(__file__).parents[2]
AUX, FC = Cell("cub", 1, "gcgpn-aux"), Cell("cub", 1, "gcgpn-aux-fc")
SPLIT = Cell("mini-imagenet", 5, "gcgpn-aux-split")


def beside_paper(shifts: dict[Cell, list[float]]) -> dict[tuple[Cell, str], dict[str, list[float]]]:
    """Measures of each cell by the fast recipe that are the paper's plus these points, by seed."""
    return {
        (cell, "fast"): {name: [measure.mean + shift for shift in of_cell] for name, measure in published()[cell].items()}
        for cell, of_cell in shifts.items()
    }


def test_the_verdict_counts_cells_and_means(tmp_path: Path) -> None:
    shifts = {AUX: [1.0, 3.0], replace(FC, shots=5): [5.0, 5.0], FC: [-4.0, -4.0], SPLIT: [-1.2, -1.2]}  # the last one: allowed
    text = text_of(make_ledger(tmp_path / "results", beside_paper(shifts)))
    assert (
        "- **With the `fast` recipe, 3 of 4 cells reach the paper's numbers** (2 seeds): 1 of 1 on miniImageNet and 2 of 3 on "
        "CUB. On average, Joint-Joint is 1.2 points below the paper's on miniImageNet and 1.0 points above the paper's on "
        "CUB.\n"
    ) in text
    assert f"`fast`: {RECIPE_TEXTS['fast']}." in text
    assert "Without the allowance, 2 reach it." in text


def test_what_an_environment_says_is_no_markup(tmp_path: Path) -> None:
    results = make_ledger(tmp_path / "results", beside_paper({AUX: [1.0]}))
    (path,) = results.glob("*/*/*/*.json")
    content = json.loads(path.read_text())
    content["environment"]["gpu"] = "[x](https://example.org) <script>\n# A heading"
    path.write_text(json.dumps(content))
    text = text_of(results)
    assert "example" in text
    page = MarkdownIt("commonmark").render(text)
    assert not re.search(r'href="https://example|<script|<h1>A heading', page)
    assert not re.search(r"(?<!\\)://example", text), "others make links of these by themselves"


def test_a_recipe_of_fewer_cells_is_compared_on_the_same_cells(tmp_path: Path) -> None:
    values = beside_paper({AUX: [1.0], FC: [5.0]})
    values[AUX, "paper"] = {name: [measure.mean + 2] for name, measure in published()[AUX].items()}
    text = text_of(make_ledger(tmp_path / "results", values))
    assert "Joint-Joint is 3.0 points above the paper's on CUB." in text
    assert "Joint-Joint is 2.0 points above the paper's on CUB (`fast` on the same cells: 1.0 points above)." in text


def test_every_cell_stands_beside_the_paper(tmp_path: Path) -> None:
    shifts = {AUX: [2.0], SPLIT: [-5.0]}
    values = {**beside_paper(shifts), (AUX, "strong"): {"h_mean": [70.0], "joint_joint": [71.0]}}
    lines = text_of(make_ledger(tmp_path / "results", values)).splitlines()
    of_paper = {cell: [published()[cell][name].mean for name in ("h_mean", "joint_joint")] for cell in shifts}
    head = lines.index("| dataset | K | model | published | `fast`, 1 seed | `strong`, 1 seed |")
    mini, cub = lines[head + 2 : head + 4]
    paper = of_paper[SPLIT]
    assert mini == (
        f"| miniImageNet | 5 | GcGPN-aux-split | {paper[0]:.2f} / {paper[1]:.2f} | {paper[0] - 5:.2f} / {paper[1] - 5:.2f} |  |"
    )
    paper = of_paper[AUX]
    ours = f"{paper[0] + 2:.2f} / {paper[1] + 2:.2f} ✓"
    assert cub == f"| CUB | 1 | GcGPN-aux | {paper[0]:.2f} / {paper[1]:.2f} | {ours} | 70.00 / 71.00 ✓ |"


def test_seeds_that_differ_between_cells_are_a_range(tmp_path: Path) -> None:
    text = text_of(make_ledger(tmp_path / "results", beside_paper({AUX: [1.0, 2.0, 3.0], FC: [0.0]})))
    assert "| `fast`, 1 to 3 seeds |" in text


def test_cells_that_another_seed_may_turn_over_are_counted(tmp_path: Path) -> None:
    farther = replace(AUX, shots=5), replace(FC, shots=5), replace(SPLIT, shots=1)
    beyond = dict(zip((AUX, FC, SPLIT, *farther), (0.3, -0.3, 0.1, 0.6, -0.6, -0.4), strict=True))
    values = {}
    for cell, points in beyond.items():
        allowed = points - 1.5 * (cell.dataset == "mini-imagenet")
        least = {name: measure.mean - measure.ci95 + allowed for name, measure in published()[cell].items()}
        values[cell, "fast"] = {name: [mean if name == "h_mean" else mean + 9] for name, mean in least.items()}
    text = text_of(make_ledger(tmp_path / "results", values))
    assert "3 of 6 cells reach" in text
    assert "Within 0.5 points of the limit: 2 of the 3 cells that reach the paper and 2 of the 3 that do not." in text


def test_recipes_whose_numbers_stand_beside_the_paper_s_say_what_they_are(tmp_path: Path) -> None:
    assert RECIPE_TEXTS.keys() == RECIPES.keys() - {"demo"}
    text = text_of(make_ledger(tmp_path / "results", {(FC, recipe): {"h_mean": [60.0]} for recipe in RECIPE_TEXTS}))
    for recipe, training in RECIPE_TEXTS.items():
        assert f"- `{recipe}`: {training}. " in text
    for addition in ("scaled", "stretched", "recoloured", "erased", "128 channels", "horizontal flip", "20 classes"):
        assert addition in RECIPE_TEXTS["strong"]
    assert "With the `strong` recipe, which is not like for like, " in text


def test_claims_have_one_word_each(tmp_path: Path) -> None:
    results = make_ledger(tmp_path / "results", {(AUX, "fast"): {"h_mean": [44.0]}, (FC, "fast"): {"h_mean": [60.0]}})
    words = {(row["claim"], row["recipe"]): row["verdict"] for row in rows_of(results, "claims")}
    lines = [line.strip("| ").split(" | ") for line in text_of(results).splitlines()]
    for conclusion in CONCLUSIONS:
        shown = [words[conclusion.claim, recipe].replace("cells missing", "") for recipe in ("published", "fast")]
        (line,) = [line for line in lines if line[0] == conclusion.claim]
        assert line[1:] == shown[: len(line) - 1]
        assert not any(shown[len(line) - 1 :])


def test_known_gaps_are_quoted_from_the_notes(tmp_path: Path) -> None:
    results = make_ledger(tmp_path / "results", {(AUX, "fast"): {"h_mean": [44.0]}})
    assert "Known gaps" not in text_of(results)
    (results / "notes").mkdir()
    (results / "notes" / "gaps.md").write_text("# Gaps\n\nText.\n\n## Why |a|?\n\nThe\n*light*.\n\nMore.\n\n## Empty\n")
    assert read_gaps(results) == [("Why |a|?", "The\n*light*.")]
    assert "## Known gaps\n\n- **Why \\|a\\|?** The \\*light\\*.\n\n##" in text_of(results)


def test_second_stages_of_different_first_ones_are_named(tmp_path: Path) -> None:
    results = tmp_path / "results"
    for shots, start in ((1, "a"), (5, "a"), (10, "b")):
        task = Task(Cell("cub", shots, "dfslwof-att"), "fast", 0)
        record_run(results, task, make_run(tmp_path / str(shots), task, start=start))
        said = "Second stages of `fast-0` started from 2 different trainings of the first stage." in text_of(results)
        assert said == (start == "b")


def test_networks_are_named_with_their_recipes_where_these_have_different_ones(tmp_path: Path) -> None:
    alike = {(AUX, "fast"): {"h_mean": [44.0]}, (FC, "paper"): {"h_mean": [44.0]}, (SPLIT, "fast"): {"h_mean": [44.0]}}
    text = text_of(make_ledger(tmp_path / "alike", alike))
    assert "cub: conv4-64-128; fingerprint" in text
    wide = {**alike, (AUX, "strong"): {"h_mean": [45.0]}}
    text = text_of(make_ledger(tmp_path / "wide", wide))
    assert "cub: conv4-128-mirror by `strong`, conv4-64-128 by `fast` and `paper`; fingerprint" in text
    assert "mini-imagenet: conv4-64-128; fingerprint" in text
    assert "Some runs changed their recipe" not in text


def test_runs_on_different_images_are_called_so(tmp_path: Path) -> None:
    results = make_ledger(tmp_path / "results", {(AUX, "fast"): {"h_mean": [44.0]}, (FC, "fast"): {"h_mean": [44.0]}})
    assert "different images" not in text_of(results)
    (path,) = results.glob("*/*/gcgpn-aux/*.json")
    path.write_text(path.read_text().replace("images-1", "images-2"))
    assert "different images" in text_of(results)


def test_settings_that_are_not_the_recipes_are_named(tmp_path: Path) -> None:
    results = make_ledger(tmp_path / "results", {(AUX, "fast"): {"h_mean": [44.0]}})
    assert "Some runs changed their recipe" not in text_of(results)
    (path,) = results.glob("*/*/gcgpn-aux/*.json")
    content = json.loads(path.read_text())
    content["configuration"]["recipe"] |= {"epochs": 3, "dropout": 0.5}
    path.write_text(json.dumps(content))
    assert "**Some runs changed their recipe: epochs=3, dropout=0.5.**" in text_of(results)


def test_other_datasets_have_a_table_without_the_paper(tmp_path: Path) -> None:
    cells = [Cell("letters", 5, "gcgpn-aux"), Cell("letters", 5, "gcgpn-aux", ("base",))]
    text = text_of(make_ledger(tmp_path / "results", {(cell, "demo"): {"h_mean": [61.0]} for cell in cells}))
    assert "| dataset | K | model | `demo`, 1 seed |" in text
    assert "| letters | 5 | GcGPN-aux | 61.00 / 40.00 |" in text
    assert "| letters | 5 | GcGPN-aux, base | 61.00 / 40.00 |" in text
    assert "which holds 2 runs" in text
    assert "`protograph reproduce --dataset letters`" in text
    assert "published" not in text, "the paper has no such dataset"
    assert "claims" not in text


def test_an_empty_ledger_has_no_cell(tmp_path: Path) -> None:
    assert write_summary(tmp_path / "results", {}) == table_path(tmp_path / "results") == tmp_path / "RESULTS.md"
    text = (tmp_path / "RESULTS.md").read_text()
    assert re.match(r"<!-- .* -->\n\n# Results\n", text)
    assert "The ledger has no cell yet." in text


def test_a_file_of_an_earlier_version_is_replaced_and_one_of_the_user_is_not(tmp_path: Path) -> None:
    (tmp_path / "RESULTS.md").write_text("# Results\n\nMade from the ledger in `results/`, which")
    write_summary(tmp_path / "results", {})
    (tmp_path / "RESULTS.md").write_text("# Results of my own")
    with pytest.raises(InputError, match="was not written by `reproduce`"):
        write_summary(tmp_path / "results", {})


def test_the_files_of_the_repository_are_those_of_its_ledger(tmp_path: Path) -> None:
    for results in (ROOT / "results", ROOT / "results" / "letters"):
        copy = tmp_path / results.name
        for path in (*results.glob("*/*-shot/**/*.json"), *results.glob("notes/*.md"), *results.glob("trials.csv")):
            target = copy / path.relative_to(results)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
        written = write_summary(copy, read_ledger(copy))
        assert written.read_bytes() == table_path(results).read_bytes(), "run `protograph reproduce --table-only`"
        assert len(written.read_text().splitlines()) <= 150
        for path in results.glob("*.csv"):
            assert (copy / path.name).read_bytes() == path.read_bytes(), path.name
            assert len({len(line) for line in csv.reader(path.read_text().splitlines())}) == 1
