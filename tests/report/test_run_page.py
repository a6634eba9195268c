"""The page on a run, and the command that writes it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from protograph.cli import app
from protograph.data import DATASETS, Dataset, DatasetSource
from protograph.evaluation.confusions import collect, strongest
from protograph.evaluation.metrics import evaluation_spec
from protograph.report.document import Figure, Heading, Paragraph, Table, as_html, plain_text
from protograph.report.run_page import _value, run_document
from protograph.training.run_config import RunConfig
from protograph.training.run_folder import Run
from protograph.training.setup import trained_model
from protograph.training.stages import train

NAMES = ("<i>one</i>", "two | b", "**three**")


@pytest.fixture(scope="module")
def named(toy: Dataset) -> Dataset:
    """The toy, with names that are hard on a page."""
    return replace(toy, titles=dict(zip(toy.classes[-len(NAMES) :], NAMES, strict=True)))


@pytest.fixture(scope="module")
def folder(named: Dataset, toy_config: Callable[..., RunConfig], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder_path = tmp_path_factory.mktemp("run") / "gcgpn-aux"
    train(toy_config(), named, folder_path)
    return folder_path


def write(*words: str | Path) -> Result:
    return CliRunner(env={"PROTOGRAPH_DATA": None, "NO_COLOR": "1", "COLUMNS": "200"}).invoke(app, ["report", *map(str, words)])


@pytest.mark.slow
def test_a_page_shows_what_the_run_measured_and_answered(folder: Path, named: Dataset) -> None:
    run = Run.open(folder)
    measured = run.measures
    assert measured is not None
    spec = evaluation_spec(named, "test", run.config.recipe.ways, run.config.shots, run.config.recipe.test_queries)
    answers = collect(trained_model(run, named), named, spec, 20)
    blocks = run_document(run, measured, named, answers, ["kinship"])
    titles = [block.text for block in blocks if isinstance(block, Heading) and block.level == 2]
    assert titles == [
        "Measures",
        "Learning",
        "Seen and novel",
        "Most confused",
        "Relations behind the answers",
        "Configuration",
    ]
    grids = [block for block in blocks if isinstance(block, Table)]
    best = measured["measures"]["h_mean"]
    assert grids[0].rows[0][-1] == f"{best['mean']:.2f} ± {best['ci95']:.2f}"
    seen, novel = grids[1].rows
    total = answers.sides[False, True] + answers.sides[False, False]
    assert novel == (
        f"novel ({total:,})",
        f"{100 * answers.sides[False, True] / total:.1f} %",
        f"{100 * answers.sides[False, False] / total:.1f} %",
        f"{100 * answers.right[False] / total:.1f} %",
    )
    assert seen[0].startswith("seen (")
    (true, answer), times = answers.confused(1)[0]
    asked = sum(count for (one, _), count in answers.pairs.items() if one == true)
    assert grids[2].rows[0][2:] == (f"{times:,}", f"{100 * times / asked:.1f} %")
    assert (" (novel)" in grids[2].rows[0][1]) == (answer >= named.seen)
    right = grids[3].rows
    assert len(right) == min(12, len(named.novel_test), len([pair for pair in answers.answered if pair[0] == pair[1]]))
    pair = answers.commonest(False, 1)[0]
    wrong = grids[4].rows[0]
    assert wrong[2] == f"{answers.pairs[pair]:,}"
    for text, shares, own in ((wrong[3], answers.winner(pair), pair[1]), (wrong[4], answers.loser(pair), pair[0])):
        (other, share), *_ = strongest(shares, own, 1)
        expected = f"itself {100 * shares[own]:.1f}\u00a0%, {plain_text(named.title(other))} {100 * share:.1f}\u00a0%, "
        assert text.startswith(expected)
    assert dict(grids[-1].rows)["relations"] == "kinship"
    assert dict(grids[-1].rows)["relation digests"] == "none"
    assert len([block for block in blocks if isinstance(block, Figure)]) == 2  # the curves
    page = as_html("a run", blocks)
    assert "<i>" not in page
    assert "&lt;i&gt;one&lt;/i&gt; (novel)" in page
    assert "**three** (novel)" in page


def test_a_variant_without_relations_says_so(folder: Path, named: Dataset) -> None:
    run = Run.open(folder)
    spec = evaluation_spec(named, "test", run.config.recipe.ways, run.config.shots, run.config.recipe.test_queries)
    answers = collect(trained_model(run, named), named, spec, 2)
    blocks = run_document(run, run.measures or {}, named, answers, [])
    assert Paragraph("This variant relates no class to another.") in blocks


def test_the_command_writes_one_page(folder: Path, named: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = DatasetSource(lambda root, progress, skip_bad: named, "conv4-32", "a toy", built_in=True)
    monkeypatch.setitem(DATASETS, "toy", source)
    result = write(folder, "--out", tmp_path / "page.html", "--episodes=3", "--device=cpu", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == {"page": str(tmp_path / "page.html")}
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    monkeypatch.setitem(DATASETS, "toy", replace(source, open=lambda *_: replace(named, fingerprint="toy-2")))
    result = write(folder, "--out", tmp_path / "page.html")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "another version of toy" in result.stderr


def test_what_is_no_run_and_no_ledger_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "results" / "cub" / "1-shot").mkdir(parents=True)
    for words, said in (
        ([tmp_path / "results", "--episodes=3"], "would be ignored for results"),
        ([tmp_path], "neither a run folder nor a ledger"),
        ([folder, "--out=page.pdf"], "ends in .html"),
        ([tmp_path / "nowhere"], "neither a run folder nor a ledger"),
    ):
        result = write(*words)
        assert (result.exit_code, result.stdout) == (2, "")
        assert said in result.stderr
        assert result.stderr.count("\n") == 1


def test_an_unfinished_run_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    result = write(tmp_path)
    assert result.exit_code == 2
    assert "is not finished" in result.stderr


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ([], "none"),
        (["", ""], "none"),
        (["", "abc"], "none, abc"),
        (["a|b", 2], "a\\|b, 2"),
        ("", "none"),
        (None, "None"),
        (0, "0"),
    ],
)
def test_settings_without_a_value_say_so(value: object, shown: str) -> None:
    assert _value(value) == shown
