"""Strategy 2b: a learned score of the differences of prototypes."""

from dataclasses import replace

import torch
from torch import nn

from protograph.nn.classify import normalise
from protograph.nn.operators.base import Similarity
from protograph.nn.operators.context import Context
from protograph.nn.operators.edges import Edges
from protograph.nn.operators.nearest_pairs import is_many, nearest_pairs
from protograph.nn.operators.weights import Weights


class DifferenceSimilarity(Similarity):
    r"""Strategy 2b, a learned transform of element-wise differences:

    .. math:: S_{mn} = v^\top \mathrm{ReLU}(W |\bar c_m - \bar c_n| + b)

    Args:
        features: D
        hidden: the width of the hidden layer

    """

    sees_support = False

    def __init__(self, features: int, hidden: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, 1, bias=False))

    def forward(self, context: Context) -> Weights:
        """Return the scores [E, V, V] of all pairs, computed row by row; of many classes, those of the nearest by cosine."""
        prototypes, classes = normalise(context.prototypes), context.classes.shape[1]
        if is_many(classes):
            region = slice(0, classes), slice(0, classes)
            near = nearest_pairs(prototypes, prototypes, "cosine", self.neighbours, region, classes)
            assert isinstance(near.values, Edges)
            edges = near.values
            gaps = (prototypes[edges.episode, edges.row] - prototypes[edges.episode, edges.column]).abs()
            return replace(near, values=replace(edges, weight=self.layers(gaps)[..., 0]))
        rows = [self.layers((prototypes[:, m, None] - prototypes).abs())[..., 0] for m in range(prototypes.shape[1])]
        return Weights.full(torch.stack(rows, 1), prototypes.shape[1])
