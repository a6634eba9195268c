"""A few of the commands that `make kills` kills, or whose disk it lets fill up."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kills.py"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["add-class", "add-class-large"])
def test_a_killed_command_loses_nothing(name: str) -> None:
    command = [sys.executable, str(SCRIPT), "14", "--command", name]
    ended = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "14 commands disturbed, 0 failures" in ended.stdout
    assert f"{name} kill" in ended.stdout
    assert f"{name} full" in ended.stdout
