"""What a relation is, and what is checked of every similarity matrix. V classes."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from protograph.errors import InputError


class Relation(Protocol):
    """A source of side information that can say how similar any of its classes are."""

    def similarities(self, names: Sequence[str]) -> Tensor:
        """Similarities [V, V] of the named classes, float32; dense or `torch.sparse`; entry (m, n) is what n means to m."""
        ...


def checked(similarities: Tensor, names: Sequence[str], source: str) -> Tensor:
    """The matrix itself, if it can serve as similarities of these classes."""
    if similarities.shape != (len(names), len(names)):
        shape = " x ".join(map(str, similarities.shape))
        raise InputError(
            f"relation '{source}' has a {shape} matrix for {len(names)} classes: give one row and column per class"
        )
    sparse = similarities.layout != torch.strided
    if sparse:
        similarities = similarities.to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
    similarities = similarities.float()
    values = similarities.values() if sparse else similarities
    if not bool(values.isfinite().all()):
        row, column = (
            (~values.isfinite()).nonzero()[0].tolist()
            if not sparse
            else similarities.indices()[:, ~values.isfinite()][:, 0].tolist()
        )
        raise InputError(
            f"relation '{source}' has no finite similarity between '{names[row]}' and '{names[column]}': "
            "replace NaN and infinity by a number"
        )
    return similarities
