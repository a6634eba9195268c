"""protograph figures"""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from paper.made_up import make_ledger
from protograph.data import DATASETS, Dataset, DatasetSource
from protograph.paper.ledger import read_ledger
from protograph.paper.published import Cell
from protograph.paper.tables import few_shot_table_rows


def figures(*words: str | Path) -> Result:
    from protograph.cli import app

    environment = {"PROTOGRAPH_DATA": None, "NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb"}
    return CliRunner(env=environment).invoke(app, ["figures", *map(str, words)])


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    values = {
        (Cell("cub", 1, "gcgpn-aux"), "fast"): {"joint_joint": [47.0]},
        (Cell("mini-imagenet", 5, "gcgpn-aux-split"), "fast"): {"novel_novel": [75.0]},
    }
    return make_ledger(tmp_path / "results", values)


@pytest.mark.slow
def test_what_is_missing_is_named_and_the_rest_drawn(results: Path) -> None:
    result = figures("shots")
    assert result.exit_code == 0, result.stderr
    assert sorted(path.name for path in Path("figures").iterdir()) == ["shots-cub.pdf", "shots-cub.png"]
    missing = next(line for line in result.stderr.splitlines() if line.startswith("missing in shots-cub: "))
    assert "1-shot gcgpn-aux-split, gcgpn, gcgpn-split, gcgpn-cos-aux, dfslwof-att; 2-shot all; 3-shot all" in missing
    assert len(json.loads(figures("shots", "--json").stdout)["missing"]) == 5 * 6 - 1
    assert "reproduce --table shots" in missing


def test_the_few_shot_comparison_is_printed(results: Path) -> None:
    result = figures("few-shot")
    assert result.exit_code == 0, result.stderr
    one, five = [line for line in result.stdout.splitlines() if "GcGPN-aux-split" in line]
    assert [cell.strip() for cell in one.strip("│").split("│")] == ["GcGPN-aux-split", "GFSL", "60.40 ± 0.71"]
    assert [cell.strip() for cell in five.strip("│").split("│")] == [
        "GcGPN-aux-split", "GFSL", "73.31 ± 0.62", "75.00 ± 0.50",
    ]  # fmt: skip
    rows = json.loads(figures("few-shot", "--json").stdout)["few-shot"]
    assert rows[0]["method"] == "Matching Network"
    assert not Path("figures").exists()


@pytest.mark.parametrize("width", [80, 60])
def test_the_few_shot_comparison_fits_a_terminal_with_every_number_whole(width: int, tmp_path: Path) -> None:
    from protograph.cli.figures import few_shot_table

    cell = Cell("mini-imagenet", 5, "gcgpn-aux")
    values = {(cell, recipe): {"novel_novel": [55.0]} for recipe in ("paper", "fast")}
    ledger = read_ledger(make_ledger(tmp_path / "results", values))
    rows = [row for row in few_shot_table_rows(ledger, ["paper", "fast"]) if row["shots"] == 5]
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(few_shot_table(rows, "title"))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    cells = [line.strip("│").split("│") for line in lines if line.startswith("│")]
    numbers = {recipe: [row for row in rows if row["recipe"] == recipe] for recipe in ("published", "paper", "fast")}
    for column, of_recipe in zip((2, 3, 4), numbers.values(), strict=True):  # however they are broken
        shown = "".join(row[column] for row in cells).replace(" ", "")
        assert shown == "".join(f"{row['mean']}±{row['ci95']}".removesuffix("±") for row in of_recipe)


@pytest.mark.slow
def test_operators_of_a_datasets_default_relations_are_drawn(
    results: Path, toy: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DATASETS, "toy", DatasetSource(lambda *_: toy, "conv4-32", "a toy", built_in=True))
    answer = json.loads(figures("operators", "--dataset=toy", "--out=drawn", "--json").stdout)
    assert answer["files"] == [
        f"drawn/operator-toy-kinship{size}.{kind}" for size in ("", "-column") for kind in ("png", "pdf")
    ]
    assert all(Path(name).stat().st_size for name in answer["files"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["shot"], "unknown figure 'shot': did you mean shots"),
        (["--dataset=cup"], "'cup'"),
        (["shots", "--recipe=fats"], "'fats'"),
        (["operators"], "needs its files"),
        (["operators", "--recipe=fast"], "--recipe would be ignored"),
        (["few-shot", "--dataset=cub"], "--dataset would be ignored"),
        (["shots", "--root=here"], "--root would be ignored"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(results: Path, words: list[str], said: str) -> None:
    result = figures(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
