"""Strategy 1: similarity of prototypes."""

from torch import Tensor

from protograph.nn.classify import normalise
from protograph.nn.neighbours import NeighbourMeasure
from protograph.nn.operators.base import Similarity
from protograph.nn.operators.context import Context
from protograph.nn.operators.nearest_pairs import is_many, nearest_pairs
from protograph.nn.operators.weights import Weights, block_region

SimilarityMeasure = NeighbourMeasure


def pairwise(rows: Tensor, columns: Tensor, measure: SimilarityMeasure) -> Tensor:
    r"""Return scores [..., R, C] of pairs of rows: their cosine, or minus their (unsquared) distance :math:`-\|c_m - c_n\|`."""
    if measure == "cosine":
        return normalise(rows) @ normalise(columns).mT
    if measure == "l2":
        squares = rows.square().sum(-1)[..., :, None] + columns.square().sum(-1)[..., None, :] - 2 * rows @ columns.mT
        # The slope of the root is infinite at zero, the distance of a class to itself: zero is taken as its slope.
        near = squares < 1e-12
        return -squares.masked_fill(near, 1).sqrt().masked_fill(near, 0)
    raise ValueError(f"unknown measure '{measure}': use cosine or l2")


class PrototypeSimilarity(Similarity):
    r"""Strategy 1, similarity of the normalised initial prototypes:

    .. math:: S_{mn} = \cos(c_m, c_n) \quad\text{or}\quad -\|\bar c_m - \bar c_n\|.

    Args:
        measure: cosine or l2
        block: the block whose pairs are scored; by default all pairs

    """

    sees_support = False

    def __init__(self, measure: SimilarityMeasure = "cosine", block: str | None = None) -> None:
        super().__init__()
        self.measure, self.block = measure, block

    def forward(self, context: Context) -> Weights:
        """Return the scores [E, R, C], or edges to the nearest of many classes; the gradient flows into the prototypes."""
        prototypes = normalise(context.prototypes)
        rows, columns = block_region(self.block, context)
        if is_many(context.classes.shape[1]):
            sides = (prototypes[:, rows], prototypes[:, columns]) if self.block else (prototypes, prototypes)
            return nearest_pairs(*sides, self.measure, self.neighbours, (rows, columns), context.classes.shape[1])
        if self.block is None:  # slicing would change the order in which gradients are summed
            return Weights(pairwise(prototypes, prototypes, self.measure), rows, columns)
        return Weights(pairwise(prototypes[:, rows], prototypes[:, columns], self.measure), rows, columns)
