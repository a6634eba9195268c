"""Arrays in `.npz` files: no more memory is taken than the file accounts for, and nothing is unpickled."""

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protograph._internal.errors import InputError
from protograph._internal.files import ALWAYS_ALLOWED, LARGEST_RATIO


def read_npz(path: Path, needed: Sequence[str], optional: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """Return arrays of a `.npz` file by name.

    Args:
        path: The file.
        needed: The names of the arrays that it must have.
        optional: The names of those that it may have.

    Raises:
        InputError: An array would unpack to far more than its size in the file.
        ValueError: The file is no `.npz`, is damaged, or lacks an array.

    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.NameToInfo
            names = [name for name in (*needed, *optional) if name in needed or f"{name}.npy" in entries]
            return {name: _read(archive, archive.getinfo(f"{name}.npy"), path) for name in names}
    except InputError:
        raise
    except KeyError as error:
        raise ValueError(str(error.args[0])) from error
    except Exception as error:  # a damaged archive can raise anything
        raise ValueError(str(error) or type(error).__name__) from error


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> NDArray[Any]:
    packed = min(entry.compress_size, path.stat().st_size)
    if entry.file_size > LARGEST_RATIO * packed + ALWAYS_ALLOWED:
        raise InputError(
            f"'{entry.filename}' of {path} has {packed:,} bytes and would unpack to {entry.file_size:,}, more than "
            f"{LARGEST_RATIO} times as many: save it without compression (numpy.savez)"
        )
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(file)
        if dtype.hasobject:
            raise ValueError(f"'{entry.filename}' holds objects")
        if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != entry.file_size - file.tell():
            raise ValueError(f"'{entry.filename}' does not hold an array of shape {shape} and dtype {dtype}")
    with archive.open(entry) as file:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array
