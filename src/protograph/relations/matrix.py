"""A similarity matrix with the names of its classes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protograph._internal.errors import InputError
from protograph.relations.base import (
    Description,
    Relation,
    check_similarities,
    index_rows,
    join_matrix,
    missing_classes,
    split_matrix,
)
from protograph.relations.registry import register_relation
from protograph.relations.stored import find_matrix, name_tensors
from protograph.relations.tables import read_named_arrays, read_numbers, read_rows, require_file


class MatrixRelation(Relation):
    """Similarities [C, C], dense or `torch.sparse`, directed or not.

    Args:
        matrix: The similarities [C, C].
        names: The C classes.
        source: The name of the relation in error messages.

    """

    def __init__(self, matrix: Tensor, names: Sequence[str], source: str = "matrix") -> None:
        self.source = source
        self.names = tuple(names)
        self.matrix = check_similarities(matrix, self.names, source)
        self._rows = index_rows(self.names, source)

    @classmethod
    def read(cls, path: Path) -> "MatrixRelation":
        """Read a `.csv` (first row and first column are names) or a `.npz`.

        A `.npz` holds `names` and `similarities` [C, C]. If only n pairs have a similarity, it holds `similarities` [n] and
        `edges` [2, n], the rows of the classes of each pair.
        """
        require_file(path, "a .csv or .npz similarity matrix")
        if path.suffix == ".npz":
            names, (similarities,) = read_named_arrays(path, "similarities")
            values = torch.from_numpy(similarities)
            edges = _read_edges(path, len(values), len(names)) if values.ndim == 1 else None
            return cls(values if edges is None else join_matrix(values, edges, len(names)), names, str(path))
        if path.suffix == ".csv":
            return cls._read_csv(path)
        raise InputError(f"cannot read a relation from {path}: give a .csv or .npz similarity matrix")

    @classmethod
    def _read_csv(cls, path: Path) -> "MatrixRelation":
        rows = read_rows(path)
        if len(rows) < 2:
            raise InputError(f"{path} is empty: the first row and first column hold class names, the rest similarities")
        names = rows[0][1:]
        values = []
        for row in rows[1:]:
            if len(row) != len(rows[0]):
                raise InputError(f"{path}: row '{row[0]}' has {len(row) - 1} values for {len(names)} classes")
            values.append(read_numbers(row[1:], path, row[0]))
        if [row[0] for row in rows[1:]] != names:
            if len(rows) - 1 != len(names):
                raise InputError(f"{path} has a {len(rows) - 1} x {len(names)} matrix: give one row and column per class")
            raise InputError(f"{path}: rows and columns must name the same classes in the same order")
        return cls(torch.tensor(values), names, str(path))

    @classmethod
    def restore(cls, values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> "MatrixRelation":
        """Return the relation that `describe` described."""
        return cls(find_matrix("matrix", tensors, len(values["names"])), values["names"], values["source"])

    def describe(self) -> Description:
        """Return the whole matrix."""
        return {"kind": "matrix", "names": list(self.names), "source": self.source}, name_tensors("matrix", self.matrix)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that `read` reads from a `.npz`."""
        values, edges = split_matrix(self.matrix)
        arrays = {"names": np.array(self.names), "similarities": values.numpy()}
        return arrays if edges is None else {**arrays, "edges": edges.numpy()}

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of the matrix."""
        return self.names

    @property
    def summary(self) -> str:
        """The number of classes."""
        return f"similarities of {len(self.names)} classes"

    def similarities(self, names: Sequence[str]) -> Tensor:
        """Return the rows and columns [V, V] of the named classes, in their order."""
        missing = [name for name in names if name not in self._rows]
        if missing:
            raise missing_classes(self.source, missing, "add its row and column")
        rows = torch.tensor([self._rows[name] for name in names], dtype=torch.long)
        if self.matrix.layout == torch.strided:
            return self.matrix[rows][:, rows]
        return self.matrix.index_select(0, rows).index_select(1, rows).coalesce()


def _read_edges(path: Path, count: int, size: int) -> Tensor:
    """Return the rows [2, n] of the classes of n pairs, which are below the number of classes."""
    _, (edges,) = read_named_arrays(path, "edges")
    if edges.shape != (2, count) or (edges % 1).any() or not ((edges >= 0) & (edges < size)).all():
        raise InputError(f"{path} has similarities of {count} pairs: its 'edges' must be the two rows of each, below {size}")
    return torch.from_numpy(edges).long()


register_relation(
    "matrix",
    MatrixRelation.read,
    "matrix:FILE or just FILE, similarities with the names of their classes",
    restore=MatrixRelation.restore,
)
