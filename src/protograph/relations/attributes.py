"""Similarity by attributes: any table of class x attribute."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph.relations.base import Description, Relation, cosine_similarities, index_rows, missing_classes
from protograph.relations.registry import register_relation
from protograph.relations.tables import finite_rows, read_table, require_file

_FILES = "a .csv, .tsv or .npz table of class x attribute"


class AttributeRelation(Relation):
    """Cosine similarity [V, V] of the attributes of classes.

    Args:
        values: Attributes [C, A], one row per class.
        names: The C classes.
        attributes: The names of the A attributes, for error messages.
        centred: Whether to subtract the mean of each attribute over all C classes, so that only what is unusual counts.
        source: The name of the relation in error messages.
        centre: What to subtract from each attribute [A], if it is known already.

    """

    takes_attributes = True

    def __init__(
        self,
        values: Tensor,
        names: Sequence[str],
        attributes: Sequence[str] | None = None,
        centred: bool = False,
        source: str = "attributes",
        centre: Tensor | None = None,
    ) -> None:
        self.source = source
        self.names = tuple(names)
        self.attributes = None if attributes is None else tuple(attributes)
        self.centred = centred
        self._rows = index_rows(self.names, source)
        self.table = finite_rows(values, self.names, attributes, source).double()
        mean = self.table.mean(0) if centred else torch.zeros(self.table.shape[1], dtype=torch.float64)
        self.centre = mean if centre is None else centre
        self.values = self.table - self.centre

    @classmethod
    def read(cls, path: Path, centred: bool = False) -> "AttributeRelation":
        """Read a `.csv` or `.tsv` (class names first, attribute names on top) or a `.npz` with `names` and `values`."""
        require_file(path, _FILES)
        if path.suffix not in (".csv", ".tsv", ".npz"):
            raise InputError(f"cannot read attributes from {path}: give {_FILES}")
        names, values, attributes = read_table(path, "values", header=True)
        return cls(values, names, attributes, centred, str(path))

    @classmethod
    def restore(cls, values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> "AttributeRelation":
        """Return the relation that `describe` described."""
        return cls(tensors["table"], values["names"], None, values["centred"], values["source"], tensors["centre"])

    def describe(self) -> Description:
        """Return the whole table."""
        values = {"kind": "attributes", "names": list(self.names), "centred": self.centred, "source": self.source}
        return values, {"table": self.table, "centre": self.centre}

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of the table."""
        return self.names

    @property
    def summary(self) -> str:
        """The size of the table."""
        return f"{self.values.shape[1]} attributes of {len(self.names)} classes{', centred' if self.centred else ''}"

    def with_attributes(self, name: str, values: Tensor) -> tuple["AttributeRelation", str]:
        """Return the relation with the attributes [A] of one more class, and the name of its row; the centre stays."""
        if values.shape != self.centre.shape:
            raise InputError(
                f"class '{name}' has {values.numel()} attributes, but relation '{self.source}' has {len(self.centre)}: "
                "give as many"
            )
        key = name
        while key in self._rows:
            key += "'"
        table, names = torch.cat([self.table, values.double()[None]]), (*self.names, key)
        return AttributeRelation(table, names, self.attributes, self.centred, self.source, self.centre), key

    def similarities(self, names: Sequence[str]) -> Tensor:
        """Return the similarities [V, V] of the named classes: 1 on the diagonal, 0 to a class whose attributes are all 0."""
        if missing := [name for name in names if name not in self._rows]:
            raise missing_classes(self.source, missing, "add its row")
        return cosine_similarities(self.values[torch.tensor([self._rows[name] for name in names], dtype=torch.long)])


register_relation(
    "attributes",
    AttributeRelation.read,
    "attributes:FILE, a table of class x attribute",
    restore=AttributeRelation.restore,
)
