"""Class labels as scikit-learn stores them: an array of texts or numbers that grows and shrinks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protograph._internal.errors import InputError

Array = NDArray[Any]
LABEL_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "U": ((str,), "a text"),
    "b": ((bool,), "true or false"),
    "i": ((int,), "a whole number"),
    "u": ((int,), "a whole number"),
    "f": ((float, int), "a number"),
}


def plain_label(label: Any) -> Any:
    """Return a label as a value of Python."""
    return label.item() if hasattr(label, "item") else label


def as_label(name: Any, labels: Array) -> Any:
    """Return the name of a class in the type of the other labels.

    Raises:
        InputError: The name is empty, or of another kind than the other labels.

    """
    name = name.item() if isinstance(name, np.generic) else name
    kind: str = labels.dtype.kind
    types, description = LABEL_KINDS.get(kind, ((object,), ""))
    if not len(labels):  # the first class decides
        types, description = (str, bool, int, float), "a text or a number"
        kind = "f" if isinstance(name, float) else ""
    if not isinstance(name, types) or (kind in "iuf" and isinstance(name, bool)):
        raise InputError(f"class {name!r} must be {description}, as the other classes are")
    if name == "":
        raise InputError("a class needs a name")
    check_labels([name])
    return float(name) if kind == "f" else name  # type: ignore[arg-type]


def check_labels(labels: Any) -> None:
    """Raise an `InputError` if a label is NaN or missing, or a text with the character NUL, which arrays of texts would drop.

    Args:
        labels: A sequence of labels, before it becomes an array.

    """
    kind = labels.dtype.kind if isinstance(labels, np.ndarray) else "O"
    if kind in "biu" or not hasattr(labels, "__len__"):
        return
    for row, label in enumerate(labels):
        if label is None or label != label:
            raise InputError(f"label {row} is missing ({label}): leave its example out")
        if isinstance(label, str) and "\0" in label:
            raise InputError(f"class {str(label)!r} has the character NUL in its name: leave it out")
        if isinstance(label, str) and not is_utf8(label):
            raise InputError(f"the name of class {str(label)!r} is not UTF-8: choose another")


def is_utf8(text: str) -> bool:
    """Return whether a text can be written as UTF-8; bytes of a file name or an argument that are none stay surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_label(text: str, labels: Array) -> Any:
    """Return a class named on the command line in the type of the other labels, which may be numbers."""
    kinds = {"i": int, "u": int, "f": float}
    try:
        return kinds.get(labels.dtype.kind, str)(text)
    except ValueError:
        raise InputError(f"class '{text}' must be a number, as the other classes are") from None


def common_dtype(values: list[Any]) -> str:
    """Return the type of labels that are the first of a classifier.

    Raises:
        InputError: Some are texts and others numbers.

    """
    if len({np.array(value).dtype.kind for value in values}) > 1:
        raise InputError(f"classes must be all texts, or all numbers of one kind, not {values[0]!r} and others")
    return np.array(values).dtype.str


def as_labels(values: list[Any], dtype: str) -> Array:
    """Return labels as an array; texts may be longer than those of `dtype`, and whole numbers larger."""
    kind = np.dtype(dtype)
    if not values:
        return np.array([], kind)
    if kind.kind in "iu" and values and not np.iinfo(kind).min <= min(values) <= max(values) <= np.iinfo(kind).max:
        kind = np.dtype(np.int64)
    try:
        return np.array(values, None if kind.kind == "U" else kind)
    except OverflowError as error:
        raise InputError(f"class {max(values, key=abs)} is too large a number for a class") from error
