import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from protograph._internal.errors import InputError
from protograph._internal.locks import held


def dead(lock: Path) -> None:
    lock.write_text(json.dumps({"pid": 2**22, "host": socket.gethostname(), "born": "", "since": "then", "token": "t"}))


def test_those_who_wait_come_one_after_another(tmp_path: Path) -> None:
    lock, inside, most, together = tmp_path / ".lock", 0, 0, threading.Barrier(6)
    dead(lock)

    def take() -> None:
        nonlocal inside, most
        together.wait()
        with held(lock, "the file", "wait", wait=60):
            inside += 1
            most = max(most, inside)
            time.sleep(0.02)
            inside -= 1

    with ThreadPoolExecutor(6) as threads:
        for future in [threads.submit(take) for _ in range(6)]:
            future.result()
    assert most == 1
    assert list(tmp_path.iterdir()) == []


def test_who_does_not_wait_is_told_who_holds_it(tmp_path: Path) -> None:
    with (
        held(tmp_path / ".lock", "the file", "wait"),
        pytest.raises(InputError, match=f"the file is in use by process {os.getpid()} since .*: do something"),
        held(tmp_path / ".lock", "the file", "do something", wait=0.05),
    ):
        pass


def test_what_a_killed_process_left_is_removed_once_it_is_old(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    dead(lock)
    left = [lock.with_name(".lock.abc"), lock.with_name(".lock.t.dead")]
    for path in left:
        path.touch()
        os.utime(path, (0, 0))
    (tmp_path / ".lock.new").touch()
    with held(lock, "the file", "wait", wait=5):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [".lock.new"]
