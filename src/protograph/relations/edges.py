"""Similarity by a graph: a taxonomy or a network of links. Its nodes may be classes or not."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protograph._internal.errors import InputError, unknown_name
from protograph.relations.base import Relation, missing_classes
from protograph.relations.registry import register_relation
from protograph.relations.tables import read_rows, require_file

EdgeMeasure = Literal["path", "adjacency"]
STARTS_AT_ONCE = 1024  # nodes from which paths are searched together; each takes a bit of every node
LARGEST_WEIGHT = 1e30  # beyond 3e38 a weight is infinite in 32 bits

_FILES = "edges as .csv or .tsv (source, target, weight), or a .graphml graph"


class EdgeRelation(Relation):
    r"""Similarity [V, V] of nodes of a graph; nodes that are no classes, such as the inner ones of a taxonomy, are welcome.

    The measure "path" is :math:`1 / (1 + d)` with the number of edges d on the shortest path, or 0 where there is no path; it
    is dense. The measure "adjacency" is the weights of the edges, `torch.sparse`; entry (m, n) belongs to the edge from source
    m to target n. Both have 1 on the diagonal.

    With `power` k > 1 the rows of the adjacency matrix A of the whole graph are first divided by their sums, so that its powers
    stay bounded: entry (m, n) of :math:`A^k` is the share of weighted walks of k steps from m that end at n, whatever nodes
    they pass.

    Args:
        edges: Source, target and weight. An edge of weight 0 is no edge; an edge that comes twice must have the same weight.
        nodes: Names that are known even without an edge.
        measure: "path" or "adjacency".
        power: The power of the adjacency matrix.
        directed: Whether an edge leads from source to target only.
        source: The name of the relation in error messages.

    """

    def __init__(
        self,
        edges: Iterable[tuple[str, str, float]],
        nodes: Iterable[str] = (),
        measure: EdgeMeasure = "path",
        power: int = 1,
        directed: bool = False,
        source: str = "edges",
    ) -> None:
        if measure not in get_args(EdgeMeasure):
            raise unknown_name("measure", measure, get_args(EdgeMeasure))
        if power < 1:
            raise InputError(f"relation '{source}' cannot be raised to the power {power}: give at least 1")
        if power > 1 and measure != "adjacency":
            raise InputError(f"relation '{source}' would ignore power {power}: it goes with the measure adjacency only")
        self.source = source
        self.measure, self.power, self.directed = measure, power, directed
        self._targets: dict[str, dict[str, float]] = {str(node): {} for node in nodes}
        for tail, head, weight in edges:
            self._connect(tail, head, weight)
            if not directed:
                self._connect(head, tail, weight)

    @classmethod
    def read(cls, path: Path, measure: EdgeMeasure = "path", power: int = 1, directed: bool | None = None) -> "EdgeRelation":
        """Read a `.csv` or `.tsv` of source, target and, if given, weight, with or without that header; or a `.graphml`."""
        require_file(path, _FILES)
        if path.suffix == ".graphml":
            return cls.of(_read_graphml(path), measure, power, directed, str(path))
        if path.suffix not in (".csv", ".tsv"):
            raise InputError(f"cannot read edges from {path}: give {_FILES}")
        rows = read_rows(path)
        if rows and [cell.lower() for cell in rows[0]] in (["source", "target"], ["source", "target", "weight"]):
            rows = rows[1:]
        if not rows:
            raise InputError(f"{path} is empty: every row holds source, target and, if you like, weight")
        edges = []
        for row in rows:
            if len(row) not in (2, 3) or not (row[0] and row[1]):
                raise InputError(f"{path}: row '{', '.join(row)}' is no edge: give source, target and, if you like, weight")
            edges.append((row[0], row[1], _weight(row[2] if len(row) == 3 else 1, row[0], row[1], str(path))))
        return cls(edges, (), measure, power, bool(directed), str(path))

    @classmethod
    def of(
        cls, graph: Any, measure: EdgeMeasure = "path", power: int = 1, directed: bool | None = None, source: str = "graph"
    ) -> "EdgeRelation":
        """Return the relation of a `networkx` graph of any kind.

        Args:
            graph: The graph; an edge without a weight has weight 1.
            measure: "path" or "adjacency".
            power: The power of the adjacency matrix.
            directed: Whether an edge leads from source to target only. By default the graph says so for adjacency; for paths,
                which go up a taxonomy and down again, direction does not count.
            source: The name of the relation in error messages.

        """
        if directed is None:
            directed = measure == "adjacency" and graph.is_directed()
        edges = [
            (str(tail), str(head), _weight(weight, tail, head, source))
            for tail, head, weight in graph.edges(data="weight", default=1)
        ]
        return cls(edges, map(str, graph.nodes), measure, power, directed, source)

    @property
    def nodes(self) -> list[str]:
        """All nodes, classes or not."""
        return list(self._targets)

    @property
    def summary(self) -> str:
        """The size of the graph."""
        return f"a graph of {len(self.nodes)} nodes"

    def similarities(self, names: Sequence[str]) -> Tensor:
        """Return the similarities [V, V] of the named nodes: dense for paths, `torch.sparse` for adjacency."""
        if missing := [name for name in names if name not in self._targets]:
            raise missing_classes(self.source, missing, "add an edge of it")
        return self._paths(names) if self.measure == "path" else self._adjacency(names)

    def _connect(self, tail: str, head: str, weight: float) -> None:
        weight = _weight(weight, tail, head, self.source)
        targets = self._targets.setdefault(tail, {})
        self._targets.setdefault(head, {})
        if targets.get(head, weight) != weight:
            either = "" if self.directed else " (either way)"
            raise InputError(
                f"relation '{self.source}' has two weights for the edge '{tail}' -> '{head}'{either}, {targets[head]:g} and "
                f"{weight:g}: keep one"
            )
        targets[head] = weight

    def _paths(self, names: Sequence[str]) -> Tensor:
        different = list(dict.fromkeys(names))
        blocks = [different[start : start + STARTS_AT_ONCE] for start in range(0, len(different), STARTS_AT_ONCE)]
        steps = np.concatenate([self._steps(block, different) for block in blocks]) if blocks else np.zeros((0, 0))
        similarities = torch.from_numpy(np.where(steps < 0, 0.0, 1 / (1 + np.maximum(steps, 0)))).float()
        place = {name: row for row, name in enumerate(different)}
        rows = torch.tensor([place[name] for name in names], dtype=torch.long)
        return similarities[rows][:, rows]

    def _steps(self, starts: Sequence[str], targets: Sequence[str]) -> NDArray[np.int64]:
        """Return the number of edges on the shortest path from each start to each target [s, t]; -1 where there is none.

        All starts are searched from at once, one edge further each time: every node has a bit for each start, and the nodes
        that were reached last pass their new bits on.
        """
        graph, width = self._graph, -(-len(starts) // 64)
        begin = np.array([graph.place[name] for name in starts])
        column = np.full(len(graph.place), -1)
        column[[graph.place[name] for name in targets]] = np.arange(len(targets))
        fresh = np.packbits(np.eye(len(starts), 64 * width, dtype=bool), axis=1, bitorder="little").view(np.uint64)
        reached = np.zeros((len(graph.place), width), np.uint64)
        reached[begin] = fresh
        steps, nodes, length = np.full((len(starts), len(targets)), -1), begin, 0
        while True:
            ends = np.flatnonzero(column[nodes] >= 0)
            bits = np.unpackbits(fresh[ends].view(np.uint8), axis=1, count=len(starts), bitorder="little")
            row, new = bits.T.nonzero()
            steps[row, column[nodes[ends[new]]]] = length
            if (steps >= 0).all():
                return steps
            heads, tails = graph.edges_from(nodes)
            if not len(heads):
                return steps
            order = np.argsort(heads, kind="stable")
            different, first = np.unique(heads[order], return_index=True)
            passed = np.bitwise_or.reduceat(fresh[tails[order]], first) & ~reached[different]
            kept = passed.any(1)
            nodes, fresh, length = different[kept], passed[kept], length + 1
            reached[nodes] |= fresh

    @cached_property
    def _graph(self) -> "_Graph":
        place = {node: row for row, node in enumerate(self._targets)}
        heads = [[place[head] for head, weight in targets.items() if weight] for targets in self._targets.values()]
        starts = np.cumsum([0, *map(len, heads)])
        return _Graph(place, starts, np.array([head for each in heads for head in each], dtype=np.int64))

    def _adjacency(self, names: Sequence[str]) -> Tensor:
        columns: dict[str, list[int]] = defaultdict(list)
        for column, name in enumerate(names):
            columns[name].append(column)
        entries = [
            (row, column, weight)
            for row, name in enumerate(names)
            for end, weight in self._ends(name).items()
            for column in columns.get(end, ())
            if column != row
        ]
        entries += [(row, row, 1.0) for row in range(len(names))]
        index = torch.tensor([entry[:2] for entry in entries], dtype=torch.long).view(-1, 2).T
        values, size = torch.tensor([entry[2] for entry in entries]), (len(names), len(names))
        return torch.sparse_coo_tensor(index, values, size, check_invariants=True).coalesce()

    def _ends(self, start: str) -> dict[str, float]:
        """Return the weights of a node's edges by target; for a power, the shares of walks from it by their last node."""
        if self.power == 1:
            return {head: weight for head, weight in self._targets[start].items() if weight}
        shares = {start: 1.0}
        for _ in range(self.power):
            ends: dict[str, float] = defaultdict(float)
            for node, share in shares.items():
                total = sum(self._targets[node].values())
                for head, weight in self._targets[node].items():
                    if weight:
                        ends[head] += share * weight / total
            shares = ends
        return shares


@dataclass(frozen=True)
class _Graph:
    """The edges of a graph, except those of weight 0.

    Attributes:
        place: The number of each node.
        starts: Where the edges of each node begin in `heads`, and at the end their number.
        heads: The nodes that edges lead to.

    """

    place: dict[str, int]
    starts: NDArray[np.int64]
    heads: NDArray[np.int64]

    def edges_from(self, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where the edges of some nodes lead to, and for each edge the position of its node among these."""
        counts = self.starts[nodes + 1] - self.starts[nodes]
        tails = np.repeat(np.arange(len(nodes)), counts)
        within = np.arange(len(tails)) - np.repeat(np.cumsum(counts) - counts, counts)
        return self.heads[self.starts[nodes][tails] + within], tails


def _weight(weight: Any, tail: object, head: object, source: str) -> float:
    try:
        number = float(weight)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= LARGEST_WEIGHT:
        raise InputError(
            f"relation '{source}' has weight {weight} at the edge '{tail}' -> '{head}': give a number from 0 to "
            f"{LARGEST_WEIGHT:g}"
        )
    return number


def _read_graphml(path: Path) -> Any:
    try:
        import networkx
    except ImportError as error:
        raise InputError(f'{path} needs a reader of graphs: pip install "protograph[graphs]"') from error
    try:
        return networkx.read_graphml(path)
    except Exception as error:  # a damaged graph, or one in an unknown encoding, can raise anything
        raise InputError(f"{path} is not a .graphml graph ({error})") from error


register_relation("edges", EdgeRelation.read, "edges:FILE, a graph by its edges")
