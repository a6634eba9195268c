"""Strategy 2a: similarity of prototypes in a learned space."""

from torch import nn

from protograph.nn.classify import normalise
from protograph.nn.operators.base import Similarity
from protograph.nn.operators.context import Context
from protograph.nn.operators.nearest_pairs import is_many, nearest_pairs
from protograph.nn.operators.prototype_similarity import SimilarityMeasure, pairwise
from protograph.nn.operators.weights import Weights


class TransformedSimilarity(Similarity):
    r"""Strategy 2a, a standard measure in a learned space: :math:`S_{mn} = \cos(W \bar c_m, W \bar c_n)`.

    Args:
        features: D
        width: dimension of the learned space
        measure: cosine or l2

    """

    sees_support = False

    def __init__(self, features: int, width: int | None = None, measure: SimilarityMeasure = "cosine") -> None:
        super().__init__()
        self.transform = nn.Linear(features, width or features, bias=False)
        nn.init.orthogonal_(self.transform.weight)  # at first a rotation, which leaves the measure as it is
        self.measure = measure

    def forward(self, context: Context) -> Weights:
        """Return the scores [E, V, V] of all pairs, or edges to the nearest of many classes."""
        transformed, classes = self.transform(normalise(context.prototypes)), context.classes.shape[1]
        if is_many(classes):
            region = slice(0, classes), slice(0, classes)
            return nearest_pairs(transformed, transformed, self.measure, self.neighbours, region, classes)
        return Weights.full(pairwise(transformed, transformed, self.measure), classes)
