"""Labels of classes as scikit-learn has them: an array of texts or numbers that grows and shrinks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protograph._internal.errors import InputError

Labels = NDArray[Any]
KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "U": ((str,), "a text"),
    "b": ((bool,), "true or false"),
    "i": ((int,), "a whole number"),
    "u": ((int,), "a whole number"),
    "f": ((float, int), "a number"),
}


def as_label(name: Any, labels: Labels) -> Any:
    """A name for a class as the others have theirs; of another kind it is refused."""
    name = name.item() if isinstance(name, np.generic) else name
    kind = labels.dtype.kind
    wanted, said = KINDS.get(kind, ((object,), ""))
    if not isinstance(name, wanted) or (kind in "iuf" and isinstance(name, bool)):
        raise InputError(f"class {name!r} must be {said}, as the other classes are")
    if name == "":
        raise InputError("a class needs a name")
    return float(name) if kind == "f" else name  # type: ignore[arg-type]


def as_labels(values: list[Any], dtype: str) -> Labels:
    """Labels from a list; texts may be longer than before, and whole numbers larger."""
    kind = np.dtype(dtype)
    if kind.kind in "iu" and values and not np.iinfo(kind).min <= min(values) <= max(values) <= np.iinfo(kind).max:
        kind = np.dtype(np.int64)
    try:
        return np.array(values, None if kind.kind == "U" else kind)
    except OverflowError as error:
        raise InputError(f"class {max(values, key=abs)} is too large a number for a class") from error
