"""Any number of images to encode, in an order that depends on the list alone: names, classes, and where the contents are.

FOLDER                     the forms of `labelled_images`, or with `labelled=False` all images in it and below
table.csv, table.jsonl     paths and classes, as `label_table` reads them
table.parquet              the same columns
FOLDER of .tar files       webdataset shards, in the order of their names; or one .tar
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from protograph._internal.errors import InputError
from protograph._internal.files import check_plain_file, is_folder
from protograph._internal.parquet import read_parquet
from protograph._internal.progress import Progress
from protograph.data.label_table import LabelledName, check_present, check_rows, label_columns
from protograph.data.labelled_images import find_labelled_images
from protograph.data.reading import MAX_TABLE_BYTES, find_all_folders, find_names
from protograph.data.tar_images import TAR_SUFFIX, TarMember, read_tar_index

PARQUET_SUFFIX = ".parquet"


@dataclass(frozen=True)
class ListedImage:
    """An image of a list.

    Attributes:
        name: Its name, relative to the source, with "/" between folders.
        contents: Where they are: a file, or a member of a tar.
        label: Its class, if the list has classes.
        part: "train", "validation" or "test", where the images come in parts.

    """

    name: str
    contents: Path | TarMember
    label: str | None = None
    part: str | None = None

    def size(self) -> int:
        """Return the number of bytes; -1 where there is no such file."""
        if isinstance(self.contents, TarMember):
            return self.contents.size
        try:
            return self.contents.stat().st_size
        except (OSError, ValueError):
            return -1


@dataclass(frozen=True)
class ImageList:
    """A list of images.

    Attributes:
        source: The folder, table or tar.
        images: The images.

    """

    source: Path
    images: Sequence[ListedImage]

    @property
    def labelled(self) -> bool:
        """Whether the images have classes."""
        return self.images[0].label is not None

    def resolved(self) -> "ImageList":
        """Return the same list with absolute paths, for processes in other folders."""

        def resolve(contents: Path | TarMember) -> Path | TarMember:
            return replace(contents, tar=contents.tar.absolute()) if isinstance(contents, TarMember) else contents.absolute()

        return ImageList(self.source.absolute(), [replace(image, contents=resolve(image.contents)) for image in self.images])

    def digest(self) -> str:
        """Return a digest of names, classes and parts; where the source lies does not count."""
        digest = hashlib.blake2b(digest_size=16)
        for image in self.images:
            digest.update(json.dumps([image.name, image.label, image.part]).encode() + b"\n")
        return digest.hexdigest()


def list_images(source: Path, labelled: bool, skip_bad: bool, progress: Progress) -> ImageList:
    """Return the images of a folder, a table or tars.

    Args:
        source: What names the images.
        labelled: Whether folders and tables name classes; otherwise a folder's images are taken at any depth.
        skip_bad: Whether lines of tables whose images are missing are left, to be named when they are read.
        progress: Is told what is left out.

    Raises:
        InputError: There are no images, or a table or a tar has a mistake.

    """
    if tars := _find_tars(source):
        images = _tar_images(tars, labelled)
    elif source.suffix.lower() == PARQUET_SUFFIX and not is_folder(source):
        images = _of_rows(source.parent, _parquet_rows(source, skip_bad))
    elif labelled:
        found = find_labelled_images(source, skip_bad, progress)
        images = [
            ListedImage(name, found.root / name, label, found.parts.get(name))
            for label, names in found.files.items()
            for name in names
        ]
    else:
        images = _folder_images(source)
    if not images:
        raise InputError(f"{source} holds no images: give a folder, a table or a tar that does")
    return ImageList(source, images)


def _find_tars(source: Path) -> list[Path]:
    """Return the tars that a path names: itself, or those directly in a folder that holds nothing else to encode."""
    if not is_folder(source):
        return [source] if source.suffix.lower() == TAR_SUFFIX else []
    with os.scandir(source) as entries:
        names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    return [source / name for name in names if name.lower().endswith(TAR_SUFFIX)]


def _tar_images(tars: Sequence[Path], labelled: bool) -> list[ListedImage]:
    images: list[ListedImage] = []
    for tar in tars:
        index = read_tar_index(tar)
        for member, label in zip(index.images, index.labels, strict=True):
            images.append(ListedImage(f"{tar.name}/{member.name}", member, label if labelled else None))
    without = [image.name for image in images if image.label is None]
    if labelled and without and len(without) < len(images):
        raise InputError(f"{without[0]} has no class, though other images have: add a .cls member, or use --unlabelled")
    return images


def _folder_images(source: Path) -> list[ListedImage]:
    if not is_folder(source):
        raise InputError(f"{source} is no folder of images: --unlabelled takes a folder or tars")
    return [
        ListedImage((folder / name).relative_to(source).as_posix(), folder / name)
        for folder in sorted(find_all_folders(source))
        for name in find_names(folder)
    ]


def _of_rows(root: Path, rows: Sequence[LabelledName]) -> list[ListedImage]:
    """Return the lines of a table, sorted by class and name as those of a .csv are."""
    return [ListedImage(row.name, root / row.name, row.label) for row in sorted(rows, key=lambda row: (row.label, row.name))]


def _parquet_rows(table: Path, skip_bad: bool) -> list[LabelledName]:
    """Return the lines of a Parquet table of paths and classes."""
    check_plain_file(table, "table of images", MAX_TABLE_BYTES)
    try:
        columns, _ = read_parquet(table, lambda names: label_columns(names, table))
        names, labels = (column.to_pylist() for column in columns.values())
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{table} is not a readable parquet file ({error})") from error
    rows = check_rows(zip(range(1, len(names) + 1), names, labels, strict=True), table)
    if not skip_bad:
        check_present(rows, table)
    return rows
