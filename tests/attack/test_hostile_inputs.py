"""The command that reads as many hostile inputs as wanted: each counts once, whatever it does to the process that reads it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
READER = """
import json, os, signal, sys, time
for kind, seed in json.load(sys.stdin):
    if (kind, seed) == ("b", 1):
        os.kill(os.getpid(), signal.SIGKILL)
    if (kind, seed) == ("b", 2):
        sys.exit(0)
    while (kind, seed) == ("b", 3):
        pass
    failed = (kind, seed) == ("a", 4)
    answer = {"outcome": "failed", "error": "KeyError: 'x'"} if failed else {"outcome": "refused", "calls": 10 * seed}
    print(json.dumps({"kind": kind, "seed": seed, **answer}), flush=True)
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the command, with a reader that fails at some inputs, and with its state and its report in a folder."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import attack_report
    import hostile_inputs

    monkeypatch.setattr(attack_report, "STATES", tmp_path)
    monkeypatch.setattr(attack_report, "REPORT", tmp_path / "ATTACK.md")
    monkeypatch.setattr(hostile_inputs, "READER", [sys.executable, "-c", READER])
    monkeypatch.setattr(hostile_inputs, "WORKING_SECONDS", 1)
    return hostile_inputs


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_every_input_counts_once_also_if_it_ends_its_process_or_never_ends(command: Any, tmp_path: Path, jobs: int) -> None:
    assert command.run(6, jobs, ("a", "b")) == 2, "of the seeds 0 to 2"
    assert command.run(16, jobs, ("a", "b", "c")) == 4
    state = json.loads((tmp_path / "inputs.json").read_text())
    assert {kind: tuple(counts.values()) for kind, counts in state["kinds"].items()} == {
        "a": (0, 5, 1, 50), "b": (0, 2, 3, 40), "c": (0, 5, 0, 40)
    }  # fmt: skip
    errors = {(failure["kind"], failure["seed"]): failure["error"] for failure in state["failures"]}
    assert errors == {
        ("b", 1): "the process ended with -9",
        ("b", 2): "the process ended with 0",
        ("b", 3): "the process ended with -9",
        ("a", 4): "KeyError: 'x'",
    }
    report = (tmp_path / "ATTACK.md").read_text()
    assert "`make attack N=16` read 16 inputs" in report
    assert "| b | 5 | 0 | 2 | 3 | 40 |" in report
    assert "- a, 4: `KeyError: 'x'`; not mended" in report


@pytest.mark.slow
def test_what_failed_before_is_read_again(command: Any, tmp_path: Path) -> None:
    command.run(10, 1, ("a",))
    command.READER[2] = READER.replace('("a", 4)', '("a", 0)')
    assert command.run(10, 1, ("a",)) == 0
    assert "- a, 4: `KeyError: 'x'`; refused" in (tmp_path / "ATTACK.md").read_text()


@pytest.mark.slow
def test_real_inputs_are_read(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    inputs = [("tables", 3), ("run folders", 679), ("names", 2)]
    ended = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "hostile_inputs.py"), "--read", str(tmp_path)],
        input=json.dumps(inputs), env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    answers = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [(answer["kind"], answer["seed"]) for answer in answers] == inputs
    assert {answer["outcome"] for answer in answers} <= {"answered", "refused"}
    assert answers[1]["outcome"] == "refused", "of a run without one of its measures, which was a KeyError"
