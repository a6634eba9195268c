"""Strategy 3: similarity of learned keys."""

import math

import torch
from torch import nn
from torch.nn.functional import embedding

from protograph.nn.classify import normalise
from protograph.nn.operators.base import Similarity, without_row
from protograph.nn.operators.context import Context
from protograph.nn.operators.prototype_similarity import pairwise
from protograph.nn.operators.weights import Weights, block_region


class KeySimilarity(Similarity):
    r"""Strategy 3, cosine of keys: :math:`S_{mn} = \cos(k_m, k_n)`.

    A seen class has a learned key. The key of a novel class is the query layer of its prototype, :math:`k_n = W \bar c_n + b`.

    Args:
        seen: T, the number of training classes
        features: D
        block: the block whose pairs are scored, by default from seen to novel; None for all pairs

    """

    sees_support = False

    def __init__(self, seen: int, features: int, block: str | None = "sn") -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.randn(seen, features) * math.sqrt(2 / features))
        self.query = nn.Linear(features, features)
        with torch.no_grad():
            self.query.weight.mul_(0).add_(torch.eye(features) + 0.001 * torch.randn(features, features))
            self.query.bias.zero_()
        self.block = block

    def forget(self, row: int) -> None:
        """Drop the key of one training class."""
        self.keys = without_row(self.keys, row)

    def forward(self, context: Context) -> Weights:
        """Return the scores [E, R, C]."""
        seen = context.seen
        keys = torch.cat(
            [embedding(context.classes[:, :seen], self.keys), self.query(normalise(context.prototypes[:, seen:]))], 1
        )
        rows, columns = block_region(self.block, context)
        return Weights(pairwise(keys[:, rows], keys[:, columns], "cosine"), rows, columns)
