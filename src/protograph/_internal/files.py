"""Files: plain ones alone are read, written ones are complete or absent; and the user's cache folder."""

import json
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from protograph._internal.errors import InputError

PRIVATE = 0o700  # permissions: for the user alone
UNFINISHED = ".part"  # the end of the name of a file while it is written
LARGEST_RATIO = 100  # of the bytes that a packed file unpacks to and its size; text shrinks to a tenth, images hardly
ALWAYS_ALLOWED = 100_000_000  # bytes that any packed file may unpack to


def check_plain_file(path: Path, kind: str, most: int, way_out: str = "") -> None:
    """Refuse a path that does not lead to a plain file, before it is opened: reading a pipe or a device might never end.

    Args:
        path: The file.
        kind: What the file should be, such as "model file", for the message.
        most: The bytes that such a file may have.
        way_out: What to do where there is no file, for the message.

    Raises:
        InputError: There is no file, it is a folder, a pipe or a device, or it is too large.

    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"there is no {kind} at {path}" + (f": {way_out}" if way_out else "")) from error
    except (OSError, ValueError) as error:  # a name that is too long, a loop of links, a zero byte
        raise InputError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error}): give another {kind}") from error
    if stat.S_ISDIR(status.st_mode):
        raise InputError(f"{path} is a folder, not a {kind}" + (f": {way_out}" if way_out else ""))
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is a pipe or a device, not a {kind}: save its contents into a file, and give that")
    if status.st_size > most:
        raise InputError(f"{path} has {status.st_size:,} bytes, more than {most:,} of a {kind}: give a smaller one")


def read_plain_file(path: Path, kind: str, most: int, way_out: str = "") -> bytes:
    """Return the contents of a plain file, with the arguments and errors of `check_plain_file`."""
    check_plain_file(path, kind, most, way_out)
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): check its permissions") from error


def read_text_file(path: Path, kind: str, most: int, way_out: str = "") -> str:
    """Return the text of a plain file in UTF-8, with or without the mark that spreadsheets put in front.

    Raises:
        InputError: As in `check_plain_file`, or it is not UTF-8.

    """
    content = read_plain_file(path, kind, most, way_out)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path} is not a readable {path.suffix} file (line {line} is not UTF-8: byte 0x{content[error.start]:02x}): save "
            "it as UTF-8" + (', which spreadsheets call "CSV UTF-8"' if path.suffix == ".csv" else "")
        ) from error


def parse_json(text: str | bytes) -> Any:
    """Return the values of a JSON text, in UTF-8 if it is given as bytes.

    Raises:
        ValueError: It is no JSON, or nested too deeply.

    """
    try:
        return json.loads(text if isinstance(text, str) else text.decode())
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error


def is_folder(path: Path) -> bool:
    """Return whether a path leads to a folder; False also where the system refuses the path."""
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises for a name that is too long


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


@contextmanager
def new_file(path: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Yield an empty file to fill, and what moves it into its place; without that, it is removed again.

    Whoever fills it also writes it to the disk. It gets the permissions of the file whose place it takes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=UNFINISHED)
    os.close(handle)

    def move() -> None:
        os.chmod(name, _permissions(path))
        os.replace(name, path)
        sync_folder(path.parent)

    try:
        yield Path(name), move
    finally:
        Path(name).unlink(missing_ok=True)


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


def remove_unfinished(path: Path) -> None:
    """Remove what processes that were killed left beside a file. One that is just writing it writes once more."""
    for leftover in unfinished(path):
        leftover.unlink(missing_ok=True)


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
