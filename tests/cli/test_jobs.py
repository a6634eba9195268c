"""Several runs of the command at once."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from protograph.cli import app, train
from protograph.cli.jobs import run_all
from protograph.errors import InputError
from protograph.evaluation import MEASURES
from protograph.progress import Silent


class Heard(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def test_what_each_command_answers_comes_back_by_its_name() -> None:
    answers = run_all({"models": ["variants", "--json"], "data": ["datasets", "--json"]}, 2, Silent())
    assert list(answers) == ["models", "data"]
    assert "gcgpn-aux" in answers["models"]
    assert "letters" in answers["data"]


def test_a_command_that_fails_is_named_with_its_own_line() -> None:
    heard = Heard()
    with pytest.raises(InputError, match="one failed: unknown dataset 'leters'"):
        run_all({"one": ["datasets", "check", "leters"]}, 1, heard)
    assert [line.startswith("one: error: unknown dataset") for line in heard.lines] == [True]


def test_no_jobs_at_all_are_refused() -> None:
    with pytest.raises(InputError, match="at least 1"):
        run_all({}, 0, Silent())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `train` with several seeds asks of `run_all`, which answers seed + place of the measure."""
    found: dict[str, Any] = {}

    def run_all(commands: dict[str, list[str]], jobs: int, progress: object) -> dict[str, Any]:
        found.update(commands=commands, jobs=jobs)
        return {
            name: {
                "measures": {key: {"mean": float(name.split()[1]) + place, "ci95": 0.5} for place, key in enumerate(MEASURES)}
            }
            for name in commands
        }

    monkeypatch.setattr(train, "run_all", run_all)
    return found


def test_several_seeds_are_trained_with_the_same_options_each_in_a_folder_of_its_own(
    asked: dict[str, Any], tmp_path: Path
) -> None:
    options = [
        "--variant",
        "aux-only",
        "--set",
        "epochs=2",
        "--set",
        "steps=3",
        "--skip-bad",
        "--jobs",
        "2",
        "--out",
        str(tmp_path),
    ]
    result = CliRunner().invoke(app, ["train", "--seed", "4", "--seed", "6", *options, "--json"])
    assert result.exit_code == 0, result.stderr
    assert asked["jobs"] == 2
    assert list(asked["commands"]) == ["seed 4", "seed 6"]
    for seed in (4, 6):
        words = asked["commands"][f"seed {seed}"]
        assert words[0] == "train"
        assert set(words[1:]) == {
            "--variant=aux-only", "--set=epochs=2", "--set=steps=3", "--skip-bad", "--device=auto", "--precision=auto",
            "--json", f"--seed={seed}", f"--out={tmp_path / f'seed-{seed}'}",
        }  # fmt: skip
    answer = json.loads(result.stdout)
    first = next(iter(MEASURES))
    assert answer["mean"]["measures"][first] == {"mean": 5.0, "std": pytest.approx(2**0.5)}


def test_the_table_of_several_seeds_ends_with_their_mean(asked: dict[str, Any]) -> None:
    result = CliRunner().invoke(app, ["train", "--seed", "1", "--seed", "2", "--seed", "3"])
    assert result.exit_code == 0, result.stderr
    assert "mean" in result.stdout
    assert "2.00 ± 1.00" in result.stdout


def test_a_seed_given_twice_is_refused() -> None:
    result = CliRunner().invoke(app, ["train", "--seed", "1", "--seed", "1"])
    assert result.exit_code == 2
    assert "given twice" in result.stderr
