"""The paper's conclusions as checks on the ledger: each names the cells it compares, by how much they differ, how certainly.

What is compared follows the paper's wording, not its numbers: all cells the sentence is about, by Joint-Joint and H-Mean, the
two it argues with, or by the measure it names. The same checks are made on the paper's own numbers, which do not bear out all.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import variance
from typing import Literal

from protograph.config import RECIPES
from protograph.evaluation import MEASURES
from protograph.paper.grid import FIGURE_SHOTS, FIGURE_VARIANTS, SHOTS, Task
from protograph.paper.ledger import Entry, Score, Scores, scores
from protograph.paper.published import PAPER_DATASETS, VARIANT_OF, Cell, few_shot_rows, published

BOTH = ("joint_joint", "h_mean")
SIDE = ("gcgpn", "gcgpn-aux", "gcgpn-split", "gcgpn-aux-split")
ABLATIONS = ("gcgpn-aux-fc", "gcgpn-aux-sn")  # side information, too, but on CUB alone
COMPUTED = ("gcgpn-cos-aux", "gcgpn-l2-aux")
WITHOUT = "gcgpn-cos-aux"  # what side information is held against
# 97.5 % points of Student's t for 1, 2, ... degrees of freedom; beyond, 1.96 is near enough
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09)

Reading = Literal["every", "most", "mean"]
READINGS: dict[Reading, str] = {
    "every": "in every comparison",
    "most": "in more than half of the comparisons",
    "mean": "in the mean over the comparisons",
}
HOLDS, HOLDS_NOT, UNDECIDED, MISSING = "holds", "holds not", "undecided", "cells missing"


@dataclass(frozen=True)
class Spread:
    """How much a measure differs between seeds: the standard deviation, and from how many degrees of freedom it is known."""

    deviation: float
    freedom: int


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a measure of a cell, times a factor; or a number that the paper quotes, under its name."""

    cell: Cell
    measure: str
    factor: float = 1.0
    quoted: Score | None = None
    name: str = ""

    def part(self, known: Mapping[Cell, Scores], between: Mapping[str, Spread]) -> "Part | None":
        """What is known of it, and how much that measure differs between seeds."""
        if self.quoted is not None:
            return Part(self, self.quoted)
        if self.cell not in known:
            return None
        found, spread = known[self.cell][self.measure], between.get(self.measure)
        score = Score(tuple(self.factor * value for value in found.values), self.factor * found.ci95)
        return Part(self, score, Spread(self.factor * spread.deviation, spread.freedom) if spread else None)


@dataclass(frozen=True)
class Part:
    """A score in a sum of scores.

    spread: of its measure between seeds, as the cells that have several show it
    """

    side: Side
    score: Score
    spread: Spread | None = None
    share: float = 1.0


_ANY = Cell("", 0, "")


@dataclass(frozen=True)
class Comparison:
    """`one` is above `other`; where not `above`, it is not."""

    one: Side
    other: Side
    above: bool = True

    def parts(self, known: Mapping[Cell, Scores], between: Mapping[str, Spread]) -> "tuple[Part, Part] | None":
        """What is known of both sides; None where a cell is not there."""
        one, other = self.one.part(known, between), self.other.part(known, between)
        return None if one is None or other is None else (one, other)

    def __str__(self) -> str:
        one, other, sign = self.one, self.other, ">" if self.above else "not above"
        if one.measure != other.measure:
            return f"{one.cell}: {one.factor:g} x {MEASURES[one.measure]} {sign} {MEASURES[other.measure]}"
        where = f"{one.cell.dataset} {one.cell.shots}-shot {MEASURES[one.measure]}"
        return f"{where}: {one.cell.variant} {sign} {other.name or other.cell.variant}"


@dataclass(frozen=True)
class Conclusion:
    """One conclusion of the paper's, and the comparisons it stands for.

    wording: what the paper says, and of what
    reading: of how many of the comparisons that has to be true
    """

    claim: str
    wording: str
    comparisons: tuple[Comparison, ...]
    reading: Reading = "every"


@dataclass(frozen=True)
class Difference:
    """How far apart two scores are.

    ci95: half of the 95 % interval of the difference
    by_seeds: it comes from the seeds of these very cells
    """

    mean: float
    ci95: float
    by_seeds: bool

    @property
    def certain(self) -> bool:
        """Whether the interval is on one side of 0."""
        return abs(self.mean) > self.ci95

    def __str__(self) -> str:
        return f"{self.mean:+.2f} ± {self.ci95:.2f}{'' if self.by_seeds else ' *'}"


@dataclass(frozen=True)
class Outcome:
    """What some numbers say of a conclusion: a difference for every comparison, None where a cell is not there."""

    conclusion: Conclusion
    differences: tuple[Difference | None, ...]
    means: dict[str, Difference]

    @property
    def signs(self) -> list[bool | None]:
        """Of every comparison that can be made, whether it is certainly as claimed, certainly not, or (None) uncertain."""
        pairs = zip(self.conclusion.comparisons, self.differences, strict=True)
        return [sign(comparison, found) for comparison, found in pairs if found is not None]

    @property
    def by_seeds(self) -> bool:
        """Whether every comparison that can be made is one between several seeds of these very cells."""
        return all(found.by_seeds for found in self.differences if found is not None)

    @property
    def missing(self) -> int:
        """How many comparisons lack a cell."""
        return self.differences.count(None)

    @property
    def as_claimed(self) -> int:
        """How many comparisons come out as claimed, certainly or not."""
        pairs = zip(self.conclusion.comparisons, self.differences, strict=True)
        return sum(agrees(comparison, found) for comparison, found in pairs if found is not None)

    @property
    def verdict(self) -> str:
        """'holds' and 'holds not' are certain; without enough cells for that, 'cells missing', else 'undecided'."""
        reading, signs, count = self.conclusion.reading, self.signs, len(self.differences)
        if reading == "mean":
            above = self.conclusion.comparisons[0].above
            verdicts = [(found.mean > 0) == above if found.certain else None for found in self.means.values()]
            if self.missing:
                return MISSING
            return HOLDS_NOT if False in verdicts else UNDECIDED if None in verdicts else HOLDS
        needed, allowed = (count, 0) if reading == "every" else (count // 2 + 1, (count - 1) // 2)
        if signs.count(False) > allowed:
            return HOLDS_NOT
        if signs.count(True) >= needed:
            return HOLDS
        return MISSING if self.missing else UNDECIDED

    def __str__(self) -> str:
        made = len(self.signs)
        if not made:
            return self.verdict
        means = ", ".join(f"{MEASURES[measure]} {found}" for measure, found in self.means.items())
        sure, against = self.signs.count(True), self.signs.count(False)
        counts = f"{self.as_claimed} of {made} as claimed, {sure} certainly; {against} certainly not"
        lacking = f"; {self.missing} not yet possible" if self.missing else ""
        return f"{self.verdict} ({counts}{lacking}; mean {means})"


@dataclass(frozen=True)
class Finding:
    """A conclusion checked by one recipe's cells, beside what the paper's own numbers say of it."""

    conclusion: Conclusion
    recipe: str
    here: Outcome
    paper: Outcome

    def __str__(self) -> str:
        theirs = f"the paper's own numbers: {self.paper.verdict}"
        return f"{self.here.verdict}: {self.conclusion.claim} (recipe {self.recipe}; {theirs})"


def agrees(comparison: Comparison, found: Difference) -> bool:
    """Whether a difference is as claimed, certainly or not."""
    return (found.mean > 0) == comparison.above


def sign(comparison: Comparison, found: Difference) -> bool | None:
    """Whether a difference is certainly as claimed, certainly not, or uncertain."""
    return agrees(comparison, found) if found.certain else None


def spreads(known: Mapping[Cell, Scores]) -> dict[str, Spread]:
    """Of each measure, how much it differs between seeds, pooled over the cells that have several; nothing where none has."""
    found = {}
    for name in MEASURES:
        several = [own[name].values for own in known.values() if len(own[name].values) > 1]
        if freedom := sum(len(values) - 1 for values in several):
            squares = sum((len(values) - 1) * variance(values) for values in several)
            found[name] = Spread(math.sqrt(squares / freedom), freedom)
    return found


def contrast(parts: Sequence[Part]) -> Difference:
    """A weighted sum of scores with its 95 % interval.

    Where all of them have several seeds, by Welch and Satterthwaite from those alone. Otherwise from the intervals over test
    episodes together with the spread between seeds that other cells show, where any has several.
    """
    mean = sum(part.share * part.score.mean for part in parts)
    counts = [len(part.score.values) for part in parts]
    if min(counts) > 1:
        own = [part.share**2 * variance(part.score.values) / count for part, count in zip(parts, counts, strict=True)]
        if not sum(own):
            return Difference(mean, 0.0, by_seeds=True)
        freedom = sum(own) ** 2 / sum(each**2 / (count - 1) for each, count in zip(own, counts, strict=True))
        return Difference(mean, student(freedom) * math.sqrt(sum(own)), by_seeds=True)
    halves = [part.share * part.score.ci95 for part in parts]
    halves += [
        student(part.spread.freedom) * part.share * part.spread.deviation / math.sqrt(count)
        for part, count in zip(parts, counts, strict=True)
        if part.spread
    ]
    return Difference(mean, math.hypot(*halves), by_seeds=False)


def student(freedom: float) -> float:
    """The 97.5 % point of Student's t."""
    return STUDENT[int(freedom) - 1] if freedom < len(STUDENT) + 1 else 1.96


def difference(one: Part, other: Part) -> Difference:
    """One score less another."""
    return contrast((one, replace(other, share=-other.share)))


def apart(known: Mapping[Cell, Scores], one: Cell, other: Cell, measure: str) -> Difference | None:
    """A measure of one cell less that of another; None where one of them is not there."""
    parts = Comparison(Side(one, measure), Side(other, measure)).parts(known, spreads(known))
    return difference(*parts) if parts else None


def mean_difference(pairs: Sequence[tuple[Part, Part]]) -> Difference:
    """The mean of several differences; a score that is part of several of them is uncertain once."""
    shares: dict[Side, float] = {}
    parts: dict[Side, Part] = {}
    for one, other in pairs:
        for part, share in ((one, 1 / len(pairs)), (other, -1 / len(pairs))):
            side = replace(part.side, cell=_ANY) if part.side.quoted else part.side  # one number, whatever it is held against
            parts[side], shares[side] = part, shares.get(side, 0.0) + share
    return contrast([replace(part, share=shares[side]) for side, part in parts.items()])


def conclusions(ledger: Mapping[Task, Entry]) -> list[Finding]:
    """Every conclusion, by every recipe of which the ledger has a cell of the paper's."""
    recipes = {task.recipe for task in ledger if task.cell in published()}
    return [check(each, recipe, scores(ledger, recipe)) for recipe in RECIPES if recipe in recipes for each in CONCLUSIONS]


def check(conclusion: Conclusion, recipe: str, known: Mapping[Cell, Scores]) -> Finding:
    """A conclusion by what is known of each cell, beside what the paper's own numbers say of it."""
    return Finding(conclusion, recipe, outcome(conclusion, known), outcome(conclusion, paper_scores()))


def outcome(conclusion: Conclusion, known: Mapping[Cell, Scores]) -> Outcome:
    """What these numbers say of a conclusion."""
    between = spreads(known)
    differences: list[Difference | None] = []
    by_measure: dict[str, list[tuple[Part, Part]]] = {}
    for comparison in conclusion.comparisons:
        parts = comparison.parts(known, between)
        differences.append(difference(*parts) if parts else None)
        if parts:
            by_measure.setdefault(comparison.other.measure, []).append(parts)
    return Outcome(conclusion, tuple(differences), {name: mean_difference(pairs) for name, pairs in by_measure.items()})


@cache
def paper_scores() -> dict[Cell, Scores]:
    """The published numbers, as if each were of one seed."""
    return {
        cell: {name: Score((measure.mean,), measure.ci95) for name, measure in measures.items()}
        for cell, measures in published().items()
    }


def summary(findings: list[Finding]) -> list[str]:
    """One line for each."""
    return [str(finding) for finding in findings]


def _pairs(
    pairs: list[tuple[str, str]],
    datasets: tuple[str, ...] = PAPER_DATASETS,
    shots: tuple[int, ...] = SHOTS,
    measures: tuple[str, ...] = BOTH,
    above: bool = True,
) -> tuple[Comparison, ...]:
    """Each first variant against its second on every dataset, K and measure."""
    return tuple(
        Comparison(Side(Cell(dataset, k, one), measure), Side(Cell(dataset, k, other), measure), above)
        for dataset in datasets
        for k in shots
        for one, other in pairs
        for measure in measures
    )


def _collapse() -> tuple[Comparison, ...]:
    cells = [Cell(dataset, k, "pn+") for dataset in PAPER_DATASETS for k in SHOTS]
    return tuple(Comparison(Side(cell, "novel_novel", 0.5), Side(cell, "novel_joint")) for cell in cells)


def _few_shot() -> tuple[Comparison, ...]:
    """Every GFSL method of the paper's table against the best few-shot method it quotes for that K."""
    compared = []
    for k in SHOTS:
        best = max((row for row in few_shot_rows() if row.kind == "FSL"), key=lambda row: row.novel_novel[k].mean)
        quoted = best.novel_novel[k]
        for row in few_shot_rows():
            if row.kind == "GFSL":
                cell = Cell("mini-imagenet", k, VARIANT_OF[row.model])
                other = Side(cell, "novel_novel", quoted=Score((quoted.mean,), quoted.ci95), name=f"{best.model}, as published")
                compared.append(Comparison(Side(cell, "novel_novel"), other))
    return tuple(compared)


CONCLUSIONS = (
    Conclusion(
        "side information is better than the cosine of prototypes",
        "against GcGPN-cos-aux it has a clear effect, of around 3 % (said of CUB, checked on both)",
        _pairs([(variant, WITHOUT) for variant in SIDE]) + _pairs([(variant, WITHOUT) for variant in ABLATIONS], ("cub",)),
        "mean",
    ),
    Conclusion(
        "the auxiliary operators help beside side information",
        "on miniImageNet GcGPN gains by them at both K, and on CUB improvements are observed",
        _pairs([("gcgpn-aux", "gcgpn"), ("gcgpn-aux-split", "gcgpn-split")]),
    ),
    Conclusion(
        "the auxiliary operators help beside relations computed from prototypes",
        "they increase performance overall",
        _pairs([("gcgpn-cos-aux", "gcgpn-cos"), ("gcgpn-l2-aux", "gcgpn-l2")]),
        "most",
    ),
    Conclusion(
        "splitting the operator helps on miniImageNet",
        "GcGPN gains by it at both K",
        _pairs([("gcgpn-split", "gcgpn"), ("gcgpn-aux-split", "gcgpn-aux")], ("mini-imagenet",)),
    ),
    Conclusion(
        "splitting the operator does not help on CUB",
        "unlike on miniImageNet it brings no benefit",
        _pairs([("gcgpn-split", "gcgpn"), ("gcgpn-aux-split", "gcgpn-aux")], ("cub",), above=False),
    ),
    Conclusion(
        "full transforms discriminate better on CUB at one shot",
        "more capacity behind the convolution improves the discriminative power in the 1-shot task",
        _pairs([("gcgpn-aux-fc", "gcgpn-aux")], ("cub",), (1,)),
    ),
    Conclusion(
        "distance is slightly better than cosine",
        "generally, L2 seems to have a slight advantage",
        _pairs([("gcgpn-l2", "gcgpn-cos"), ("gcgpn-l2-aux", "gcgpn-cos-aux")]),
        "most",
    ),
    Conclusion(
        "PN+ collapses: Novel-Joint is below half of Novel-Novel",
        "its accuracy on novel queries drops drastically from the novel to the joint label space (taken as: to less than half)",
        _collapse(),
    ),
    Conclusion(
        "DFSLwoF keeps an edge over relations computed from prototypes on miniImageNet",
        "it maintains one over GcGPN-cos-aux and GcGPN-l2-aux",
        _pairs([("dfslwof-att", variant) for variant in COMPUTED], ("mini-imagenet",)),
    ),
    Conclusion(
        "relations computed from prototypes are better than DFSLwoF on CUB",
        "GcGPN-cos-aux and GcGPN-l2-aux outperform it by Joint-Joint and H-Mean",
        _pairs([(variant, "dfslwof-att") for variant in COMPUTED], ("cub",)),
    ),
    Conclusion(
        "every GcGPN with side information is better than DFSLwoF on CUB",
        "already the simplest outperforms the baselines, at both K and by both measures",
        _pairs([(variant, "dfslwof-att") for variant in (*SIDE, *ABLATIONS)], ("cub",)),
    ),
    Conclusion(
        "that gain on CUB is one of Novel-Joint",
        "the improvements stem from a significant increase of it",
        _pairs([(variant, "dfslwof-att") for variant in (*SIDE, *ABLATIONS)], ("cub",), measures=("novel_joint",)),
    ),
    Conclusion(
        "GcGPN is better than DFSLwoF on CUB at every K",
        "its variants are consistently above it in the figure of Joint-Joint against K",
        _pairs(
            [(variant, "dfslwof-att") for variant in FIGURE_VARIANTS if variant != "dfslwof-att"],
            ("cub",),
            FIGURE_SHOTS,
            ("joint_joint",),
        ),
    ),
    Conclusion(
        "the best GcGPN is better than DFSLwoF on miniImageNet at one shot",
        "GcGPN-aux-split has the best Joint-Joint and H-Mean there",
        _pairs([("gcgpn-aux-split", "dfslwof-att")], ("mini-imagenet",), (1,)),
    ),
    Conclusion(
        "all relations are better than those from seen to novel alone",
        "restricting the graph to them harms the performance on CUB",
        _pairs([("gcgpn-aux", "gcgpn-aux-sn")], ("cub",)),
    ),
    Conclusion(
        "GFSL models are better than few-shot ones on Novel-Novel",
        "GFSL methods outperform few-shot methods even on few-shot tasks (all of its table against the best quoted)",
        _few_shot(),
    ),
    Conclusion(
        "side information improves Novel-Novel further",
        "exploiting relations between classes improves it beyond DFSLwoF on miniImageNet",
        _pairs([(variant, "dfslwof-att") for variant in SIDE], ("mini-imagenet",), measures=("novel_novel",)),
    ),
)
