"""Hostile inputs of each kind: an error of ours or a right answer, and nothing else.

`make attack N=1000000` reads as many; benchmarks/ATTACK.md says what came of it.
"""

import pickle
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from attack import guard
from attack.hostile import KINDS, Attack

pytestmark = pytest.mark.slow
SUITE = 120  # inputs of each kind in the suite


@pytest.fixture(scope="module")
def attack(tmp_path_factory: pytest.TempPathFactory) -> Attack:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Attack(tmp_path_factory.mktemp("attack"))


@pytest.mark.parametrize("kind", KINDS)
@settings(derandomize=True, max_examples=SUITE, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**40))
@example(seed=351)  # a model file whose number of features is infinity
@example(seed=493)  # a ledger whose cell has a number for a name
@example(seed=196)  # a model file of an older version whose parameters are a text
def test_an_input_is_answered_or_refused(kind: str, attack: Attack, seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow, about metadata, and of relations that lack a class
        attack.read(kind, seed)


def test_the_guard_sees_what_is_forbidden(tmp_path: Path) -> None:
    """Without this, a guard that sees nothing would pass everything."""
    (tmp_path / "inside").mkdir()
    forbidden = {
        "open": lambda: (tmp_path / "outside").write_text("x"),
        "subprocess.Popen": lambda: subprocess.run([sys.executable, "-c", ""], check=True),
        "socket.": lambda: socket.socket().close(),
        "pickle.find_class": lambda: pickle.loads(pickle.dumps(Path)),
        "os.symlink": lambda: (tmp_path / "inside" / "b").symlink_to("a"),
        "os.remove": lambda: (tmp_path / "outside").unlink(),
    }
    for event, act in forbidden.items():
        with pytest.raises(AssertionError, match=f"forbidden: .*{event}"), guard.watched(tmp_path / "inside"):
            act()
    with guard.watched(tmp_path / "inside"):
        (tmp_path / "inside" / "file").write_text("x")
    with pytest.raises(guard.WorkError), guard.watched(tmp_path):
        sum(len("") for _ in iter(int, 1))
