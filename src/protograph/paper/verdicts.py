"""What the ledger, and the paper's own numbers, say of the paper's conclusions.

The paper's numbers do not support all of its conclusions. They are of single runs, so their spread between seeds is taken
to be the one measured here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

from protograph.paper.claims import CONCLUSIONS, Comparison, Conclusion
from protograph.paper.grid import Task
from protograph.paper.ledger import Entry, scores
from protograph.paper.published import Cell, published
from protograph.paper.statistics import (
    LEVEL,
    Difference,
    Score,
    Scores,
    Spreads,
    Term,
    best_spreads,
    contrast,
    difference,
    mean_terms,
    merged,
)
from protograph.training.recipes import RECIPES

SUPPORTED, CONTRADICTED, INCONCLUSIVE, MISSING = "supported", "contradicted", "inconclusive", "cells missing"


@dataclass(frozen=True)
class Outcome:
    """What one set of numbers says of a conclusion.

    Attributes:
        conclusion: The conclusion.
        terms: Both sides of every comparison; None where a cell is missing.

    """

    conclusion: Conclusion
    terms: tuple[tuple[Term, Term] | None, ...]

    @cached_property
    def differences(self) -> tuple[Difference | None, ...]:
        """The difference of every comparison."""
        return tuple(difference(*pair) if pair else None for pair in self.terms)

    @cached_property
    def sums(self) -> dict[str, list[Term]]:
        """The terms of the mean difference, by the quantity compared."""
        pairs: dict[str, list[tuple[Term, Term]]] = {}
        for comparison, pair in zip(self.conclusion.comparisons, self.terms, strict=True):
            if pair:
                pairs.setdefault(comparison.quantity, []).append(pair)
        return {quantity: mean_terms(of_quantity) for quantity, of_quantity in pairs.items()}

    @cached_property
    def means(self) -> dict[str, Difference]:
        """The mean differences, by the quantity compared."""
        return {quantity: contrast(terms) for quantity, terms in self.sums.items()}

    @property
    def compared(self) -> list[tuple[Comparison, Difference]]:
        """The comparisons whose cells are known, with their differences."""
        pairs = zip(self.conclusion.comparisons, self.differences, strict=True)
        return [(comparison, gap) for comparison, gap in pairs if gap is not None]

    @property
    def signs(self) -> list[bool | None]:
        """Whether each of these is certainly as claimed (True), certainly not (False), or uncertain (None).

        One comparison refutes a claim about every comparison. The more comparisons there are, the more certain it must be.
        """
        strict = LEVEL / len(self.differences) if self.conclusion.reading == "every" else LEVEL
        pairs = [(comparison.sign(gap), comparison.sign(gap, strict)) for comparison, gap in self.compared]
        return [False if refuted is False else sign or None for sign, refuted in pairs]

    @property
    def missing(self) -> int:
        """The number of comparisons that lack a cell."""
        return self.differences.count(None)

    @property
    def agreeing(self) -> int:
        """The number of comparisons that come out as claimed, certain or not."""
        return sum(comparison.agrees(gap) for comparison, gap in self.compared)

    @property
    def verdict(self) -> str:
        """Whether the conclusion is certainly supported or contradicted; else inconclusive, or cells are missing."""
        reading, signs, count = self.conclusion.reading, self.signs, len(self.differences)
        if reading == "mean":
            if self.missing:
                return MISSING
            claim, means = self.conclusion.comparisons[0], self.means.values()
            refuted = any(claim.sign(mean, LEVEL / len(means)) is False for mean in means)
            shown = all(claim.sign(mean) for mean in means)
        elif reading == "every":
            refuted, shown = False in signs, signs.count(True) == count
        else:
            refuted, shown = signs.count(False) > (count - 1) // 2, signs.count(True) > count // 2
        return CONTRADICTED if refuted else SUPPORTED if shown else MISSING if self.missing else INCONCLUSIVE

    @property
    def counts(self) -> str:
        """How many comparisons come out as claimed, and how many certainly, as text."""
        certain, against = self.signs.count(True), self.signs.count(False)
        lacking = f"; {self.missing} without cells" if self.missing else ""
        return f"{self.agreeing} of {len(self.compared)} as claimed, {certain} certainly; {against} certainly not{lacking}"

    @property
    def mean(self) -> str:
        """The mean differences as text."""
        return differences_text(self.means)

    def __str__(self) -> str:
        return f"{self.verdict} ({self.counts}; mean {self.mean})" if self.compared else self.verdict


@dataclass(frozen=True)
class Finding:
    """What one recipe's cells and the paper's own numbers say of a conclusion."""

    conclusion: Conclusion
    recipe: str
    ours: Outcome
    paper: Outcome

    @property
    def gaps(self) -> dict[str, Difference]:
        """How much our mean differences exceed the paper's, where no cell is missing on either side."""
        if self.ours.missing or self.paper.missing:
            return {}
        negated = {
            quantity: [replace(term, weight=-term.weight) for term in terms] for quantity, terms in self.paper.sums.items()
        }
        return {quantity: contrast(merged([*terms, *negated[quantity]])) for quantity, terms in self.ours.sums.items()}

    def __str__(self) -> str:
        counts = f"{self.ours.counts}; " if self.ours.compared else ""
        paper = f"the paper's own numbers: {self.paper.verdict}"
        return f"{self.ours.verdict}: {self.conclusion.claim} ({counts}recipe {self.recipe}; {paper})"


def differences_text(differences: Mapping[str, Difference]) -> str:
    """Return differences as text, each behind its quantity."""
    return ", ".join(f"{quantity} {gap}" for quantity, gap in differences.items())


def check_conclusions(ledger: Mapping[Task, Entry]) -> list[Finding]:
    """Check every conclusion by every recipe of which the ledger has a cell of the paper's tables."""
    known = {recipe: scores(ledger, recipe) for recipe in RECIPES}
    spreads = best_spreads(known.values())
    shown = [recipe for recipe, cells in known.items() if any(cell in published() for cell in cells)]
    return [check_conclusion(conclusion, recipe, known[recipe], spreads) for recipe in shown for conclusion in CONCLUSIONS]


def check_conclusion(conclusion: Conclusion, recipe: str, known: Mapping[Cell, Scores], spreads: Spreads) -> Finding:
    """Check a conclusion by the known scores, and in the same way by the paper's own numbers.

    Args:
        conclusion: The conclusion.
        recipe: The recipe that the scores are by.
        known: The scores of each cell.
        spreads: How much measures differ between seeds.

    """
    return Finding(conclusion, recipe, _outcome(conclusion, known, spreads), _outcome(conclusion, paper_scores(), spreads))


@cache
def paper_scores() -> dict[Cell, Scores]:
    """Return the published numbers as scores of single runs that share nothing with ours."""
    return {
        cell: {name: Score((measure.mean,), measure.ci95, (f"published {cell}",)) for name, measure in measures.items()}
        for cell, measures in published().items()
    }


def _outcome(conclusion: Conclusion, known: Mapping[Cell, Scores], spreads: Spreads) -> Outcome:
    terms: list[tuple[Term, Term] | None] = []
    for comparison in conclusion.comparisons:
        left, right = comparison.left.term(known, spreads), comparison.right.term(known, spreads)
        terms.append((left, right) if left and right else None)
    return Outcome(conclusion, tuple(terms))
