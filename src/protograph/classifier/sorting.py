"""Copies of images in a folder per class. No file is ever overwritten, and nothing is written outside the folder."""

import filecmp
import hashlib
import os
import re
import shutil
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from protograph._internal.errors import InputError
from protograph._internal.locks import hold_lock

LONGEST_FOLDER_NAME = 200  # bytes of a folder's name; file systems take 255
DIGEST = 8  # hexadecimal digits that tell shortened names apart
FORBIDDEN = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*]|%(?=[0-9A-Fa-f]{2})|~(?=[0-9A-Fa-f]{8}\Z)')  # or taken for an escape
RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?|answers\.(csv|jsonl).*")  # devices, and our table
UNFINISHED_COPY = ".copy.part"  # the copy that is being made


class SortedFolder:
    """A folder with a folder of copies for each class.

    Args:
        root: The folder.
        labels: All answers there may be.

    """

    def __init__(self, root: Path, labels: Iterable[Any]) -> None:
        self.root = root
        self._names = folder_names([str(label) for label in labels])

    @classmethod
    @contextmanager
    def opened(cls, root: Path, labels: Iterable[Any]) -> Iterator["SortedFolder"]:
        """Make the folder, and keep other processes from copying into it."""
        root.mkdir(parents=True, exist_ok=True)
        with hold_lock(root / ".protograph.lock", root, "wait for it, then run the same command again"):
            try:
                yield cls(root, labels)
            finally:
                (root / UNFINISHED_COPY).unlink(missing_ok=True)

    def copy(self, image: Path, label: Any) -> Path:
        """Copy an image into the folder of its class, and return the copy.

        A copy that is there already is found again. A name that another image has is numbered: owl.jpg, owl-2.jpg.
        """
        folder = self.root / self._names[str(label)]
        folder.mkdir(exist_ok=True)
        if folder.is_symlink():
            raise InputError(f"{folder} is a link that leads out of {self.root}: remove it, or choose another folder")
        for number in count(1):
            target = folder / numbered(image.name, number)
            if os.path.lexists(target):
                if not target.is_symlink() and target.is_file() and filecmp.cmp(image, target, shallow=False):
                    return target
            elif self._copied(image, target):
                return target
        raise AssertionError("numbers do not end")

    def _copied(self, image: Path, target: Path) -> bool:
        """Copy a file, and return whether its new name was still free. The copy appears only when it is complete."""
        scratch = self.root / UNFINISHED_COPY
        scratch.unlink(missing_ok=True)
        with image.open("rb") as source, scratch.open("xb") as copy:
            shutil.copyfileobj(source, copy)
        status = image.stat()
        os.utime(scratch, ns=(status.st_atime_ns, status.st_mtime_ns))
        try:
            os.link(scratch, target)  # fails where the name is taken, unlike a move
        except FileExistsError:
            return False
        except OSError:  # a file system without such links; the lock keeps others of us away
            if os.path.lexists(target):
                return False
            os.rename(scratch, target)
        with suppress(FileNotFoundError):
            scratch.unlink()
        return True


def folder_names(labels: list[str]) -> dict[str, str]:
    """Return a name of a folder for each class: its own where every system takes it, and none twice, whatever the case.

    Characters that a system refuses are written as %XX, and so is the first of a name that means a device, a hidden folder or
    the folder above. A long name is cut and ends with a digest of it.
    """
    names = {label: _folder_name(label) for label in labels}
    alike = Counter(_folded(name) for name in names.values())
    return {label: _with_digest(name, label) if alike[_folded(name)] > 1 else name for label, name in names.items()}


def _folder_name(label: str) -> str:
    name = FORBIDDEN.sub(lambda found: _escaped(found[0]), label)
    if name.startswith((".", " ")) or RESERVED.fullmatch(name):
        name = _escaped(name[0]) + name[1:]
    if name.endswith((".", " ")):
        name = name[:-1] + _escaped(name[-1])
    return name if len(name.encode()) <= LONGEST_FOLDER_NAME else _with_digest(name, label)


def _escaped(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _with_digest(name: str, label: str) -> str:
    digest = hashlib.sha256(label.encode()).hexdigest()[:DIGEST]
    return f"{_cut(name, LONGEST_FOLDER_NAME - DIGEST - 1)}~{digest}"


def _cut(name: str, size: int) -> str:
    """Return the beginning of a name, of at most so many bytes."""
    while len(os.fsencode(name)) > size:
        name = name[:-1]
    return name


def numbered(name: str, number: int) -> str:
    """Return the name of a file with a number before its suffix, for the second and later ones of that name."""
    if number == 1:
        return name
    stem, suffix = os.path.splitext(name)  # noqa: PTH122 - a Path would have to be made for each number
    return f"{_cut(stem, 255 - len(os.fsencode(suffix)) - len(str(number)) - 1)}-{number}{suffix}"
