"""The base class of relations, and what all sources share. V classes."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import normalize

from protograph._internal.errors import InputError

NAMES_LISTED = 20  # missing classes named in a message
Description = tuple[dict[str, Any], dict[str, Tensor]]  # JSON values and tensors of a model file


class HasSimilarities(Protocol):
    """Any object with the method `similarities` of a `Relation`."""

    def similarities(self, names: Sequence[str]) -> Tensor:
        """Return the similarities [V, V] of the named classes."""
        ...


@dataclass(frozen=True)
class Sense:
    """The meaning that a relation took a class name for.

    Attributes:
        name: The class name.
        by: What identified the meaning: "id", which leaves no doubt, or such as "name" or "last words".
        id: The identifier of the meaning in the source.
        sense: The source's name of the meaning, such as crane.n.05.
        words: All words for it.
        gloss: What it is.

    """

    name: str
    by: str
    id: str
    sense: str
    words: tuple[str, ...]
    gloss: str


class Relation(ABC):
    """A source of side information: it says how similar classes are.

    A subclass defines `similarities`; all else has a default. `register_relation` lets users name a kind of relation.

    Attributes:
        titles: Class names as a person would write them, by class name, where they differ.

    """

    titles: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def similarities(self, names: Sequence[str]) -> Tensor:
        """Return the similarities of the named classes.

        Args:
            names: V class names.

        Returns:
            Similarities [V, V], float32, dense or `torch.sparse`. Entry (m, n) is what class n means to class m.

        Raises:
            MissingClassesError: The relation does not know some of the classes, see `missing_classes`.

        """

    @property
    def label(self) -> str:
        """The name of the relation where the user gives none."""
        return label_of_type(self)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """All classes of the relation, or None if it answers for names that it cannot list."""
        return None

    @property
    def summary(self) -> str:
        """The relation in one line."""
        return type(self).__name__

    def __str__(self) -> str:
        return self.summary

    def senses(self, names: Sequence[str]) -> list[Sense]:
        """Return the meaning that each name was taken for; nothing where names have one meaning only."""
        return []

    @property
    def takes_attributes(self) -> bool:
        """Whether a new class may be described to the relation by a vector of attributes."""
        return False

    def with_attributes(self, name: str, values: Tensor) -> tuple["Relation", str]:
        """Return the relation extended by one class.

        Args:
            name: The class.
            values: Its attributes [A].

        Returns:
            The extended relation, and the name by which it knows the class.

        """
        raise InputError(f"relation '{self.label}' takes no attributes of class '{name}'")

    def describe(self) -> Description | None:
        """Return the JSON values, with their "kind", and the tensors from which the kind's `restore` makes the relation.

        None means that a model file names the relation as the user did (KIND:PATH), or keeps none if it was made in Python.
        """
        return None


class CustomRelation(Relation):
    """Any object with a method `similarities`, as a `Relation`."""

    def __init__(self, source: HasSimilarities) -> None:
        self.source = source

    def similarities(self, names: Sequence[str]) -> Tensor:
        """Return what the object answers."""
        return self.source.similarities(names)

    @property
    def label(self) -> str:
        """The name of the relation where the user gives none."""
        return label_of_type(self.source)

    @property
    def summary(self) -> str:
        """The type of the object."""
        return type(self.source).__name__


def as_relation(source: HasSimilarities) -> Relation:
    """Return an object with a method `similarities` as a `Relation`."""
    return source if isinstance(source, Relation) else CustomRelation(source)


def label_of_type(source: object) -> str:
    """Return the name of an object's type in lower case, without "Relation"."""
    return type(source).__name__.removesuffix("Relation").lower() or "relation"


def check_similarities(similarities: Tensor, names: Sequence[str], source: str) -> Tensor:
    """Return a matrix that can serve as similarities of these classes.

    Args:
        similarities: [V, V], dense or sparse, of any dtype.
        names: The V classes.
        source: The name of the relation in error messages.

    Returns:
        The matrix [V, V] in float32; a sparse one in coordinates, coalesced.

    Raises:
        InputError: The size is wrong, or a value is not finite.

    """
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
    """An error about classes that a relation does not know.

    Attributes:
        missing: The names of the classes.

    """

    def __init__(self, message: str, missing: Sequence[str] = ()) -> None:  # by the message alone where it is unpickled
        super().__init__(message)
        self.missing = tuple(missing)


def missing_classes(source: str, missing: Sequence[str], remedy: str) -> MissingClassesError:
    """Return the error to raise for classes that a relation does not know.

    Args:
        source: The name of the relation.
        missing: The names of the classes; the first 20 are listed in the message.
        remedy: What the user can do.

    """
    rest = ", ".join(missing[1:NAMES_LISTED]) + (", ..." if len(missing) > NAMES_LISTED else "")
    addition = f" and {len(missing) - 1} more ({rest})" if rest else ""
    return MissingClassesError(f"relation '{source}' lacks class '{missing[0]}'{addition}: {remedy}", missing)


def index_rows(names: Sequence[str], source: str) -> dict[str, int]:
    """Return the row of every name; a name that comes twice is an `InputError`."""
    rows = {name: row for row, name in enumerate(names)}
    if len(rows) != len(names):
        twice = next(name for row, name in enumerate(names) if rows[name] != row)
        raise InputError(f"relation '{source}' names '{twice}' twice: keep one row per class")
    return rows


def cosine_similarities(rows: Tensor) -> Tensor:
    """Return the cosines [V, V] of rows [V, A] in float32: 1 on the diagonal, and 0 from a row of zeros to all others."""
    rows = normalize(rows.double(), dim=1)
    return (rows @ rows.T).fill_diagonal_(1).float()


def split_words(name: str) -> list[str]:
    """Return the words of a class name without its number: '012.House_Finch' and 'n01532829-house_finch' have two words."""
    return [word for word in re.split(r"[\s_-]+", re.sub(r"^(\d+\.|n\d{8}(?=[\s_-]|$))", "", name)) if word]


def split_matrix(matrix: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the values of a matrix as files hold them: [V, V] if it is dense, or [n] and the edges [2, n] if it is sparse."""
    return (matrix, None) if matrix.layout == torch.strided else (matrix.values(), matrix.indices())


def join_matrix(values: Tensor, edges: Tensor | None, size: int) -> Tensor:
    """Return the matrix [V, V] that `split_matrix` split.

    Args:
        values: [V, V], or [n] if there are edges.
        edges: The rows and columns [2, n] of the values.
        size: V.

    Raises:
        ValueError: The shapes do not fit.

    """
    if edges is not None:
        matrix = torch.sparse_coo_tensor(edges, values, (size, size), check_invariants=True)
        positions = edges[0] * size + edges[1]
        if not bool((positions[1:] > positions[:-1]).all()):
            return matrix.coalesce()
        # They are in order, and each comes once: the matrix has the memory of the file
        return torch.sparse_coo_tensor(edges, values, (size, size), check_invariants=False, is_coalesced=True)
    if values.shape != (size, size):
        raise ValueError(f"a matrix is {tuple(values.shape)} for {size} classes")
    return values
