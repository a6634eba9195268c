"""Columns of `.parquet` files: no more memory is taken than the file accounts for."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protograph._internal.errors import InputError
from protograph._internal.files import ALWAYS_ALLOWED, LARGEST_RATIO

ROW_GROUPS, COLUMNS, METADATA, PATH, CELLS, UNPACKED = 4, 1, 3, 3, 5, 6  # numbers of fields of a footer
CELL_BYTES = 8  # of a number, or of the place of a text


def read_parquet(
    source: Path | bytes, choose: Callable[[list[str]], Sequence[str]]
) -> tuple[dict[str, Any], dict[bytes, bytes]]:
    """Return columns of a `.parquet` file as arrays of pyarrow by name, and the metadata of the file.

    Args:
        source: The file, or its contents.
        choose: Returns the columns to read, given the names of all.

    Raises:
        InputError: pyarrow is not installed.
        ValueError: The file is no `.parquet`, is damaged, lacks a column, or would unpack to far more than its size.

    """
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise InputError('reading .parquet files needs pyarrow: pip install "protograph[parquet]"') from error
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    try:
        with ParquetFile(_opened(source)) as file:
            schema = file.schema_arrow
            chosen = list(choose(schema.names))
            texts = [name for name in chosen if _is_text(schema.field(name).type)]
            for name in chosen:
                if name not in texts and not _is_numeric(schema.field(name).type):
                    raise ValueError(f"its column '{name}' is of type {schema.field(name).type}")
            _check_cells(_read_footer(source, size), chosen, size)
        with ParquetFile(_opened(source), read_dictionary=texts) as file:  # so that a text that is often there is there once
            table = file.read(chosen)
        _check_texts([table.column(name) for name in texts], size)
        return {name: table.column(name) for name in chosen}, dict(schema.metadata or {})
    except (ArrowException, OSError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error


def equal_lists(column: Any) -> NDArray[np.float32]:
    """Return a column of lists of numbers, all of the same length D, as an array [P, D].

    Raises:
        ValueError: It holds something else.

    """
    from pyarrow import compute, types

    if not any(check(column.type) for check in (types.is_list, types.is_large_list, types.is_fixed_size_list)):
        raise ValueError(f"its vectors are {column.type}, not lists of numbers")
    lengths = compute.unique(compute.list_value_length(column)).to_pylist()
    if column.null_count or len(lengths) > 1:
        raise ValueError(f"its vectors have the lengths {lengths[:5]}: they must be of one")
    parts = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    with np.errstate(over="ignore"):  # too large numbers become infinite
        numbers: NDArray[np.float32] = np.concatenate([np.zeros(0, np.float32), *parts]).astype(np.float32)
    return numbers.reshape(len(column), *(lengths or [0]))


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    value = kind.value_type if types.is_dictionary(kind) else kind
    return any(check(value) for check in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary))


def _is_numeric(kind: Any) -> bool:
    """Return whether a type is that of numbers, of lists of numbers, or of nothing."""
    from pyarrow import types

    lists = types.is_list, types.is_large_list, types.is_fixed_size_list
    value = kind.value_type if any(check(kind) for check in lists) else kind
    return bool(types.is_primitive(value) or types.is_null(value))


def _opened(source: Path | bytes) -> Any:
    return io.BytesIO(source) if isinstance(source, bytes) else source


def _read_footer(source: Path | bytes, size: int) -> bytes:
    """Return what stands before the last eight bytes, which say how long it is."""
    if isinstance(source, bytes):
        return source[-8 - int.from_bytes(source[-8:-4], "little") : -8]
    with source.open("rb") as file:
        file.seek(size - 8)
        length = min(int.from_bytes(file.read(4), "little"), size - 8)
        file.seek(size - 8 - length)
        return file.read(length)


def _check_cells(footer: bytes, chosen: Sequence[str], size: int) -> None:
    """Refuse more cells than a file of this size has reason for: equal ones take no room in it."""
    groups = _Footer(footer).struct().get(ROW_GROUPS, [])
    columns = [column[METADATA] for group in groups for column in group[COLUMNS]]
    read = [column for column in columns if column[PATH][0].decode() in chosen]
    _check_bytes(sum(max(0, CELL_BYTES * column[CELLS], column[UNPACKED]) for column in read), size)


class _Footer:
    """The footer of a `.parquet` file, in Thrift's compact form: pyarrow ends the process for some false statistics in it.

    Structs are dictionaries by the numbers of their fields. Every value takes a byte or more, so the work has an end.
    """

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def struct(self) -> dict[int, Any]:
        """Return the struct that begins here."""
        fields: dict[int, Any] = {}
        number = 0
        while head := self._bytes(1)[0]:
            number = number + (head >> 4) if head >> 4 else self._integer()
            fields[number] = head & 15 if head & 15 in (1, 2) else self._value(head & 15)  # of true or false, the kind
        return fields

    def _value(self, kind: int) -> Any:
        match kind:
            case 1 | 2 | 3:
                return self._bytes(1)
            case 4 | 5 | 6:
                return self._integer()
            case 7:
                return self._bytes(8)
            case 8:
                return self._bytes(self._varint())
            case 9 | 10:
                head = self._bytes(1)[0]
                return [self._value(head & 15) for _ in range(head >> 4 if head >> 4 < 15 else self._varint())]
            case 12:
                return self.struct()
        raise ValueError(f"its footer has a value of the kind {kind}")

    def _bytes(self, count: int) -> bytes:
        read = self.content[self.at : self.at + count]
        if len(read) < count:
            raise ValueError("its footer is cut short")
        self.at += count
        return read

    def _varint(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self._bytes(1)[0]
            number |= (byte & 127) << shift
            if byte < 128:
                return number
        raise ValueError("its footer has a number of more than 64 bits")

    def _integer(self) -> int:
        number = self._varint()
        return number >> 1 ^ -(number & 1)


def _check_texts(columns: Sequence[Any], size: int) -> None:
    """Refuse texts that would take far more bytes than the file has, before they are made of their dictionary."""
    from pyarrow import compute

    lengths = (compute.binary_length(chunk.dictionary).take(chunk.indices) for column in columns for chunk in column.chunks)
    _check_bytes(sum(compute.sum(length).as_py() or 0 for length in lengths), size)


def _check_bytes(unpacked: int, size: int) -> None:
    if unpacked > LARGEST_RATIO * size + ALWAYS_ALLOWED:
        raise ValueError(f"it has {size:,} bytes and would unpack to {unpacked:,}, more than {LARGEST_RATIO} times as many")
