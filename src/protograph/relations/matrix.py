"""A plain similarity matrix with the names of its classes, given as it is."""

import csv
from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from protograph.errors import InputError
from protograph.relations.base import checked


class MatrixRelation:
    """Similarities [V, V], dense or `torch.sparse`, directed or not, with one name per row and column."""

    def __init__(self, matrix: Tensor, names: Sequence[str], source: str = "matrix") -> None:
        self.source = source
        self.names = tuple(names)
        self.matrix = checked(matrix, self.names, source)
        self._rows = {name: row for row, name in enumerate(self.names)}
        if len(self._rows) != len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise InputError(f"relation '{source}' names '{twice}' twice: keep one row per class")

    @classmethod
    def read(cls, path: Path) -> "MatrixRelation":
        """Read a `.csv` (first row and first column are names) or a `.npz` with `names` and `similarities`."""
        if not path.is_file():
            raise InputError(f"no relation file at {path}: give a .csv or .npz similarity matrix")
        if path.suffix == ".npz":
            try:
                with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                    return cls(torch.tensor(arrays["similarities"]), [str(name) for name in arrays["names"]], str(path))
            except (KeyError, ValueError, TypeError, OSError, EOFError, BadZipFile) as error:
                if isinstance(error, InputError):
                    raise
                raise InputError(f"{path} is not a relation: it needs arrays 'names' and 'similarities' ({error})") from error
        if path.suffix == ".csv":
            return cls._read_csv(path)
        raise InputError(f"cannot read a relation from {path}: give a .csv or .npz similarity matrix")

    @classmethod
    def _read_csv(cls, path: Path) -> "MatrixRelation":
        try:
            with path.open(newline="", encoding="utf-8") as file:
                rows = [row for row in csv.reader(file) if row]
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{path} is not a readable .csv file ({error}): save it as UTF-8") from error
        if len(rows) < 2:
            raise InputError(f"{path} is empty: the first row and first column hold class names, the rest similarities")
        names = rows[0][1:]
        values = []
        for row in rows[1:]:
            if len(row) != len(rows[0]):
                raise InputError(f"{path}: row '{row[0]}' has {len(row) - 1} values for {len(names)} classes")
            try:
                values.append([float(value) for value in row[1:]])
            except ValueError as error:
                raise InputError(f"{path}: row '{row[0]}' holds something that is not a number ({error})") from error
        if [row[0] for row in rows[1:]] != names:
            if len(rows) - 1 != len(names):
                raise InputError(f"{path} has a {len(rows) - 1} x {len(names)} matrix: give one row and column per class")
            raise InputError(f"{path}: rows and columns must name the same classes in the same order")
        return cls(torch.tensor(values), names, str(path))

    def similarities(self, names: Sequence[str]) -> Tensor:
        """Rows and columns of these names, in their order."""
        missing = [name for name in names if name not in self._rows]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise InputError(f"relation '{self.source}' lacks class '{missing[0]}'{more}: add its row and column")
        rows = torch.tensor([self._rows[name] for name in names], dtype=torch.long)
        if self.matrix.layout == torch.strided:
            return self.matrix[rows][:, rows]
        return self.matrix.index_select(0, rows).index_select(1, rows).coalesce()
