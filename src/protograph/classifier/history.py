"""Earlier versions of a model file, for undo and redo.

The earlier versions of birds.pg are complete model files in the folder birds.pg.history beside it. Each change first puts the
file there, by a hard link where the file system has them, and then replaces it. Which version came before which is said by
the files themselves: each names the digest of the version it was made from. So there is no list that could be out of date, and
after a kill at any moment the file is whole, and nothing that was kept is lost.

A large file has its versions in itself, as far back as its base: a change appends what is different, and to go back or forth
appends that the file returns to one of its states. It is put into the folder where it is written anew.
"""

import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import msgspec

from protograph._internal.errors import InputError
from protograph._internal.files import UNFINISHED, followed, new_file, sync_folder, write_atomically
from protograph.classifier.model_file import (
    Contents,
    append_model,
    is_segmented,
    loadable,
    locked,
    pack,
    read_header,
    read_model,
    read_segment_list,
    unpack,
)
from protograph.classifier.model_schema import LONGEST_CHANGE, ChangeValues
from protograph.classifier.segmented_file import append_return

MOST_VERSIONS = 20  # that are kept beside a file
LARGEST_KEPT = 2  # times the size of a large file, up to which other large ones are kept beside it; the newest one always is
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

    classes: Annotated[int, msgspec.Meta(ge=0)]
    change: ChangeValues | None = None


class _Values(msgspec.Struct):
    """What history takes from the values of a plain file."""

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
        large: Whether the file is a large one, which may hold several versions.

    """

    file: Path
    digest: str
    number: int
    described: _Described | None
    large: bool = False

    @property
    def after(self) -> str | None:
        """The digest of the version it was made from, if it was made by a change."""
        return self.described.change.after if self.described and self.described.change else None

    def change(self, undone: bool = False) -> Change:
        """Return the change that made it."""
        assert self.described is not None
        assert self.described.change is not None
        change = self.described.change
        return Change(change.number, change.what, change.when, self.described.classes, undone)


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
    versions = _versions(path)
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
        before = _versions(path).get(current.after)
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
        later = _later(_read(followed(path)), _versions(path))
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
    number = 1 + max([current.number, *(version.number for version in _versions(path).values())])
    what = what if len(what) <= LONGEST_CHANGE else f"{what[: LONGEST_CHANGE - 1]}…"
    change = ChangeValues(number, what, f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", current.digest)
    values: dict[str, Any] = {**contents.values, "change": msgspec.to_builtins(change)}
    packed = pack(replace(contents, values=values))
    _forget_itself(path, current)
    if append_model(path, packed):
        _prune(path)
        return
    with loadable(path, packed, restore) as ready:
        _replace(path, current, ready.move)


def _bring_back(path: Path, version: _Version) -> None:
    """Replace a model file by a kept version, if that is whole, and keep the file as a version."""
    current = _read(followed(path))
    _forget_itself(path, current)
    try:
        if version.file == current.file:
            append_return(version.file, version.digest)
            return
        if version.large:
            _check_whole(version)
            _replace(path, current, partial(os.replace, version.file, current.file))
            return
        content = version.file.read_bytes()
        unpack(content, version.file)
        if _read(version.file).digest != version.digest:
            raise InputError(f"{version.file} is not what its name says")
    except (ValueError, OSError) as error:
        raise InputError(f"{path} was left as it is, since the version to go back to cannot be used: {error}") from error
    _replace(path, current, partial(write_atomically, path, content))  # a copy: whoever writes into the file leaves it alone


def _check_whole(version: _Version) -> None:
    """Let a large file stand at one of its versions.

    Raises:
        InputError: It is damaged, or does not have this version.

    """
    if _read(version.file).digest != version.digest:
        append_return(version.file, version.digest)
    read_model(version.file)


def _replace(path: Path, current: _Version, move: Callable[[], None]) -> None:
    """Keep the current version of a model file, then let another take its place, then remove those that nobody goes back to."""
    folder = history_folder(path)
    try:
        folder.mkdir(exist_ok=True)
    except FileExistsError as error:
        raise InputError(f"{folder} is in the way of the earlier versions of {path}: move it") from error
    kept = folder / f"{current.number:06d}-{current.digest}.pg"
    if not kept.is_file() or kept.stat().st_size != current.file.stat().st_size:
        _link(current.file, kept)
        sync_folder(folder)
    move()
    sync_folder(followed(path).parent)
    _prune(path)


def _forget_itself(path: Path, current: _Version) -> None:
    """Remove a large file from its own versions, where a killed process put it and did not come to replace it."""
    if current.large:
        with suppress(FileNotFoundError, NotADirectoryError):
            for file in history_folder(path).iterdir():
                if NAME.fullmatch(file.name) and file.samefile(current.file):
                    file.unlink()


def _link(file: Path, kept: Path) -> None:
    """Keep a file under another name too: by a hard link, or by a copy where the file system has none."""
    kept.unlink(missing_ok=True)  # of another size, so damaged
    try:
        os.link(file, kept)
    except OSError:
        with new_file(kept) as (unplaced, move):
            shutil.copyfile(file, unplaced)
            with unplaced.open("rb+") as copied:
                os.fsync(copied.fileno())
            move()


def _prune(path: Path) -> None:
    """Remove the files that nobody can go back to, the oldest beyond the limits, and what killed processes left."""
    current, versions = _read(followed(path)), _versions(path)
    earlier, later = _earlier(current, versions), _later(current, versions)
    oldest = earlier[-1].number if earlier else current.number
    alive = {version.file for version in (*earlier, *later)}
    newest = {version.file: version for version in sorted(versions.values(), key=lambda version: version.number)}
    newest.pop(current.file, None)
    # A version that cannot be read hides those before it: these have smaller numbers, and stay
    dead = [file for file, version in newest.items() if file not in alive and version.number >= oldest]
    rest = [file for file in newest if file not in dead]
    dead += rest[: max(0, len(rest) - MOST_VERSIONS)]
    large = [file for file in rest if newest[file].large][::-1]
    room = LARGEST_KEPT * current.file.stat().st_size
    sizes = accumulate(file.stat().st_size for file in large)
    dead += [file for file, size in list(zip(large, sizes, strict=True))[1:] if size > room]
    for file in (*dead, *history_folder(path).glob(f".*{UNFINISHED}")):
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


def _versions(path: Path | str) -> dict[str, _Version]:
    """Return the versions in the folder, and in a large file itself, by digest; perhaps also the current one."""
    versions = {}
    with suppress(FileNotFoundError, NotADirectoryError):
        for file in history_folder(path).iterdir():
            if match := NAME.fullmatch(file.name):
                version = _Version(file, match[2], int(match[1]), None)  # as far as its name says
                versions[version.digest] = version
                with suppress(InputError, OSError):
                    versions |= _states(version)
    current = _read(followed(Path(path)))
    return versions | (_states(current) if current.large else {})


def _states(version: _Version) -> dict[str, _Version]:
    """Return the versions in a file by digest, of which there are several in a large one, with what they say of themselves."""
    if not is_segmented(version.file):
        return {version.digest: replace(version, described=_read(version.file).described)}
    states = read_segment_list(version.file).states
    return {digest: _large_version(version.file, digest, state.header.note) for digest, state in states.items()}


def _large_version(file: Path, digest: str, note: dict[str, Any]) -> _Version:
    try:
        described = msgspec.convert(note, _Described)
    except msgspec.ValidationError as error:
        raise InputError(f"{file} is damaged ({error}): restore a copy, or fit again") from error
    return _Version(file, digest, described.change.number if described.change else 0, described, large=True)


def _read(file: Path) -> _Version:
    """Return the version in a file by what it says of itself.

    Raises:
        InputError: There is no model file, or it says nothing that makes sense.

    """
    if is_segmented(file):
        head = read_segment_list(file).head
        return _large_version(file, head.digest, head.header.note)
    header = read_header(file)
    try:
        values = msgspec.json.decode(header["classifier"], type=_Values)
    except (ValueError, KeyError, RecursionError) as error:
        raise InputError(f"{file} is damaged ({str(error) or type(error).__name__}): restore a copy, or fit again") from error
    described = _Described(len(values.names), values.change)
    return _Version(file, header["digest"], described.change.number if described.change else 0, described)
