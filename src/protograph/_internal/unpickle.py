"""Pickled arrays, read without running any code that a pickle may name."""

import pickle
import warnings
from pathlib import Path
from typing import Any

from protograph._internal.errors import InputError

ALLOWED = {  # what dictionaries of lists, numbers, strings and NumPy arrays consist of
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
    """Return the dictionary in a pickle; byte strings of Python 2 become strings.

    Raises:
        InputError: The file is damaged, holds no dictionary, or names code.
    """
    try:
        with path.open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # NumPy 2 warns about modules of NumPy 1
            reader = _ArraysOnly(file, encoding="latin1")
            reader.path = path
            content = reader.load()
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
