"""RESULTS.md, recomputed naively from a made-up ledger."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from paper.made_up import make_ledger, make_run, text_of
from protograph._internal.errors import InputError
from protograph.evaluation.metrics import MEASURES, Measure
from protograph.paper.grid import Task
from protograph.paper.ledger import read_ledger, read_notes, record_run, scores, table_path
from protograph.paper.published import Cell, published
from protograph.paper.summary import summary_blocks, write_summary
from protograph.paper.tables import shortfalls
from protograph.paper.texts import RECIPE_TEXTS
from protograph.paper.trials import Trial, write_trials
from protograph.report.document import as_markdown
from protograph.training.recipes import RECIPES

AUX, FC = Cell("cub", 1, "gcgpn-aux"), Cell("cub", 1, "gcgpn-aux-fc")
SPLIT = Cell("mini-imagenet", 5, "gcgpn-aux-split")


def test_marks_and_rows_are_those_of_a_naive_recomputation(tmp_path: Path) -> None:
    around = {"seen_seen": -3.0, "novel_novel": -0.1, "joint_joint": 0.1, "seen_joint": 3.0, "novel_joint": 0.0, "h_mean": -0.4}
    values = {name: [round(published()[AUX][name].mean + shift, 4)] for name, shift in around.items()}
    lines = text_of(make_ledger(tmp_path / "results", {(AUX, "fast"): values})).splitlines()
    shown = [f"**{m}**" if name == "joint_joint" else str(m) for name, m in published()[AUX].items()]
    place = lines.index("| GcGPN-aux | published | " + " | ".join(shown) + " |")
    row = [part.strip() for part in lines[place + 1].strip("|").split("|")]
    assert row[:2] == ["", "ours by `fast`, 1 seed"]
    for text, name in zip(row[2:], MEASURES, strict=True):
        ours, paper, interval = values[name][0], published()[AUX][name].mean, published()[AUX][name].ci95
        sign = "▼" if ours < paper - interval else "▲" if ours > paper + interval else "●"
        assert text == f"{ours:.2f} ± 0.50 {sign}"
    assert "1 of the paper's 44 cells" in "\n".join(lines)
    planned = "every cell of the paper once, 1 of 44; two more seeds of the key cells, which the paper argues with, 0 of 18; "
    assert planned in "\n".join(lines)


def test_the_best_of_the_papers_rows_is_bold_as_in_the_paper() -> None:
    lines = as_markdown(summary_blocks({})).splitlines()
    bold = [line for line in lines if "**" in line]
    first = next(line for line in bold if line.startswith("| GcGPN-aux-split"))
    assert re.findall(r"\*\*(.*?)\*\*", first) == ["51.63 ± 0.41", "50.83 ± 0.45"]
    assert "0 of the paper's 44 cells" in "\n".join(lines)


def test_the_best_of_ours_is_bold_where_a_recipe_has_the_whole_block(tmp_path: Path) -> None:
    block = [Cell("mini-imagenet", 1, f"gcgpn-{name}") for name in ("cos", "l2", "cos-aux", "l2-aux")]
    values = {(cell, "fast"): {"h_mean": [40.0 + place], "joint_joint": [45.0]} for place, cell in enumerate(block)}
    few = {key: own for key, own in values.items() if key[0] != block[0]}
    for name, made, bold in (("whole", values, 1), ("part", few, 0)):
        assert text_of(make_ledger(tmp_path / name, made)).count("**43.00 ± 0.50**") == bold


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


def test_several_seeds_show_their_spread_and_recipes_stand_apart(tmp_path: Path) -> None:
    results = make_ledger(
        tmp_path / "results",
        {(AUX, "fast"): {"h_mean": [44.0, 46.0]}, (FC, "fast"): {"h_mean": [43.0]}, (AUX, "paper"): {"h_mean": [42.0]}},
    )
    text = text_of(results)
    assert "| ours by `fast`, 2 seeds |" in text
    assert " 45.00 ± 1.41 ▲" in text
    assert " 43.00 ± 0.50 ▼" in text
    assert " 42.00 ± 0.50 ▼" in text
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
    text = text_of(results)
    said = "1 of 3 cells reach the paper (33 %); mini-imagenet 0 of 1, cub 1 of 2; "
    said += "0 of these by less than 0.5 points, and 0 of the others miss it by less; 1 would reach it without the allowance"
    assert f"- `fast` ({RECIPE_TEXTS['fast']}): {said}\n" in text
    joint = published()[AUX]["joint_joint"]
    row = f"| {AUX}, 1 seed | 43.21 ± 0.50 | 44.21 ± 0.48 | {joint.mean:.2f} ± 0.50 | {joint} | 0.52 |  |"
    assert f"{row} not investigated yet |" in text
    (results / "notes.json").write_text('{"cub/1-shot/gcgpn-aux": "the |last| ReLU,\\n*perhaps*"}')
    text = text_of(results)
    assert f"{row} see its note above |" in text
    assert f"What is known about single cells:\n\n- **{AUX}**: the \\|last\\| ReLU, \\*perhaps\\*\n" in text
    (results / "notes.json").write_text('{"cub": ["other *images*", "another\\nnet"]}')
    text = text_of(results)
    assert "What is known about cub:\n\n- other \\*images\\*\n- another net\n" in text
    assert f"{row} as for all of cub |" in text
    assert "| not investigated yet |" in text, "of another dataset"


def test_cells_that_another_seed_may_turn_over_are_counted(tmp_path: Path) -> None:
    farther = replace(AUX, shots=5), replace(FC, shots=5), replace(SPLIT, shots=1)
    beyond = dict(zip((AUX, FC, SPLIT, *farther), (0.3, -0.3, 0.1, 0.6, -0.6, -0.4), strict=True))
    values = {}
    for cell, points in beyond.items():
        allowed = points - 1.5 * (cell.dataset == "mini-imagenet")
        own = {name: measure.mean - measure.ci95 + allowed for name, measure in published()[cell].items()}
        values[cell, "fast"] = {name: [mean if name == "h_mean" else mean + 9] for name, mean in own.items()}
    text = text_of(make_ledger(tmp_path / "results", values))
    assert ": 3 of 6 cells reach the paper (50 %); mini-imagenet 1 of 2, cub 2 of 4; " in text
    assert "; 2 of these by less than 0.5 points, and 2 of the others miss it by less; " in text


def test_what_is_known_of_a_cell_is_said_once_and_only_while_it_falls_short(tmp_path: Path) -> None:
    low, high = ({name: [value] for name in ("h_mean", "joint_joint")} for value in (1.0, 90.0))
    results = make_ledger(tmp_path / "results", {(AUX, "fast"): low, (AUX, "paper"): low, (FC, "fast"): high})
    (results / "notes.json").write_text('{"cub/1-shot/gcgpn-aux": "lack of light", "cub/1-shot/gcgpn-aux-fc": "solved"}')
    text = text_of(results)
    assert text.count("lack of light") == 1
    assert text.count("| see its note above |") == 2
    assert "solved" not in text


def test_every_cell_is_set_beside_the_paper_and_counted_without_what_is_allowed_more_too(tmp_path: Path) -> None:
    more = replace(FC, shots=5)
    theirs = {cell: {name: measure.mean for name, measure in published()[cell].items()} for cell in (AUX, FC, SPLIT, more)}
    values = {
        (AUX, "fast"): {name: [mean + 1.0, mean + 3.0] for name, mean in theirs[AUX].items()},
        (more, "fast"): {name: [mean + 5.0] for name, mean in theirs[more].items()},
        (FC, "fast"): {name: [mean - 4.0] for name, mean in theirs[FC].items()},
        (SPLIT, "fast"): {name: [mean - 1.2] for name, mean in theirs[SPLIT].items()},  # within what is allowed more alone
    }
    text = text_of(make_ledger(tmp_path / "results", values))
    assert ": 3 of 4 cells reach the paper (75 %); mini-imagenet 1 of 1, cub 2 of 3; " in text
    assert "; 2 would reach it without the allowance\n" in text
    rows = [
        f"| {SPLIT} | 1 |{' -1.20 |' * 6} yes |",
        f"| {AUX} | 2 |{' +2.00 |' * 6} yes |",
        f"| {FC} | 1 |{' -4.00 |' * 6} no |",
        f"| {more} | 1 |{' +5.00 |' * 6} yes |",
        f"| **mean of mini-imagenet** |  |{' **-1.20** |' * 6}  |",
        f"| **median of mini-imagenet** |  |{' **-1.20** |' * 6}  |",
        f"| **mean of cub** |  |{' **+1.00** |' * 6}  |",
        f"| **median of cub** |  |{' **+2.00** |' * 6}  |",
    ]
    assert "\n".join(rows) in text


def test_the_recipe_with_most_cells_stands_first(tmp_path: Path) -> None:
    values = {(AUX, "paper"): {"h_mean": [44.0]}, (AUX, "fast"): {"h_mean": [44.0]}, (FC, "fast"): {"h_mean": [44.0]}}
    text = text_of(make_ledger(tmp_path / "results", values))
    assert text.index("| by `fast` | seeds |") < text.index("| by `paper` | seeds |")


def test_a_row_alone_is_not_the_best_of_its_study(tmp_path: Path) -> None:
    words = replace(AUX, relations=("words",))
    values = {(AUX, "paper"): {"h_mean": [44.0]}, (AUX, "fast"): {"h_mean": [45.0]}, (words, "fast"): {"h_mean": [43.0]}}
    text = text_of(make_ledger(tmp_path / "results", values))
    study = text[text.index("## Other side information") :]
    alone, best, other = (line for line in study.splitlines() if "ours by" in line and "1 seed" in line)
    assert ("**" in alone, "**45.00" in best, "**43.00" in other) == (False, True, False)


def test_what_operators_weigh_is_shown_where_it_is_known(tmp_path: Path) -> None:
    results = tmp_path / "results"
    learned = {
        "operators.0.temperature": 3.059,
        "classifier.temperature": 19.2,
        "scale attributes": 0.908,
        "scale identity-nn": -0.75,
    }
    for seed, known in ((0, learned), (1, None)):
        task = Task(AUX, "fast", seed)
        folder = make_run(tmp_path / str(seed), task, {name: {"mean": 41.0 + seed, "ci95": 0.5} for name in MEASURES})
        if known:
            (folder / "epochs.jsonl").write_text(json.dumps({"epoch": 3, "learned": known}) + "\n")
        record_run(results, task, folder)
    text = text_of(results)
    section = text[text.index("## Learned weights of the operators") :]
    assert "| cub 1-shot gcgpn-aux fast-0 | 3.06 | attributes 0.91, identity-nn -0.75 | 41.00 | 41.00 |" in section
    assert "fast-1" not in section[: section.index("## The last epoch")]
    assert "Learned weights of the operators" not in text_of(
        make_ledger(tmp_path / "other", {(AUX, "fast"): {"h_mean": [44.0]}})
    )


def test_recipes_whose_numbers_stand_beside_the_paper_s_say_what_they_are(tmp_path: Path) -> None:
    assert RECIPE_TEXTS.keys() == RECIPES.keys() - {"demo"}
    text = text_of(make_ledger(tmp_path / "results", {(FC, recipe): {"h_mean": [60.0]} for recipe in RECIPE_TEXTS}))
    for recipe, what in RECIPE_TEXTS.items():
        assert f"- `{recipe}` ({what}): " in text
    for done in (
        "scaled",
        "stretched",
        "recoloured",
        "erased",
        "128 channels",
        "mirror image",
        "20 classes",
        "cosine classifier",
    ):
        assert done in RECIPE_TEXTS["strong"]


def test_where_no_cell_falls_short_none_is_listed(tmp_path: Path) -> None:
    text = text_of(make_ledger(tmp_path / "results", {(FC, "demo"): {"h_mean": [60.0], "joint_joint": [60.0]}}))
    assert "- `demo`: 1 of 1 cells reach the paper (100 %); cub 1 of 1; " in text
    assert "Cells that fall short" not in text


def test_what_was_tried_stands_in_a_table_the_best_first(tmp_path: Path) -> None:
    results = make_ledger(tmp_path / "results", {(AUX, "fast"): {"h_mean": [44.0]}})
    assert "Trials on" not in text_of(results)
    tries = [Trial("cub", 1, "gcgpn-aux", "fast", "attributes", changes, 0, 12) for changes in ("", "learning_rate=0.2", "a|b")]
    values = [{"h_mean": 41.26, "joint_joint": 44.0}, {"h_mean": 43.0}, {"h_mean": 42.0}]
    measures = [{name: Measure(value, 0.5) for name, value in own.items()} for own in values]
    write_trials(results / "trials.csv", zip(tries, measures, strict=True))
    text = text_of(results)
    table = text[text.index("## Trials on the validation classes") :].split("\n\n")[2].splitlines()
    assert table[0].startswith("| cub 1-shot gcgpn-aux | recipe | relations | seed | epoch | Joint-Joint | H-Mean |")
    assert table[2:] == [
        "| learning_rate=0.2 | fast | attributes | 0 | 12 |  | 43.0 |",
        "| a\\|b | fast | attributes | 0 | 12 |  | 42.0 |",
        "| unchanged recipe | fast | attributes | 0 | 12 | 44.0 | 41.3 |",
    ]


def test_other_datasets_have_tables_of_their_own(tmp_path: Path) -> None:
    cell = Cell("letters", 5, "gcgpn-aux")
    text = text_of(make_ledger(tmp_path / "results", {(cell, "demo"): {"h_mean": [61.0]}}))
    assert "## letters, 5-shot: not in the paper's tables" in text
    assert "| gcgpn-aux | ours by `demo`, 1 seed |" in text
    assert "The ledger holds 1 run." in text
    assert "the paper's rows" not in text
    assert "published" not in text, "the paper has no such dataset"
    assert "conclusions" not in text


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


def test_the_last_epoch_stands_beside_the_chosen_one(tmp_path: Path) -> None:
    results = make_ledger(tmp_path / "results", {(AUX, "fast"): {"h_mean": [44.0], "joint_joint": [47.0]}})
    (path,) = results.glob("*/*/gcgpn-aux/*.json")
    content = json.loads(path.read_text())
    content["last_epoch"] = {"epoch": 12, "measures": {name: {"mean": 41.0, "ci95": 0.4} for name in MEASURES}}
    path.write_text(json.dumps(content))
    row = f"| {AUX} fast-0 | 3 | 12 | 44.00 ± 0.50 | 41.00 ± 0.40 | 47.00 ± 0.50 | 41.00 ± 0.40 |"
    assert row in text_of(results)


def test_the_file_stands_beside_the_ledger(tmp_path: Path) -> None:
    assert write_summary(tmp_path / "results", {}) == table_path(tmp_path / "results") == tmp_path / "RESULTS.md"
    assert (tmp_path / "RESULTS.md").read_text().startswith("# Results\n")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("[]", "by cell"),
        ('{"cubs": "why"}', "a note on 'cubs'"),
        ('{"cub/one-shot/pn+": "why"}', "by cell"),
        ('{"cub/1-shot/pn+": 3}', "by cell"),
        ('{"cub/1-shot/pm+": "why"}', "cub 1-shot pm+"),
    ],
)
def test_notes_that_cannot_be_read_are_refused(tmp_path: Path, content: str, named: str) -> None:
    (tmp_path / "notes.json").write_text(content)
    with pytest.raises(InputError, match=re.escape(named)):
        read_notes(tmp_path)


def test_other_side_information_has_a_table_of_its_own(tmp_path: Path) -> None:
    words = Cell("cub", 1, "gcgpn-aux", ("words",))
    values = {(AUX, "fast"): {"h_mean": [44.0]}, (words, "fast"): {"h_mean": [45.0]}}
    results = make_ledger(tmp_path / "results", values)
    assert (results / "cub" / "1-shot" / "gcgpn-aux" / "words" / "fast-0.json").exists()
    text = text_of(results)
    table = text[text.index("## Other side information: cub, 1-shot, gcgpn-aux") :].split("\n\n")[1].splitlines()
    assert [line.split("|")[1].strip() for line in table[2:]] == ["attributes", "words"]
    assert "**45.00 ± 0.50**" in table[3]
    assert "**44.00" not in table[2]
    assert "1 of the paper's 44 cells" in text
    assert "not in the paper's tables" not in text
    heads = [f"{measure} minus that of {other}" for other in ("attributes", "none") for measure in ("Joint-Joint", "H-Mean")]
    assert f"| {' | '.join(heads)} |" in text
    assert re.search(r"\| words \| ours by `fast` \| [^|]+ \| \+1\.00 ± 0\.71 \* \|  \|  \|", text)  # nothing to put it beside
