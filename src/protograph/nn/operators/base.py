"""The base classes of operators and similarities."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from protograph._internal.errors import InputError
from protograph.nn.operators.context import Context
from protograph.nn.operators.weights import Weights


class Component(nn.Module, ABC):
    """What operators are made of: the base of `Operator` and `Similarity`.

    The attributes speak of the component itself, not of components inside it; `components` goes through all of them.

    Attributes:
        sees_support: whether it looks at the support features; if no component does, they may be missing from the context
        uses_relation: whether it uses side information
        capturable: whether a step with it may be recorded as a CUDA graph: no size depends on values, none is read back
        per_class: the names of its parameters with a row for each training class

    """

    sees_support = True
    uses_relation = False
    capturable = True
    per_class: tuple[str, ...] = ()

    def forget(self, row: int) -> None:
        """Drop what was learned of one training class.

        Args:
            row: the row of the class among the T training classes

        """
        for name in self.per_class:
            setattr(self, name, without_row(getattr(self, name), row))


def components(module: nn.Module) -> Iterator[Component]:
    """Yield all components of a module: operators, similarities, and those inside them."""
    return (part for part in module.modules() if isinstance(part, Component))


class Operator(Component):
    """What the graph block multiplies prototypes by: one `Weights` per label.

    A custom operator implements `forward` and, if it returns several `Weights`, sets `labels`.

    Attributes:
        labels: the names of the weights it returns

    """

    labels: tuple[str, ...] = ("operator",)

    @abstractmethod
    def forward(self, context: Context) -> Weights | Tensor | tuple[Weights, ...]:
        """Return the weights for these episodes; a matrix [E, V, V] or [V, V] stands for full `Weights`."""

    def weights(self, context: Context) -> tuple[Weights, ...]:
        """Return what `forward` returns, as one `Weights` per label.

        Raises:
            InputError: `forward` returns something else.

        """
        returned, count = self(context), context.classes.shape[1]
        if isinstance(returned, Tensor):
            if returned.shape[-2:] != (count, count):
                shape = " x ".join(map(str, returned.shape))
                raise InputError(f"operator {type(self).__name__} returned a {shape} matrix for {count} classes")
            returned = Weights.full(returned, count)
        weights = returned if isinstance(returned, tuple) else (returned,)
        if len(weights) != len(self.labels) or not all(isinstance(part, Weights) for part in weights):
            kinds = ", ".join(type(part).__name__ for part in weights)
            raise InputError(
                f"operator {type(self).__name__} returned {kinds}: return one Weights for each of its labels "
                f"({', '.join(self.labels)}), or a matrix"
            )
        return weights


class Similarity(Component):
    """Scores of pairs of classes, before a `Softmax` normalises them.

    Attributes:
        neighbours: how many of the strongest scores of a row the operator keeps; None: all. Of many classes, only these are
            computed

    """

    neighbours: int | None = None

    @abstractmethod
    def forward(self, context: Context) -> Weights:
        """Return the scores, dense or as edges, of all pairs or of those of one block."""


def mean_over_shots(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean [E, N, X] of values [E, N, K, X] over the shots where the mask [E, N, K] is True; without shots, zero."""
    weight = mask[..., None].to(values.dtype)
    return (values * weight).sum(2) / weight.sum(2).clamp(min=1)


def without_row(rows: nn.Parameter, row: int) -> nn.Parameter:
    """Return a parameter [T, D] without one of its rows."""
    return nn.Parameter(torch.cat([rows.detach()[:row], rows.detach()[row + 1 :]]), requires_grad=rows.requires_grad)
