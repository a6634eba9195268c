"""Scores of many classes: those of the nearest pairs alone, as edges."""

import torch
from torch import Tensor

from protograph._internal.rows import ROWS_AT_ONCE, Rows
from protograph.nn import neighbours as search
from protograph.nn.classify import normalise
from protograph.nn.neighbours import NEIGHBOURS, NeighbourMeasure, all_nearest, nearest, pair_scores
from protograph.nn.operators.edges import Edges
from protograph.nn.operators.weights import Weights


def is_many(classes: int) -> bool:
    """Return whether there are too many classes to score all pairs of them."""
    return classes > search.MOST_DENSE


def nearest_pairs(
    vectors: Tensor,
    others: Tensor,
    measure: NeighbourMeasure,
    count: int | None,
    region: tuple[slice, slice],
    classes: int,
) -> Weights:
    """Return the scores of the nearest pairs as edges; the gradient flows into both sides.

    Args:
        vectors: What the rows are compared by [E, R, D].
        others: What the columns are compared by [E, C, D]; the same tensor where all classes are compared with all.
        measure: What scores are.
        count: The number of neighbours of each row; by default `NEIGHBOURS`.
        region: The rows and columns that these are, of all classes.
        classes: V.

    """
    if measure == "cosine":
        same = vectors is others
        vectors = normalise(vectors)
        others = vectors if same else normalise(others)
    (episodes, rows, _), (first_row, first_column) = vectors.shape, (part.start for part in region)
    width = min(count or NEIGHBOURS, others.shape[1])
    if not rows or not width:
        nothing = torch.zeros(0, dtype=torch.long, device=vectors.device)
        return Weights(Edges(nothing, nothing, nothing, vectors.new_zeros(0), (episodes, classes)), *region)
    chosen = torch.stack([_indices(one, other, width, measure) for one, other in zip(vectors, others, strict=True)])
    scores = []
    for one, other, indices in zip(vectors, others, chosen, strict=True):
        pairs = zip(torch.split(one, ROWS_AT_ONCE), torch.split(indices, ROWS_AT_ONCE), strict=True)
        scores.append(torch.cat([pair_scores(part, other[columns], measure) for part, columns in pairs]))
    episode = torch.arange(episodes, device=vectors.device)[:, None, None].expand_as(chosen)
    row = torch.arange(rows, device=vectors.device)[None, :, None].expand_as(chosen)
    weight = torch.stack(scores).flatten()
    edges = Edges(episode.flatten(), row.flatten() + first_row, chosen.flatten() + first_column, weight, (episodes, classes))
    return Weights(edges, *region)


@torch.no_grad()
def _indices(vectors: Tensor, others: Tensor, count: int, measure: NeighbourMeasure) -> Tensor:
    """Return the indices [R, count] of the nearest columns of each row."""
    if len(vectors) == len(others) and len(vectors) > search.MOST_EXACT and vectors.data_ptr() == others.data_ptr():
        found = all_nearest(Rows.of(vectors), count, measure)[1].tensor()
    else:
        columns = Rows.of(others)
        found = torch.cat([nearest(part, columns, count, measure)[1] for part in torch.split(vectors, ROWS_AT_ONCE)])
    return found.long().sort(1).values  # edges are in the order of their columns
