"""Images with their classes, in the forms people have them: files -> names by class, and the part that each image is for.

root/CLASS/*.jpg              a folder of class folders
root/metadata.csv, .jsonl     a table in the folder, as Hugging Face's imagefolder has it
root/train/, root/test/       parts, each one of the above; also val/ or validation/
table.csv, table.jsonl        a table with paths relative to it
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from protograph._internal.errors import InputError
from protograph._internal.files import is_folder
from protograph._internal.progress import Progress
from protograph.data.label_table import TABLE_SUFFIXES, LabelledName, check_present, read_label_table
from protograph.data.reading import find_all_folders, find_folders, find_names

PART_OF_FOLDER = {
    "train": "train",
    "val": "validation",
    "validation": "validation",
    "test": "test",
}  # by the name of the folder
METADATA = tuple(f"metadata{suffix}" for suffix in reversed(TABLE_SUFFIXES))


@dataclass(frozen=True)
class LabelledImages:
    """Names of images by class.

    Attributes:
        root: The folder that names are relative to.
        files: The sorted names of the images of each class; a class folder may hold none.
        parts: "train", "validation" or "test" by name, where the images come in parts.
        folders: The class folders, relative to the root; none where a table names the images.

    """

    root: Path
    files: dict[str, list[str]]
    parts: Mapping[str, str] = field(default_factory=dict)
    folders: Sequence[str] = ()

    def of_part(self, part: str) -> "LabelledImages":
        """Return the images of one part; classes without any are left out."""
        chosen = {label: [name for name in names if self.parts[name] == part] for label, names in self.files.items()}
        folders = [folder for folder in self.folders if PART_OF_FOLDER[folder.partition("/")[0]] == part]
        return LabelledImages(self.root, {label: names for label, names in chosen.items() if names}, folders=folders)


def is_table(source: Path) -> bool:
    """Return whether a path names a table of images, not a folder."""
    return source.suffix.lower() in TABLE_SUFFIXES and not is_folder(source)


def find_labelled_images(source: Path, skip_bad: bool, progress: Progress) -> LabelledImages:
    """Return the images that a folder or a table names.

    Args:
        source: A folder in one of the forms above, or a table.
        skip_bad: Whether lines of tables whose images are missing are left to be counted as images that cannot be read.
        progress: Is told of images that a table leaves out.

    Raises:
        InputError: There are no images or classes, or a table has a mistake.

    """
    if is_table(source):
        return _grouped(source.parent, _table_rows(source, skip_bad))
    if (table := _find_metadata(source)) is not None:
        rows = _table_rows(table, skip_bad)
        _report_unlisted(source, rows, table, progress)
        return _grouped(source, rows)
    if not (folders := part_folders(source)):
        listed = list_class_folders(source)
        files = {label: [f"{label}/{name}" for name in names] for label, names in listed.items()}
        return LabelledImages(source, files, folders=[*listed])
    found = {folder: find_labelled_images(source / folder, skip_bad, progress) for folder in folders}
    labels = sorted({label for images in found.values() for label in images.files})
    _check_case(labels, source)
    return LabelledImages(
        source,
        {
            label: [f"{folder}/{name}" for folder, images in found.items() for name in images.files.get(label, ())]
            for label in labels
        },
        {
            f"{folder}/{name}": PART_OF_FOLDER[folder]
            for folder, images in found.items()
            for names in images.files.values()
            for name in names
        },
        [f"{folder}/{name}" for folder, images in found.items() for name in images.folders],
    )


def part_folders(root: Path) -> list[str]:
    """Return the folders of a folder's parts; none where it is not divided into train and others.

    A class may be called "train", too: the folder of a part holds class folders or a table, and no images itself.
    """
    if not is_folder(root):
        return []
    folders = find_folders(root)
    divided = (
        "train" in folders and {*folders} <= PART_OF_FOLDER.keys() and all(_holds_classes(root / name) for name in folders)
    )
    if not divided:
        return []
    if {"val", "validation"} <= {*folders}:
        raise InputError(f"{root} has both val and validation: keep one of these folders")
    return sorted(folders, key=lambda name: list(PART_OF_FOLDER).index(name))


def _holds_classes(folder: Path) -> bool:
    if _find_metadata(folder) is not None:
        return True
    return not find_names(folder) and any(find_names(folder / name) for name in find_folders(folder))


def _find_metadata(root: Path) -> Path | None:
    """Return the table of a folder, if it has one."""
    tables = [root / name for name in METADATA if (root / name).is_file()] if is_folder(root) else []
    if len(tables) > 1:
        raise InputError(f"{root} has both {' and '.join(table.name for table in tables)}: keep one of them")
    return tables[0] if tables else None


def _table_rows(table: Path, skip_bad: bool) -> list[LabelledName]:
    rows = read_label_table(table)
    if not skip_bad:
        check_present(rows, table)
    return rows


def _grouped(root: Path, rows: list[LabelledName]) -> LabelledImages:
    """Return the lines of a table by class. They are in parts if all names begin with the folder of a part."""
    files: dict[str, list[str]] = {label: [] for label in sorted({row.label for row in rows})}
    for name, label in sorted((row.name, row.label) for row in rows):
        files[label].append(name)
    folders = {row.name.partition("/")[0] if "/" in row.name else "" for row in rows}
    divided = "train" in folders and len(folders) > 1 and folders <= PART_OF_FOLDER.keys()
    parts = {row.name: PART_OF_FOLDER[row.name.partition("/")[0]] for row in rows} if divided else {}
    return LabelledImages(root, files, parts)


def _report_unlisted(root: Path, rows: list[LabelledName], table: Path, progress: Progress) -> None:
    listed = {root / row.name for row in rows}
    images = [folder / name for folder in find_all_folders(root) for name in find_names(folder)]
    if unlisted := [image for image in images if image not in listed]:
        progress.say(f"left out {len(unlisted)} images that {table} does not name, such as {unlisted[0]}")


def list_class_folders(root: Path) -> dict[str, list[str]]:
    """Return the names of the images in each class folder, by class."""
    if not is_folder(root):
        raise InputError(f"no folder at {root}: give one with a folder of images for each class, or a .csv file of images")
    classes = find_folders(root)
    for name in classes:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InputError(f"the name of a class folder of {root} is not UTF-8 ({name!a}): rename it") from None
    if not classes:
        raise InputError(f"{root} has no class folders: put the images of each class into a folder of its own there")
    _check_case(classes, root)
    listed = {name: find_names(root / name) for name in classes}
    if not any(listed.values()):
        nested = next((path for name in classes for path in (root / name).iterdir() if path.is_dir()), None)
        hint = f": give {nested.parent} instead" if nested else ": put the images of each class into its folder"
        raise InputError(f"the class folders of {root} hold no images{hint}")
    return listed


def _check_case(classes: list[str], root: Path) -> None:
    lowered: dict[str, str] = {}
    for name in classes:
        if (earlier := lowered.setdefault(name.lower(), name)) != name:
            raise InputError(f"class folders '{earlier}' and '{name}' in {root} differ only in case: rename or merge them")
