"""Rows of similarities, normalised by a softmax."""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from protograph.nn.operators.base import Operator, Similarity
from protograph.nn.operators.context import Context
from protograph.nn.operators.edges import Edges
from protograph.nn.operators.weights import Weights


class Softmax(Operator):
    r"""Rows normalised by a softmax with learnable temperature: :math:`B_{mn} = \mathrm{softmax}_n(\tau_B S_{mn})`.

    In a sparse graph the softmax runs over the edges of a row. A class without edges has a row of zeros.

    Args:
        similarity: computes :math:`S`
        label: the name of the operator
        temperature: the start of :math:`\tau_B`
        top: how many of the strongest scores of a row are kept; by default all
        above: the bound over which scores are kept; by default all

    """

    sees_support = False

    def __init__(
        self, similarity: Similarity, label: str, temperature: float = 1.0, top: int | None = None, above: float | None = None
    ) -> None:
        super().__init__()
        if top is not None and top < 1:
            raise ValueError(f"top must be at least 1, so that a score of each row stays, not {top}")
        self.similarity = similarity
        self.labels = (label,)
        self.temperature = nn.Parameter(torch.tensor(temperature))
        self.top, self.above = top, above
        similarity.neighbours = top

    def forward(self, context: Context) -> Weights:
        """Return weights whose rows sum to 1 over the region of the similarity."""
        scores: Weights = self.similarity(context)
        if isinstance(scores.values, Edges):
            edges = scores.values
            if self.top is not None or self.above is not None:
                edges = edges.threshold(self.top, self.above)
            return replace(scores, values=self._edge_softmax(edges))
        assert scores.values is not None
        return replace(scores, values=self._softmax(scores.values))

    def _softmax(self, scores: Tensor) -> Tensor:
        logits = self.temperature * scores
        kept = threshold_mask(scores, self.top, self.above)
        if kept is None:
            return logits.softmax(-1)
        empty = ~kept.any(-1, keepdim=True)
        return logits.masked_fill(~(kept | empty), -math.inf).softmax(-1).masked_fill(empty, 0)

    def _edge_softmax(self, edges: Edges) -> Edges:
        episodes, classes = edges.shape
        row = edges.episode * classes + edges.row
        return replace(edges, weight=softmax_by_row(row, self.temperature * edges.weight, episodes * classes))


def softmax_by_row(row: Tensor, logits: Tensor, rows: int) -> Tensor:
    """Return the shares [n] of edges with logits [n] in their rows [n], of which there are so many."""
    # The largest logit of each row only prevents overflow, so it needs no gradient.
    peak = torch.full((rows,), -math.inf, dtype=logits.dtype, device=logits.device)
    peak = peak.scatter_reduce(0, row, logits.detach(), "amax")
    weight = (logits - peak[row]).exp()
    total = weight.new_zeros(rows).index_add(0, row, weight)
    return weight / total[row]


def threshold_mask(scores: Tensor, top: int | None, above: float | None) -> Tensor | None:
    """Return which scores [..., R, C] the thresholds keep, or None if all."""
    if top is None and above is None:
        return None
    kept = torch.ones_like(scores, dtype=torch.bool)
    if above is not None:
        kept &= scores > above
    if top is not None and top < scores.shape[-1]:
        strongest = scores.topk(top, dim=-1).indices
        kept &= torch.zeros_like(kept).scatter(-1, strongest, True)
    return kept


def sparsify(similarities: Tensor, top: int | None = None, above: float | None = None) -> Tensor:
    """Return a similarity matrix [V, V] as a `torch.sparse` graph of the `top` entries of each row, or those over `above`."""
    kept = threshold_mask(similarities, top, above)
    if kept is None:
        kept = torch.ones_like(similarities, dtype=torch.bool)
    index = kept.nonzero().T
    values, shape = similarities[index[0], index[1]], similarities.shape
    return torch.sparse_coo_tensor(index, values, shape, check_invariants=False).coalesce()
