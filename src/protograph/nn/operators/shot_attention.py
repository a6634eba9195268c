"""DFSLwoF's attention from seen to novel classes."""

import torch
from torch import nn
from torch.nn.functional import embedding

from protograph.nn.classify import normalise
from protograph.nn.operators.base import Operator, mean_over_shots
from protograph.nn.operators.context import Context
from protograph.nn.operators.key_similarity import KeySimilarity
from protograph.nn.operators.prototype_similarity import pairwise
from protograph.nn.operators.weights import Weights, block_region


class ShotAttention(Operator):
    r"""DFSLwoF's attention from seen to novel classes: every support example attends on its own, and the weights are averaged,

    .. math:: B_{nm} = \frac 1 K \sum_i \mathrm{softmax}_m\big(\tau_B \cos(W \bar z_{n,i} + b, k_m)\big).

    With one shot this is a `Softmax` of `KeySimilarity`, whose keys and query layer it holds.

    Args:
        seen: T, the number of training classes
        features: D
        temperature: the start of :math:`\tau_B`

    """

    labels = ("attention",)
    sees_support = True

    def __init__(self, seen: int, features: int, temperature: float = 10.0) -> None:
        super().__init__()
        self.similarity = KeySimilarity(seen, features)
        self.temperature = nn.Parameter(torch.tensor(temperature))

    def forward(self, context: Context) -> Weights:
        """Return weights [E, N, S] of the `sn` block."""
        rows, columns = block_region("sn", context)
        queries = self.similarity.query(normalise(context.support)).flatten(1, 2)  # [E, N * K, D]
        keys = embedding(context.classes[:, columns], self.similarity.keys)
        shares = (self.temperature * pairwise(queries, keys, "cosine")).softmax(-1)
        return Weights(mean_over_shots(shares.view(*context.mask.shape, keys.shape[1]), context.mask), rows, columns)
