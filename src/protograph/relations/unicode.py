"""What Unicode knows of letters: base letter, accents, case, script."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from protograph._internal.errors import InputError

Trait = Literal["base", "accent", "case", "script"]


def traits(letter: str) -> set[tuple[Trait, str]]:
    """The traits of one letter: ê is {base LATIN E, accent CIRCUMFLEX, case SMALL, script LATIN}.

    Accents come from the canonical decomposition and from names ("O WITH STROKE"); a letter without any has the accent
    "NONE", so that plain letters are like one another in that, too.
    """
    if len(letter) != 1 or not unicodedata.category(letter).startswith("L"):
        raise InputError(f"'{letter}' is not a single letter of Unicode: the relation 'unicode' answers for letters only")
    base, *marks = list(unicodedata.normalize("NFD", letter))
    accents = {re.sub(r"^COMBINING | ACCENT$", "", unicodedata.name(mark)) for mark in marks}
    name, _, addition = unicodedata.name(base).partition(" WITH ")
    accents.update(part for part in addition.split(" AND ") if part)
    script, *rest = name.split()
    case = next((word for word in rest if word in ("SMALL", "CAPITAL")), "NONE")
    stem = " ".join(word for word in rest if word not in ("SMALL", "CAPITAL", "LETTER"))
    found: set[tuple[Trait, str]] = {("base", f"{script} {stem}"), ("case", case), ("script", script)}
    return found | {("accent", accent) for accent in accents or {"NONE"}}


def joint_traits(letter: str, alike: str = "") -> set[tuple[Trait, str]]:
    """The traits of a class: of its letter and of the letters that were merged into it."""
    return traits(letter).union(*map(traits, alike))


class UnicodeRelation:
    """Cosine similarity [V, V] of weighted letter traits; answers for any letter, new ones included.

    weights: how much each kind of trait counts; one that is not named does not count
    alike: for a class, the letters that look like it and were merged into it: such a class has the traits of all
    """

    def __init__(self, weights: Mapping[Trait, float], alike: Mapping[str, str] | None = None) -> None:
        self.weights = dict(weights)
        self.alike = dict(alike or {})

    def __str__(self) -> str:
        return f"cosine of letter traits ({', '.join(self.weights)})"

    def similarities(self, names: Sequence[str]) -> Tensor:
        """Similarities of the named letters; 1 on the diagonal."""
        described = [joint_traits(name, self.alike.get(name, "")) for name in names]
        columns = {trait: column for column, trait in enumerate(sorted({trait for found in described for trait in found}))}
        table = torch.zeros(len(names), len(columns))
        for row, found in zip(table, described, strict=True):
            for trait in found:
                row[columns[trait]] = self.weights.get(trait[0], 0.0)
        table = torch.nn.functional.normalize(table, dim=1)
        return table @ table.T
