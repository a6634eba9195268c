import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from errno import EACCES, ENOSYS
from pathlib import Path

import filelock
import pytest

from protograph._internal.errors import InputError
from protograph._internal.locks import hold_lock

SOURCE = str(Path(__file__).parents[2] / "src")
HOLDING = """
import sys
from pathlib import Path
from protograph._internal.locks import hold_lock
with hold_lock(Path(sys.argv[1]), "the file", "wait"):
    print("held", flush=True)
    sys.stdin.read()
"""


def start_holder(lock: Path) -> subprocess.Popen[str]:
    """A process that holds the lock until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(lock)],
        env={**os.environ, "PYTHONPATH": SOURCE},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_processes_that_wait_hold_it_in_turn(tmp_path: Path) -> None:
    lock, inside, most, barrier = tmp_path / ".lock", 0, 0, threading.Barrier(6)
    lock.write_text("left by a dead process")

    def take() -> None:
        nonlocal inside, most
        barrier.wait()
        with hold_lock(lock, "the file", "wait", wait=60):
            inside += 1
            most = max(most, inside)
            time.sleep(0.02)
            inside -= 1

    with ThreadPoolExecutor(6) as threads:
        for future in [threads.submit(take) for _ in range(6)]:
            future.result()
    assert most == 1
    assert list(tmp_path.iterdir()) == []


def test_the_message_names_the_holder(tmp_path: Path) -> None:
    holder = f"process {os.getpid()} on {socket.gethostname()} since 20"
    with (
        hold_lock(tmp_path / ".lock", "the file", "wait"),
        pytest.raises(InputError, match=f"the file is in use by {holder}.*: do something"),
        hold_lock(tmp_path / ".lock", "the file", "do something", wait=0.05),
    ):
        pass


def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    with start_holder(lock) as process:
        with pytest.raises(InputError, match=f"in use by process {process.pid} on"), hold_lock(lock, "the file", "wait"):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert lock.exists()
    with hold_lock(lock, "the file", "wait"):
        assert lock.read_text().startswith(f"process {os.getpid()} on ")
    assert list(tmp_path.iterdir()) == []


def test_a_holder_on_another_machine_is_respected_and_named(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    with start_holder(lock) as process:
        lock.write_text("process 1 on far-away since then")  # the file system holds the lock for it
        with pytest.raises(InputError, match="process 1 on far-away since then"), hold_lock(lock, "the file", "wait"):
            pass
        lock.write_text("")  # as between taking the lock and signing it
        with pytest.raises(InputError, match="in use by another process"), hold_lock(lock, "the file", "wait"):
            pass
        process.communicate()


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(number: int) -> None:
        def acquire(*_: object, **__: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(filelock.FileLock, "acquire", acquire)

    fail(ENOSYS)
    with pytest.raises(InputError, match="has no locks: choose"), hold_lock(tmp_path / ".lock", "the file", "wait"):
        pass
    fail(EACCES)
    with pytest.raises(PermissionError), hold_lock(tmp_path / ".lock", "the file", "wait"):
        pass


@pytest.mark.parametrize("kind", ["folder", "link", "dangling link", "pipe"])
def test_what_is_no_lock_file_is_refused(tmp_path: Path, kind: str) -> None:
    lock, other = tmp_path / ".lock", tmp_path / "other"
    other.write_text("mine")
    make = {"folder": lock.mkdir, "pipe": lambda: os.mkfifo(lock)}
    make.get(kind, lambda: lock.symlink_to(other if kind == "link" else tmp_path / "nowhere"))()
    with (
        pytest.raises(InputError, match=r"\.lock should be a lock file, and is a folder, a link or a pipe: remove it"),
        hold_lock(lock, "the file", "wait"),
    ):
        pass
    assert other.read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


def test_a_file_of_the_users_that_is_also_called_the_lock_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    os.link(tmp_path / "mine", tmp_path / ".lock")
    with hold_lock(tmp_path / ".lock", "the file", "wait"):
        assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"\xff\xfe a\nb", b"x" * 10_000_000])
def test_the_name_of_a_holder_is_one_short_line(tmp_path: Path, content: bytes) -> None:
    process = start_holder(tmp_path / ".lock")
    (tmp_path / ".lock").write_bytes(content)
    with pytest.raises(InputError) as refused, hold_lock(tmp_path / ".lock", "the file", "wait"):
        pass
    process.communicate("")
    assert len(str(refused.value)) < 300
    assert "\n" not in str(refused.value)
