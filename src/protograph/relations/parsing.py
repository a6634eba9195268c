"""What users say of relations, parsed once: relations of all classes, and hints about a new class."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protograph._internal.errors import InputError, unknown_name
from protograph.relations.base import as_relation
from protograph.relations.kept import ClassHint, KeptRelation
from protograph.relations.registry import RelationSpec


def keep_relations(relations: Any, names: Sequence[str]) -> dict[str, KeptRelation]:
    """Return the relations of the seen classes by label, from any form in which a user may give them.

    Args:
        relations: None; a name such as "wordnet" or "attributes:FILE"; a `Relation`, or any object with a method
            `similarities`; similarities [V, V] in the order of the classes; similarities by pair, {(a, b): s} or
            {a: {b: s}}, which hold in both directions unless both are given, and without which pairs have no edge; a list of
            these; or a dict of these by label.
        names: The V seen classes.

    """
    if relations is None:
        return {}
    items: list[tuple[str | None, Any]] = [(None, relations)]
    if isinstance(relations, Mapping) and not _is_by_pair(relations, names):
        items = [(str(label), relation) for label, relation in relations.items()]
    elif isinstance(relations, list | tuple) and not all(isinstance(row, list | tuple) for row in relations):
        items = [(None, relation) for relation in relations]
    kept: dict[str, KeptRelation] = {}
    for label, item in items:
        relation = _keep(item, label, names)
        base, count = relation.label, 2
        while label is None and relation.label in kept:
            relation, count = replace(relation, label=f"{base}-{count}"), count + 1
        kept[relation.label] = relation
    return kept


def parse_hints(relations: Any, kept: Mapping[str, KeptRelation]) -> dict[str, ClassHint]:
    """Return what a user says of a new class, by the label of each relation that it is said to.

    Args:
        relations: None; similarities by class, {a: s}; a name or text by which the source knows the class; its attributes [A];
            or a dict of these by label. Without labels, attributes are for the relations that take them, if any, names for
            those with a source, if any, and similarities for every relation.
        kept: The relations of the classifier.

    """
    if relations is None:
        return {}
    if isinstance(relations, Mapping) and relations and {str(label) for label in relations} <= set(kept):
        return {str(label): _parse_hint(hint, str(label)) for label, hint in relations.items()}
    hint = _parse_hint(relations, next(iter(kept), ""))
    takers = list(kept)
    if hint.alias is not None:
        takers = [label for label, relation in kept.items() if relation.source is not None] or takers
    if hint.attributes is not None:
        takers = [label for label, relation in kept.items() if relation.source and relation.source.takes_attributes] or takers
    return dict.fromkeys(takers, hint)


def _parse_hint(hint: Any, label: str) -> ClassHint:
    if hint is None or isinstance(hint, str):
        return ClassHint(alias=hint)
    if isinstance(hint, Mapping):
        return ClassHint({str(name): _parse_similarity(value, name, label) for name, value in hint.items()})
    attributes = _parse_numbers(hint, label, "similarities by class, a name or the attributes of the class", np.float64)
    if attributes.ndim != 1 or not bool(attributes.isfinite().all()):
        raise InputError(f"relation '{label}' takes the attributes of a class as a vector of finite numbers: give one")
    return ClassHint(attributes=attributes)


def _keep(relation: Any, label: str | None, names: Sequence[str]) -> KeptRelation:
    if isinstance(relation, str):
        spec = RelationSpec.parse(relation)
        return KeptRelation.ask(label or spec.label, names, spec.open(), str(spec))
    if callable(getattr(relation, "similarities", None)):
        source = as_relation(relation)
        return KeptRelation.ask(label or source.label, names, source)
    label = label or "similarity"
    if isinstance(relation, Mapping):
        return KeptRelation.of(label, _parse_pairs(relation, names, label), names)
    forms = "a name such as wordnet, a Relation, a similarity matrix, or similarities by pair"
    return KeptRelation.of(label, _parse_numbers(relation, label, forms, np.float32), names)


def _is_by_pair(relations: Mapping[Any, Any], names: Sequence[str]) -> bool:
    """Return whether a mapping holds similarities by pair rather than relations by label."""
    if all(isinstance(key, tuple) for key in relations):
        return True
    return all(isinstance(value, Mapping) for value in relations.values()) and {str(key) for key in relations} <= set(names)


def _parse_pairs(pairs: Mapping[Any, Any], names: Sequence[str], label: str) -> Tensor:
    """Return similarities by pair as a sparse [V, V], with 1 on the diagonal unless they say otherwise."""
    indices = {name: index for index, name in enumerate(names)}
    flat: dict[tuple[Any, Any], float] = {}
    for key, value in pairs.items():
        flat |= {(key, name): number for name, number in value.items()} if isinstance(value, Mapping) else {key: value}
    entries: dict[tuple[int, int], float] = {(index, index): 1.0 for index in range(len(names))}
    forward: dict[tuple[int, int], float] = {}
    for pair, value in flat.items():
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise InputError(f"relation '{label}' has similarities by pair, but {pair!r} is no pair of classes")
        for name in map(str, pair):
            if name not in indices:
                raise unknown_name(f"class in relation '{label}'", name, indices)
        forward[indices[str(pair[0])], indices[str(pair[1])]] = _parse_similarity(value, pair, label)
    entries |= {(column, row): value for (row, column), value in forward.items()}
    entries |= forward
    index = torch.tensor(list(entries), dtype=torch.long).reshape(-1, 2).T
    values = torch.tensor(list(entries.values()))
    return torch.sparse_coo_tensor(index, values, (len(names), len(names)), check_invariants=False).coalesce()


def _parse_similarity(value: Any, classes: Any, label: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"relation '{label}' has no finite similarity for {classes!r}, but {value!r}: give a number")
    return number


def _parse_numbers(numbers: Any, label: str, forms: str, dtype: type[np.floating[Any]]) -> Tensor:
    """Return what may be an array, a tensor or a table of numbers as a tensor on the CPU; a tensor keeps its layout."""
    if isinstance(numbers, Tensor):
        return numbers.detach().cpu()
    try:
        return torch.as_tensor(np.array(numbers, dtype=dtype))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"relation '{label}' cannot be read from a {type(numbers).__name__} ({error}): give {forms}"
        ) from error
