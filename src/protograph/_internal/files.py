"""Files that are complete or absent: atomic writes, and the user's cache folder."""

import json
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

PRIVATE = 0o700  # permissions: for the user alone
UNFINISHED = ".part"  # the end of the name of a file while it is written


def cache_folder() -> Path:
    """Return the cache folder: `PROTOGRAPH_CACHE`, or a folder in the system's cache folder that only the user can read."""
    if chosen := os.environ.get("PROTOGRAPH_CACHE"):
        return Path(chosen)
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "protograph"
    with suppress(OSError):  # a folder that cannot be made is reported where it is written to
        folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        folder.chmod(PRIVATE)  # it holds images and features of the user's
    return folder


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file; after a crash or a full disk the old file is still there.

    The file keeps its permissions. A link stays, and its target is replaced.
    """
    path = followed(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _replace(path, content)
    except FileNotFoundError:  # another process took the new file for a leftover, and removed it
        _replace(path, content)


def followed(path: Path) -> Path:
    """Return the target of a link, or the path itself if it is no link."""
    return path.resolve() if path.is_symlink() else path


def _replace(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, _permissions(path))
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk, so that a power failure does not bring a replaced file back."""
    with suppress(OSError):  # Windows opens no folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def unfinished(path: Path) -> list[Path]:
    """Return the files beside `path` that `write_atomically` has not moved into place, or never will after a kill."""
    pattern = re.compile(re.escape(f".{path.name}.") + r"[a-z0-9_]{8}" + re.escape(UNFINISHED))
    return [file for file in path.parent.iterdir() if pattern.fullmatch(file.name)]


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically."""
    write_atomically(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def build_folder(path: Path, build: Callable[[Path], None]) -> None:
    """Let `build` fill a new folder, then move it to `path`.

    Two processes may build the same folder: the first to finish wins, and both see a complete folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        build(scratch)
        os.chmod(scratch, 0o777 & ~_umask())
        try:
            os.rename(scratch, path)
        except OSError:
            if not path.is_dir():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _permissions(path: Path) -> int:
    """Return the permissions of a file, or for a new file the usual ones: mkstemp makes private files."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
