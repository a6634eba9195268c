"""What classes have in common: any table of class x attribute."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph.relations.base import cosine, index_rows, missing_classes
from protograph.relations.tables import finite_rows, read_table, require_file

FILES = "a .csv, .tsv or .npz table of class x attribute"


class AttributeRelation:
    """Cosine similarity [V, V] of the attributes of classes.

    values: [C, A], one row per class
    names: the C classes
    attributes: the A attributes, to name one in a complaint
    centred: subtract the mean of each attribute over all C classes, so that only what is unusual counts
    centre: what to subtract of each attribute [A], where it is known already
    """

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
        known = self.table.mean(0) if centred else torch.zeros(self.table.shape[1], dtype=torch.float64)
        self.centre = known if centre is None else centre
        self.values = self.table - self.centre

    @classmethod
    def read(cls, path: Path, centred: bool = False) -> "AttributeRelation":
        """Read a `.csv` or `.tsv` (class names first, attribute names on top) or a `.npz` with `names` and `values`."""
        require_file(path, FILES)
        if path.suffix not in (".csv", ".tsv", ".npz"):
            raise InputError(f"cannot read attributes from {path}: give {FILES}")
        names, values, attributes = read_table(path, "values", header=True)
        return cls(values, names, attributes, centred, str(path))

    def __str__(self) -> str:
        return f"{self.values.shape[1]} attributes of {len(self.names)} classes, cosine{', centred' if self.centred else ''}"

    def extended(self, name: str, values: Tensor) -> "AttributeRelation":
        """The same relation with the attributes [A] of one more class; the centre stays where it is."""
        if values.shape != self.centre.shape:
            raise InputError(
                f"class '{name}' has {values.numel()} attributes, but relation '{self.source}' has {len(self.centre)}: "
                "give as many"
            )
        table, names = torch.cat([self.table, values.double()[None]]), (*self.names, name)
        return AttributeRelation(table, names, self.attributes, self.centred, self.source, self.centre)

    def similarities(self, names: Sequence[str]) -> Tensor:
        """Similarities of the named classes; 1 on the diagonal, 0 to a class that has no attributes."""
        if missing := [name for name in names if name not in self._rows]:
            raise missing_classes(self.source, missing, "add its row")
        return cosine(self.values[torch.tensor([self._rows[name] for name in names], dtype=torch.long)])
