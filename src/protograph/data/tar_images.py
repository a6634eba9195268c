"""Images in tar files, as webdataset lays them out: members whose names agree up to the first dot of the file belong together.

    000017.jpg   an image
    000017.cls   its class, a name or a number
    000017.json  or its class, as one of the values that tables of images have: label, class, class_name or category

A tar is indexed by its headers and never unpacked, so nothing is written and no link is followed.
"""

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from protograph._internal.errors import InputError
from protograph._internal.files import check_plain_file
from protograph.data.decode import MAX_IMAGE_BYTES
from protograph.data.label_table import LABEL_COLUMNS
from protograph.data.reading import SUFFIXES, forward_members

TAR_SUFFIX = ".tar"
MAX_TAR_BYTES = 10**13
MAX_LABEL_BYTES = 1_000_000  # of a member that names a class


@dataclass(frozen=True)
class TarMember:
    """Where the contents of a member are: the tar, its name in there, the first byte, and how many."""

    tar: Path
    name: str
    offset: int
    size: int

    def read(self) -> bytes:
        """Return the contents.

        Raises:
            InputError: The tar is shorter than it was.

        """
        with self.tar.open("rb") as file:
            file.seek(self.offset)
            content = file.read(self.size)
        if len(content) != self.size:
            raise InputError(f"{self.tar} was cut short: fetch it again")
        return content


@dataclass
class _Sample:
    """The members of a sample: its image, and the one that names its class."""

    image: TarMember | None = None
    label: TarMember | None = None


@dataclass(frozen=True)
class TarImages:
    """The images of a tar with their classes, in the order of the tar.

    Attributes:
        images: The images.
        labels: The class of each; None where the tar has none.

    """

    images: list[TarMember] = field(default_factory=list)
    labels: list[str | None] = field(default_factory=list)


def read_tar_index(tar: Path) -> TarImages:
    """Return where the images of a tar are, and their classes.

    Raises:
        InputError: It is no tar or a compressed one, has a member that is a link or would lie outside its folder, two images of
            the same name, or a class that cannot be read.

    """
    samples: dict[str, _Sample] = {}
    for member in _members(tar):
        path = PurePosixPath(member.name)
        stem, _, suffix = path.name.partition(".")
        suffix = f".{suffix.lower()}"
        if not stem or (suffix not in SUFFIXES and suffix not in (".cls", ".json")):
            continue  # a hidden file, or another kind of data
        sample = samples.setdefault(str(path.parent / stem), _Sample())
        if suffix in SUFFIXES:
            if sample.image is not None:
                raise InputError(f"{tar} has both {sample.image.name} and {member.name}: keep one image of each name")
            if member.size > MAX_IMAGE_BYTES:
                raise InputError(f"{member.name} of {tar} has {member.size:,} bytes, more than {MAX_IMAGE_BYTES:,} of an image")
            sample.image = member
        elif sample.label is None or suffix == ".cls":
            sample.label = member
    indexed = TarImages()
    for sample in samples.values():
        if sample.image is not None:
            indexed.images.append(sample.image)
            indexed.labels.append(None if sample.label is None else _label(sample.label))
    return indexed


def _members(tar: Path) -> Iterator[TarMember]:
    """Yield the plain files of a tar, with names that are checked as those of archives are."""
    check_plain_file(tar, "tar of images", MAX_TAR_BYTES)
    length = tar.stat().st_size
    try:
        with tarfile.open(tar, "r:") as opened:
            for member in forward_members(opened):
                opened.members.clear()  # type: ignore[attr-defined]  # all headers would fill the memory
                if member.isdir():
                    continue
                if not member.isreg() or member.issparse() or _leads_out(member.name):
                    raise InputError(f"{tar} has a member '{member.name}' that is a link or outside its folder: do not use it")
                if member.offset_data + member.size > length:
                    raise InputError(f"{tar} was cut short: fetch it again")
                yield TarMember(tar, member.name, member.offset_data, member.size)
    except InputError:
        raise
    except (tarfile.TarError, ValueError, OSError, EOFError, OverflowError, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{tar} cannot be read as a tar ({reason}): give one that is not compressed, or fetch it again"
        ) from error


def _leads_out(name: str) -> bool:
    return name.startswith("/") or "\\" in name or "\0" in name or ".." in PurePosixPath(name).parts


def _label(member: TarMember) -> str | None:
    """Return the class that a .cls or .json member names; None where a .json names none."""
    if member.size > MAX_LABEL_BYTES:
        raise InputError(f"{member.name} of {member.tar} has {member.size:,} bytes, too many for the name of a class")
    try:
        text = member.read().decode()
        if not member.name.lower().endswith(".json"):
            label: object = text.strip()
        else:
            values = json.loads(text)
            label = next((values[key] for key in LABEL_COLUMNS if key in values), None) if isinstance(values, dict) else None
            if label is None:
                return None
            text = str(label)
            text.encode()
    except (ValueError, RecursionError) as error:
        raise InputError(f"{member.name} of {member.tar} cannot be read ({error}): repair it or leave it out") from error
    if isinstance(label, bool) or not isinstance(label, str | int) or not text.strip():
        raise InputError(f"{member.name} of {member.tar} names no class: write its name or its number")
    return text.strip()
