"""What a classifier keeps of a relation: the similarities of its classes, and whom to ask about new ones.

Shapes: V classes, n edges.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protograph._internal.errors import InputError, unknown_name
from protograph.relations.attributes import AttributeRelation
from protograph.relations.base import MissingClassesError, Relation, check_similarities
from protograph.relations.registry import RelationSpec

ASKED = 256  # classes that a source is asked about together, so that what it answers stays small
FEWEST_KNOWN = 3  # classes that a source must know: of two, all others would be as alike as these
Told = Mapping[Any, float] | str | Tensor | None  # what a caller may say of a new class


@dataclass(frozen=True)
class KeptRelation:
    """One relation of a classifier.

    similarities: [V, V] in the order of its classes, dense or `torch.sparse`
    floor:        of a dense one, the similarity of classes of which nothing is known
    known:        the name by which the source knows each class; None where it does not
    source:       who answers for new classes, if somebody does
    spec:         how a user named the source, if it was named
    """

    label: str
    similarities: Tensor
    floor: float
    known: tuple[str | None, ...]
    source: Relation | None = None
    spec: str | None = None

    @classmethod
    def of(
        cls, label: str, similarities: Tensor, names: Sequence[str], source: Relation | None = None, spec: str | None = None
    ) -> "KeptRelation":
        """Of the seen classes. The floor is the lowest similarity of two of them, so it never depends on what is added."""
        matrix = check_similarities(similarities, names, label)
        floor = 0.0
        if matrix.layout == torch.strided and len(matrix) > 1:
            apart = ~torch.eye(len(matrix), dtype=torch.bool)
            floor = matrix[apart].min().item()
        return cls(label, matrix, floor, tuple(names) if source is not None else (None,) * len(names), source, spec)

    @classmethod
    def asked(cls, label: str, names: Sequence[str], source: Relation, spec: str | None = None) -> "KeptRelation":
        """Of the seen classes as a source knows them; those that it lacks are warned of, and unrelated like added ones."""
        try:
            return cls.of(label, source.similarities(names), names, source, spec)
        except MissingClassesError as error:
            missing = set(error.missing)
            there = [name for name in names if name not in missing]
            if len(there) < FEWEST_KNOWN:
                raise
            count = f"{len(names) - len(there)} of {len(names)} classes are" if len(missing) > 1 else "one class is"
            warnings.warn(f"{count} taken as unrelated: {error}", stacklevel=5)
        known = cls.of(label, source.similarities(there), there, source, spec)
        return known._among(len(names), [place for place, name in enumerate(names) if name not in missing])

    @property
    def sparse(self) -> bool:
        """Whether the similarities are a list of edges."""
        return self.similarities.layout != torch.strided

    def added(self, name: str, names: Sequence[str], told: Told = None) -> tuple["KeptRelation", bool]:
        """The relation with one more class behind the V classes `names`, and whether anything is known of it.

        told: similarities by class, the same both ways; a name or text to ask the source for; a vector of attributes. By
            default the source is asked for the name. A pair of which nothing is known has no edge or, in a dense relation,
            the lowest similarity of two seen classes.
        """
        source, key, own = self.source, None, None
        row = column = torch.full((len(names),), math.nan)
        if isinstance(told, Mapping):
            row = column = _by_class(told, names, self.label)
        elif isinstance(told, Tensor):
            if not isinstance(source, AttributeRelation):
                raise InputError(
                    f"relation '{self.label}' takes no attributes of class '{name}': give similarities by class, such as "
                    f"{{'{names[0]}': 0.8}}"
                )
            key = name
            while key in source.names:
                key += "'"
            source = source.extended(key, told)
            row, column, own = self._asked(source, key)
        elif source is not None:
            try:
                row, column, own = self._asked(source, told or name)
                key = told or name
            except InputError as error:
                if told is not None:
                    raise
                warnings.warn(f"class '{name}' is taken as unrelated: {error}", stacklevel=4)
        elif told is None:
            if any(key is not None for key in self.known):  # it had a source when it was fitted
                said = f"relation '{self.label}' was kept without its source; give similarities by class"
                warnings.warn(f"class '{name}' is taken as unrelated: {said}, such as {{'{names[0]}': 0.8}}", stacklevel=4)
        else:
            raise InputError(
                f"relation '{self.label}' has no source that could answer for '{told}': give similarities by class, such as "
                f"{{'{names[0]}': 0.8}}"
            )
        grown = self._grown(row, column, self._usual_own() if own is None else own)
        return replace(self, similarities=grown, known=(*self.known, key), source=source), bool(row.isfinite().any())

    def removed(self, place: int) -> "KeptRelation":
        """The relation without one of its classes."""
        kept = torch.tensor([other for other in range(len(self.known)) if other != place], dtype=torch.long)
        if self.sparse:
            smaller = self.similarities.index_select(0, kept).index_select(1, kept).coalesce()
        else:
            smaller = self.similarities[kept][:, kept]
        return replace(self, similarities=smaller, known=(*self.known[:place], *self.known[place + 1 :]))

    def _among(self, count: int, places: Sequence[int]) -> "KeptRelation":
        """The relation of `count` classes, its own at these places and the others unrelated."""
        rows = torch.tensor(places, dtype=torch.long)
        others = torch.ones(count, dtype=torch.bool).index_fill(0, rows, False).nonzero()[:, 0]
        size, own = (count, count), self._usual_own()
        if self.sparse:
            edges = torch.cat([rows[self.similarities.indices()], others.expand(2, -1)], 1)
            values = torch.cat([self.similarities.values(), torch.full((len(others),), own)])
            spread = torch.sparse_coo_tensor(edges, values, size, check_invariants=False).coalesce()
        else:
            spread = torch.full(size, self.floor)
            spread[rows[:, None], rows] = self.similarities
            spread[others, others] = own
        keys = dict(zip(places, self.known, strict=True))
        return replace(self, similarities=spread, known=tuple(keys.get(place) for place in range(count)))

    def _asked(self, source: Relation, key: str) -> tuple[Tensor, Tensor, float]:
        """What a source says of a new class: its row and column [V], NaN where it says nothing, and its own similarity."""
        row, column = torch.full((2, len(self.known)), math.nan)
        places = [place for place, name in enumerate(self.known) if name is not None]
        own = 1.0
        for start in range(0, max(1, len(places)), ASKED):
            some = places[start : start + ASKED]
            answer = source.similarities([key, *(str(self.known[place]) for place in some)])
            answer = _nan_where_absent(
                check_similarities(answer, [key, *(str(self.known[place]) for place in some)], self.label)
            )
            row[some], column[some], own = answer[0, 1:], answer[1:, 0], answer[0, 0].item()
        return row, column, 1.0 if math.isnan(own) else own

    def _usual_own(self) -> float:
        """How alike classes are to themselves on the scale of this relation: the mean of those that say so, or 1."""
        if self.sparse:
            edges = self.similarities.coalesce()
            row, column = edges.indices()
            own = edges.values()[row == column]
        else:
            own = self.similarities.diagonal()
        return own.mean().item() if len(own) else 1.0

    def _grown(self, row: Tensor, column: Tensor, own: float) -> Tensor:
        size = len(self.known)
        if not self.sparse:
            grown = torch.empty(size + 1, size + 1)
            grown[:size, :size] = self.similarities
            grown[size, :size], grown[:size, size] = row.nan_to_num(nan=self.floor), column.nan_to_num(nan=self.floor)
            grown[size, size] = own
            return grown
        ahead, back = (there.isfinite().nonzero()[:, 0] for there in (row, column))
        new = torch.tensor([size])
        edges = [
            self.similarities.indices(),
            torch.stack([new.expand_as(ahead), ahead]),
            torch.stack([back, new.expand_as(back)]),
            new.expand(2, 1),
        ]
        values = torch.cat([self.similarities.values(), row[ahead], column[back], torch.tensor([own])])
        return torch.sparse_coo_tensor(torch.cat(edges, 1), values, (size + 1, size + 1), check_invariants=False).coalesce()


def keep_relations(given: Any, names: Sequence[str]) -> dict[str, KeptRelation]:
    """Relations of the seen classes, by label, as a user may give them.

    given: None; a name such as "wordnet" or "attributes:FILE"; a `Relation`; similarities [V, V] in the order of the classes;
        similarities by pair, {(a, b): s} or {a: {b: s}}, the same both ways unless both are given, of which pairs that are not
        named have no edge; a list of these; or a dict of these by label
    """
    if given is None:
        return {}
    several: list[tuple[str | None, Any]] = [(None, given)]
    if isinstance(given, Mapping) and not _is_pairs(given, names):
        several = [(str(label), one) for label, one in given.items()]
    elif isinstance(given, list | tuple) and not all(isinstance(one, list | tuple) for one in given):
        several = [(None, one) for one in given]
    kept: dict[str, KeptRelation] = {}
    for label, one in several:
        relation = _keep(one, label, names)
        base, count = relation.label, 2
        while label is None and relation.label in kept:
            relation, count = replace(relation, label=f"{base}-{count}"), count + 1
        kept[relation.label] = relation
    return kept


def _keep(one: Any, label: str | None, names: Sequence[str]) -> KeptRelation:
    if isinstance(one, str):
        spec = RelationSpec.parse(one)
        source = spec.open()
        return KeptRelation.asked(label or spec.label, names, source, str(spec))
    if callable(getattr(one, "similarities", None)):
        label = label or type(one).__name__.removesuffix("Relation").lower() or "relation"
        return KeptRelation.asked(label, names, one)
    label = label or "similarity"
    if isinstance(one, Mapping):
        return KeptRelation.of(label, _from_pairs(one, names, label), names)
    if isinstance(one, Tensor):
        return KeptRelation.of(label, one, names)
    try:
        matrix = torch.as_tensor(np.asarray(one, dtype=np.float32))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"relation '{label}' cannot be read from a {type(one).__name__} ({error}): give a name such as wordnet, a "
            "Relation, a similarity matrix, or similarities by pair"
        ) from error
    return KeptRelation.of(label, matrix, names)


def _is_pairs(given: Mapping[Any, Any], names: Sequence[str]) -> bool:
    """Whether a mapping holds similarities by pair, rather than relations by label."""
    if all(isinstance(key, tuple) for key in given):
        return True
    return all(isinstance(value, Mapping) for value in given.values()) and {str(key) for key in given} <= set(names)


def _from_pairs(pairs: Mapping[Any, Any], names: Sequence[str], label: str) -> Tensor:
    """A sparse [V, V] of similarities by pair, with 1 on the diagonal unless it says otherwise."""
    places = {name: place for place, name in enumerate(names)}
    flat: dict[tuple[Any, Any], float] = {}
    for key, value in pairs.items():
        flat |= {(key, other): each for other, each in value.items()} if isinstance(value, Mapping) else {key: value}
    found: dict[tuple[int, int], float] = {(place, place): 1.0 for place in range(len(names))}
    given: dict[tuple[int, int], float] = {}
    for pair, value in flat.items():
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise InputError(f"relation '{label}' has similarities by pair, but {pair!r} is no pair of classes")
        for name in map(str, pair):
            if name not in places:
                raise unknown_name(f"class in relation '{label}'", name, places)
        given[places[str(pair[0])], places[str(pair[1])]] = _number(value, pair, label)
    found |= {(column, row): value for (row, column), value in given.items()}
    found |= given
    index = torch.tensor(list(found)).T
    values = torch.tensor(list(found.values()))
    return torch.sparse_coo_tensor(index, values, (len(names), len(names)), check_invariants=False).coalesce()


def _by_class(told: Mapping[Any, float], names: Sequence[str], label: str) -> Tensor:
    """Similarities [V] by class, NaN for those that are not named."""
    row = torch.full((len(names),), math.nan)
    places = {name: place for place, name in enumerate(names)}
    for name, value in told.items():
        if str(name) not in places:
            raise unknown_name(f"class in relation '{label}'", str(name), places)
        row[places[str(name)]] = _number(value, name, label)
    return row


def _number(value: Any, where: Any, label: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"relation '{label}' has no finite similarity for {where!r}, but {value!r}: give a number")
    return number


def _nan_where_absent(answer: Tensor) -> Tensor:
    if answer.layout == torch.strided:
        return answer
    dense = torch.full(answer.shape, math.nan)
    dense[answer.indices()[0], answer.indices()[1]] = answer.values()
    return dense
