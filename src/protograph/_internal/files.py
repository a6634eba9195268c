"""Files that are whole or absent: atomic writes, and the user's cache folder."""

import json
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

UNFINISHED = ".part"  # how the name of a file ends that is still being written


def cache_folder() -> Path:
    """Where built datasets are kept: `PROTOGRAPH_CACHE`, or the system's place for caches."""
    if chosen := os.environ.get("PROTOGRAPH_CACHE"):
        return Path(chosen)
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "protograph"


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` by `content`; after a crash or a full disk the old file is still there.

    A file keeps its permissions, and a link to one stays: what it leads to is replaced.
    """
    path = followed(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _replace(path, content)
    except FileNotFoundError:  # another process took what was being written for what a killed one left, and removed it
        _replace(path, content)


def followed(path: Path) -> Path:
    """The file that a link leads to, or the path itself."""
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


def unfinished(path: Path) -> list[Path]:
    """What `write_atomically` left beside `path` in a process that was killed, or is about to put in its place."""
    own = re.compile(re.escape(f".{path.name}.") + r"[a-z0-9_]{8}" + re.escape(UNFINISHED))
    return [other for other in path.parent.iterdir() if own.fullmatch(other.name)]


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically."""
    write_atomically(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def build_folder(path: Path, build: Callable[[Path], None]) -> None:
    """Let `build` fill a new folder and put it at `path` once it is complete.

    Two processes may build the same folder: the first to finish wins, and both find it complete.
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
    """Those that the file has; of a new one the usual ones, since mkstemp makes private files and a run is for sharing."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
