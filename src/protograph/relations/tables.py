"""Readers of the files of relations: rows of text, and arrays with names."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protograph._internal.errors import InputError
from protograph._internal.files import check_plain_file, read_text_file
from protograph._internal.npz import read_npz

MAX_RELATION_BYTES = 16_000_000_000  # of a file; the largest word vectors have a third


def require_file(path: Path, formats: str) -> None:
    """Raise an `InputError` that names the formats of files if there is no plain file at the path, or if it is too large."""
    check_plain_file(path, "relation file", MAX_RELATION_BYTES, f"give {formats}")


def read_rows(path: Path) -> list[list[str]]:
    """Return the rows of a `.csv` or `.tsv` file, without spaces around the cells and without empty rows."""
    text = read_text_file(path, "relation file", MAX_RELATION_BYTES)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter="\t" if path.suffix == ".tsv" else ",", skipinitialspace=True)
    try:
        rows = [[cell.strip() for cell in line] for line in lines]
    except csv.Error as error:
        raise InputError(f"{path} is not a readable {path.suffix} file (line {lines.line_num}: {error}): repair it") from error
    return [row for row in rows if any(row)]


def read_numbers(cells: Sequence[str], path: Path, row: str) -> list[float]:
    """Return the numbers in the cells of a named row."""
    try:
        return [float(cell) for cell in cells]
    except ValueError as error:
        raise InputError(f"{path}: row '{row}' holds something that is not a number ({error})") from error


def read_named_arrays(path: Path, *keys: str) -> tuple[list[str], list[NDArray[Any]]]:
    """Return the class names and the arrays of numbers under these keys from a `.npz` file."""
    needs = " and ".join(f"'{name}'" for name in ("names", *keys))
    try:
        arrays = read_npz(path, [*keys, "names"])
        values, names = [arrays[key] for key in keys], [str(name) for name in arrays["names"]]
        for key, array in zip(keys, values, strict=True):
            if array.dtype.kind not in "fiub":
                raise TypeError(f"'{key}' holds no numbers")
    except (ValueError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is not a relation: it needs arrays {needs} ({error})") from error
    # PyTorch does not take every type that a file may hold.
    return names, [array.astype(np.float32 if array.dtype == np.float32 else np.float64) for array in values]


def finite_rows(values: Tensor, names: Sequence[str], columns: Sequence[str] | None, source: str) -> Tensor:
    """Return a table that has one row of finite numbers for every name.

    Args:
        values: The table [C, A].
        names: The C classes.
        columns: The names of the A columns, if they have names.
        source: The name of the relation in error messages.

    Raises:
        InputError: The sizes do not fit, or a value is not finite.

    """
    if values.ndim != 2 or len(values) != len(names) or not values.shape[1]:
        shape = " x ".join(map(str, values.shape))
        raise InputError(f"relation '{source}' has a {shape} table for {len(names)} classes: give one row of numbers per class")
    if columns is not None and len(columns) != values.shape[1]:
        raise InputError(f"relation '{source}' names {len(columns)} columns of {values.shape[1]}: give one name per column")
    if bad := (~values.isfinite()).nonzero()[:1].tolist():
        row, column = bad[0]
        label = f"'{columns[column]}'" if columns is not None else f"number {column + 1}"
        raise InputError(
            f"relation '{source}' has no finite value for class '{names[row]}' in column {label}: fill it in, or leave one out"
        )
    return values


def read_table(path: Path, array: str, header: bool | None) -> tuple[list[str], Tensor, list[str] | None]:
    """Return names, values [C, A] and column names, if there are any, from a `.csv`, `.tsv` or `.npz` file.

    Args:
        path: The file.
        array: The key of the values in a `.npz`.
        header: Whether the first row of text holds column names; None decides by its content.

    """
    if path.suffix == ".npz":
        names, (numbers,) = read_named_arrays(path, array)
        return names, torch.from_numpy(numbers), None
    rows = read_rows(path)
    if header is None:
        header = bool(rows) and _is_header(rows[0][1:])
    columns = rows[0][1:] if rows and header else None
    body = rows[1:] if header else rows
    if not body:
        raise InputError(f"{path} is empty: every row holds a class name, then its numbers")
    width = len(columns) if columns is not None else len(body[0]) - 1
    for row in body:
        if len(row) - 1 != width:
            raise InputError(f"{path}: row '{row[0]}' has {len(row) - 1} values for {width} columns")
    values = torch.tensor([read_numbers(row[1:], path, row[0]) for row in body], dtype=torch.float64)
    return [row[0] for row in body], values, columns


def _is_header(cells: Sequence[str]) -> bool:
    """Return whether cells are words, or the numbers of the columns, as libraries write them for columns without names."""
    counts = [[str(start + column) for column in range(len(cells))] for start in (0, 1)]
    return list(cells) in counts or not all(_is_number(cell) for cell in cells)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
