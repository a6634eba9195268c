"""The example of a dataset from outside the package, by its name on the command line."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from protograph.cli import app
from protograph.data import DATASETS
from protograph.data.kept_split import SPLIT_FILE

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_dataset.py"
SETS = [f"--set={name}" for name in ("epochs=1", "steps=3", "episodes=2", "ways=3", "validation_episodes=2", "test_queries=5")]


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Forget what is registered in a test."""
    yield
    DATASETS.pop("gratings", None)


def protograph(*arguments: str | Path) -> Result:
    return CliRunner(env={"TERM": "dumb", "COLUMNS": "200"}).invoke(app, [str(argument) for argument in arguments])


@pytest.mark.slow
def test_the_example_is_trained_on_and_measured_by_name(tmp_path: Path) -> None:
    words = ("train", "--dataset=gratings", "--out", tmp_path / "run", "--device=cpu", *SETS)
    refused = protograph(*words)
    assert refused.exit_code == 2
    assert "unknown dataset 'gratings'" in refused.stderr
    trained = protograph(*words, "--plugin", EXAMPLE)
    assert trained.exit_code == 0, (trained.exception, trained.stderr)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["dataset"], config["backbone"], config["relations"]) == ("gratings", "conv4-32", ["angle"])
    assert config["recipe"]["name"] == "demo"
    assert (tmp_path / "run" / SPLIT_FILE).exists()
    del DATASETS["gratings"]
    words = ("evaluate", tmp_path / "run", "--episodes=3", "--json", "--device=cpu")
    refused = protograph(*words)
    assert refused.exit_code == 2
    assert "add --plugin custom_dataset.py" in refused.stderr
    measured = protograph(*words, "--plugin", EXAMPLE)
    assert measured.exit_code == 0, (measured.exception, measured.stderr)
    assert json.loads(measured.stdout)["measures"].keys() >= {"h_mean", "seen_seen"}


def test_the_example_is_listed_and_checked() -> None:
    listed = protograph("datasets", "--plugin", EXAMPLE, "--json")
    assert json.loads(listed.stdout)["gratings"]["backbone"] == "conv4-32"
    checked = json.loads(protograph("datasets", "check", "gratings", "--plugin", EXAMPLE, "--json").stdout)
    assert (checked["dataset"], checked["classes"], checked["images"]) == ("gratings", 36, 1080)
    assert checked["relations"].keys() == {"angle"}


def test_the_example_is_short_and_complete() -> None:
    lines = [line for line in EXAMPLE.read_text().split('"""', 2)[2].splitlines() if line.strip()]
    assert len(lines) <= 40
