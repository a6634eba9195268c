"""Earlier versions of a model file, for undo and redo.

The earlier versions of birds.pg are complete model files in the folder birds.pg.history beside it. Each change first puts the
file there, by a hard link where the file system has them, and then replaces it. Which version came before which is said by
the files themselves: each names the digest of the version it was made from. So there is no list that could be out of date, and
after a kill at any moment the file is whole, and nothing that was kept is lost.
"""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from protograph._internal.errors import InputError
from protograph._internal.files import UNFINISHED, followed, sync_folder, write_atomically
from protograph.classifier.model_file import Contents, loadable, locked, read_header, unpack
from protograph.classifier.model_schema import LONGEST_CHANGE, ChangeValues

MOST_VERSIONS = 20  # that are kept beside a file
NAME = re.compile(r"(\d{6,})-([0-9a-f]{32})\.pg")  # of a version: its number and its digest


@dataclass(frozen=True)
class Change:
    """A change of a model file.

    Attributes:
        number: Its number; a later change has a larger one.
        what: What was changed.
        when: When, as ISO 8601 in UTC.
        classes: The number of classes after it.
        undone: Whether it was undone, and can be redone.

    """

    number: int
    what: str
    when: str
    classes: int
    undone: bool = False


class _Described(msgspec.Struct):
    """What a version says of itself."""

    names: list[str]
    change: ChangeValues | None = None


@dataclass(frozen=True)
class _Version:
    """One version of a model file.

    Attributes:
        file: The file that holds it.
        digest: Its digest.
        number: The number of the change that made it; 0 where none did.
        described: What it says of itself; None where that cannot be read.

    """

    file: Path
    digest: str
    number: int
    described: _Described | None

    @property
    def after(self) -> str | None:
        """The digest of the version it was made from, if it was made by a change."""
        return self.described.change.after if self.described and self.described.change else None

    def change(self, undone: bool = False) -> Change:
        """Return the change that made it."""
        assert self.described is not None
        assert self.described.change is not None
        change = self.described.change
        return Change(change.number, change.what, change.when, len(self.described.names), undone)


def history_folder(path: Path | str) -> Path:
    """Return the folder that holds the earlier versions of a model file."""
    file = followed(Path(path))
    return file.with_name(f"{file.name}.history")


def history(path: Path | str) -> list[Change]:
    """Return the changes of a model file that can be undone or redone, the newest first.

    Args:
        path: The model file.

    Raises:
        InputError: There is no model file.

    """
    current = _read(followed(Path(path)))
    versions = _kept(path)
    undone = [version.change(undone=True) for version in reversed(_later(current, versions))]
    line = [current, *_earlier(current, versions)]
    return undone + [version.change() for version in line[:-1]]


def undo(path: Path | str) -> Change:
    """Take back the last change of a model file, and return it.

    Args:
        path: The model file.

    Raises:
        InputError: There is nothing to undo, or the earlier version is damaged. The file then stays as it is.

    """
    path = Path(path)
    with locked(path):
        current = _read(followed(path))
        if current.after is None:
            raise InputError(f"there is nothing to undo: no change of {path} is kept")
        before = _kept(path).get(current.after)
        if before is None:
            folder = history_folder(path)
            state = "does not have it any more" if folder.is_dir() else "is not there"
            raise InputError(
                f"the last change of {path} cannot be undone: the version before it was kept in {folder}, which {state}"
            )
        _bring_back(path, before)
        return replace(current.change(), undone=True)


def redo(path: Path | str) -> Change:
    """Make the change of a model file that was undone last once more, and return it.

    Args:
        path: The model file.

    Raises:
        InputError: There is nothing to redo, or the later version is damaged. The file then stays as it is.

    """
    path = Path(path)
    with locked(path):
        later = _later(_read(followed(path)), _kept(path))
        if not later:
            raise InputError(f"there is nothing to redo: no change of {path} was undone, or it was changed since")
        _bring_back(path, later[0])
        return later[0].change()


def write_change(path: Path, contents: Contents, what: str, restore: Callable[[Contents], object]) -> None:
    """Replace a model file by a changed one, and keep the earlier version. The caller holds the lock of the file.

    Args:
        path: The model file.
        contents: What to write.
        what: What was changed.
        restore: What makes a classifier of contents, tried on those that are to be written.

    Raises:
        InputError: What would be written could not be loaded again.

    """
    current = _read(followed(path))
    number = 1 + max([current.number, *(version.number for version in _kept(path).values())])
    what = what if len(what) <= LONGEST_CHANGE else f"{what[: LONGEST_CHANGE - 1]}…"
    change = ChangeValues(number, what, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", current.digest)
    values: dict[str, Any] = {**contents.values, "change": msgspec.to_builtins(change)}
    _replace(path, current, loadable(path, replace(contents, values=values), restore))


def _bring_back(path: Path, version: _Version) -> None:
    """Replace a model file by a kept version, if that is whole, and keep the file as a version."""
    try:
        content = version.file.read_bytes()
        unpack(content, version.file)
        if _read(version.file).digest != version.digest:
            raise InputError(f"{version.file} is not what its name says")
    except (InputError, OSError) as error:
        raise InputError(f"{path} was left as it is, since the version to go back to cannot be used: {error}") from error
    _replace(path, _read(followed(path)), content)  # a copy: whoever writes into the file leaves the version alone


def _replace(path: Path, current: _Version, content: bytes) -> None:
    """Keep the current version of a model file, then replace it, then remove versions that nobody can go back to."""
    folder = history_folder(path)
    try:
        folder.mkdir(exist_ok=True)
    except FileExistsError as error:
        raise InputError(f"{folder} is in the way of the earlier versions of {path}: move it") from error
    kept = folder / f"{current.number:06d}-{current.digest}.pg"
    if not kept.is_file() or kept.stat().st_size != current.file.stat().st_size:
        _link(current.file, kept)
        sync_folder(folder)
    write_atomically(path, content)
    sync_folder(followed(path).parent)
    _prune(path)


def _link(file: Path, kept: Path) -> None:
    """Keep a file under another name too: by a hard link, or by a copy where the file system has none."""
    kept.unlink(missing_ok=True)  # of another size, so damaged
    try:
        os.link(file, kept)
    except OSError:
        write_atomically(kept, file.read_bytes())


def _prune(path: Path) -> None:
    """Remove the versions that nobody can go back to, the oldest beyond the limit, and what killed processes left."""
    current, versions = _read(followed(path)), _kept(path)
    earlier, later = _earlier(current, versions), _later(current, versions)
    oldest = earlier[-1].number if earlier else current.number
    alive = {version.digest for version in (*earlier, *later)}
    # A version that cannot be read hides those before it: these have smaller numbers, and stay
    dead = [version for version in versions.values() if version.digest not in alive and version.number >= oldest]
    rest = sorted(versions.keys() - {version.digest for version in dead}, key=lambda digest: versions[digest].number)
    dead += [versions[digest] for digest in rest[: max(0, len(rest) - MOST_VERSIONS)]]
    for file in (*(version.file for version in dead), *history_folder(path).glob(f".*{UNFINISHED}")):
        file.unlink(missing_ok=True)


def _earlier(current: _Version, versions: dict[str, _Version]) -> list[_Version]:
    """Return the kept versions that the current one was made from, the newest first."""
    line: list[_Version] = []
    version = current
    while (before := versions.get(version.after or "")) is not None and before.number < version.number:
        line.append(before)
        version = before
    return line


def _later(current: _Version, versions: dict[str, _Version]) -> list[_Version]:
    """Return the kept versions that were made from the current one and then undone, the oldest first."""
    line: list[_Version] = []
    version = current
    while made := [other for other in versions.values() if other.after == version.digest and other.number > version.number]:
        version = max(made, key=lambda other: other.number)  # an older one was left by a process that was killed
        line.append(version)
    return line


def _kept(path: Path | str) -> dict[str, _Version]:
    """Return the versions in the folder by digest, the current one perhaps among them."""
    versions = {}
    with suppress(FileNotFoundError, NotADirectoryError):
        for file in history_folder(path).iterdir():
            if match := NAME.fullmatch(file.name):
                described = None
                with suppress(InputError, OSError):
                    described = _read(file).described
                versions[match[2]] = _Version(file, match[2], int(match[1]), described)
    return versions


def _read(file: Path) -> _Version:
    """Return the version in a file by what it says of itself.

    Raises:
        InputError: There is no model file, or it says nothing that makes sense.

    """
    header = read_header(file)
    try:
        described = msgspec.json.decode(header["classifier"], type=_Described)
    except (ValueError, KeyError, RecursionError) as error:
        raise InputError(f"{file} is damaged ({str(error) or type(error).__name__}): restore a copy, or fit again") from error
    return _Version(file, header["digest"], described.change.number if described.change else 0, described)
