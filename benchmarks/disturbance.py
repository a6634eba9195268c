"""What kills a process, or lets its disk fill up, at a call that writes."""

import errno
import os
import resource
import signal
import sys
from dataclasses import dataclass, field
from typing import Any

WRITING = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "tempfile.mkstemp", "tempfile.mkdtemp", "os.link")
GROWING = ("open", "os.mkdir", "tempfile.mkstemp", "tempfile.mkdtemp")  # what a full disk refuses


@dataclass
class Disturbance:
    """What disturbs a command, counted in its process.

    Attributes:
        kind: kill, full, short or moment; "" disturbs nothing, and counts.
        at: The number of the call, the bytes of a file, or the moment in seconds.
        calls: How many calls wrote so far.

    """

    kind: str
    at: float = 0
    calls: int = 0
    folder: str = field(default_factory=os.getcwd)

    def begin(self) -> None:
        """Disturb this process from now on."""
        if self.kind == "moment":
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, self.at)  # without a handler, it ends the process at once
        if self.kind == "short":
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(self.at),) * 2)
        sys.addaudithook(self.hook)
        synced = os.fsync

        def fsync(descriptor: Any) -> None:
            self.write("fsync")
            synced(descriptor)

        os.fsync = fsync

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Take each call of Python that writes into account."""
        if event == "open":
            path, mode, flags = arguments
            if isinstance(path, int) or not (mode is None or set("wax+") & set(mode)):
                return
            if mode is None and not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
        elif event not in WRITING:
            return
        path = arguments[0]
        if isinstance(path, str | bytes | os.PathLike) and os.path.realpath(os.fsdecode(path)).startswith(self.folder):
            self.write(event)

    def write(self, event: str) -> None:
        """Count a call that writes, and disturb it if it is the one."""
        self.calls += 1
        if self.kind == "kill" and self.calls == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "full" and self.calls >= self.at and (event in GROWING or event == "fsync"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
