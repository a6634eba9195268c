"""Prototypes of a variant's classes, computed for some classes without the others.

With many classes an operator looks at the nearest ones of each. These are kept, so that a change of one class is followed by
those it is a neighbour of, and by no other.

Shapes: V classes, R chosen ones, k neighbours, D features, n edges.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from protograph._internal.progress import Progress
from protograph._internal.rows import ROWS_AT_ONCE, Rows, distinct
from protograph.nn import neighbours as search
from protograph.nn.classify import normalise
from protograph.nn.graph import GraphLayer
from protograph.nn.model import GraphPrototypeNetwork
from protograph.nn.neighbours import NEIGHBOURS, NeighbourGraph, NeighbourMeasure, nearest
from protograph.nn.operators import (
    Blocks,
    Identity,
    KeySimilarity,
    PrototypeSimilarity,
    SideInformation,
    Similarity,
    Softmax,
    TransformedSimilarity,
    region,
)
from protograph.nn.operators.edges import Edges
from protograph.nn.operators.softmax import softmax_by_row

Sparse = tuple[Tensor, Tensor, Tensor]  # edges: the place [n] of the row among the chosen ones, the column [n], the weight [n]


@dataclass(frozen=True)
class RowUpdates:
    """What the prototypes of a variant's classes are computed from.

    Attributes:
        model: The model, of one graph layer.
        seen: S, the number of its seen classes, which come first.
        starts: The initial prototypes [V, D].
        units: The same with length 1.
        graphs: The neighbours of all classes, by the position of the operator that looks at them.
        stale: The classes [R] whose prototypes others have changed since they were computed.

    """

    model: GraphPrototypeNetwork
    seen: int
    starts: Rows
    units: Rows
    graphs: Mapping[int, NeighbourGraph]
    stale: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))

    @staticmethod
    def can_follow(model: GraphPrototypeNetwork, classes: int) -> bool:
        """Return whether prototypes can be computed apart: of many classes, one layer and operators that look at few each."""
        return classes > search.MOST_DENSE and len(model.graph.layers) == 1 and all(map(_is_followed, model.operators))

    @classmethod
    def of(
        cls,
        model: GraphPrototypeNetwork,
        seen: int,
        starts: Rows,
        kept: Mapping[str, Tensor] | None = None,
        progress: Progress | None = None,
    ) -> "RowUpdates":
        """Return the updates of classes with these initial prototypes, whose neighbours are found unless they were kept."""
        units = Rows.of(torch.cat([normalise(block) for _, block in starts]))
        updates = cls(model, seen, starts, units, {}, (kept or {}).get("stale", torch.zeros(0, dtype=torch.long)))
        graphs = {}
        for position, similarity in enumerate(map(_similarity_of, model.operators)):
            if not _has_graph(similarity):
                continue
            assert isinstance(similarity, PrototypeSimilarity | TransformedSimilarity | KeySimilarity)
            vectors = units if isinstance(similarity, PrototypeSimilarity) else units.mapped(updates._vectors(similarity))
            count = similarity.neighbours or NEIGHBOURS
            measure = _measure_of(similarity)
            if kept and f"{position}.indices" in kept:
                parts = Rows.of(kept[f"{position}.scores"]), Rows.of(kept[f"{position}.indices"])
                graphs[position] = NeighbourGraph(vectors, *parts, count, measure)
            else:
                graphs[position] = NeighbourGraph.of(vectors, count, measure, progress)
        return replace(updates, graphs=graphs)

    def kept(self) -> dict[str, Tensor]:
        """Return the neighbours and the stale classes as tensors, which `of` takes."""
        tensors = {"stale": self.stale}
        for position, graph in self.graphs.items():
            tensors |= {f"{position}.scores": graph.scores.tensor(), f"{position}.indices": graph.indices.tensor()}
        return tensors

    def extended(self, model: GraphPrototypeNetwork, starts: Tensor) -> "RowUpdates":
        """Return the updates with further classes, of these initial prototypes [N, D]."""
        units, stale = normalise(starts), [self.stale]
        graphs = {}
        for position, graph in self.graphs.items():
            graphs[position], gained = graph.extended(self._vectors(_similarity_of(model.operators[position]))(units))
            stale.append(gained)
        grown = replace(self, model=model, starts=self.starts.extended(starts), units=self.units.extended(units), graphs=graphs)
        new = torch.arange(len(self.starts), len(grown.starts))
        return replace(grown, stale=distinct(*stale, _related_to(model, new)))

    def replaced(self, row: int, start: Tensor) -> "RowUpdates":
        """Return the updates after the initial prototype [D] of one class has changed."""
        unit, stale = normalise(start[None]), [self.stale, torch.tensor([row])]
        graphs = {}
        for position, graph in self.graphs.items():
            vector = self._vectors(_similarity_of(self.model.operators[position]))(unit)[0]
            graphs[position], changed = graph.replaced(row, vector)
            stale += [changed, graph.with_neighbour(row)]
        stale.append(_related_to(self.model, torch.tensor([row])))
        starts, units = self.starts.replaced([row], start[None]), self.units.replaced([row], unit)
        return replace(self, starts=starts, units=units, graphs=graphs, stale=distinct(*stale))

    def without(self, row: int, model: GraphPrototypeNetwork) -> "RowUpdates":
        """Return the updates without a class.

        Args:
            row: The class.
            model: The model without it.

        """
        stale = torch.cat([self.stale, _related_to(self.model, torch.tensor([row]))])
        if row < self.seen and any(map(_asks_seen, map(_similarity_of, self.model.operators))):
            stale = torch.cat([stale, torch.arange(self.seen, len(self.starts))])
        stale = stale[stale != row]
        parts, graphs = [stale - (stale > row).long()], {}
        for position, graph in self.graphs.items():
            graphs[position], changed = graph.without(row)
            parts.append(changed)
        return replace(
            self,
            model=model,
            seen=self.seen - (row < self.seen),
            starts=self.starts.without(row),
            units=self.units.without(row),
            graphs=graphs,
            stale=distinct(*parts),
        )

    def related(self, model: GraphPrototypeNetwork, row: int) -> "RowUpdates":
        """Return the updates after it was said anew how a class relates, by the model that knows it."""
        asked = torch.tensor([row])
        stale = torch.cat([self.stale, asked, _related_to(self.model, asked), _related_to(model, asked)])
        return replace(self, model=model, stale=distinct(stale))

    def settled(self, rows: Tensor) -> "RowUpdates":
        """Return the updates after the prototypes of these classes were computed."""
        return replace(self, stale=self.stale[~torch.isin(self.stale, rows)])

    @property
    def layer(self) -> GraphLayer:
        """The graph layer."""
        (layer,) = self.model.graph.layers
        assert isinstance(layer, GraphLayer)
        return layer

    @property
    def inputs(self) -> Rows:
        """What the operators multiply [V, D]."""
        return self.units if self.layer.normalise_inputs else self.starts

    @torch.no_grad()
    def prototypes(self, rows: Tensor) -> Tensor:
        """Return the updated prototypes [R, D] of some classes [R]."""
        return torch.cat([self._portion(part) for part in torch.split(rows, ROWS_AT_ONCE)])

    def all_prototypes(self) -> Rows:
        """Return the updated prototypes [V, D] of all classes."""
        return Rows([self.prototypes(torch.arange(start, start + len(block))) for start, block in self.starts])

    def _portion(self, rows: Tensor) -> Tensor:
        layer, inputs = self.layer, self.inputs
        total = inputs.blocks[0].new_zeros(len(rows), inputs.blocks[0].shape[1])
        for label, scale, (place, column, weight) in zip(layer.labels, layer.scales, self.weights(rows), strict=True):
            product = torch.zeros_like(total).index_add_(0, place, weight[:, None] * inputs.take(column))
            product = layer.transformed(label, product)
            total += scale * (normalise(product) if layer.normalise_outputs else product)
        return total

    def weights(self, rows: Tensor) -> list[Sparse]:
        """Return the rows of the operators that make the prototypes of some classes [R], as edges, by label."""
        return [edges for position, operator in enumerate(self.model.operators) for edges in self._of(position, operator, rows)]

    def _of(self, position: int, operator: nn.Module, rows: Tensor) -> list[Sparse]:
        if isinstance(operator, Blocks):
            ((place, column, weight),) = self._of(position, operator.operator, rows)
            parts = []
            for block in operator.blocks:
                inside, across = region(block, self.seen, len(self.starts))
                row = rows[place]
                kept = (row >= inside.start) & (row < inside.stop) & (column >= across.start) & (column < across.stop)
                parts.append((place[kept], column[kept], weight[kept]))
            return parts
        if isinstance(operator, Identity):
            return [(torch.arange(len(rows)), rows, self.units.blocks[0].new_ones(len(rows)))]
        assert isinstance(operator, Softmax)
        place, column, score = self._scores(position, operator.similarity, rows)
        if operator.top is not None or operator.above is not None:
            shape = 1, max(len(rows), len(self.starts))
            edges = Edges(torch.zeros_like(place), place, column, score, shape).threshold(operator.top, operator.above)
            place, column, score = edges.row, edges.column, edges.weight
        return [(place, column, softmax_by_row(place, operator.temperature * score, len(rows)))]

    def _scores(self, position: int, similarity: Similarity, rows: Tensor) -> Sparse:
        if isinstance(similarity, SideInformation):
            row, column = similarity.get_buffer("edges")
            first, last = torch.searchsorted(row, rows), torch.searchsorted(row, rows, right=True)
            place = torch.arange(len(rows)).repeat_interleave(last - first)
            before = (last - first).cumsum(0) - (last - first)
            edge = first[place] + torch.arange(len(place)) - before[place]
            return place, column[edge], similarity.similarities[edge]
        if (graph := self.graphs.get(position)) is not None:
            scores, columns = graph.scores.take(rows), graph.indices.take(rows).long()
            place = torch.arange(len(rows))[:, None].expand_as(scores)
        else:
            assert isinstance(similarity, PrototypeSimilarity | KeySimilarity)
            new = (rows >= self.seen).nonzero()[:, 0]
            asked = self._vectors(similarity)(self.units.take(rows[new]))
            measure = _measure_of(similarity)
            known = self._keys(similarity) if isinstance(similarity, KeySimilarity) else self.units
            columns_of = ((start, block[: self.seen - start]) for start, block in known if start < self.seen)
            scores, columns = nearest(asked, columns_of, similarity.neighbours or NEIGHBOURS, measure)
            place = new[:, None].expand_as(scores)
        real = scores.isfinite().flatten()
        return place.flatten()[real], columns.flatten()[real], scores.flatten()[real]

    def _vectors(self, similarity: nn.Module) -> Callable[[Tensor], Tensor]:
        """Return what makes what classes are compared by [R, D] of their initial prototypes of length 1."""
        if isinstance(similarity, TransformedSimilarity):
            cosine = similarity.measure == "cosine"
            return lambda units: normalise(similarity.transform(units)) if cosine else similarity.transform(units)
        if isinstance(similarity, KeySimilarity):
            return lambda units: normalise(similarity.query(units))
        return lambda units: units

    def _keys(self, similarity: KeySimilarity) -> Rows:
        return Rows.of(normalise(similarity.keys))


def _similarity_of(operator: nn.Module) -> nn.Module:
    inner = operator.operator if isinstance(operator, Blocks) else operator
    return inner.similarity if isinstance(inner, Softmax) else inner


def _measure_of(similarity: PrototypeSimilarity | TransformedSimilarity | KeySimilarity) -> NeighbourMeasure:
    return "cosine" if isinstance(similarity, KeySimilarity) else similarity.measure


def _has_graph(similarity: nn.Module) -> bool:
    """Return whether a similarity compares all classes with all."""
    if isinstance(similarity, TransformedSimilarity):
        return True
    return isinstance(similarity, PrototypeSimilarity) and similarity.block is None


def _asks_seen(similarity: nn.Module) -> bool:
    """Return whether a similarity compares added classes with seen ones alone."""
    return isinstance(similarity, PrototypeSimilarity | KeySimilarity) and similarity.block == "sn"


def _is_followed(operator: nn.Module) -> bool:
    similarity = _similarity_of(operator)
    if isinstance(similarity, SideInformation):
        return similarity.sparse
    return isinstance(similarity, Identity) or _has_graph(similarity) or _asks_seen(similarity)


def _related_to(model: GraphPrototypeNetwork, rows: Tensor) -> Tensor:
    """Return the classes with a relation to some of the given ones."""
    related = [rows[:0]]
    for similarity in map(_similarity_of, model.operators):
        if isinstance(similarity, SideInformation):
            row, column = similarity.get_buffer("edges")
            related.append(row[torch.isin(column, rows)])
    return torch.cat(related)
