r"""Operators: what the graph block multiplies the joint prototypes by.

Shapes: E episodes, S seen, N novel, V = S + N, K shots, D features; T training classes, whose ids are 0 .. T-1.

An operator gets an episode's `Context` and answers one or several `Weights`, each something that can multiply [E, V, D].
The four strategies of the paper are kinds of `similarity` inside a `Softmax` operator: of prototypes, learned, of keys, and
side information. `Blocks` restricts any operator, `Power` raises it to higher orders, `Identity` split into its two
non-empty blocks is the auxiliary pair.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from protograph.nn.classify import normalise

Measure = Literal["cosine", "l2"]
BLOCKS = ("ss", "sn", "ns", "nn")  # from -> to: `sn` has the novel rows and the seen columns


@dataclass(frozen=True)
class Context:
    """What an operator may look at.

    prototypes: [E, V, D] initial joint prototypes, the seen ones first
    support:    [E, N, K, D] support features, padding where `mask` [E, N, K] is False
    classes:    [E, V] class id of every row
    seen:       S
    """

    prototypes: Tensor
    support: Tensor
    mask: Tensor
    classes: Tensor
    seen: int


def over_shots(values: Tensor, mask: Tensor) -> Tensor:
    """Mean [E, N, X] of `values` [E, N, K, X] over the shots that are there, as `mask` [E, N, K] says; of none, zero."""
    weight = mask[..., None].to(values.dtype)
    return (values * weight).sum(2) / weight.sum(2).clamp(min=1)


def without(rows: nn.Parameter, row: int) -> nn.Parameter:
    """A parameter [T, D] without one of its rows."""
    return nn.Parameter(torch.cat([rows.detach()[:row], rows.detach()[row + 1 :]]), requires_grad=rows.requires_grad)


class SparseProduct(torch.autograd.Function):
    """A sparse matrix, as rows, columns and weights [n] of its edges, times [V, D].

    PyTorch's own gradient for the weights makes V x V numbers on the way; this one makes n.
    """

    @staticmethod
    def forward(ctx: Any, row: Tensor, column: Tensor, weight: Tensor, inputs: Tensor) -> Tensor:
        """The product [V, D]."""
        ctx.save_for_backward(row, column, weight, inputs)
        return _sparse_product(row, column, weight, inputs)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[None, None, Tensor | None, Tensor | None]:
        """Gradients of weights [n], some edges at a time, and inputs [V, D]."""
        row, column, weight, inputs = ctx.saved_tensors
        slope = slopes[0].contiguous()
        to_weight = to_inputs = None
        if ctx.needs_input_grad[2]:
            pairs = zip(torch.split(row, 65536), torch.split(column, 65536), strict=True)
            to_weight = torch.cat([(slope[some] * inputs[others]).sum(-1) for some, others in pairs])
        if ctx.needs_input_grad[3]:
            to_inputs = _sparse_product(column, row, weight, slope)
        return None, None, to_weight, to_inputs


def _sparse_product(row: Tensor, column: Tensor, weight: Tensor, inputs: Tensor) -> Tensor:
    size = (len(inputs), len(inputs))
    matrix = torch.sparse_coo_tensor(torch.stack([row, column]), weight, size, check_invariants=False)
    product: Tensor = torch.sparse.mm(matrix, inputs)
    return product


@dataclass(frozen=True)
class Edges:
    """A sparse [E, V, V] matrix: episode, row, column [n] and weight [n] of every edge, to the power of `order`."""

    episode: Tensor
    row: Tensor
    column: Tensor
    weight: Tensor
    shape: tuple[int, int]  # E, V
    order: int = 1

    def times(self, inputs: Tensor) -> Tensor:
        """[E, V, D] -> [E, V, D], in memory that grows with edges and inputs, never with V x V."""
        episodes, classes = self.shape
        row, column = self.episode * classes + self.row, self.episode * classes + self.column
        flat = inputs.reshape(episodes * classes, -1)
        for _ in range(self.order):
            flat = SparseProduct.apply(row, column, self.weight, flat)  # type: ignore[no-untyped-call]
        product: Tensor = flat.view_as(inputs)
        return product

    def only(self, kept: Tensor) -> "Edges":
        """The edges where `kept` [n] is True."""
        return replace(
            self,
            episode=self.episode[kept],
            row=self.row[kept],
            column=self.column[kept],
            weight=self.weight[kept],
        )

    def within(self, rows: slice, columns: slice) -> "Edges":
        """The edges of one block."""
        inside = (self.row >= rows.start) & (self.row < rows.stop)
        return self.only(inside & (self.column >= columns.start) & (self.column < columns.stop))

    def strongest(self, top: int | None, above: float | None) -> "Edges":
        """What `keep` would keep of the matrix, row by row."""
        kept = torch.ones_like(self.weight, dtype=torch.bool)
        if above is not None:
            kept &= self.weight > above
        if top is not None:
            row = self.episode * self.shape[1] + self.row
            order = self.weight.argsort(descending=True)
            order = order[row[order].argsort(stable=True)]  # by row, the strongest first
            first = torch.searchsorted(row[order], row[order])
            rank = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=order.device) - first)
            kept &= rank < top
        return self.only(kept)

    def row_of(self, row: int) -> Tensor:
        """One row [V] of the first episode's matrix."""
        first = self.only(self.episode == 0)
        found = torch.zeros(self.shape[1], dtype=self.weight.dtype)
        found[row] = 1
        for _ in range(self.order):
            found = torch.zeros_like(found).index_add(0, first.column, first.weight * found[first.row])
        return found

    def dense(self) -> Tensor:
        """The matrix [E, V, V] in full, for images and tests."""
        episodes, classes = self.shape
        matrix = self.weight.new_zeros(episodes, classes, classes)
        matrix = matrix.index_put((self.episode, self.row, self.column), self.weight, accumulate=True)
        power: Tensor = torch.linalg.matrix_power(matrix, self.order)
        return power


@dataclass(frozen=True)
class Weights:
    """One matrix [E, V, V] that is zero outside `rows` x `columns`.

    values: the region's weights [E, R, C] (or [R, C] for all episodes), `Edges` of the whole matrix, or None for the identity
    """

    values: Tensor | Edges | None
    rows: slice
    columns: slice

    @classmethod
    def whole(cls, values: Tensor | Edges | None, classes: int) -> "Weights":
        """Weights that fill all of V x V."""
        return cls(values, slice(0, classes), slice(0, classes))

    def times(self, inputs: Tensor) -> Tensor:
        """The region's rows [E, R, D] of the product with [E, V, D]; all other rows of it are zero."""
        if self.values is None:
            return inputs[:, self.rows]
        if isinstance(self.values, Tensor):
            return self.values @ inputs[:, self.columns]
        if self.columns == slice(0, inputs.shape[1]):
            return self.values.times(inputs)[:, self.rows]
        masked = torch.zeros_like(inputs)
        masked[:, self.columns] = inputs[:, self.columns]
        return self.values.times(masked)[:, self.rows]

    def restricted(self, block: str, seen: int, classes: int) -> "Weights":
        """Only one block of it; everything else becomes zero."""
        rows, columns = region(block, seen, classes)
        if (self.rows, self.columns) == (rows, columns):
            return self
        if (self.rows, self.columns) != (slice(0, classes), slice(0, classes)):
            raise ValueError("only an operator that fills the whole matrix can be split into blocks")
        if self.values is None and rows != columns:
            raise ValueError(f"the identity has nothing in block '{block}': use ss or nn")
        values = self.values[..., rows, columns] if isinstance(self.values, Tensor) else self.values
        return Weights(values, rows, columns)

    def power(self, order: int) -> "Weights":
        """The matrix multiplied by itself, `order` factors in all."""
        if self.rows != self.columns:
            raise ValueError("only a square operator has powers")
        if isinstance(self.values, Tensor):
            return replace(self, values=torch.linalg.matrix_power(self.values, order))
        if isinstance(self.values, Edges):
            if self.values.order > 1 and self.rows != slice(0, self.values.shape[1]):
                raise ValueError("a block of a power has no powers of its own: split after the last power")
            inside = self.values.within(self.rows, self.columns)
            return replace(self, values=replace(inside, order=inside.order * order))
        return self

    def row_of(self, row: int, classes: int) -> Tensor:
        """One row [V] of the first episode's matrix, without making the others."""
        found = torch.zeros(classes)
        if not self.rows.start <= row < self.rows.stop:
            return found
        if self.values is None:
            found[row] = 1
        elif isinstance(self.values, Edges):
            found[self.columns] = self.values.row_of(row)[self.columns]
        else:
            found[self.columns] = self.values[(0,) * (self.values.ndim - 2)][row - self.rows.start]
        return found

    def dense(self, classes: int) -> Tensor:
        """The matrix [E, V, V] (or [V, V]) in full, for images and tests."""
        if isinstance(self.values, Edges):
            full = self.values.dense()
            part = full[:, self.rows, self.columns]
        elif self.values is None:
            part = torch.eye(classes)[self.rows, self.columns]
        else:
            part = self.values
        matrix = part.new_zeros(*part.shape[:-2], classes, classes)
        matrix[..., self.rows, self.columns] = part
        return matrix


def region(block: str, seen: int, classes: int) -> tuple[slice, slice]:
    """Rows and columns of a block: `sn`, from seen to novel, has the novel rows and the seen columns."""
    part = {"s": slice(0, seen), "n": slice(seen, classes)}
    if block not in BLOCKS:
        raise ValueError(f"unknown block '{block}': use one of {', '.join(BLOCKS)}")
    return part[block[1]], part[block[0]]


def asked_for(block: str | None, context: Context) -> tuple[slice, slice]:
    """Rows and columns of a block, or of the whole matrix."""
    classes = context.classes.shape[1]
    return region(block, context.seen, classes) if block else (slice(0, classes), slice(0, classes))


class Operator(nn.Module, ABC):
    """Answers one `Weights` per label. To make an own operator, write `forward` and, for several answers, `labels`.

    A plain matrix [E, V, V] or [V, V] may be answered instead of `Weights`.

    sees_support: whether it looks at single examples; one that says it does not need not be shown them
    """

    labels: tuple[str, ...] = ("operator",)
    sees_support = True

    @abstractmethod
    def forward(self, context: Context) -> "Weights | Tensor | tuple[Weights, ...]":
        """The weights for these episodes."""

    def weights(self, context: Context) -> tuple[Weights, ...]:
        """What `forward` answers, one `Weights` per label."""
        answer = self(context)
        if isinstance(answer, Tensor):
            answer = Weights.whole(answer, context.classes.shape[1])
        return answer if isinstance(answer, tuple) else (answer,)


class Identity(Operator):
    """Every class is related to itself alone. Nothing is computed for it."""

    labels = ("identity",)
    sees_support = False

    def forward(self, context: Context) -> Weights:
        """The identity [V, V]."""
        return Weights.whole(None, context.classes.shape[1])


class Blocks(Operator):
    r"""Single blocks of another operator, each an operator of its own with the rest set to zero.

    All four are the paper's `-split`; `sn` alone its `-sn`; `ss` and `nn` of the identity its auxiliary pair

    .. math:: \hat B_1 = \begin{pmatrix} I & 0 \\ 0 & 0 \end{pmatrix}, \quad
              \hat B_2 = \begin{pmatrix} 0 & 0 \\ 0 & I \end{pmatrix}.
    """

    sees_support = False

    def __init__(self, operator: Operator, blocks: tuple[str, ...] = BLOCKS) -> None:
        super().__init__()
        if len(operator.labels) != 1:
            raise ValueError(f"split one operator at a time, not {operator.labels}")
        self.operator = operator
        self.blocks = tuple(blocks)
        self.labels = tuple(f"{operator.labels[0]}-{block}" for block in blocks)

    def forward(self, context: Context) -> tuple[Weights, ...]:
        """One answer per block."""
        (whole,) = self.operator.weights(context)
        return tuple(whole.restricted(block, context.seen, context.classes.shape[1]) for block in self.blocks)


class Power(Operator):
    """Another operator applied `order` times: paths of that many steps."""

    sees_support = False

    def __init__(self, operator: Operator, order: int) -> None:
        super().__init__()
        if order < 1:
            raise ValueError(f"the order of a power must be at least 1, not {order}")
        self.operator, self.order = operator, order
        self.labels = tuple(f"{label}^{order}" for label in operator.labels)

    def forward(self, context: Context) -> tuple[Weights, ...]:
        """Each of the operator's answers to that power."""
        return tuple(weights.power(self.order) for weights in self.operator.weights(context))


class Similarity(nn.Module, ABC):
    """Scores of pairs of classes, before they are normalised."""

    sees_support = True

    @abstractmethod
    def forward(self, context: Context) -> Weights:
        """Scores, dense or as edges, of all pairs or of one block's."""


class Softmax(Operator):
    r"""Rows normalised by a softmax with learnable temperature: :math:`B_{mn} = \mathrm{softmax}_n(\tau_B S_{mn})`.

    Of a sparse graph only the edges take part; a class without edges has a row of zeros.

    Args:
        similarity: what gives :math:`S`
        label: the operator's name
        temperature: where :math:`\tau_B` starts
        top, above: keep only the strongest scores of a row, or those over a bound: the rest counts as absent

    """

    sees_support = False

    def __init__(
        self, similarity: Similarity, label: str, temperature: float = 1.0, top: int | None = None, above: float | None = None
    ) -> None:
        super().__init__()
        if top is not None and top < 1:
            raise ValueError(f"at least one score of a row must stay: top is {top}")
        self.similarity = similarity
        self.labels = (label,)
        self.temperature = nn.Parameter(torch.tensor(temperature))
        self.top, self.above = top, above

    def forward(self, context: Context) -> Weights:
        """Row-stochastic weights over the region the similarity answers for."""
        scores: Weights = self.similarity(context)
        if isinstance(scores.values, Edges):
            edges = scores.values
            if self.top is not None or self.above is not None:
                edges = edges.strongest(self.top, self.above)
            return replace(scores, values=self._edge_softmax(edges))
        assert scores.values is not None
        return replace(scores, values=self._softmax(scores.values))

    def _softmax(self, scores: Tensor) -> Tensor:
        logits = self.temperature * scores
        kept = keep(scores, self.top, self.above)
        if kept is None:
            return logits.softmax(-1)
        empty = ~kept.any(-1, keepdim=True)
        return logits.masked_fill(~(kept | empty), -math.inf).softmax(-1).masked_fill(empty, 0)

    def _edge_softmax(self, edges: Edges) -> Edges:
        episodes, classes = edges.shape
        row = edges.episode * classes + edges.row
        logits = self.temperature * edges.weight
        # The largest logit of each row only guards against overflow: no gradient needs to pass through it.
        peak = torch.full((episodes * classes,), -math.inf, dtype=logits.dtype, device=logits.device)
        peak = peak.scatter_reduce(0, row, logits.detach(), "amax")
        weight = (logits - peak[row]).exp()
        total = weight.new_zeros(episodes * classes).index_add(0, row, weight)
        return replace(edges, weight=weight / total[row])


def keep(scores: Tensor, top: int | None, above: float | None) -> Tensor | None:
    """Which scores [..., R, C] stay after thresholding; None for all."""
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
    """A similarity matrix [V, V] as a `torch.sparse` graph of its strongest (`top` of a row, or `above` a bound) entries."""
    kept = keep(similarities, top, above)
    if kept is None:
        kept = torch.ones_like(similarities, dtype=torch.bool)
    index = kept.nonzero().T
    values, shape = similarities[index[0], index[1]], similarities.shape
    return torch.sparse_coo_tensor(index, values, shape, check_invariants=False).coalesce()


def pairwise(rows: Tensor, columns: Tensor, measure: Measure) -> Tensor:
    r"""Scores [..., R, C] of feature rows: their cosine, or minus their (unsquared) distance :math:`-\|c_m - c_n\|`."""
    if measure == "cosine":
        return normalise(rows) @ normalise(columns).mT
    if measure == "l2":
        squares = rows.square().sum(-1)[..., :, None] + columns.square().sum(-1)[..., None, :] - 2 * rows @ columns.mT
        # The root's slope is infinite at zero, where the distance of a class to itself lies: there it is taken as flat.
        near = squares < 1e-12
        return -squares.masked_fill(near, 1).sqrt().masked_fill(near, 0)
    raise ValueError(f"unknown measure '{measure}': use cosine or l2")


class PrototypeSimilarity(Similarity):
    r"""Strategy 1, similarity of the normalised initial prototypes:

    .. math:: S_{mn} = \cos(c_m, c_n) \quad\text{or}\quad -\|\bar c_m - \bar c_n\|.

    Args:
        measure: cosine or l2
        block: the pairs to answer for; by default all

    """

    sees_support = False

    def __init__(self, measure: Measure = "cosine", block: str | None = None) -> None:
        super().__init__()
        self.measure, self.block = measure, block

    def forward(self, context: Context) -> Weights:
        """Scores [E, R, C] of the block, or of all pairs; the gradient flows into the prototypes."""
        prototypes = normalise(context.prototypes)
        rows, columns = asked_for(self.block, context)
        if self.block is None:  # a slice of everything would change the order in which gradients are summed
            return Weights(pairwise(prototypes, prototypes, self.measure), rows, columns)
        return Weights(pairwise(prototypes[:, rows], prototypes[:, columns], self.measure), rows, columns)


class TransformedSimilarity(Similarity):
    r"""Strategy 2a, a standard measure in a learned space: :math:`S_{mn} = \cos(W \bar c_m, W \bar c_n)`.

    Args:
        features: D
        width: dimension of the learned space
        measure: cosine or l2

    """

    sees_support = False

    def __init__(self, features: int, width: int | None = None, measure: Measure = "cosine") -> None:
        super().__init__()
        self.transform = nn.Linear(features, width or features, bias=False)
        nn.init.orthogonal_(self.transform.weight)  # starts as the measure itself, rotated
        self.measure = measure

    def forward(self, context: Context) -> Weights:
        """All pairs [E, V, V]."""
        moved = self.transform(normalise(context.prototypes))
        return Weights.whole(pairwise(moved, moved, self.measure), moved.shape[1])


class DifferenceSimilarity(Similarity):
    r"""Strategy 2b, a learned transform of element-wise differences:

    .. math:: S_{mn} = v^\top \mathrm{ReLU}(W |\bar c_m - \bar c_n| + b)


    Args:
        features: D
        hidden: width of the hidden layer

    """

    sees_support = False

    def __init__(self, features: int, hidden: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, 1, bias=False))

    def forward(self, context: Context) -> Weights:
        """All pairs [E, V, V], one row of classes at a time."""
        prototypes = normalise(context.prototypes)
        rows = [self.layers((prototypes[:, m, None] - prototypes).abs())[..., 0] for m in range(prototypes.shape[1])]
        return Weights.whole(torch.stack(rows, 1), prototypes.shape[1])


class KeySimilarity(Similarity):
    r"""Strategy 3, cosine of keys: :math:`S_{mn} = \cos(k_m, k_n)`.

    A seen class has a learned key, a novel one the query layer of its initial prototype, :math:`k_n = W \bar c_n + b`.

    Args:
        seen: T, the number of training classes
        features: D
        block: the pairs to answer for; by default from seen to novel

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
        self.keys = without(self.keys, row)

    def forward(self, context: Context) -> Weights:
        """Scores [E, R, C] of the block, or of all pairs."""
        seen = context.seen
        keys = torch.cat(
            [embedding(context.classes[:, :seen], self.keys), self.query(normalise(context.prototypes[:, seen:]))], 1
        )
        rows, columns = asked_for(self.block, context)
        return Weights(pairwise(keys[:, rows], keys[:, columns], "cosine"), rows, columns)


class ShotAttention(Operator):
    r"""DFSLwoF's attention from seen to novel classes: every example asks for itself, and the answers are averaged,

    .. math:: B_{nm} = \frac 1 K \sum_i \mathrm{softmax}_m\big(\tau_B \cos(W \bar z_{n,i} + b, k_m)\big).

    At one shot this is a `Softmax` of `KeySimilarity`, with whose keys and query layer it starts.

    Args:
        seen: T, the number of training classes
        features: D
        temperature: where :math:`\tau_B` starts

    """

    labels = ("attention",)

    def __init__(self, seen: int, features: int, temperature: float = 10.0) -> None:
        super().__init__()
        self.similarity = KeySimilarity(seen, features)
        self.temperature = nn.Parameter(torch.tensor(temperature))

    def forward(self, context: Context) -> Weights:
        """Weights [E, N, S] of the `sn` block."""
        rows, columns = asked_for("sn", context)
        asked = self.similarity.query(normalise(context.support)).flatten(1, 2)  # [E, N * K, D]
        keys = embedding(context.classes[:, columns], self.similarity.keys)
        shares = (self.temperature * pairwise(asked, keys, "cosine")).softmax(-1)
        return Weights(over_shots(shares.view(*context.mask.shape, keys.shape[1]), context.mask), rows, columns)


class SideInformation(Similarity):
    """Strategy 4, similarities known from elsewhere, re-indexed for every episode.

    Args:
        similarities: [C, C] by class id, dense or `torch.sparse`, directed or not

    """

    sees_support = False
    similarities: Tensor

    def __init__(self, similarities: Tensor) -> None:
        super().__init__()
        self.size = similarities.shape[0]
        self.sparse = similarities.layout != torch.strided
        if self.sparse:
            graph = similarities.to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
            self.register_buffer("edges", graph.indices(), persistent=False)
            self.register_buffer("similarities", graph.values(), persistent=False)
        else:
            self.register_buffer("similarities", similarities, persistent=False)

    def forward(self, context: Context) -> Weights:
        """All pairs [E, V, V], or the edges among the episode's classes."""
        classes = context.classes
        episodes, count = classes.shape
        if not self.sparse:
            return Weights.whole(self.similarities[classes[:, :, None], classes[:, None, :]], count)
        row, column = self.get_buffer("edges")
        place = torch.full((episodes, self.size), -1, device=classes.device)
        place = place.scatter(1, classes, torch.arange(count, device=classes.device).expand(episodes, -1))
        rows, columns = place[:, row], place[:, column]  # [E, edges]
        episode, edge = ((rows >= 0) & (columns >= 0)).nonzero(as_tuple=True)
        edges = Edges(episode, rows[episode, edge], columns[episode, edge], self.similarities[edge], (episodes, count))
        return Weights.whole(edges, count)
