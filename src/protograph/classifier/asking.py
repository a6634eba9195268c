"""The best of many classes: products with a block of classes at a time, or with the few that an index names.

Shapes: n images, V classes, B classes of a block, D features, k classes that are asked for.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from protograph._internal.rows import Rows, distinct
from protograph.nn.classify import normalise
from protograph.nn.neighbours import VectorIndex

CANDIDATES = 32  # classes that the index names for each query
SEARCHED = 64  # classes that it looks at to name them
NUMBERS_AT_ONCE = 2**24  # logits that are computed together
MOST_IN_DOUBLE = 4096  # classes; with more, products are in float32

Likeness = Callable[[Tensor, int, slice], Tensor]  # logits [n, B], the first class, the images -> likeness [n, B]


@dataclass(frozen=True)
class Linear:
    r"""Logits that are linear in a query: :math:`\ell = A u + b`.

    Attributes:
        weights: A [V, D].
        offset: b [V]; None for zero.

    """

    weights: Rows
    offset: Tensor | None = None

    def blocks(self) -> Iterator[tuple[int, Tensor, Tensor | None]]:
        """Yield the first class of each block, its rows [B, D] of A, and its part [B] of b."""
        for start, rows in self.weights:
            yield start, rows, None if self.offset is None else self.offset[start : start + len(rows)]

    def joined(self) -> "Linear":
        """Return the same logits of queries [u, 1]."""
        parts = [rows if part is None else torch.cat([rows, part[:, None]], 1) for _, rows, part in self.blocks()]
        return Linear(Rows(parts))


@dataclass(frozen=True)
class Best:
    """The best classes of n images.

    Attributes:
        classes: Their indices [n, k], the best first.
        logits: Their logits [n, k].
        total: The logarithm of the sum of the exponentials of all logits [n], if it was asked for.
        likeness: The largest likeness [n], if it was asked for.

    """

    classes: Tensor
    logits: Tensor
    total: Tensor | None = None
    likeness: Tensor | None = None


def find_best(
    linear: Linear,
    queries: Tensor,
    count: int = 1,
    total: bool = False,
    likeness: Likeness | None = None,
    scale: float = 1.0,
) -> Best:
    """Return the best classes of queries [n, D]; of the logits, those of a block of classes are held at a time.

    Args:
        linear: The logits.
        queries: The queries.
        count: The number k of classes, of which there may be fewer.
        total: Whether the sum over all classes is asked for, which probabilities need.
        likeness: What makes likeness of logits, if it is asked for.
        scale: What logits are multiplied by in that sum.

    """
    count = min(count, len(linear.weights))
    widest = max((len(rows) for _, rows, _ in linear.blocks()), default=1)
    portion = max(1, NUMBERS_AT_ONCE // max(1, widest))
    starts = range(0, max(1, len(queries)), portion)
    parts = [_best_of(linear, queries[start : start + portion], start, count, total, likeness, scale) for start in starts]
    return Best(
        torch.cat([part.classes for part in parts]),
        torch.cat([part.logits for part in parts]),
        torch.cat([part.total for part in parts if part.total is not None]) if total else None,
        torch.cat([part.likeness for part in parts if part.likeness is not None]) if likeness else None,
    )


def _best_of(
    linear: Linear, queries: Tensor, first: int, count: int, total: bool, likeness: Likeness | None, scale: float
) -> Best:
    images = slice(first, first + len(queries))
    classes = torch.zeros(len(queries), count, dtype=torch.long)
    best = queries.new_full((len(queries), count), -torch.inf)
    peak, sums = best.new_full((len(queries),), -torch.inf), torch.zeros(len(queries), dtype=torch.float64)
    like = peak.clone()
    space: dict[int, Tensor] = {}
    for start, rows, bias in linear.blocks():
        scores = space.setdefault(len(rows), queries.new_empty(len(queries), len(rows)))
        if bias is None:
            torch.mm(queries, rows.T, out=scores)
        else:
            torch.addmm(bias, queries, rows.T, out=scores)
        largest = scores.amax(1)
        changed = (largest > best[:, -1]).nonzero()[:, 0]  # fewer and fewer images, as their best classes are found
        if len(changed):
            among = scores if len(changed) == len(queries) else scores[changed]
            if count == 1:
                best[changed, 0], classes[changed, 0] = largest[changed], among.argmax(1) + start
            else:
                strongest = among.topk(min(count, len(rows)), dim=1)
                joined = torch.cat([best[changed], strongest.values], 1)
                order = joined.sort(dim=1, descending=True, stable=True)
                best[changed] = order.values[:, :count]
                both = torch.cat([classes[changed], strongest.indices + start], 1)
                classes[changed] = both.gather(1, order.indices[:, :count])
        if likeness is not None:
            made = likeness(scores, start, images)
            like = torch.maximum(like, largest if made is scores else made.amax(1))
        if total:
            higher_peak = torch.maximum(peak, largest)
            sums *= (scale * (peak - higher_peak).double()).exp()
            sums += scores.sub_(higher_peak[:, None]).mul_(scale).exp_().sum(1).double()
            peak = higher_peak
    return Best(classes, best, scale * peak.double() + sums.log() if total else None, like if likeness else None)


@dataclass(frozen=True)
class ClassIndex:
    """An index of classes: it names the few that a query is compared with exactly.

    It never changes. Classes that came or changed since it was made are compared with every query.

    Attributes:
        vectors: The index, by the row that each class had when it was made.
        rows: The row that each of these classes has now [m]; -1 of one that has changed or is gone.
        extra: The rows of further classes.

    """

    vectors: VectorIndex
    rows: Tensor
    extra: Tensor

    @classmethod
    def of(cls, weights: Rows) -> "ClassIndex":
        """Return the index of classes with weights [V, D] of logits.

        A further number gives all vectors the same length, so that the largest logits are the largest cosines.
        """
        squares = torch.cat([block.double().square().sum(1) for _, block in weights])
        longest = squares.max().clamp(min=torch.finfo(torch.float32).tiny)
        vectors = VectorIndex(len(weights), weights.blocks[0].shape[1] + 1, "cosine")
        for start, block in weights:
            last = (longest - squares[start : start + len(block)]).clamp(min=0).sqrt()[:, None]
            vectors.add(start, torch.cat([block.double(), last], 1) / longest.sqrt())
        return cls(vectors, torch.arange(len(weights)), torch.zeros(0, dtype=torch.long))

    def extended(self, rows: Tensor | Sequence[int]) -> "ClassIndex":
        """Return the index with classes that came or changed."""
        changed = torch.as_tensor(rows, dtype=torch.long)
        kept = self.rows.masked_fill(torch.isin(self.rows, changed), -1)
        return replace(self, rows=kept, extra=distinct(self.extra, changed))

    def without(self, row: int) -> "ClassIndex":
        """Return the index without a class."""
        kept = self.rows.masked_fill(self.rows == row, -1)
        extra = self.extra[self.extra != row]
        return replace(self, rows=kept - (kept > row).long(), extra=extra - (extra > row).long())

    def best(self, linear: Linear, queries: Tensor, count: int) -> Best:
        """Return the best classes of queries [n, D] among those that the index names and all further ones.

        Args:
            linear: The logits, which are exact of these classes; the sum over all classes counts these alone.
            queries: The queries.
            count: The number k of classes.

        """
        widest = max(1, NUMBERS_AT_ONCE // (CANDIDATES * queries.shape[1]))
        parts = [self._best(linear, part, count) for part in torch.split(queries, widest)]
        totals = torch.cat([part.total for part in parts if part.total is not None])
        return Best(torch.cat([part.classes for part in parts]), torch.cat([part.logits for part in parts]), totals)

    def _best(self, linear: Linear, queries: Tensor, count: int) -> Best:
        asked = torch.cat([queries, torch.zeros_like(queries[:, :1])], 1)
        named = self.vectors.search(normalise(asked), max(CANDIDATES, count), SEARCHED)
        rows = self.rows[named.clamp(min=0)].masked_fill(named < 0, -1)
        weights = linear.weights.take(rows.clamp(min=0).flatten()).view(*rows.shape, -1)
        scores = torch.bmm(weights, queries[:, :, None])[..., 0]
        further = queries @ linear.weights.take(self.extra).T
        rows = torch.cat([rows, self.extra.expand(len(queries), -1)], 1)
        scores = torch.cat([scores, further], 1)
        if linear.offset is not None:
            scores = scores + linear.offset[rows.clamp(min=0)]
        scores = scores.masked_fill(rows < 0, -torch.inf)
        top = scores.topk(min(count, len(linear.weights)), dim=1)
        return Best(rows.gather(1, top.indices), top.values, scores.double().logsumexp(1))
