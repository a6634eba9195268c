"""A plain similarity matrix with the names of its classes, given as it is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protograph._internal.errors import InputError
from protograph.relations.base import check_similarities, index_rows, missing_classes
from protograph.relations.tables import read_named_arrays, read_numbers, read_rows, require_file


class MatrixRelation:
    """Similarities [V, V], dense or `torch.sparse`, directed or not, with one name per row and column."""

    def __init__(self, matrix: Tensor, names: Sequence[str], source: str = "matrix") -> None:
        self.source = source
        self.names = tuple(names)
        self.matrix = check_similarities(matrix, self.names, source)
        self._rows = index_rows(self.names, source)

    @classmethod
    def read(cls, path: Path) -> "MatrixRelation":
        """Read a `.csv` (first row and first column are names) or a `.npz`.

        A `.npz` holds `names` and `similarities` [V, V] or, of pairs of which not all have a similarity, of each that has one
        `similarities` [n] and the rows of its classes, `edges` [2, n].
        """
        require_file(path, "a .csv or .npz similarity matrix")
        if path.suffix == ".npz":
            names, (similarities,) = read_named_arrays(path, "similarities")
            values = torch.from_numpy(similarities)
            if values.ndim == 1:
                _, (edges,) = read_named_arrays(path, "edges")
                return cls(_sparse(edges, values, len(names), path), names, str(path))
            return cls(values, names, str(path))
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

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What `read` reads from a `.npz`."""
        if self.matrix.layout == torch.strided:
            return {"names": np.array(self.names), "similarities": self.matrix.numpy()}
        edges, values = self.matrix.indices().numpy(), self.matrix.values().numpy()
        return {"names": np.array(self.names), "similarities": values, "edges": edges}

    def __str__(self) -> str:
        return f"similarities of {len(self.names)} classes"

    def similarities(self, names: Sequence[str]) -> Tensor:
        """Rows and columns of these names, in their order."""
        missing = [name for name in names if name not in self._rows]
        if missing:
            raise missing_classes(self.source, missing, "add its row and column")
        rows = torch.tensor([self._rows[name] for name in names], dtype=torch.long)
        if self.matrix.layout == torch.strided:
            return self.matrix[rows][:, rows]
        return self.matrix.index_select(0, rows).index_select(1, rows).coalesce()


def _sparse(edges: NDArray[Any], values: Tensor, size: int, path: Path) -> Tensor:
    """[V, V] of the similarities [n] of the pairs `edges` [2, n]."""
    if edges.shape != (2, len(values)) or (edges % 1).any() or not ((edges >= 0) & (edges < size)).all():
        raise InputError(
            f"{path} has similarities of {len(values)} pairs: its 'edges' must be the two rows of each, below {size}"
        )
    pairs = torch.from_numpy(edges).long()
    return torch.sparse_coo_tensor(pairs, values, (size, size), check_invariants=True).coalesce()
