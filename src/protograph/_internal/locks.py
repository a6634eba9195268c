"""One process at a time: a lock file that names its holder."""

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from protograph._internal.errors import InputError

LONGEST_HOLDER = 200  # bytes of a holder's name
UNSUPPORTED = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@contextmanager
def hold_lock(path: Path, subject: object, remedy: str, wait: float = 0.0) -> Iterator[None]:
    """Hold a lock file; while another process holds it, wait, then refuse.

    The operating system holds the lock (`filelock.FileLock`), not the existence of the file. So the lock of a process that
    was killed is free at once, on this machine or another, and a file that it left behind blocks nobody. On a shared folder
    the lock counts for all machines where the file system says so (NFS 4, Lustre, GPFS); a file system without locks is
    refused. The file holds the name of its holder, for the message alone, and is removed with the lock.

    Args:
        path: The lock file. Its folder exists.
        subject: What is locked, for the message.
        remedy: The way out, for the message.
        wait: Seconds to wait for another process.

    Raises:
        InputError: Another process still holds the lock, something else than a file is in its place, or the file system has no
            locks.

    """
    if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):  # a link would lead elsewhere, a pipe never end
        raise InputError(f"{path} should be a lock file, and is a folder, a link or a pipe: remove it")
    lock = FileLock(path, timeout=wait, on_acquired=_sign)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(f"{subject} is in use by {_holder(path)}: {remedy}") from None
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        raise InputError(f"the file system of {path.parent} has no locks: choose a folder on another one") from error
    try:
        yield
    finally:
        with suppress(PermissionError):  # Windows does not remove an open file
            path.unlink(missing_ok=True)  # whoever waits for this file notices, and makes another
        lock.release()


def _sign(descriptor: int) -> None:
    """Write the holder's name into the lock file, over an older one, so that a reader never sees an empty file in between.

    A file with another name is not written to: somebody may have given a file of the user's the name of the lock, too.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        return
    now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    name = f"process {os.getpid()} on {socket.gethostname()} since {now}".encode()
    os.write(descriptor, name)
    os.ftruncate(descriptor, len(name))


def _holder(path: Path) -> str:
    """Return the name of a lock's holder, if it can be read."""
    try:
        with path.open("rb") as file:
            text = file.read(LONGEST_HOLDER).decode(errors="replace")
        return " ".join(text.split()) or "another process"
    except OSError:  # just released, or Windows, where nobody else reads a locked file
        return "another process"
