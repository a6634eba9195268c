"""The grid as jobs of submitit, by its executor for one machine, with a stand-in for the trainer."""

import functools
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from cli.test_reproduce_command import HERE, faked, reproduce
from paper.made_up import contents
from protograph.cli import jobs, slurm

__all__ = ["faked"]
CELLS = ("--dataset=letters", "--shots=1", "--variant=dfslwof-att")
RUN_AS_JOB = slurm._run_as_job


def stand_in(command: tuple[str, ...], variables: Mapping[str, str]) -> Callable[..., Any]:
    """What a job does instead of training."""
    run_as_job = RUN_AS_JOB

    def run_stand_in(*arguments: Any) -> Any:
        jobs.COMMAND = command
        os.environ.update(variables)
        return run_as_job(*arguments)

    return run_stand_in


@pytest.fixture
def here(faked: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Jobs as processes of this machine, with the stand-in; its log."""
    pytest.importorskip("submitit", reason="needs submitit")
    variables = {name: value for name, value in os.environ.items() if name.startswith("FAKE_")}
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE.parents[1] / "src"), str(HERE.parent)]))
    monkeypatch.setattr(slurm, "_run_as_job", stand_in(jobs.COMMAND, variables))
    monkeypatch.setattr(slurm, "Slurm", functools.partial(slurm.Slurm, kind="local"))
    monkeypatch.setattr(slurm, "SLURM_POLL_SECONDS", 0.05)
    return faked


@pytest.mark.slow
def test_jobs_leave_the_same_ledger_and_their_reports_are_shown(here: Path) -> None:
    assert reproduce(*CELLS, "--results=whole/results", "--runs=whole/runs").exit_code == 0
    result = reproduce(*CELLS, "--engine=slurm", "--device=cpu", "--slurm=partition=main", "--slurm=time=60")
    assert result.exit_code == 0, result.stderr
    assert contents(Path("results")) == contents(Path("whole/results"))
    assert "letters 1-shot dfslwof-att demo-0: epoch 1" in result.stderr
    assert [*Path("runs", slurm.LOGS).iterdir()]
    assert reproduce("--table-only").exit_code == 0


@pytest.mark.slow
def test_a_job_that_is_killed_is_queued_again_a_number_of_times(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import os, pathlib, signal; pathlib.Path('begun').open('a').write('x'); os.kill(os.getpid(), signal.SIGKILL)"
    monkeypatch.setattr(slurm, "_run_as_job", stand_in((sys.executable, "-c", code), {}))
    result = reproduce("--dataset=letters", "--shots=1", "--variant=pn+", "--engine=slurm", "--device=cpu", "--retries=1")
    assert result.exit_code == 2
    assert "pn+ demo-0: it was killed by signal 9, 2 times" in result.stderr
    assert Path("begun").read_text() == "xx"


def test_what_slurm_needs_is_said_before_anything_runs(faked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for options, words in (
        (["--slurm=partition=main"], "--slurm partition=main would be ignored without --engine slurm"),
        (["--engine=slurm", "--jobs=2"], "--jobs 2 would be ignored with --engine slurm"),
        (["--engine=slurm", "--slurm=partition"], "--slurm takes NAME=VALUE, not 'partition'"),
        (["--retries=2"], "--retries 2 would be ignored with --engine local"),
    ):
        result = reproduce(*CELLS, *options)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert words in result.stderr
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert 'pip install "protograph[slurm]"' in reproduce(*CELLS, "--engine=slurm").stderr
    assert not faked.exists()


def test_without_sbatch_or_with_an_unknown_option_nothing_runs(faked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="needs submitit")
    monkeypatch.setattr(slurm.shutil, "which", lambda name: None)
    assert "needs sbatch, which is not here" in reproduce(*CELLS, "--engine=slurm").stderr
    monkeypatch.setattr(slurm, "Slurm", functools.partial(slurm.Slurm, kind="local"))
    result = reproduce(*CELLS, "--engine=slurm", "--slurm=partitoin=main")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "--slurm has an option that cannot be used" in result.stderr
    assert "partitoin" in result.stderr
    assert not faked.exists()
