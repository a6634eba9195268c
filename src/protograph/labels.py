"""Labels of classes as scikit-learn has them: an array of texts or numbers that grows and shrinks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protograph.errors import InputError

Labels = NDArray[Any]
KINDS: dict[str, tuple[type, str]] = {
    "U": (str, "a text"),
    "i": (int, "a whole number"),
    "u": (int, "a whole number"),
    "f": (float, "a number"),
}


def as_label(name: Any, labels: Labels) -> Any:
    """A name for one more class, which must be of the same kind as the others."""
    name = name.item() if isinstance(name, np.generic) else name
    wanted, said = KINDS.get(labels.dtype.kind, (object, ""))
    if not isinstance(name, wanted) or (said and isinstance(name, bool)):
        raise InputError(f"class {name!r} must be {said}, as the other classes are")
    if name == "":
        raise InputError("a class needs a name")
    return name


def as_labels(values: list[Any], dtype: str) -> Labels:
    """Labels from a list; texts may be longer than before."""
    return np.array(values, None if "U" in dtype else np.dtype(dtype))
