"""Sparse matrices of class weights, and their product with prototypes."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


class SparseProduct(torch.autograd.Function):
    """The product of a sparse matrix, given by the rows, columns and weights [n] of its edges, and a matrix [V, D].

    PyTorch's gradient of the weights computes V x V numbers in between; this one computes n.
    """

    @staticmethod
    def forward(ctx: Any, row: Tensor, column: Tensor, weight: Tensor, inputs: Tensor) -> Tensor:
        """Return the product [V, D]."""
        ctx.save_for_backward(row, column, weight, inputs)
        return _sparse_product(row, column, weight, inputs)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[None, None, Tensor | None, Tensor | None]:
        """Return the gradients of weights [n], in portions of edges, and of inputs [V, D]."""
        row, column, weight, inputs = ctx.saved_tensors
        slope = slopes[0].contiguous()
        to_weight = to_inputs = None
        if ctx.needs_input_grad[2]:
            pairs = zip(torch.split(row, 65536), torch.split(column, 65536), strict=True)
            to_weight = torch.cat([(slope[rows] * inputs[columns]).sum(-1) for rows, columns in pairs])
        if ctx.needs_input_grad[3]:
            to_inputs = _sparse_product(column, row, weight, slope)
        return None, None, to_weight, to_inputs


def _sparse_product(row: Tensor, column: Tensor, weight: Tensor, inputs: Tensor) -> Tensor:
    size = (len(inputs), len(inputs))
    matrix = torch.sparse_coo_tensor(torch.stack([row, column]), weight, size, check_invariants=False)
    product: Tensor = torch.sparse.mm(matrix, inputs)
    return product


@dataclass(frozen=True)
class Edges:
    """A sparse matrix [E, V, V], to the power of `order`.

    Attributes:
        episode: the episode of every edge [n]
        row: its row [n]
        column: its column [n]
        weight: its weight [n]
        shape: E and V
        order: the power

    """

    episode: Tensor
    row: Tensor
    column: Tensor
    weight: Tensor
    shape: tuple[int, int]
    order: int = 1

    def times(self, inputs: Tensor) -> Tensor:
        """Return the product [E, V, D] with inputs [E, V, D]; its memory grows with edges and inputs, never with V x V."""
        episodes, classes = self.shape
        row, column = self.episode * classes + self.row, self.episode * classes + self.column
        flat = inputs.reshape(episodes * classes, -1)
        for _ in range(self.order):
            flat = SparseProduct.apply(row, column, self.weight, flat)  # type: ignore[no-untyped-call]
        product: Tensor = flat.view_as(inputs)
        return product

    def select(self, mask: Tensor) -> "Edges":
        """Return the edges where the mask [n] is True."""
        return replace(
            self,
            episode=self.episode[mask],
            row=self.row[mask],
            column=self.column[mask],
            weight=self.weight[mask],
        )

    def within(self, rows: slice, columns: slice) -> "Edges":
        """Return the edges of one block."""
        inside = (self.row >= rows.start) & (self.row < rows.stop)
        return self.select(inside & (self.column >= columns.start) & (self.column < columns.stop))

    def threshold(self, top: int | None, above: float | None) -> "Edges":
        """Return the `top` strongest edges of each row, of those with a weight over `above`."""
        mask = torch.ones_like(self.weight, dtype=torch.bool)
        if above is not None:
            mask &= self.weight > above
        if top is not None:
            row = self.episode * self.shape[1] + self.row
            order = self.weight.argsort(descending=True)
            order = order[row[order].argsort(stable=True)]  # by row, the strongest first
            first = torch.searchsorted(row[order], row[order])
            rank = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=order.device) - first)
            mask &= rank < top
        return self.select(mask)

    def row_of(self, row: int) -> Tensor:
        """Return one row [V] of the first episode's matrix."""
        first = self.select(self.episode == 0)
        weights = torch.zeros(self.shape[1], dtype=self.weight.dtype)
        weights[row] = 1
        for _ in range(self.order):
            weights = torch.zeros_like(weights).index_add(0, first.column, first.weight * weights[first.row])
        return weights

    def dense(self) -> Tensor:
        """Return the full matrix [E, V, V]."""
        episodes, classes = self.shape
        matrix = self.weight.new_zeros(episodes, classes, classes)
        matrix = matrix.index_put((self.episode, self.row, self.column), self.weight, accumulate=True)
        power: Tensor = torch.linalg.matrix_power(matrix, self.order)
        return power
