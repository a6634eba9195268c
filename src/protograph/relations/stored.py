"""Relations as JSON and tensors, so that a model file can ask its sources again."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from protograph._internal.errors import InputError, unknown_name
from protograph.relations.attributes import AttributeRelation
from protograph.relations.base import Relation
from protograph.relations.embeddings import SentenceRelation
from protograph.relations.kept import KeptRelation
from protograph.relations.matrix import MatrixRelation
from protograph.relations.registry import RelationSpec
from protograph.relations.unicode import UnicodeRelation
from protograph.relations.wordnet import WordNetRelation, find_wordnet


class Named:
    """A relation by its name, opened when it is first asked: its file may be elsewhere by then, and not be needed."""

    def __init__(self, spec: str, titles: Mapping[str, str] | None = None) -> None:
        self.spec, self.titles = spec, dict(titles or {})
        self._opened: Relation | None = None

    def similarities(self, names: Sequence[str]) -> Tensor:
        """What the relation answers."""
        return self.opened.similarities(names)

    @property
    def opened(self) -> Relation:
        """The relation itself."""
        self._opened = self._opened or RelationSpec.parse(self.spec).open(self.titles)
        return self._opened


def describe(relation: KeptRelation) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A kept relation as JSON and tensors. Small tables go along; a source that cannot is told by its name, or left out."""
    source, tensors = _describe_source(relation)
    if source is None and relation.source is not None:
        warnings.warn(
            f"relation '{relation.label}' is kept without its source, a {type(relation.source).__name__} made in Python: once "
            "loaded it knows nothing of new classes, so say how each relates (add_class with relations)",
            stacklevel=5,
        )
    values: dict[str, Any] = {"label": relation.label, "floor": relation.floor, "known": list(relation.known), "source": source}
    return values, tensors | _parts("similarities", relation.similarities)


def restore(values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> KeptRelation:
    """What `describe` described."""
    known, source = tuple(values["known"]), _restore_source(values["source"], tensors)
    similarities = _whole("similarities", tensors, len(known))
    return KeptRelation(str(values["label"]), similarities, float(values["floor"]), known, source)


def _describe_source(relation: KeptRelation) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
    source = relation.source
    if isinstance(source, AttributeRelation):
        kept = {"kind": "attributes", "names": list(source.names), "centred": source.centred, "source": source.source}
        return kept, {"table": source.table, "centre": source.centre}
    if isinstance(source, MatrixRelation):
        return {"kind": "matrix", "names": list(source.names), "source": source.source}, _parts("matrix", source.matrix)
    if isinstance(source, UnicodeRelation):
        return {"kind": "unicode", "weights": source.weights, "alike": source.alike}, {}
    if isinstance(source, SentenceRelation):
        return {"kind": "named", "spec": "names", "titles": source.titles}, {}
    if isinstance(source, Named):
        return {"kind": "named", "spec": source.spec, "titles": source.titles}, {}
    if isinstance(source, WordNetRelation):
        try:
            usual = find_wordnet() == source.folder
        except InputError:
            usual = False
        return {"kind": "named", "spec": "wordnet" if usual else f"wordnet:{source.folder.resolve()}"}, {}
    return ({"kind": "named", "spec": relation.spec}, {}) if relation.spec else (None, {})


def _restore_source(values: Mapping[str, Any] | None, tensors: Mapping[str, Tensor]) -> Relation | None:
    if values is None:
        return None
    kind = values["kind"]
    if kind == "attributes":
        table, names = tensors["table"], values["names"]
        return AttributeRelation(table, names, None, values["centred"], values["source"], tensors["centre"])
    if kind == "matrix":
        return MatrixRelation(_whole("matrix", tensors, len(values["names"])), values["names"], values["source"])
    if kind == "unicode":
        return UnicodeRelation(values["weights"], values["alike"])
    if kind == "named":
        return Named(values["spec"], values.get("titles"))
    raise unknown_name("kind of relation", kind, ("attributes", "matrix", "unicode", "named"))


def _parts(name: str, matrix: Tensor) -> dict[str, Tensor]:
    if matrix.layout == torch.strided:
        return {name: matrix}
    return {f"{name}.edges": matrix.indices(), f"{name}.values": matrix.values()}


def _whole(name: str, tensors: Mapping[str, Tensor], size: int) -> Tensor:
    if name in tensors:
        matrix = tensors[name]
    else:
        edges, values = tensors[f"{name}.edges"], tensors[f"{name}.values"]
        matrix = torch.sparse_coo_tensor(edges, values, (size, size), check_invariants=True).coalesce()
    if matrix.shape != (size, size):
        raise ValueError(f"{name} is {tuple(matrix.shape)} for {size} classes")
    return matrix
