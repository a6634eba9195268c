"""The nearest classes of classes: exactly, by products with a block of them at a time, or by an index.

Shapes: R asked classes, V classes, D features, k neighbours. A class is a neighbour of itself.
"""

import importlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Literal

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph._internal.progress import Progress, Silent
from protograph._internal.rows import ROWS_AT_ONCE, Rows, distinct

NeighbourMeasure = Literal["cosine", "l2"]
MOST_DENSE = 4096  # classes of which all pairs are scored; of more, those of each class's nearest
NEIGHBOURS = 32  # of each class, where an operator names no number
MOST_EXACT = 20_000  # classes that are all compared with all; of more, an index names the nearest
CONNECTIONS, CARE = 16, 128  # of the index: edges of a vector, and how many vectors are looked at when one is put in
LEAST_SQUARE = 1e-12  # of a distance; less is rounding
OVERSAMPLING = 2  # times as many neighbours as are asked for are taken from the index, and compared exactly


def load_usearch(classes: int) -> ModuleType:
    """Return the library of the index, which so many classes need.

    Raises:
        InputError: It is not installed.

    """
    try:
        return importlib.import_module("usearch.index")
    except ImportError as error:
        raise InputError(
            f'the nearest of {classes:,} classes are found by an index, which needs usearch: pip install "protograph[ann]"'
        ) from error


def scores_of(rows: Tensor, columns: Tensor, measure: NeighbourMeasure) -> Tensor:
    """Return the scores [R, V] of rows [R, D] and columns [V, D]; for the cosine, both have length 1."""
    products = rows @ columns.T
    if measure == "cosine":
        return products
    squares = rows.square().sum(-1)[:, None] + columns.square().sum(-1) - 2 * products
    return -squares.masked_fill(squares < LEAST_SQUARE, 0).sqrt()


def pair_scores(rows: Tensor, columns: Tensor, measure: NeighbourMeasure) -> Tensor:
    """Return the scores [R, k] of rows [R, D] and of k columns [R, k, D] for each."""
    if measure == "cosine":
        return (columns @ rows[:, :, None])[..., 0]
    squares = (rows[:, None] - columns).square().sum(-1)
    near = squares < LEAST_SQUARE  # the slope of the root is infinite at zero: zero is taken as its slope
    return -squares.masked_fill(near, 1).sqrt().masked_fill(near, 0)


def nearest(
    rows: Tensor, columns: Iterable[tuple[int, Tensor]], count: int, measure: NeighbourMeasure
) -> tuple[Tensor, Tensor]:
    """Return the scores [R, k] and the indices [R, k] of the columns nearest to rows [R, D], the nearest first.

    Args:
        rows: The rows.
        columns: The first index of each block of columns, and the block [B, D].
        count: The number k of neighbours.
        measure: What scores are.

    """
    return _best_columns(((start, scores_of(rows, block, measure)) for start, block in columns), len(rows), count, rows)


def _best_columns(scored: Iterable[tuple[int, Tensor]], rows: int, count: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest scores [R, k] and their columns [R, k], of blocks of scores [R, B] with their first column."""
    best, index = like.new_zeros(rows, 0), torch.zeros(rows, 0, dtype=torch.long, device=like.device)
    for start, scores in scored:
        top = scores.topk(min(count, scores.shape[1]), dim=1)
        values, indices = torch.cat([best, top.values], 1), torch.cat([index, top.indices + start], 1)
        order = values.sort(dim=1, descending=True, stable=True)
        best, index = order.values[:, :count], indices.gather(1, order.indices[:, :count])
    return best, index


def all_nearest(vectors: Rows, count: int, measure: NeighbourMeasure, progress: Progress | None = None) -> tuple[Rows, Rows]:
    """Return the scores [V, k] and the indices [V, k], in 32 bits, of the nearest vectors of all vectors [V, D]."""
    classes = len(vectors)
    count = min(count, classes)
    parts = _by_index if classes > MOST_EXACT else _by_products
    with (progress or Silent()).task("find neighbours", classes, "classes") as advance:
        scores, indices = [], []
        for score, index in parts(vectors, count, measure):
            scores.append(score)
            indices.append(index.int())
            advance(len(score))
    return Rows(scores), Rows(indices)


def _by_products(vectors: Rows, count: int, measure: NeighbourMeasure) -> Iterator[tuple[Tensor, Tensor]]:
    for _, block in vectors:
        yield nearest(block, vectors, count, measure)


def _by_index(vectors: Rows, count: int, measure: NeighbourMeasure) -> Iterator[tuple[Tensor, Tensor]]:
    index = VectorIndex(len(vectors), vectors.blocks[0].shape[1], measure)
    for start, block in vectors:
        index.add(start, block)
    for start, block in vectors:
        chosen = index.search(block, OVERSAMPLING * count)
        chosen[:, -1] = torch.arange(start, start + len(block))  # itself, if the index does not know it
        twice = (chosen[:, :-1] == chosen[:, -1:]).any(1)
        scores = pair_scores(block, vectors.take(chosen.clamp(min=0).flatten()).view(*chosen.shape, -1), measure)
        scores = scores.masked_fill(chosen < 0, -torch.inf)
        scores[twice, -1] = -torch.inf
        top = scores.topk(count, dim=1)
        yield top.values, chosen.gather(1, top.indices)


class VectorIndex:
    """An index of vectors [V, D] that names the nearest ones of a query, with few errors, without comparing it with all.

    Args:
        classes: V, by which a missing library is explained.
        features: D.
        measure: "cosine", for vectors of length 1, or "l2".
        care: How many vectors are looked at when one is put in.

    """

    def __init__(self, classes: int, features: int, measure: NeighbourMeasure, care: int = CARE) -> None:
        library = load_usearch(classes)
        metric = "ip" if measure == "cosine" else "l2sq"
        self.index = library.Index(ndim=features, metric=metric, dtype="i8", connectivity=CONNECTIONS, expansion_add=care)

    def add(self, start: int, vectors: Tensor) -> None:
        """Put vectors [B, D] in, whose numbers begin with `start`."""
        keys = torch.arange(start, start + len(vectors)).numpy()
        self.index.add(keys, vectors.float().numpy(), threads=torch.get_num_threads())

    def search(self, queries: Tensor, count: int, care: int | None = None) -> Tensor:
        """Return the numbers [n, k] of the nearest vectors of queries [n, D]; -1 where fewer are found.

        Args:
            queries: The queries.
            count: The number k.
            care: How many vectors are looked at for each query; at least k.

        """
        self.index.expansion_search = max(care or CARE, count)
        matches = self.index.search(queries.float().numpy(), count, threads=torch.get_num_threads())
        if len(queries) == 1:
            keys = torch.full((1, count), -1)
            keys[0, : len(matches)] = torch.from_numpy(matches.keys.astype("int64"))
            return keys
        found = torch.arange(count)[None] < torch.from_numpy(matches.counts.astype("int64"))[:, None]
        return torch.where(found, torch.from_numpy(matches.keys.astype("int64")), -1)


@dataclass(frozen=True)
class NeighbourGraph:
    """The nearest classes of all classes, kept while classes come, go and change.

    Attributes:
        vectors: What classes are compared by [V, D].
        scores: The scores [V, k] of each class's neighbours, the nearest first.
        indices: Their indices [V, k].
        count: The number of neighbours that each class may have; k, or more than there are classes.
        measure: What scores are.

    """

    vectors: Rows
    scores: Rows
    indices: Rows
    count: int
    measure: NeighbourMeasure

    @property
    def width(self) -> int:
        """The number k of neighbours."""
        return self.scores.blocks[0].shape[1]

    @classmethod
    def of(cls, vectors: Rows, count: int, measure: NeighbourMeasure, progress: Progress | None = None) -> "NeighbourGraph":
        """Return the neighbours of all vectors."""
        return cls(vectors, *all_nearest(vectors, count, measure, progress), count, measure)

    def extended(self, vectors: Tensor) -> tuple["NeighbourGraph", Tensor]:
        """Return the graph with further classes [N, D], and the classes before them that now have one as a neighbour."""
        first, grown = len(self.vectors), self.vectors.extended(vectors)
        rows, gaining = vectors.to(grown.blocks[0]), []
        width = max(self.width, min(self.count, len(grown)))
        graph = replace(self._widened(width), vectors=grown)

        def compared() -> Iterator[tuple[int, Tensor]]:
            for start, block in grown:
                scores = scores_of(rows, block, self.measure)
                last = [part[:, -1] for part in _between(graph.scores, start, start + len(block))]
                if last:
                    farthest = torch.cat(last)
                    gaining.append(start + (scores[:, : len(farthest)].amax(0) > farthest).nonzero()[:, 0])
                yield start, scores

        scores, indices = _padded(*_best_columns(compared(), len(rows), self.count, rows), width)
        new = torch.arange(first, len(grown))
        gained = torch.cat(gaining)
        graph = graph._with_candidates(new, gained)
        further = graph.scores.extended(scores), graph.indices.extended(indices.int())
        return replace(graph, scores=further[0], indices=further[1]), gained

    def replaced(self, row: int, vector: Tensor) -> tuple["NeighbourGraph", Tensor]:
        """Return the graph after the vector [D] of one class changed, and all classes whose neighbours changed."""
        asking = self.with_neighbour(row)
        graph = replace(self, vectors=self.vectors.replaced([row], vector[None]))
        again = distinct(asking, torch.tensor([row]))
        graph = graph._asked_again(again)
        gained = []
        for start, block in graph.vectors:
            last = torch.cat([part[:, -1] for part in _between(graph.scores, start, start + len(block))])
            gained.append(start + (scores_of(vector[None].to(block), block, self.measure)[0] > last).nonzero()[:, 0])
        changed = torch.cat(gained)
        changed = changed[~torch.isin(changed, again)]
        return graph._with_candidates(torch.tensor([row]), changed), distinct(again, changed)

    def without(self, row: int) -> tuple["NeighbourGraph", Tensor]:
        """Return the graph without a class, and the classes, by their new indices, that it was a neighbour of."""
        asking = self.with_neighbour(row)
        asking = asking[asking != row]
        asking = asking - (asking > row).long()
        graph = replace(
            self,
            vectors=self.vectors.without(row),
            scores=self.scores.without(row),
            indices=self.indices.without(row).mapped(lambda block: block - (block > row).int()),
        )
        width = min(graph.width, len(graph.vectors))
        if width < graph.width:
            narrower = [part.mapped(lambda block: block[:, :width]) for part in (graph.scores, graph.indices)]
            graph = replace(graph, scores=narrower[0], indices=narrower[1])
        return graph._asked_again(asking), asking

    def with_neighbour(self, row: int) -> Tensor:
        """Return the classes that have a class as a neighbour."""
        return torch.cat([start + (block == row).any(1).nonzero()[:, 0] for start, block in self.indices])

    def _asked_again(self, rows: Tensor) -> "NeighbourGraph":
        """Return the graph with the neighbours of some classes found anew."""
        if not len(rows):
            return self
        parts = [
            nearest(self.vectors.take(part), self.vectors, self.width, self.measure) for part in torch.split(rows, ROWS_AT_ONCE)
        ]
        scores, indices = (torch.cat(values) for values in zip(*parts, strict=True))
        return replace(self, scores=self.scores.replaced(rows, scores), indices=self.indices.replaced(rows, indices.int()))

    def _with_candidates(self, new: Tensor, changed: Tensor) -> "NeighbourGraph":
        """Return the graph where classes [N] are also neighbours of others, if they are near enough."""
        if not len(changed):
            return self
        added = scores_of(self.vectors.take(changed), self.vectors.take(new), self.measure)
        scores = torch.cat([self.scores.take(changed), added], 1)
        indices = torch.cat([self.indices.take(changed), new.int().expand(len(changed), -1)], 1)
        order = scores.sort(dim=1, descending=True, stable=True)
        scores, indices = order.values[:, : self.width], indices.gather(1, order.indices[:, : self.width])
        return replace(self, scores=self.scores.replaced(changed, scores), indices=self.indices.replaced(changed, indices))

    def _widened(self, width: int) -> "NeighbourGraph":
        """Return the graph with room for more neighbours of each class: as yet none, infinitely far."""
        more = width - self.width
        if more <= 0:
            return self
        return replace(
            self,
            scores=self.scores.mapped(lambda block: torch.cat([block, block.new_full((len(block), more), -torch.inf)], 1)),
            indices=self.indices.mapped(lambda block: torch.cat([block, block.new_zeros(len(block), more)], 1)),
        )


def _between(rows: Rows, start: int, stop: int) -> Iterator[Tensor]:
    """Yield the parts of a matrix from one row to another."""
    for first, block in rows:
        if first < stop and first + len(block) > start:
            yield block[max(0, start - first) : stop - first]


def _padded(scores: Tensor, indices: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return scores and indices of at least so many neighbours; those that are none are infinitely far."""
    more = max(0, width - scores.shape[1])
    return (
        torch.cat([scores, scores.new_full((len(scores), more), -torch.inf)], 1),
        torch.cat([indices, indices.new_zeros(len(indices), more)], 1),
    )
