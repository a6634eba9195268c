"""Strategy 4: side information."""

import torch
from torch import Tensor

from protograph.nn.operators.base import Similarity
from protograph.nn.operators.context import Context
from protograph.nn.operators.edges import Edges
from protograph.nn.operators.weights import Weights


class SideInformation(Similarity):
    """Strategy 4, known similarities of the classes, indexed for every episode.

    Args:
        similarities: [C, C] by class id, dense or `torch.sparse`, directed or not

    """

    sees_support = False
    uses_relation = True
    similarities: Tensor

    def __init__(self, similarities: Tensor) -> None:
        super().__init__()
        self.size = similarities.shape[0]
        self.sparse = similarities.layout != torch.strided
        self.capturable = not self.sparse  # the number of edges depends on the episode
        if self.sparse:
            graph = similarities.to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
            self.register_buffer("edges", graph.indices(), persistent=False)
            self.register_buffer("similarities", graph.values(), persistent=False)
        else:
            self.register_buffer("similarities", similarities, persistent=False)

    def forward(self, context: Context) -> Weights:
        """Return the similarities [E, V, V] of all pairs, or the edges among the episode's classes."""
        classes = context.classes
        episodes, count = classes.shape
        if not self.sparse:
            return Weights.full(self.similarities[classes[:, :, None], classes[:, None, :]], count)
        row, column = self.get_buffer("edges")
        position = torch.full((episodes, self.size), -1, device=classes.device)
        position = position.scatter(1, classes, torch.arange(count, device=classes.device).expand(episodes, -1))
        rows, columns = position[:, row], position[:, column]  # [E, edges]
        episode, edge = ((rows >= 0) & (columns >= 0)).nonzero(as_tuple=True)
        edges = Edges(episode, rows[episode, edge], columns[episode, edge], self.similarities[edge], (episodes, count))
        return Weights.full(edges, count)
