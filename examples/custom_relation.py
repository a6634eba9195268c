"""Register a custom relation: classes are similar if a number, such as their size, is.

FILE is a .csv of class and number, without a header: sparrow,15

On the command line:

    protograph relations sizes:FILE --plugin examples/custom_relation.py
    protograph fit IMAGES --out birds.pg --relations sizes:FILE --plugin examples/custom_relation.py
    protograph train --dataset letters --relations sizes:FILE --plugin examples/custom_relation.py

In Python, after this file was imported: `Classifier().fit(images, labels, relations="sizes:FILE")`, or `SizeRelation(FILE)`.
"""

import csv
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import protograph as pg


class SizeRelation(pg.Relation):
    r"""Similarity [V, V] of classes with the numbers s: :math:`\exp(-|\ln s_m - \ln s_n|)`, the smaller over the larger.

    Args:
        path: A .csv of class and number.

    """

    def __init__(self, path: Path) -> None:
        with Path(path).open(newline="", encoding="utf-8") as file:
            self.sizes = {name: float(size) for name, size in csv.reader(file)}

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of the file."""
        return tuple(self.sizes)

    def similarities(self, names: Sequence[str]) -> Tensor:
        """Return the similarities [V, V] of the named classes."""
        if missing := [name for name in names if name not in self.sizes]:
            raise pg.MissingClassesError(f"relation 'sizes' has no size of class '{missing[0]}': add a row", missing)
        logarithms = torch.tensor([self.sizes[name] for name in names]).log()
        return (-(logarithms[:, None] - logarithms).abs()).exp()


pg.register_relation("sizes", SizeRelation, "sizes:FILE, a .csv of class and number")
