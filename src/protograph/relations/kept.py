"""The relations that a classifier keeps: the similarities of its classes, and the sources to ask about new ones.

Shapes: V classes, n edges, A attributes.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from protograph._internal.errors import InputError, unknown_name
from protograph.relations.base import Description, MissingClassesError, Relation, check_similarities
from protograph.relations.registry import RelationSpec
from protograph.relations.stored import UnopenedRelationError, find_matrix, name_relation, name_tensors, restore_relation

CLASSES_PER_REQUEST = 256  # classes that a source is asked about together, so that its answer stays small
BY_HAND = "hand"  # the label, as in "related by hand", of a relation in which people say how classes relate
FEWEST_KNOWN = 3  # classes that a source must know: with two, all others would be as similar as these


@dataclass(frozen=True)
class ClassHint:
    """What a caller says of a new class to one relation. With no hint, the relation's source is asked for the class's name.

    Attributes:
        similarities: Similarities to other classes by name, the same in both directions.
        alias: A name or text by which the source knows the class.
        attributes: The attributes [A] of the class.

    """

    similarities: Mapping[str, float] | None = None
    alias: str | None = None
    attributes: Tensor | None = None


@dataclass(frozen=True)
class KeptRelation:
    """One relation of a classifier.

    Attributes:
        label: The name of the relation.
        similarities: [V, V] in the order of the classifier's classes, dense or `torch.sparse`.
        floor: The similarity of classes of which nothing is known, for dense similarities.
        known: The name by which the source knows each class, None where it does not.
        source: The relation that answers for new classes, if any.
        spec: The name by which the user named the source, if any.

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
        """Return the relation of the seen classes from their similarities.

        The floor is the lowest similarity of two seen classes, so it never depends on classes that are added.

        Args:
            label: The name of the relation.
            similarities: [V, V] in the order of the names.
            names: The V seen classes.
            source: The relation that answers for new classes, if any.
            spec: The name by which the user named the source, if any.

        """
        matrix = check_similarities(similarities, names, label)
        floor = 0.0
        if matrix.layout == torch.strided and len(matrix) > 1:
            off_diagonal = ~torch.eye(len(matrix), dtype=torch.bool)
            floor = matrix[off_diagonal].min().item()
        return cls(label, matrix, floor, tuple(names) if source is not None else (None,) * len(names), source, spec)

    @classmethod
    def ask(cls, label: str, names: Sequence[str], source: Relation, spec: str | None = None) -> "KeptRelation":
        """Return the relation of the seen classes as a source knows them.

        Classes that the source does not know are unrelated to all others; a warning lists them.

        Args:
            label: The name of the relation.
            names: The V seen classes.
            source: The relation to ask.
            spec: The name by which the user named it, if any.

        """
        if not names:
            return cls(label, torch.zeros(0, 0), 0.0, (), source, spec)
        try:
            return cls.of(label, source.similarities(names), names, source, spec)
        except MissingClassesError as error:
            missing = set(error.missing)
            known = [name for name in names if name not in missing]
            if len(known) < FEWEST_KNOWN:
                raise
            count = f"{len(names) - len(known)} of {len(names)} classes are" if len(missing) > 1 else "one class is"
            warnings.warn(f"{count} taken as unrelated: {error}", stacklevel=5)
        relation = cls.of(label, source.similarities(known), known, source, spec)
        return relation._spread(len(names), [index for index, name in enumerate(names) if name not in missing])

    @classmethod
    def by_hand(cls, names: Sequence[str]) -> "KeptRelation":
        """Return a relation without an edge, in which people say how classes relate."""
        diagonal = torch.arange(len(names)).expand(2, -1)
        matrix = torch.sparse_coo_tensor(diagonal, torch.ones(len(names)), (len(names),) * 2, check_invariants=False)
        return cls(BY_HAND, matrix.coalesce(), 0.0, (None,) * len(names))

    @classmethod
    def restore(
        cls, values: Mapping[str, Any], tensors: Mapping[str, Tensor], named: RelationSpec | None = None
    ) -> "KeptRelation":
        """Return the relation from the JSON values and tensors that `describe` returned.

        Args:
            values: The JSON values.
            tensors: The tensors.
            named: The relation as the user names it now, where the values name a path.

        """
        known = tuple(values["known"])
        source = None if values["source"] is None else restore_relation(values["source"], tensors, named)
        similarities = find_matrix("similarities", tensors, len(known)).float()
        return cls(str(values["label"]), similarities, float(values["floor"]), known, source)

    def describe(self) -> Description:
        """Return the relation as JSON values and tensors for a model file.

        A source describes itself or is described by the name that the user gave. Otherwise a warning says that it is left out.
        """
        description = None if self.source is None else self.source.describe()
        if description is None and self.source is not None:
            if self.spec:
                description = name_relation(self.spec, self.source.titles)
            else:
                warnings.warn(
                    f"relation '{self.label}' is kept without its source, which was made in Python ({self.source.summary}): a "
                    "loaded classifier cannot ask it about new classes, so say how each relates (add_class with relations)",
                    stacklevel=5,
                )
        source, tensors = description or (None, {})
        values = {"label": self.label, "floor": self.floor, "known": list(self.known), "source": source}
        return values, tensors | name_tensors("similarities", self.similarities)

    @property
    def sparse(self) -> bool:
        """Whether the similarities are a list of edges."""
        return self.similarities.layout != torch.strided

    def added(self, name: str, names: Sequence[str], hint: ClassHint | None = None) -> tuple["KeptRelation", bool]:
        """Return the relation with one more class behind the V classes, and whether anything is known of it.

        A pair of which nothing is known has no edge or, in a dense relation, the lowest similarity of two seen classes.

        Args:
            name: The new class.
            names: The V classes so far.
            hint: What the caller says of the new class.

        """
        hint = hint or ClassHint()
        source, nothing = self.source, torch.full((len(names),), math.nan)
        answer = _Answer(nothing, nothing)
        if hint.similarities is not None:
            row = _row_by_class(hint.similarities, names, self.label)
            answer = _Answer(row, row)
        elif hint.attributes is not None:
            if source is None or not source.takes_attributes:
                raise InputError(
                    f"relation '{self.label}' takes no attributes of class '{name}': {_way_out(names)}",
                )
            source, key = source.with_attributes(name, hint.attributes)
            answer = self._answer(source, key)
        elif source is not None:
            try:
                answer = self._answer(source, hint.alias or name)
            except InputError as error:
                if hint.alias is not None or isinstance(error, UnopenedRelationError):
                    raise
                warnings.warn(f"class '{name}' is taken as unrelated: {error}", stacklevel=4)
        elif hint.alias is not None:
            raise InputError(
                f"relation '{self.label}' has no source that could answer for '{hint.alias}': {_way_out(names)}",
            )
        elif any(key is not None for key in self.known):  # it had a source when it was fitted
            reason = f"relation '{self.label}' was kept without its source; {_way_out(names)}"
            warnings.warn(f"class '{name}' is taken as unrelated: {reason}", stacklevel=4)
        relation = replace(self, similarities=self._grown(answer), known=(*self.known, answer.key), source=source)
        return relation, bool(answer.row.isfinite().any())

    def retold(self, index: int, names: Sequence[str], hint: ClassHint | None = None) -> tuple["KeptRelation", bool]:
        """Return the relation with what is said of one of its classes anew, and whether anything is known of it.

        Args:
            index: The class.
            names: The V classes.
            hint: What the caller says of the class, as in `added`.

        """
        last = len(names) - 1
        others = [*names[:index], *names[index + 1 :]]
        relation, answered = self.removed(index).added(names[index], others, hint)
        return relation.reordered([*range(index), last, *range(index, last)]), answered

    def ask_about(self, key: str) -> Tensor | None:
        """Return the similarities [V] that the source knows of a class to the others, NaN where it knows none.

        Args:
            key: The name of the class for the source.

        """
        try:
            return None if self.source is None else self._answer(self.source, key).row
        except InputError:
            return None

    def row(self, index: int) -> Tensor:
        """Return the similarities [V] of a class to all."""
        if not self.sparse:
            return self.similarities[index]
        return self.similarities.index_select(0, torch.tensor([index])).to_dense()[0]

    def removed(self, index: int) -> "KeptRelation":
        """Return the relation without the class at an index."""
        kept = torch.tensor([row for row in range(len(self.known)) if row != index], dtype=torch.long)
        if self.sparse:
            smaller = self.similarities.index_select(0, kept).index_select(1, kept).coalesce()
        else:
            smaller = self.similarities[kept][:, kept]
        return replace(self, similarities=smaller, known=(*self.known[:index], *self.known[index + 1 :]))

    def reordered(self, order: Sequence[int]) -> "KeptRelation":
        """Return the relation of the same classes in another order, given by their indices."""
        chosen = torch.tensor(order, dtype=torch.long)
        similarities = self.similarities.index_select(0, chosen).index_select(1, chosen)
        return replace(
            self,
            similarities=similarities.coalesce() if self.sparse else similarities,
            known=tuple(self.known[index] for index in order),
        )

    def _spread(self, count: int, indices: Sequence[int]) -> "KeptRelation":
        """Return the relation of `count` classes: its classes at these indices, the rest unrelated."""
        rows = torch.tensor(indices, dtype=torch.long)
        rest = torch.ones(count, dtype=torch.bool).index_fill(0, rows, False).nonzero()[:, 0]
        size, diagonal = (count, count), self._mean_diagonal()
        if self.sparse:
            edges = torch.cat([rows[self.similarities.indices()], rest.expand(2, -1)], 1)
            values = torch.cat([self.similarities.values(), torch.full((len(rest),), diagonal)])
            spread = torch.sparse_coo_tensor(edges, values, size, check_invariants=False).coalesce()
        else:
            spread = torch.full(size, self.floor)
            spread[rows[:, None], rows] = self.similarities
            spread[rest, rest] = diagonal
        keys = dict(zip(indices, self.known, strict=True))
        return replace(self, similarities=spread, known=tuple(keys.get(index) for index in range(count)))

    def _answer(self, source: Relation, key: str) -> "_Answer":
        """Return what a source knows of a new class, whose name for the source is `key`."""
        row, column = torch.full((2, len(self.known)), math.nan)
        known = [(index, name) for index, name in enumerate(self.known) if name is not None]
        diagonal = 1.0
        for start in range(0, max(1, len(known)), CLASSES_PER_REQUEST):
            portion = known[start : start + CLASSES_PER_REQUEST]
            names, rows = [key, *(name for _, name in portion)], [index for index, _ in portion]
            answer = _nan_where_absent(check_similarities(source.similarities(names), names, self.label))
            row[rows], column[rows], diagonal = answer[0, 1:], answer[1:, 0], answer[0, 0].item()
        return _Answer(row, column, 1.0 if math.isnan(diagonal) else diagonal, key)

    def _mean_diagonal(self) -> float:
        """Return how similar classes are to themselves in this relation: the mean of the known ones, or 1."""
        if self.sparse:
            edges = self.similarities.coalesce()
            row, column = edges.indices()
            diagonal = edges.values()[row == column]
        else:
            diagonal = self.similarities.diagonal()
        return diagonal.mean().item() if len(diagonal) else 1.0

    def _grown(self, answer: "_Answer") -> Tensor:
        """Return the similarities [V + 1, V + 1] with a new class."""
        size, row, column = len(self.known), answer.row, answer.column
        diagonal = self._mean_diagonal() if answer.diagonal is None else answer.diagonal
        if not self.sparse:
            grown = torch.empty(size + 1, size + 1)
            grown[:size, :size] = self.similarities
            grown[size, :size], grown[:size, size] = row.nan_to_num(nan=self.floor), column.nan_to_num(nan=self.floor)
            grown[size, size] = diagonal
            return grown
        ahead, back = (values.isfinite().nonzero()[:, 0] for values in (row, column))
        edges = self.similarities.indices()
        # edges are in the order of their rows: an edge to the new class goes to the end of its row, and the new row behind all
        inserted = torch.searchsorted(edges[0], back, right=True) + torch.arange(len(back))
        before = torch.ones(edges.shape[1] + len(back), dtype=torch.bool)
        before[inserted] = False
        last = torch.full((len(ahead) + 1,), size)
        rows, columns = (
            torch.cat([torch.empty(len(before), dtype=torch.long).masked_scatter_(before, part), end])
            for part, end in zip(edges, (last, torch.cat([ahead, last[:1]])), strict=True)
        )
        rows[inserted], columns[inserted] = back, size
        values = torch.empty(len(before)).masked_scatter_(before, self.similarities.values())
        values[inserted] = column[back]
        values = torch.cat([values, row[ahead], torch.tensor([diagonal])])
        return torch.sparse_coo_tensor(
            torch.stack([rows, columns]), values, (size + 1, size + 1), check_invariants=False, is_coalesced=True
        )


@dataclass(frozen=True)
class _Answer:
    """What is known of a new class.

    Attributes:
        row: What the V classes mean to it [V], NaN where nothing is known.
        column: What it means to the V classes [V].
        diagonal: How similar it is to itself, if that is known.
        key: The name by which the source knows it, if the source was asked.

    """

    row: Tensor
    column: Tensor
    diagonal: float | None = None
    key: str | None = None


def _row_by_class(similarities: Mapping[str, float], names: Sequence[str], label: str) -> Tensor:
    """Return similarities by class as a row [V], NaN where there is none."""
    row = torch.full((len(names),), math.nan)
    indices = {name: index for index, name in enumerate(names)}
    for name, value in similarities.items():
        if name not in indices:
            raise unknown_name(f"class in relation '{label}'", name, indices)
        row[indices[name]] = value
    return row


def _way_out(names: Sequence[str]) -> str:
    return f"give similarities by class, such as {{'{names[0] if names else 'sparrow'}': 0.8}}"


def _nan_where_absent(answer: Tensor) -> Tensor:
    if answer.layout == torch.strided:
        return answer
    dense = torch.full(answer.shape, math.nan)
    dense[answer.indices()[0], answer.indices()[1]] = answer.values()
    return dense
