"""Strategy 3: similarity of learned keys."""

import math

import torch
from torch import nn
from torch.nn.functional import embedding

from protograph.nn.classify import normalise
from protograph.nn.operators.base import Similarity
from protograph.nn.operators.context import Context
from protograph.nn.operators.nearest_pairs import is_many, nearest_pairs
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
    per_class = ("keys",)

    def __init__(self, seen: int, features: int, block: str | None = "sn") -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.randn(seen, features) * math.sqrt(2 / features))
        self.query = nn.Linear(features, features)
        with torch.no_grad():
            self.query.weight.mul_(0).add_(torch.eye(features) + 0.001 * torch.randn(features, features))
            self.query.bias.zero_()
        self.block = block

    def forward(self, context: Context) -> Weights:
        """Return the scores [E, R, C], or edges to the nearest of many classes."""
        seen = context.seen
        keys = torch.cat(
            [embedding(context.classes[:, :seen], self.keys), self.query(normalise(context.prototypes[:, seen:]))], 1
        )
        rows, columns = block_region(self.block, context)
        if is_many(context.classes.shape[1]):
            sides = (keys[:, rows], keys[:, columns]) if self.block else (keys, keys)
            return nearest_pairs(*sides, "cosine", self.neighbours, (rows, columns), context.classes.shape[1])
        return Weights(pairwise(keys[:, rows], keys[:, columns], "cosine"), rows, columns)
