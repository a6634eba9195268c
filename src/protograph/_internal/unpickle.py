"""Pickled arrays, read without running any code that a pickle may name."""

import pickle
import warnings
from pathlib import Path
from typing import Any

from protograph._internal.errors import InputError

ALLOWED = {  # all that plain dictionaries of lists, numbers, texts and numpy arrays are made of
    *((module, name) for module in ("numpy.core.multiarray", "numpy._core.multiarray") for name in ("_reconstruct", "scalar")),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
    ("collections", "OrderedDict"),
}


class _ArraysOnly(pickle.Unpickler):
    path: Path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise InputError(f"{self.path} asks for {module}.{name}, which no file of images needs: do not use it")
        return super().find_class(module, name)


def read_pickled_arrays(path: Path) -> dict[str, Any]:
    """The dictionary a pickle holds; texts of Python 2 become strings."""
    try:
        with path.open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # numpy 2 about where numpy 1 kept things
            reader = _ArraysOnly(file, encoding="latin1")
            reader.path = path
            found = reader.load()
    except InputError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise InputError(f"{path} is not a readable pickle ({error}): fetch it again") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} holds a {type(found).__name__}, not a dictionary of images: fetch it again")
    return {text(key): value for key, value in found.items()}


def text(key: Any) -> str:
    """A key or name as a string, be it one or bytes."""
    return key.decode("latin1") if isinstance(key, bytes) else str(key)
