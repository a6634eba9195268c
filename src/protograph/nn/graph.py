"""The graph block: joint prototypes in, updated joint prototypes out."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from protograph.nn.classify import normalise
from protograph.nn.operators import Weights

Theta = Literal["diagonal", "full", "identity"]


class Thetas(nn.Module):
    """Transforms by operator label; unlike in a `ParameterDict`, a label may be any text."""

    def __init__(self, starts: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._names = {label: f"theta-{label.replace('.', '-')}" for label in starts}
        for label, start in starts.items():
            self.register_parameter(self._names[label], nn.Parameter(start.clone()))

    def __contains__(self, label: str) -> bool:
        return label in self._names

    def __getitem__(self, label: str) -> nn.Parameter:
        return self.get_parameter(self._names[label])

    def __len__(self) -> int:
        return len(self._names)

    def keys(self) -> list[str]:
        """Return the labels."""
        return list(self._names)

    def values(self) -> list[nn.Parameter]:
        """Return the transforms, in the order of the labels."""
        return [self[label] for label in self._names]


class GraphLayer(nn.Module):
    r"""One graph convolution over class prototypes,

    .. math:: \tilde g(C) = \rho\Big(\sum_{B \in \mathcal A} s_B \, \overline{B \, \bar C \, \theta_B}\Big).

    In this order: normalise the rows of C, multiply by B, transform by theta, normalise rows, scale by s, add, apply rho. Rows
    that an operator sets to zero stay zero.

    Args:
        labels: a name for each operator
        features: D
        theta: a learnable diagonal (from ones), a full D x D matrix (from the identity), or the fixed identity
        fixed: operators whose theta is the fixed identity regardless of `theta`
        scales: whether :math:`s_B` (from 1) is learned; without, it is 1
        normalise_inputs: the bar over C
        normalise_outputs: the bar over each operator's product
        relu: rho is a ReLU; otherwise the identity

    """

    def __init__(
        self,
        labels: Sequence[str],
        features: int,
        theta: Theta = "diagonal",
        fixed: Sequence[str] = (),
        scales: bool = True,
        normalise_inputs: bool = True,
        normalise_outputs: bool = True,
        relu: bool = False,
    ) -> None:
        super().__init__()
        if len(set(labels)) != len(labels):
            raise ValueError(f"operators need different labels, not {tuple(labels)}")
        if unknown := set(fixed) - set(labels):
            raise ValueError(f"no operator is called {', '.join(sorted(unknown))}: there are {', '.join(labels)}")
        self.labels = tuple(labels)
        if theta not in ("diagonal", "full", "identity"):
            raise ValueError(f"unknown theta '{theta}': use diagonal, full or identity")
        learned = [label for label in labels if theta != "identity" and label not in fixed]
        start = torch.eye(features) if theta == "full" else torch.ones(features)
        self.thetas = Thetas(dict.fromkeys(learned, start))
        self.scales = nn.Parameter(torch.ones(len(labels)), requires_grad=scales)
        self.normalise_inputs, self.normalise_outputs, self.relu = normalise_inputs, normalise_outputs, relu

    def forward(self, prototypes: Tensor, operators: Sequence[Weights]) -> Tensor:
        """Return updated prototypes [E, V, D] from prototypes [E, V, D] and one `Weights` per label."""
        inputs = self.rows(prototypes)
        total = torch.zeros_like(inputs)
        for label, weights, scale in zip(self.labels, operators, self.scales, strict=True):
            product = self.transformed(label, weights.times(inputs))
            if self.normalise_outputs:
                product = normalise(product)
            total[:, weights.rows] += scale * product
        return total.relu() if self.relu else total

    def rows(self, prototypes: Tensor) -> Tensor:
        """Return prototypes [..., V, D] as the operators see them."""
        return normalise(prototypes) if self.normalise_inputs else prototypes

    def transformed(self, label: str, product: Tensor) -> Tensor:
        """Return an operator's product [..., D], transformed by theta."""
        if label not in self.thetas:
            return product
        theta = self.thetas[label].to(product.dtype)
        return product @ theta if theta.ndim == 2 else product * theta


class GraphBlock(nn.Module):
    r"""L graph layers, :math:`C' = \tilde g^L(\ldots \tilde g^1(C))`, with a ReLU between layers and none after the last.

    The operators are computed once, from the initial prototypes, and used in every layer.

    Args:
        labels: a name for each operator
        features: D
        layers: L
        options: the other arguments of `GraphLayer`

    """

    def __init__(self, labels: Sequence[str], features: int, layers: int = 1, **options: object) -> None:
        super().__init__()
        if layers < 1:
            raise ValueError(f"a graph block needs at least one layer, not {layers}")
        self.layers = nn.ModuleList(
            GraphLayer(labels, features, relu=layer < layers - 1, **options)  # type: ignore[arg-type]
            for layer in range(layers)
        )

    def forward(self, prototypes: Tensor, operators: Sequence[Weights]) -> Tensor:
        """Return updated prototypes [E, V, D] from initial ones and one `Weights` per label."""
        for layer in self.layers:
            prototypes = layer(prototypes, operators)
        return prototypes
