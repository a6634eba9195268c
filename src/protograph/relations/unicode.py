"""Similarity of letters by what Unicode says of them: base letter, accents, case, script."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph.relations.base import Description, Relation
from protograph.relations.registry import register_relation

Trait = Literal["base", "accent", "case", "script"]


def traits(letter: str) -> set[tuple[Trait, str]]:
    """Return the traits of one letter: ê is {base LATIN E, accent CIRCUMFLEX, case SMALL, script LATIN}.

    Accents come from the canonical decomposition and from names ("O WITH STROKE"). A letter without any has the accent
    "NONE", so that plain letters are similar in that, too.

    Raises:
        InputError: The text is not a single letter.

    """
    if len(letter) != 1 or not unicodedata.category(letter).startswith("L"):
        raise InputError(f"'{letter}' is not a single letter: the relation 'unicode' relates letters only")
    base, *marks = list(unicodedata.normalize("NFD", letter))
    accents = {re.sub(r"^COMBINING | ACCENT$", "", unicodedata.name(mark)) for mark in marks}
    name, _, addition = unicodedata.name(base).partition(" WITH ")
    accents.update(part for part in addition.split(" AND ") if part)
    script, *rest = name.split()
    case = next((word for word in rest if word in ("SMALL", "CAPITAL")), "NONE")
    stem = " ".join(word for word in rest if word not in ("SMALL", "CAPITAL", "LETTER"))
    return {
        ("base", f"{script} {stem}"),
        ("case", case),
        ("script", script),
        *(("accent", accent) for accent in accents or {"NONE"}),
    }


def joint_traits(letter: str, alike: str = "") -> set[tuple[Trait, str]]:
    """Return the traits of a class: of its letter, and of the letters that look like it and were merged into it."""
    return traits(letter).union(*map(traits, alike))


class UnicodeRelation(Relation):
    """Cosine similarity [V, V] of weighted letter traits; it answers for any letter.

    Args:
        weights: How much each kind of trait counts; a kind without a weight does not count.
        alike: For a class, the letters that look like it and were merged into it. Such a class has the traits of all.

    """

    def __init__(self, weights: Mapping[Trait, float], alike: Mapping[str, str] | None = None) -> None:
        self.weights = dict(weights)
        self.alike = dict(alike or {})

    @classmethod
    def restore(cls, values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> "UnicodeRelation":
        """Return the relation that `describe` described."""
        return cls(values["weights"], values["alike"])

    def describe(self) -> Description:
        """Return the weights and the merged letters."""
        return {"kind": "unicode", "weights": self.weights, "alike": self.alike}, {}

    @property
    def summary(self) -> str:
        """The kinds of traits that count."""
        return f"cosine of letter traits ({', '.join(self.weights)})"

    def similarities(self, names: Sequence[str]) -> Tensor:
        """Return the similarities [V, V] of the named letters; 1 on the diagonal."""
        letters = [joint_traits(name, self.alike.get(name, "")) for name in names]
        columns = {trait: column for column, trait in enumerate(sorted({trait for letter in letters for trait in letter}))}
        table = torch.zeros(len(names), len(columns))
        for row, letter in zip(table, letters, strict=True):
            for trait in letter:
                row[columns[trait]] = self.weights.get(trait[0], 0.0)
        table = torch.nn.functional.normalize(table, dim=1)
        return table @ table.T


register_relation("unicode", restore=UnicodeRelation.restore)
