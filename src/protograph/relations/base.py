"""What a relation is, and what all sources share. V classes."""

import re
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import normalize

from protograph._internal.errors import InputError

LISTED = 20  # missing classes named in a message


class Relation(Protocol):
    """A source of side information that can say how similar any of its classes are."""

    def similarities(self, names: Sequence[str]) -> Tensor:
        """Similarities [V, V] of the named classes, float32; dense or `torch.sparse`; entry (m, n) is what n means to m."""
        ...


def check_similarities(similarities: Tensor, names: Sequence[str], source: str) -> Tensor:
    """The matrix itself, if it can serve as similarities of these classes."""
    if similarities.shape != (len(names), len(names)):
        shape = " x ".join(map(str, similarities.shape))
        raise InputError(
            f"relation '{source}' has a {shape} matrix for {len(names)} classes: give one row and column per class"
        )
    sparse = similarities.layout != torch.strided
    if sparse:
        similarities = similarities.to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
    similarities = similarities.float()
    values = similarities.values() if sparse else similarities
    if not bool(values.isfinite().all()):
        row, column = (
            (~values.isfinite()).nonzero()[0].tolist()
            if not sparse
            else similarities.indices()[:, ~values.isfinite()][:, 0].tolist()
        )
        raise InputError(
            f"relation '{source}' has no finite similarity between '{names[row]}' and '{names[column]}': "
            "replace NaN and infinity by a number"
        )
    return similarities


class MissingClassesError(InputError):
    """Classes that a relation does not know."""

    def __init__(self, message: str, missing: Sequence[str] = ()) -> None:  # by the message alone where it is unpickled
        super().__init__(message)
        self.missing = tuple(missing)


def missing_classes(source: str, missing: Sequence[str], remedy: str) -> MissingClassesError:
    """What to raise for classes a relation does not know: the first of them, how many more and which, and the way out."""
    others = ", ".join(missing[1:LISTED]) + (", ..." if len(missing) > LISTED else "")
    more = f" and {len(missing) - 1} more ({others})" if others else ""
    return MissingClassesError(f"relation '{source}' lacks class '{missing[0]}'{more}: {remedy}", missing)


def index_rows(names: Sequence[str], source: str) -> dict[str, int]:
    """The row of every name, none of which may come twice."""
    rows = {name: row for row, name in enumerate(names)}
    if len(rows) != len(names):
        twice = next(name for row, name in enumerate(names) if rows[name] != row)
        raise InputError(f"relation '{source}' names '{twice}' twice: keep one row per class")
    return rows


def cosine(rows: Tensor) -> Tensor:
    """Cosine similarities [V, V] of rows [V, A], float32; a row of zeros is like no other; 1 on the diagonal."""
    rows = normalize(rows.double(), dim=1)
    return (rows @ rows.T).fill_diagonal_(1).float()


def split_words(name: str) -> list[str]:
    """The words of a class name, without what only numbers it: '012.House_Finch' and 'n01532829-house_finch'."""
    return [word for word in re.split(r"[\s_-]+", re.sub(r"^(\d+\.|n\d{8}(?=[\s_-]|$))", "", name)) if word]
