"""One process at a time: a lock is a file that names its holder."""

import glob
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from typing import Any

from protograph._internal.errors import InputError

STALE = 60.0  # seconds after which what a killed process left beside a lock is removed


@contextmanager
def held(lock: Path, what: object, remedy: str, wait: float = 0.0) -> Iterator[None]:
    """Hold a lock; while another process does, wait for so many seconds, then refuse. A dead process's lock is taken over.

    what: what is locked, for the message
    remedy: the way out, for the message
    """
    own = {"pid": os.getpid(), "host": socket.gethostname(), "born": _born(os.getpid()), "since": _now(), "token": token_hex(8)}
    patience = time.monotonic() + wait
    while True:
        try:
            _put(lock, json.dumps(own))
            break
        except FileExistsError:
            holder = _holder(lock)
            if holder is not None and not _living(holder):
                _bury(lock, holder)
            elif holder is not None and time.monotonic() > patience:
                raise _in_use(lock, what, remedy, holder) from None
            time.sleep(0.01)
    for left in lock.parent.glob(f"{glob.escape(lock.name)}.*"):  # by a process that was killed while it took the lock
        if _age(left) > STALE:
            left.unlink(missing_ok=True)
    try:
        yield
    finally:
        if _holder(lock) == own:
            lock.unlink()


def _put(lock: Path, content: str) -> None:
    """Make the lock, whole; FileExistsError where there is one."""
    handle, name = tempfile.mkstemp(dir=lock.parent, prefix=f"{lock.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
        try:
            os.link(name, lock)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            with lock.open("x", encoding="utf-8") as file:
                file.write(content)
    finally:
        Path(name).unlink(missing_ok=True)


def _bury(lock: Path, holder: dict[str, Any]) -> None:
    """Remove the lock of a process that is no more, and no other.

    Whoever removes it has made a second file, named after that very lock, so of many that saw it dead one at a time looks
    again and removes.
    """
    grave = lock.with_name(f"{lock.name}.{holder['token']}.dead")
    try:
        grave.touch(exist_ok=False)
    except FileExistsError:
        if _age(grave) > STALE:
            grave.unlink(missing_ok=True)
        return
    try:
        if _holder(lock) == holder:
            lock.unlink()
    finally:
        grave.unlink(missing_ok=True)


def _age(path: Path) -> float:
    """Seconds since a file was written; 0 for one that is gone."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _in_use(lock: Path, what: object, remedy: str, holder: dict[str, Any]) -> InputError:
    if holder["host"] != socket.gethostname():
        return InputError(
            f"{what} is in use by process {holder['pid']} on {holder['host']} since {holder['since']}: wait for it, or "
            f"remove {lock} if it is no more"
        )
    return InputError(f"{what} is in use by process {holder['pid']} since {holder['since']}: {remedy}")


def _living(holder: dict[str, Any]) -> bool:
    """Whether a lock's holder is, or may be, at work: of another machine's nothing is known."""
    if holder["host"] != socket.gethostname():
        return True
    return _alive(holder["pid"]) and holder["born"] == _born(holder["pid"])


def _holder(lock: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(lock.read_text(encoding="utf-8"))
        return {name: found[name] for name in ("pid", "host", "born", "since", "token")}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{lock} is damaged: remove it if no other process is at work there") from error


def _alive(pid: int) -> bool:
    if sys.platform == "win32":
        import ctypes

        process = ctypes.windll.kernel32.OpenProcess(0x1000, False, pid)  # PROCESS_QUERY_LIMITED_INFORMATION
        ctypes.windll.kernel32.CloseHandle(process)
        return bool(process)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return _state(pid)[:1] != ["Z"]  # dead, only not yet buried by its parent


def _born(pid: int) -> str:
    """When a process started, where the system says so: a number that is used again is another process."""
    state = _state(pid)
    return state[19] if state else ""


def _state(pid: int) -> list[str]:
    """Linux: what /proc says of a process from its state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _now() -> str:
    return datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
