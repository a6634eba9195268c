"""Hostile inputs of each kind: an error of ours or a right answer, and nothing else.

`make attack N=1000000` reads as many; benchmarks/ATTACK.md says what came of it.
"""

import ctypes
import mmap
import os
import pickle
import re
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from attack import guard
from attack.hostile import KINDS, Attack
from protograph._internal.errors import InputError

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
@example(seed=18277)  # a Parquet file with false statistics, for which pyarrow ends the process
@example(seed=196)  # a model file of an older version whose parameters are a text
def test_an_input_is_answered_or_refused(kind: str, attack: Attack, seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pillow, about metadata, and of relations that lack a class
        attack.read(kind, seed)


def test_the_guard_sees_what_is_forbidden(tmp_path: Path) -> None:
    """Without this, a guard that sees nothing would pass everything."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    (tmp_path / "secret").write_text("x")
    forbidden = {
        f"open {outside}": lambda: outside.write_text("x"),
        f"open {tmp_path / 'secret'}": lambda: (tmp_path / "secret").read_text(),
        "open /etc/passwd": lambda: os.close(os.open("/etc/passwd", os.O_RDONLY)),
        "exec <string>": lambda: eval("1 + 1"),
        "subprocess.Popen": lambda: subprocess.run([sys.executable, "-c", ""], check=True),
        "os.system": lambda: os.system("true"),
        "socket.": lambda: socket.socket().close(),
        "pickle.find_class": lambda: pickle.loads(pickle.dumps(Path)),
        "ctypes.dlopen": lambda: ctypes.CDLL(None),
        "os.symlink": lambda: (inside / "b").symlink_to("a"),
        "os.link": lambda: (inside / "c").hardlink_to(outside),
        "os.rename": lambda: outside.rename(tmp_path / "moved"),
        "os.remove": lambda: (tmp_path / "moved").unlink(),
        "os.mkdir": lambda: outside.mkdir(),
    }
    for event, act in forbidden.items():
        with pytest.raises(AssertionError, match=f"forbidden: .*{re.escape(event)}"), guard.watched(inside):
            act()
    with guard.watched(inside):
        (inside / "file").write_text("x")
        assert (inside / "file").read_text() == "x"
    with pytest.raises(guard.WorkError), guard.watched(tmp_path):
        sum(len("") for _ in iter(int, 1))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of memory is Linux's")
def test_the_guard_sees_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(size: int) -> None:
        with mmap.mmap(-1, size) as memory:  # fresh, whatever else the process keeps
            for page in range(0, size, mmap.PAGESIZE):
                memory[page] = 1

    monkeypatch.setattr(guard, "MOST_MEMORY", 50_000_000)
    with pytest.raises(AssertionError, match="bytes more"), guard.watched(tmp_path):
        fill(60_000_000)
    with guard.watched(tmp_path):
        fill(10_000_000)


def test_only_errors_of_ours_are_refusals(attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(act: Callable[[], object]) -> bool:
        monkeypatch.setitem(KINDS, "names", lambda *_: act)
        return attack.read("names", 0)[0]

    def refuse() -> object:
        raise InputError("this is no name")

    assert read(lambda: "an answer")
    assert not read(refuse)
    with pytest.raises(KeyError):
        read(lambda: {}["x"])
    with pytest.raises(AssertionError, match=r"forbidden: .*open /etc/passwd"):
        read(lambda: Path("/etc/passwd").read_text() and refuse())
