"""Pickled arrays, read without running any code that a pickle may name.

Every name that a pickle may use stands for a function of this module. None of them returns a class, an array of objects or
more bytes than the file holds, and the state of an object is checked before it is set.
"""

import math
import pickle
import struct
from collections.abc import Callable, Collection, Iterable
from io import BufferedReader
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from protograph._internal.errors import InputError

NUMBERS_AND_TEXT = "biufSU"  # kinds of dtypes; all others refer to objects or have a structure


class _Function:
    """A function that a pickle may call. It has no state that a pickle could set."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a function has no state")


class _DtypeName:
    """The name of a dtype, and the byte order that its state adds."""

    def __init__(self, name: str) -> None:
        self._name, self._order = name, "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._order = state[1]
        if state[2:5] != (None, None, None):
            raise pickle.UnpicklingError("a dtype with a structure")

    def for_data(self, shape: tuple[int, ...], data: bytes | str) -> np.dtype[Any]:
        """Return the dtype of an array whose shape accounts for every byte of its data."""
        dtype = np.dtype(self._name)
        if dtype.kind not in NUMBERS_AND_TEXT or not dtype.itemsize:
            raise pickle.UnpicklingError(f"an array of dtype {dtype}, which is neither numbers nor text")
        if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize != len(data):
            raise pickle.UnpicklingError(f"{len(data)} bytes for an array of shape {tuple(shape)} and dtype {dtype}")
        return dtype if self._order == "|" else dtype.newbyteorder(self._order)  # type: ignore[arg-type]


class _CheckedArray(np.ndarray[Any, Any]):
    """An array whose state is checked before it is set."""

    spend: Callable[[int], None]

    def __setstate__(self, state: tuple[Any, ...], /) -> None:
        shape, name, fortran_order, data = state[-4:]
        self.spend(len(data))
        super().__setstate__((1, shape, name.for_data(shape, data), bool(fortran_order), data))  # type: ignore[arg-type]


class _BoundedFile:
    """A file from which nobody can ask for more bytes than are left, so that nobody reserves memory for them."""

    def __init__(self, file: BufferedReader, size: int) -> None:
        self._file, self._size = file, size
        self.readline = file.readline

    def read(self, count: int) -> bytes:
        if count > self._size - self._file.tell():
            raise pickle.UnpicklingError(f"{count} bytes are missing at its end")
        return self._file.read(count)


class _ArraysOnly(pickle._Unpickler):  # the one in C reserves memory for any memo index
    """Reads what dictionaries of lists, numbers, strings and NumPy arrays consist of."""

    def __init__(self, file: BufferedReader, path: Path) -> None:
        size = path.stat().st_size
        super().__init__(_BoundedFile(file, size), encoding="latin1")
        self._path, self._budget = path, 2 * size  # bytes that an array takes over from a text are counted twice

    def find_class(self, module: str, name: str) -> Any:
        key = f"{module.replace('numpy.core', 'numpy._core')}.{name}"  # as NumPy 1 called it
        if key == "numpy.ndarray":
            return None  # the first argument of `_reconstruct`
        functions: dict[str, Callable[..., Any]] = {
            "numpy._core.multiarray._reconstruct": self._array,
            "numpy._core.multiarray.scalar": self._scalar,
            "numpy._core.numeric._frombuffer": self._array_from_buffer,
            "numpy.dtype": lambda name, *flags: _DtypeName(name),
            "_codecs.encode": self._encoded,
            "collections.OrderedDict": self._dictionary,
        }
        if key not in functions:
            raise InputError(f"{self._path} asks for {module}.{name}, which no file of images needs: do not use it")
        return _Function(functions[key])

    def _spend(self, count: int) -> None:
        """Count bytes that are made of others; a pickle that uses the same ones again and again could make any number."""
        self._budget -= count
        if self._budget < 0:
            raise pickle.UnpicklingError("its content is larger than the file")

    def _array(self, subtype: Any, shape: Any, code: Any) -> _CheckedArray:
        """Return the empty array whose state comes next, whatever shape it asks for."""
        array = _CheckedArray((0,), np.int8)
        array.spend = self._spend
        return array

    def _array_from_buffer(self, data: bytes, name: _DtypeName, shape: Any, order: str) -> NDArray[Any]:
        shape = tuple(shape) if isinstance(shape, Iterable) else (shape,)
        array = np.frombuffer(data, name.for_data(shape, data))
        return array.reshape(shape, order="F" if order == "F" else "C")

    def _scalar(self, name: _DtypeName, data: bytes | str) -> Any:
        data = data.encode("latin1") if isinstance(data, str) else data
        return np.frombuffer(data, name.for_data((), data))[0]

    def _encoded(self, text: str, encoding: str) -> bytes:
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"bytes encoded as {encoding}")
        self._spend(len(text))
        return text.encode(encoding)

    def _dictionary(self, items: Collection[tuple[Any, Any]] = ()) -> dict[Any, Any]:
        self._spend(len(items))
        return dict(items)

    def _load_bytearray(self: Any) -> None:
        (length,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(length)))  # not reserved before it is read

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **pickle._Unpickler.dispatch,
        pickle.BYTEARRAY8[0]: _load_bytearray,
    }


def read_pickled_arrays(path: Path) -> dict[str, Any]:
    """Return the dictionary in a pickle; byte strings of Python 2 become strings.

    Raises:
        InputError: The file is damaged, holds no dictionary, or names code.
    """
    try:
        with path.open("rb") as file:
            content = _ArraysOnly(file, path).load()
    except InputError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise InputError(f"{path} is not a readable pickle ({error}): fetch it again") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a {type(content).__name__}, not a dictionary of images: fetch it again")
    return {as_string(key): value for key, value in content.items()}


def as_string(key: Any) -> str:
    """Return a key or name, a string or bytes, as a string."""
    return key.decode("latin1") if isinstance(key, bytes) else str(key)
