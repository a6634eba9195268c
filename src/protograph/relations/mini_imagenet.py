"""Similarities of the classes of miniImageNet by WordNet and by their names: shipped, so that no source is needed."""

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import torch
from torch import Tensor

from protograph.relations.matrix import MatrixRelation


@dataclass(frozen=True)
class KnownClass:
    """A class of miniImageNet.

    Attributes:
        id: Its id in WordNet 3.0.
        name: Its name in WordNet.
        split: The part of the split it belongs to: train, val or test.

    """

    id: str
    name: str
    split: str


def mini_imagenet_classes() -> dict[str, KnownClass]:
    """Return the 100 classes of miniImageNet by id, in the split of Ravi & Larochelle: 64 train, 16 val, 20 test."""
    return {known[0]: KnownClass(*known) for known in _shipped()["classes"]}


def mini_imagenet_relation() -> MatrixRelation:
    """Return the WordNet path similarity of the classes of miniImageNet, by id."""
    return MatrixRelation(1 / (1 + _symmetric(_shipped()["distances"])), list(mini_imagenet_classes()), "wordnet")


def mini_imagenet_names() -> MatrixRelation:
    """Return the cosine of the class names of miniImageNet as `SentenceRelation` reads them, to four digits, by id."""
    cosines = _symmetric(_shipped("mini_imagenet_names.json")["cosines"]) / 10_000
    return MatrixRelation(cosines.fill_diagonal_(1), list(mini_imagenet_classes()), "names")


def _symmetric(lines: list[list[int]]) -> Tensor:
    """Return the symmetric matrix [V, V] whose entries above the diagonal are given row by row; 0 on the diagonal."""
    size = len(lines[0]) + 1
    matrix = torch.zeros(size, size)
    rows, columns = torch.triu_indices(size, size, 1)
    matrix[rows, columns] = torch.tensor([number for line in lines for number in line]).float()
    return matrix + matrix.T


@cache
def _shipped(name: str = "mini_imagenet.json") -> dict[str, Any]:
    text = resources.files("protograph.relations").joinpath(name).read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content
