"""Tables that name images and the class of each: a .csv file, or a .jsonl file with an object per line.

The images are named relative to the folder of the table and lie in it or below, so the folder can be moved as a whole.
"""

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from protograph._internal.errors import InputError
from protograph._internal.files import read_text_file
from protograph.data.reading import MAX_TABLE_BYTES

PATH_COLUMNS = ("file_name", "path", "file", "filename", "image")  # the first is that of Hugging Face's imagefolder
LABEL_COLUMNS = ("label", "class", "class_name", "category")
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}  # where the comma is a decimal point, spreadsheets write others
COLUMNS_NAMED = 8  # of a table without the right ones
TABLE_SUFFIXES = (".csv", ".jsonl")


@dataclass(frozen=True)
class LabelledName:
    """A line of a table.

    Attributes:
        name: The image, relative to the folder of the table, with "/" between folders.
        label: Its class.
        line: The number of the line, counted from 1.

    """

    name: str
    label: str
    line: int


def read_label_table(path: Path) -> list[LabelledName]:
    """Return the lines of a table.

    The column of images is called `file_name`, `path`, `file`, `filename` or `image`, that of classes `label`, `class`,
    `class_name` or `category`. Other columns are ignored.

    Raises:
        InputError: The table is no text in UTF-8, a column is missing or there twice, or a line cannot be used.

    """
    if path.suffix.lower() not in TABLE_SUFFIXES:
        raise InputError(f"{path} is no table of images: give a {' or '.join(TABLE_SUFFIXES)} file, or a folder")
    text = read_text_file(path, "table of images", MAX_TABLE_BYTES)
    return check_rows(_csv_lines(text, path) if path.suffix.lower() == ".csv" else _json_lines(text, path), path)


def check_rows(lines: Iterable[tuple[int, Any, Any]], path: Path) -> list[LabelledName]:
    """Return the lines of a table, of which the number, the image and the class are given, after all checks.

    Raises:
        InputError: A line cannot be used, or two contradict one another.

    """
    rows = [
        LabelledName(_checked_name(file, path, line), _checked_label(label, path, line), line) for line, file, label in lines
    ]
    if not rows:
        raise InputError(f"{path} names no images: write a line for each, below the names of the columns")
    _check_twice(rows, path)
    _check_case(rows, path)
    return rows


def check_present(rows: list[LabelledName], path: Path) -> None:
    """Raise an `InputError` that names the first line whose image is missing."""
    for row in rows:
        if not os.path.lexists(path.parent / row.name):
            separators = "; write / between folders, not \\" if "\\" in row.name else ""
            raise InputError(
                f"line {row.line} of {path}: there is no image {row.name} in {path.parent}: restore it or delete the line, or "
                f"leave such images out with --skip-bad{separators}"
            )


def _csv_lines(text: str, path: Path) -> Iterator[tuple[int, Any, Any]]:
    """Yield the number of each line that is not empty, with its image and its class."""
    first, *_ = [*text.splitlines(), ""]
    separator = next((sign for sign in SEPARATORS if _has_columns(first.split(sign))), None)
    if separator is None:
        separator = max(SEPARATORS, key=first.count)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        header = [cell.strip() for cell in next(rows, [])]
        file, label = (header.index(column) for column in label_columns(header, path))
        for row in rows:
            if not any(map(str.strip, row)):
                continue
            if len(row) != len(header):
                raise InputError(
                    f"line {rows.line_num} of {path} has {len(row)} cells and the first line {len(header)}: give it as many; a "
                    f'cell that holds {SEPARATORS[separator]} stands between "quotes"'
                )
            yield rows.line_num, row[file], row[label]
    except csv.Error as error:
        raise InputError(f"{path} is not a readable .csv file (line {rows.line_num}: {error}): repair it") from error


def _json_lines(text: str, path: Path) -> Iterator[tuple[int, Any, Any]]:
    columns: tuple[str, str] | None = None
    for number, line in enumerate(text.split("\n"), 1):  # other ends of lines may stand in a JSON string
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"line {number} of {path} is not JSON ({error}): give an object on each line") from error
        if not isinstance(row, dict):
            raise InputError(f"line {number} of {path} is not a JSON object: give an object on each line")
        columns = columns or label_columns([*row], path)
        for column in columns:
            if column not in row:
                raise InputError(f"line {number} of {path} has no '{column}': give it one, or delete the line")
        yield number, *(row[column] for column in columns)


def _has_columns(header: list[str]) -> bool:
    cells = {cell.strip().strip('"') for cell in header}
    return bool(cells & {*PATH_COLUMNS}) and bool(cells & {*LABEL_COLUMNS})


def label_columns(header: list[str], path: Path) -> tuple[str, str]:
    """Return the names of the columns of images and of classes.

    Raises:
        InputError: There is none, or more than one, of either.

    """
    chosen = []
    for kind, names in (("images", PATH_COLUMNS), ("classes", LABEL_COLUMNS)):
        present = [name for name in header if name in names]
        if not present:
            where = "on the first line" if path.suffix.lower() == ".csv" else "in every object"
            listed = ", ".join(map(repr, header[:COLUMNS_NAMED])) or "nothing"
            raise InputError(f"{path} has no column of {kind}, but {listed}: call it '{names[0]}' {where}")
        if len(present) > 1:
            columns = " and ".join(present)
            raise InputError(f"{path} has {len(present)} columns of {kind} ({columns}): keep one, rename the other")
        chosen.append(present[0])
    return chosen[0], chosen[1]


def _checked_name(file: Any, path: Path, line: int) -> str:
    """Return the name of an image without needless parts."""
    if not isinstance(file, str) or not file.strip():
        raise InputError(f"line {line} of {path} names no image: give it a path, or delete the line")
    name = file.strip()
    if PurePosixPath(name).is_absolute() or PureWindowsPath(name).is_absolute():
        raise InputError(
            f"line {line} of {path} names {name} by its absolute path: put the table beside or above its images, and write "
            f"paths relative to {path.parent}"
        )
    if ".." in PurePosixPath(name).parts:
        raise InputError(
            f"line {line} of {path} names {name}, which may lead out of {path.parent}: put the table beside or above its "
            "images, and write paths without '..'"
        )
    if "\0" in name:
        raise InputError(f"line {line} of {path} names an image with a zero byte: repair it")
    return PurePosixPath(name).as_posix()


def _checked_label(label: Any, path: Path, line: int) -> str:
    """Return the name of a class; JSON may give it as a whole number."""
    if isinstance(label, int) and not isinstance(label, bool):
        return str(label)
    if label is None or (isinstance(label, str) and not label.strip()):
        raise InputError(f"line {line} of {path} has no label: give it one, or delete the line")
    if not isinstance(label, str):
        raise InputError(f"line {line} of {path} has a {type(label).__name__} as its label: give the name of one class")
    try:
        label.encode()
    except UnicodeEncodeError:  # half of a pair, which JSON can write
        raise InputError(f"line {line} of {path} has the label {label!a}, which is not UTF-8: repair it") from None
    return label.strip()


def _check_twice(rows: list[LabelledName], path: Path) -> None:
    counts = Counter(row.name for row in rows)
    if twice := [name for name, count in counts.items() if count > 1]:
        first, second, *_ = [row.line for row in rows if row.name == twice[0]]
        raise InputError(f"lines {first} and {second} of {path} both name {twice[0]}: keep one of them")


def _check_case(rows: list[LabelledName], path: Path) -> None:
    lowered: dict[str, LabelledName] = {}
    for row in rows:
        earlier = lowered.setdefault(row.label.lower(), row)
        if earlier.label != row.label:
            raise InputError(
                f"classes '{earlier.label}' (line {earlier.line}) and '{row.label}' (line {row.line}) of {path} differ only in "
                "case: write them alike"
            )
