"""Several runs of the command at once."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from protograph._internal.errors import InputError
from protograph._internal.progress import Silent
from protograph.cli import app, jobs, train
from protograph.cli.jobs import run_all
from protograph.evaluation.metrics import MEASURES


class Heard(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


@pytest.mark.slow
def test_what_each_command_answers_comes_back_by_its_name() -> None:
    answers = run_all({"models": ["variants", "--json"], "data": ["datasets", "--json"]}, 2, Silent())
    assert list(answers) == ["models", "data"]
    assert "gcgpn-aux" in answers["models"]
    assert "letters" in answers["data"]


@pytest.mark.slow
def test_a_command_that_fails_is_named_with_its_own_line() -> None:
    heard = Heard()
    with pytest.raises(InputError, match="one failed: unknown dataset 'leters'"):
        run_all({"one": ["datasets", "check", "leters"]}, 1, heard)
    assert [line.startswith("one: error: unknown dataset") for line in heard.lines] == [True]


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes the commands that are run do what some lines of Python say; `words` are their arguments."""

    def replaced(lines: str) -> None:
        script = tmp_path / "command"
        script.write_text(f"#!{sys.executable}\nimport pathlib, sys, time\nwords = sys.argv[3:]\n{lines}\n")
        script.chmod(0o755)
        monkeypatch.setattr(jobs, "COMMAND", (str(script), "-m", "protograph"))

    return replaced


def test_an_answer_larger_than_a_pipe_comes_back(commands: Callable[[str], None]) -> None:
    commands("print('[' + '1, ' * 200_000 + '1]', flush=True)\nprint('done', file=sys.stderr)")
    heard = Heard()
    assert len(run_all({"one": []}, 1, heard)["one"]) == 200_001
    assert heard.lines == ["one: done"]


def test_after_a_failure_those_that_run_are_finished_and_no_other_begins(
    commands: Callable[[str], None], tmp_path: Path
) -> None:
    commands(
        "here, name = pathlib.Path(words[0]), words[1]\n"
        "(here / name).touch()\n"
        "while name == 'slow' and not (here / 'bad-ended').exists():\n"
        "    time.sleep(0.01)\n"
        "time.sleep(0.3 * (name == 'slow'))\n"
        "(here / f'{name}-ended').touch()\n"
        "print(1)\n"
        "sys.exit(name == 'bad')"
    )
    for at_once, names in ((2, ("slow", "bad")), (1, ("bad", "late"))):
        with pytest.raises(InputError, match="bad failed: exit code 1"):
            run_all({name: [str(tmp_path), name] for name in names}, at_once, Silent())
    assert (tmp_path / "slow-ended").exists()
    assert not (tmp_path / "late").exists()


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
            "--variant=aux-only", "--set=epochs=2", "--set=steps=3", "--skip-bad", "--device=cpu", "--precision=auto",
            "--json", f"--seed={seed}", f"--out={tmp_path / f'seed-{seed}'}",
        }  # fmt: skip
    answer = json.loads(result.stdout)
    first = next(iter(MEASURES))
    assert answer["mean"]["measures"][first] == {"mean": 5.0, "std": pytest.approx(2**0.5)}


def test_a_folder_named_in_a_toml_file_is_that_of_the_folders_of_several_seeds(asked: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f'out = "{tmp_path / "runs"}"')
    result = CliRunner().invoke(app, ["train", "--seed", "1", "--seed", "2", "--config", str(path)])
    assert result.exit_code == 0, result.stderr
    for seed in (1, 2):
        assert f"--out={tmp_path / 'runs' / f'seed-{seed}'}" in asked["commands"][f"seed {seed}"]


def test_the_table_of_several_seeds_ends_with_their_mean(asked: dict[str, Any]) -> None:
    result = CliRunner().invoke(app, ["train", "--seed", "1", "--seed", "2", "--seed", "3"])
    assert result.exit_code == 0, result.stderr
    assert "mean" in result.stdout
    assert "2.00 ± 1.00" in result.stdout


def test_a_seed_given_twice_is_refused() -> None:
    result = CliRunner().invoke(app, ["train", "--seed", "1", "--seed", "1"])
    assert result.exit_code == 2
    assert "given twice" in result.stderr
