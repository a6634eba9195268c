"""How classes relate, for people to look at: classes that a class is likely to be similar to, and a map of all classes.

Shapes: V classes, D features.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph.classifier.gaussian_space import GaussianSpace
from protograph.classifier.joint_space import JointSpace
from protograph.classifier.labels import Array
from protograph.classifier.state import State
from protograph.nn.classify import normalise
from protograph.relations import KeptRelation, MissingClassesError, WordNetRelation
from protograph.relations.wordnet import find_wordnet

EDGES = 3  # of each class in a map, to those it is most similar to
PROTOTYPES = "prototypes"  # the source of similarities where no relation tells any


class Suggestion(NamedTuple):
    """A class that another is likely to be similar to.

    Attributes:
        label: The class.
        similarity: How similar it is.
        source: The relation that says so, or "prototypes".

    """

    label: Any
    similarity: float
    source: str


class MapEdge(NamedTuple):
    """A line between two classes of a map.

    Attributes:
        first: The index of a class.
        second: The index of another one, which is larger.
        weight: How similar they are.
        relation: The relation that says so, or "prototypes".

    """

    first: int
    second: int
    weight: float
    relation: str


@dataclass(frozen=True)
class ClassMap:
    """All classes in two dimensions.

    Attributes:
        labels: The labels [V], sorted.
        positions: The positions [V, 2], from -1 to 1; prototypes that are alike lie close together.
        edges: For each class, lines to the few that it is most similar to.

    """

    labels: Array
    positions: Array
    edges: tuple[MapEdge, ...]


def suggest_relations(state: State, name: str, top: int) -> list[Suggestion]:
    """Return the classes that a class is likely to be similar to, the most similar first.

    The sources of the relations are asked in turn, then WordNet if it is installed. If none knows the class, the prototypes of
    a class that has one tell.

    Args:
        state: What the classifier knows.
        name: The name of a class, which may be one to come.
        top: The largest number of classes.

    """
    space = state.space
    own = space.names.find(name)
    for row, source in _answers(space, name, own):
        if own is not None:
            row[own] = torch.nan
        if bool(row.isfinite().any()):
            order = row.nan_to_num(nan=-torch.inf).argsort(descending=True, stable=True).tolist()
            return [
                Suggestion(state.labels[index], row[index].item(), source)
                for index in order[:top]
                if bool(row[index].isfinite())
            ]
    return []


def _answers(space: GaussianSpace | JointSpace, name: str, own: int | None) -> Iterator[tuple[Tensor, str]]:
    """Yield similarities [V] of a class to all, NaN where nothing is known, from one source after another."""
    for label, relation in space.relations.items():
        key = None if own is None else relation.known[own]
        if (row := relation.ask_about(key or name)) is not None:
            yield row, label
    if "wordnet" not in space.relations and (row := _by_wordnet(space.names, name)) is not None:
        yield row, "wordnet"
    if own is not None:
        prototypes = normalise(space.prototypes.double())
        yield (prototypes @ prototypes[own]).clamp(min=0), PROTOTYPES


def _by_wordnet(names: Sequence[str], name: str) -> Tensor | None:
    """Return WordNet's similarities [V] of a class to others; None if it does not know it, or is not installed."""
    missing: set[str] = set()
    try:
        source = _opened(find_wordnet())
    except InputError:
        return None
    try:
        source.senses([name, *names])
    except MissingClassesError as error:
        missing = set(error.missing)
    known = tuple(None if other in missing else other for other in names)
    relation = KeptRelation("wordnet", torch.zeros(0, 0), 0.0, known, source)
    return None if name in missing else relation.ask_about(name)


@cache
def _opened(folder: Path) -> WordNetRelation:
    return WordNetRelation(folder)


def class_map(state: State) -> ClassMap:
    """Return all classes in the two dimensions in which their prototypes differ most."""
    order = state.order.tolist()
    positions = principal_positions(state.space.prototypes[torch.from_numpy(state.order)])
    return ClassMap(state.classes, positions.numpy(), tuple(_edges(state.space, order)))


def principal_positions(prototypes: Tensor) -> Tensor:
    """Return positions [V, 2], from -1 to 1, by the first two principal components of normalised prototypes [V, D].

    A component has the sign at which its largest value is positive, so the same prototypes always give the same map.
    """
    positions = torch.zeros(len(prototypes), 2, dtype=torch.float64)
    if len(prototypes) < 2:
        return positions
    centred = normalise(prototypes.double())
    centred = centred - centred.mean(0)
    wide = centred.shape[1] > len(centred)
    values, vectors = torch.linalg.eigh(centred @ centred.T if wide else centred.T @ centred)  # the smaller one
    for axis, column in enumerate(range(-1, -1 - min(2, len(values)), -1)):
        if values[column] > 1e-12 * max(values[-1].item(), 1e-300):
            part = vectors[:, column] * values[column].sqrt() if wide else centred @ vectors[:, column]
            positions[:, axis] = part * part[part.abs().round(decimals=9).argmax()].sign()
    return positions / max(positions.abs().max().item(), 1e-300)


def _edges(space: GaussianSpace | JointSpace, order: Sequence[int]) -> list[MapEdge]:
    """Return the edges of a map whose classes are in this order: by relations, and by prototypes for classes without any."""
    edges: dict[tuple[int, int], tuple[float, str]] = {}
    places = {row: place for place, row in enumerate(order)}

    def join(row: int, similarities: Tensor, chosen: Tensor, source: str) -> None:
        for other in chosen[similarities[chosen].argsort(descending=True, stable=True)][:EDGES].tolist():
            first, second = sorted((places[row], places[other]))
            weight = similarities[other].item()
            if weight > edges.get((first, second), (0.0, ""))[0]:
                edges[first, second] = weight, source

    prototypes = normalise(space.prototypes.double())
    for row in range(len(order)):
        related = False
        for label, relation in space.relations.items():
            similarities = relation.row(row)
            chosen = (similarities > max(0.0, relation.floor)).nonzero()[:, 0]
            chosen = chosen[chosen != row]
            related |= bool(len(chosen))
            join(row, similarities, chosen, label)
        if not related:
            cosines = prototypes @ prototypes[row]
            chosen = (cosines > 0).nonzero()[:, 0]
            join(row, cosines, chosen[chosen != row], PROTOTYPES)
    return [MapEdge(*pair, *edges[pair]) for pair in sorted(edges)]
