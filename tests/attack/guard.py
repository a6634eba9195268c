"""What no input may bring about: code, processes, connections, files outside its folder, endless work, memory without bound."""

import contextlib
import functools
import os
import resource
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST_CALLS = 3_000_000  # of functions, by Python or C: the right inputs take a twentieth
QUICK_SECONDS = 0.05  # of processor time, in which nobody makes as many calls
MOST_MEMORY = 600_000_000  # bytes that the process may grow by; libraries that are imported late take a part
FORBIDDEN = (
    "socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.spawn", "os.startfile", "os.symlink",
    "os.link", "pickle.find_class", "ctypes.dlopen", "urllib.", "ftplib.", "http.", "webbrowser.", "shutil.",
    "pty.",
)  # fmt: skip
HARMLESS = ("shutil.rmtree",)  # of the folder that is half built
LIBRARIES = tuple(
    {str(Path(path).resolve()) for path in (*sysconfig.get_paths().values(), *sys.path, "/usr/share", "/proc", "/dev", "/sys")}
    - {str(Path.cwd()), "/"}
)
BUILDERS = ("/collections/__init__.py", "/dataclasses.py", "/networkx/utils/decorators.py")  # of functions from texts of theirs


class WorkError(BaseException):
    """More work than an input of this size may take. No `except Exception` keeps it."""


class Watch:
    """What happened while inputs were read."""

    def __init__(self) -> None:
        self.folders: tuple[str, ...] = ()
        self.seen: list[str] = []
        self.calls = 0
        self.seconds = 0.0  # of processor time
        self.active = False
        self.thread = 0

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note an event of Python's audit that no input may bring about."""
        if not self.active:
            return
        if event == "open":
            self._opened(arguments[0], arguments[1], arguments[2] if len(arguments) > 2 else 0)
        elif event == "exec":
            self._executed(arguments[0].co_filename)
        elif event.startswith(FORBIDDEN) and event not in HARMLESS:
            self.seen.append(f"{event} {str(arguments)[:200]}")
        elif event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod"):
            for path, descriptor in zip(arguments, arguments[-1:] if event != "os.rename" else arguments[2:], strict=False):
                self._inside(in_folder(path, descriptor), event)

    def _executed(self, source: str) -> None:
        """Note code that is not of a file of this package or of a library, which may be imported late."""
        if source.startswith(("<frozen", *LIBRARIES)) or sys._getframe(2).f_code.co_filename.endswith(BUILDERS):
            return
        self.seen.append(f"exec {source[:200]}")

    def _opened(self, path: Any, mode: Any, flags: Any) -> None:
        if isinstance(path, int):
            return
        writes = isinstance(mode, str) and bool(set("wax+") & set(mode))
        writes |= mode is None and isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        if mode is None and not writes and not os.path.isabs(os.fsdecode(path)):  # noqa: PTH117 - a step through a folder
            return
        self._inside(path, "open", () if writes else LIBRARIES)

    def _inside(self, path: Any, event: str, more: tuple[str, ...] = ()) -> None:
        if isinstance(path, int):
            return
        real = os.path.realpath(os.fsdecode(path))
        if not any(real == folder or real.startswith(folder + os.sep) for folder in (*self.folders, *more)):
            self.seen.append(f"{event} {real[:200]}")

    def count(self, frame: Any, event: str, argument: Any) -> None:
        """Count a call, and end the work beyond the bound."""
        if event in ("call", "c_call"):
            self.calls += 1
            if self.calls > MOST_CALLS:
                sys.setprofile(None)
                raise WorkError(f"more than {MOST_CALLS:,} calls")


WATCH = Watch()
_ADDED = threading.Event()


@contextlib.contextmanager
def watched(*folders: Path, counted: bool = True) -> Iterator[Watch]:
    """Note what happens in the block.

    Args:
        folders: Files may be written in these folders alone.
        counted: Whether to count the calls; that takes half as long again as the calls themselves.

    Raises:
        AssertionError: Something forbidden happened, or the process grew beyond its bound.
        WorkError: The work is beyond its bound.

    """
    if not _ADDED.is_set():
        sys.addaudithook(WATCH.hook)
        _ADDED.set()
    WATCH.folders = tuple(os.path.realpath(folder) for folder in folders)
    before = forget_peak_memory()
    WATCH.seen, WATCH.calls, WATCH.active = [], 0, True
    begun = time.process_time()
    if counted:
        sys.setprofile(WATCH.count)
    try:
        yield WATCH
    finally:
        sys.setprofile(None)
        WATCH.active, WATCH.seconds = False, time.process_time() - begun
    assert not WATCH.seen, f"forbidden: {WATCH.seen[:5]}"
    grown = peak_memory() - before
    assert grown < MOST_MEMORY, f"{grown:,} bytes more"


def in_folder(path: Any, descriptor: Any) -> Any:
    """Return a path that may be relative to an opened folder."""
    if isinstance(descriptor, int) and descriptor >= 0 and isinstance(path, str | bytes):
        return os.path.join(os.readlink(f"/proc/self/fd/{descriptor}"), os.fsdecode(path))  # noqa: PTH118, PTH115
    return path


def forget_peak_memory() -> int:
    """Let the peak of memory begin anew with what the process holds now, where Linux allows it, and return the peak."""
    with contextlib.suppress(OSError):
        os.pwrite(_descriptor("clear_refs", os.O_WRONLY), b"5", 0)
    return peak_memory()


def peak_memory() -> int:
    """Return the most bytes that the process has held since the peak was forgotten."""
    try:
        text = os.pread(_descriptor("status", os.O_RDONLY), 4096, 0)
    except OSError:  # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(text.partition(b"VmHWM:")[2].split(maxsplit=1)[0]) * 1024


@functools.cache
def _descriptor(name: str, flags: int) -> int:
    """Return the descriptor of a file about this process, which stays open: it is read for each input."""
    return os.open(f"/proc/self/{name}", flags)
