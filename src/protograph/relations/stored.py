"""Relations in model files: as JSON values and tensors, restored when they are first needed."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from protograph._internal.errors import InputError
from protograph.relations.base import Description, Relation, Sense, join_matrix, split_matrix
from protograph.relations.registry import RELATION_KINDS, RelationSpec

NAMED_KIND = "named"  # the kind in a description that holds the name of a relation


class UnopenedRelationError(InputError):
    """An error about a relation in a model file that opens only once the user names its plugin, or its path."""


class StoredRelation(Relation):
    """A relation as a model file describes it, restored when it is first asked.

    Until then, neither the file that it names nor the plugin that registers its kind is needed.

    Args:
        values: JSON values: "kind" and what the kind keeps, or kind "named" with "spec" and perhaps "titles".
        tensors: The tensors of the description.
        named: The relation as the user names it now, for a description that names a path. That path is never opened: anyone
            may have written the file.

    """

    def __init__(
        self, values: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None, named: RelationSpec | None = None
    ) -> None:
        self.values, self.tensors, self.named = dict(values), dict(tensors or {}), named

    def similarities(self, names: Sequence[str]) -> Tensor:
        """Return what the restored relation answers."""
        return self.restored.similarities(names)

    def senses(self, names: Sequence[str]) -> list[Sense]:
        """Return the meaning that the restored relation takes each name for."""
        return self.restored.senses(names)

    @property
    def takes_attributes(self) -> bool:
        """Whether the restored relation takes attributes."""
        return self.restored.takes_attributes

    def with_attributes(self, name: str, values: Tensor) -> tuple[Relation, str]:
        """Return the restored relation extended by one class, and the name by which it knows the class."""
        return self.restored.with_attributes(name, values)

    def describe(self) -> Description:
        """Return the description."""
        return self.values, self.tensors

    @cached_property
    def restored(self) -> Relation:
        """The relation itself.

        Raises:
            UnopenedRelationError: Its kind is not registered, or it names a path that the user did not name.
            InputError: Its file cannot be read.

        """
        if self.values["kind"] == NAMED_KIND:
            spec = _parse(self.values["spec"])
            if spec.path is not None and self.named is None:
                raise UnopenedRelationError(
                    f"the model was made with relation {spec}, a path that is opened only if you name it: add --relations "
                    f"{spec} (in Python, Classifier.load(..., relations=[...])), or say how the class relates "
                    "(--like CLASS=0.8)"
                )
            return (self.named or spec).open(self.values.get("titles"))
        kind = RELATION_KINDS.get(self.values["kind"])
        if kind is None or kind.restore is None:
            raise unregistered_kind(self.values["kind"])
        return kind.restore(self.values, self.tensors)


def name_relation(spec: str, titles: Mapping[str, str] | None = None) -> Description:
    """Return the description of a relation that is opened by its name."""
    return {"kind": NAMED_KIND, "spec": spec, **({"titles": dict(titles)} if titles else {})}, {}


def restore_relation(values: Mapping[str, Any], tensors: Mapping[str, Tensor], named: RelationSpec | None = None) -> Relation:
    """Return a described relation: one that a name describes, or of an unknown kind, as a `StoredRelation`."""
    kind = RELATION_KINDS.get(values["kind"])
    if kind is None or kind.restore is None:
        return StoredRelation(values, tensors, named)
    return kind.restore(values, tensors)


def described_path(values: Mapping[str, Any] | None) -> str | None:
    """Return the relation of a description as its user named it, if it names a path."""
    spec = (values or {}).get("spec")
    return spec if isinstance(spec, str) and (":" in spec or Path(spec).suffix) else None


def name_tensors(name: str, matrix: Tensor) -> dict[str, Tensor]:
    """Return the tensors of a matrix: NAME if it is dense, or NAME.values and NAME.edges if it is sparse."""
    values, edges = split_matrix(matrix)
    return {name: values} if edges is None else {f"{name}.edges": edges, f"{name}.values": values}


def find_matrix(name: str, tensors: Mapping[str, Tensor], size: int) -> Tensor:
    """Return the matrix [V, V] whose tensors `name_tensors` named; `size` is V."""
    if name in tensors:
        return join_matrix(tensors[name], None, size)
    return join_matrix(tensors[f"{name}.values"], tensors[f"{name}.edges"], size)


def _parse(spec: str) -> RelationSpec:
    kind = spec.partition(":")[0]
    try:
        return RelationSpec.parse(spec)
    except InputError as error:
        if kind in RELATION_KINDS:
            raise
        raise unregistered_kind(kind) from error


def unregistered_kind(kind: str) -> UnopenedRelationError:
    """Return the error about a kind of relation that is not registered."""
    return UnopenedRelationError(
        f"relation '{kind}' is of a kind that is not registered: name the file that registers it (--plugin FILE) or import it, "
        "or say how the class relates (--like CLASS=0.8)"
    )
