"""CASTLE's synthesis of classifiers from a dictionary."""

import torch
from torch import nn

from protograph.nn.classify import normalise
from protograph.nn.operators.base import Operator
from protograph.nn.operators.context import Context
from protograph.nn.operators.prototype_similarity import pairwise
from protograph.nn.operators.weights import Weights, block_region


class DictionaryAttention(Operator):
    r"""Attention of new classes over a dictionary of the seen classifiers, after CASTLE (Ye et al., 2021),

    .. math:: B_{nm} = \mathrm{softmax}_m\big(\tau_B \cos(U \bar c_n, K \bar c_m)\big).

    Its product with the seen prototypes, transformed by a full theta, is what CASTLE adds to the prototype of a new class: the
    values of the dictionary are linear in the seen classifiers, as its keys are. CASTLE's further bases, which belong to no
    class, are left out.

    Args:
        features: D
        temperature: the start of :math:`\tau_B`

    """

    labels = ("dictionary",)
    sees_support = False

    def __init__(self, features: int, temperature: float = 10.0) -> None:
        super().__init__()
        self.query, self.key = (nn.Linear(features, features, bias=False) for _ in range(2))
        for layer in (self.query, self.key):
            with torch.no_grad():
                layer.weight.mul_(0).add_(torch.eye(features) + 0.001 * torch.randn(features, features))
        self.temperature = nn.Parameter(torch.tensor(temperature))

    def forward(self, context: Context) -> Weights:
        """Return weights [E, N, S] of the `sn` block."""
        rows, columns = block_region("sn", context)
        prototypes = normalise(context.prototypes)
        scores = pairwise(self.query(prototypes[:, rows]), self.key(prototypes[:, columns]), "cosine")
        return Weights((self.temperature * scores).softmax(-1), rows, columns)
