"""The matrices that operators return, and the blocks they are made of."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from protograph.nn.operators.context import Context
from protograph.nn.operators.edges import Edges

BLOCKS = ("ss", "sn", "ns", "nn")  # from -> to: `sn` has the novel rows and the seen columns


@dataclass(frozen=True)
class Weights:
    """One matrix [E, V, V] that is zero outside a region of rows and columns.

    Attributes:
        values: the region's weights [E, R, C] (or [R, C] for all episodes), `Edges` of the full matrix, or None for the
            identity
        rows: the region's R rows
        columns: its C columns

    """

    values: Tensor | Edges | None
    rows: slice
    columns: slice

    @classmethod
    def full(cls, values: Tensor | Edges | None, classes: int) -> "Weights":
        """Return weights without zero rows or columns: the region is all of V x V."""
        return cls(values, slice(0, classes), slice(0, classes))

    def times(self, inputs: Tensor) -> Tensor:
        """Return the region's rows [E, R, D] of the product with inputs [E, V, D]; the other rows of the product are zero."""
        if self.values is None:
            return inputs[:, self.rows]
        if isinstance(self.values, Tensor):
            return self.values @ inputs[:, self.columns]
        if self.columns == slice(0, inputs.shape[1]):
            return self.values.times(inputs)[:, self.rows]
        masked = torch.zeros_like(inputs)
        masked[:, self.columns] = inputs[:, self.columns]
        return self.values.times(masked)[:, self.rows]

    def restricted(self, block: str, seen: int, classes: int) -> "Weights":
        """Return one block of the matrix; everything else becomes zero."""
        rows, columns = region(block, seen, classes)
        if (self.rows, self.columns) == (rows, columns):
            return self
        if (self.rows, self.columns) != (slice(0, classes), slice(0, classes)):
            raise ValueError("only an operator that fills the full matrix can be split into blocks")
        if self.values is None and rows != columns:
            raise ValueError(f"the identity has nothing in block '{block}': use ss or nn")
        values = self.values[..., rows, columns] if isinstance(self.values, Tensor) else self.values
        return Weights(values, rows, columns)

    def power(self, order: int) -> "Weights":
        """Return the matrix to the power of `order`."""
        if self.rows != self.columns:
            raise ValueError("only a square operator has powers")
        if isinstance(self.values, Tensor):
            return replace(self, values=torch.linalg.matrix_power(self.values, order))
        if isinstance(self.values, Edges):
            if self.values.order > 1 and self.rows != slice(0, self.values.shape[1]):
                raise ValueError("a block of a power has no powers of its own: split after the last power")
            inside = self.values.within(self.rows, self.columns)
            return replace(self, values=replace(inside, order=inside.order * order))
        return self

    def row_of(self, row: int, classes: int) -> Tensor:
        """Return one row [V] of the first episode's matrix, without computing the others."""
        weights = torch.zeros(classes)
        if not self.rows.start <= row < self.rows.stop:
            return weights
        if self.values is None:
            weights[row] = 1
        elif isinstance(self.values, Edges):
            weights[self.columns] = self.values.row_of(row)[self.columns]
        else:
            weights[self.columns] = self.values[(0,) * (self.values.ndim - 2)][row - self.rows.start]
        return weights

    def dense(self, classes: int) -> Tensor:
        """Return the full matrix [E, V, V] (or [V, V])."""
        if isinstance(self.values, Edges):
            block = self.values.dense()[:, self.rows, self.columns]
        elif self.values is None:
            block = torch.eye(classes)[self.rows, self.columns]
        else:
            block = self.values
        matrix = block.new_zeros(*block.shape[:-2], classes, classes)
        matrix[..., self.rows, self.columns] = block
        return matrix


def region(block: str, seen: int, classes: int) -> tuple[slice, slice]:
    """Return the rows and columns of a block: `sn`, from seen to novel, has the novel rows and the seen columns."""
    sides = {"s": slice(0, seen), "n": slice(seen, classes)}
    if block not in BLOCKS:
        raise ValueError(f"unknown block '{block}': use one of {', '.join(BLOCKS)}")
    return sides[block[1]], sides[block[0]]


def block_region(block: str | None, context: Context) -> tuple[slice, slice]:
    """Return the rows and columns of a block of an episode's matrix, or of all of it."""
    classes = context.classes.shape[1]
    return region(block, context.seen, classes) if block else (slice(0, classes), slice(0, classes))
