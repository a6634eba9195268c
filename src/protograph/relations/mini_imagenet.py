"""What WordNet knows of the classes of miniImageNet, shipped, so that nothing needs to be installed for it."""

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import torch

from protograph.relations.matrix import MatrixRelation


@dataclass(frozen=True)
class KnownClass:
    """A class by WordNet 3.0: its id, its name there, and the part of the split it belongs to: train, val or test."""

    id: str
    name: str
    split: str


def mini_imagenet_classes() -> dict[str, KnownClass]:
    """The 100 classes of miniImageNet by id, in the split of Ravi & Larochelle: 64 for train, 16 for val, 20 for test."""
    return {known[0]: KnownClass(*known) for known in _shipped()["classes"]}


def mini_imagenet_relation() -> MatrixRelation:
    """WordNet path similarity of the classes of miniImageNet, by id."""
    ids = list(mini_imagenet_classes())
    distances = torch.zeros(len(ids), len(ids))
    rows, columns = torch.triu_indices(len(ids), len(ids), 1)
    distances[rows, columns] = torch.tensor([steps for line in _shipped()["distances"] for steps in line]).float()
    return MatrixRelation(1 / (1 + distances + distances.T), ids, "wordnet")


@cache
def _shipped() -> dict[str, Any]:
    text = resources.files("protograph.relations").joinpath("mini_imagenet.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
