"""The paper's conclusions as checks on the ledger: each names the cells it compares, by how much they differ, how certainly."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import variance

from protograph.config import RECIPES
from protograph.evaluation import MEASURES
from protograph.paper.grid import SHOTS, Task
from protograph.paper.ledger import Entry, Score, Scores, scores
from protograph.paper.published import Cell, few_shot_rows, published

BOTH = ("joint_joint", "h_mean")
DATASETS = ("mini-imagenet", "cub")
SIDE = ("gcgpn", "gcgpn-aux", "gcgpn-split", "gcgpn-aux-split")
RELATIONAL = ("gcgpn-cos-aux", *SIDE, "gcgpn-aux-fc", "gcgpn-aux-sn")
# 97.5 % points of Student's t for 1, 2, ... degrees of freedom; beyond, 1.96 is near enough
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09)


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a measure of a cell, times a factor; or a number that the paper quotes, under its name."""

    cell: Cell
    measure: str
    factor: float = 1.0
    quoted: Score | None = None
    name: str = ""

    def score(self, known: Mapping[Cell, Scores]) -> Score | None:
        """What is known of it."""
        if self.quoted is not None or self.cell not in known:
            return self.quoted
        found = known[self.cell][self.measure]
        return Score(tuple(self.factor * value for value in found.values), self.factor * found.ci95)


@dataclass(frozen=True)
class Comparison:
    """`one` is above `other`; where not `above`, it is not certainly above it."""

    one: Side
    other: Side
    above: bool = True

    def __str__(self) -> str:
        one, other, sign = self.one, self.other, ">" if self.above else "not above"
        if one.measure != other.measure:
            return f"{one.cell}: {one.factor:g} x {MEASURES[one.measure]} {sign} {MEASURES[other.measure]}"
        where = f"{one.cell.dataset} {one.cell.shots}-shot {MEASURES[one.measure]}"
        return f"{where}: {one.cell.variant} {sign} {other.name or other.cell.variant}"


@dataclass(frozen=True)
class Conclusion:
    """One sentence of the paper's, and the comparisons it stands for.

    mostly: the paper says "generally": more than half of them have to come out as claimed, not all
    """

    claim: str
    comparisons: tuple[Comparison, ...]
    mostly: bool = False


@dataclass(frozen=True)
class Difference:
    """How far apart two scores are.

    ci95: half of the 95 % interval of the difference
    by_seeds: it comes from the spread between seeds; otherwise only from the intervals over test episodes
    """

    mean: float
    ci95: float
    by_seeds: bool

    @property
    def certain(self) -> bool:
        """Whether the interval is on one side of 0."""
        return abs(self.mean) > self.ci95

    def __str__(self) -> str:
        return f"{self.mean:+.2f} ± {self.ci95:.2f}"


@dataclass(frozen=True)
class Finding:
    """A conclusion checked by one recipe's cells; a difference is None where a cell is not there yet."""

    conclusion: Conclusion
    recipe: str
    differences: tuple[Difference | None, ...]
    paper: tuple[Difference | None, ...]

    @property
    def agreeing(self) -> list[bool]:
        """Of the comparisons that can be made, which come out as claimed."""
        pairs = zip(self.conclusion.comparisons, self.differences, strict=True)
        return [agrees(comparison, found) for comparison, found in pairs if found is not None]

    @property
    def verdict(self) -> str:
        """'holds', 'does not hold' or 'not enough cells yet'."""
        count, against = len(self.differences), self.agreeing.count(False)
        if against >= (count / 2 if self.conclusion.mostly else 1):
            return "does not hold"
        return "holds" if len(self.agreeing) == count else "not enough cells yet"

    @property
    def certain(self) -> int:
        """How many comparisons have an interval that leaves out 0."""
        return sum(found is not None and found.certain for found in self.differences)

    def __str__(self) -> str:
        made = len(self.agreeing)
        return (
            f"{self.verdict}: {self.conclusion.claim} ({sum(self.agreeing)} of {made} comparisons as claimed, "
            f"{self.certain} certain, {len(self.differences) - made} not yet possible; recipe {self.recipe})"
        )


def agrees(comparison: Comparison, found: Difference) -> bool:
    """Whether a difference is as claimed."""
    return found.mean > 0 if comparison.above else not (found.mean > 0 and found.certain)


def difference(one: Score, other: Score) -> Difference:
    """By Welch's interval where both sides have several seeds, otherwise from the intervals over episodes."""
    mean = one.mean - other.mean
    counts = len(one.values), len(other.values)
    if min(counts) < 2:
        return Difference(mean, math.hypot(one.ci95, other.ci95), by_seeds=False)
    parts = [variance(score.values) / len(score.values) for score in (one, other)]
    if not sum(parts):
        return Difference(mean, 0.0, by_seeds=True)
    freedom = sum(parts) ** 2 / sum(part**2 / (count - 1) for part, count in zip(parts, counts, strict=True))
    student = STUDENT[int(freedom) - 1] if freedom < len(STUDENT) + 1 else 1.96
    return Difference(mean, student * math.sqrt(sum(parts)), by_seeds=True)


def conclusions(ledger: Mapping[Task, Entry]) -> list[Finding]:
    """Every conclusion, by every recipe of which the ledger has a cell of the paper's."""
    recipes = {task.recipe for task in ledger if task.cell in published()}
    return [check(each, recipe, scores(ledger, recipe)) for recipe in RECIPES if recipe in recipes for each in CONCLUSIONS]


def check(conclusion: Conclusion, recipe: str, known: Mapping[Cell, Scores]) -> Finding:
    """A conclusion by what is known of each cell, beside what the paper's own numbers say of it."""
    ours, theirs = (
        tuple(_difference(comparison, where) for comparison in conclusion.comparisons) for where in (known, _paper_scores())
    )
    return Finding(conclusion, recipe, ours, theirs)


@cache
def _paper_scores() -> dict[Cell, Scores]:
    """The published numbers, as if each were of one seed."""
    return {
        cell: {name: Score((measure.mean,), measure.ci95) for name, measure in measures.items()}
        for cell, measures in published().items()
    }


def summary(findings: list[Finding]) -> list[str]:
    """One line for each."""
    return [str(finding) for finding in findings]


def _difference(comparison: Comparison, known: Mapping[Cell, Scores]) -> Difference | None:
    one, other = comparison.one.score(known), comparison.other.score(known)
    return None if one is None or other is None else difference(one, other)


def _pairs(
    pairs: list[tuple[str, str]],
    datasets: tuple[str, ...] = DATASETS,
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
    cells = [Cell(dataset, k, "pn+") for dataset in DATASETS for k in SHOTS]
    return tuple(Comparison(Side(cell, "novel_novel", 0.5), Side(cell, "novel_joint")) for cell in cells)


def _few_shot() -> tuple[Comparison, ...]:
    """Against the best few-shot method the paper quotes for that K."""
    compared = []
    for k in SHOTS:
        best = max((row for row in few_shot_rows() if row.kind == "FSL"), key=lambda row: row.novel_novel[k].mean)
        quoted = best.novel_novel[k]
        for variant in ("dfslwof-att", *SIDE):
            cell = Cell("mini-imagenet", k, variant)
            other = Side(cell, "novel_novel", quoted=Score((quoted.mean,), quoted.ci95), name=f"{best.model}, as published")
            compared.append(Comparison(Side(cell, "novel_novel"), other))
    return tuple(compared)


CONCLUSIONS = (
    Conclusion("side information is better than the cosine of prototypes", _pairs([("gcgpn-aux", "gcgpn-cos-aux")])),
    Conclusion("the auxiliary operators help beside side information", _pairs([("gcgpn-aux", "gcgpn")])),
    Conclusion(
        "the auxiliary operators help beside relations computed from prototypes (Joint-Joint)",
        _pairs([("gcgpn-cos-aux", "gcgpn-cos"), ("gcgpn-l2-aux", "gcgpn-l2")], measures=("joint_joint",)),
    ),
    Conclusion(
        "splitting the operator helps on miniImageNet",
        _pairs([("gcgpn-aux-split", "gcgpn-aux"), ("gcgpn-split", "gcgpn")], ("mini-imagenet",)),
    ),
    Conclusion(
        "splitting the operator does not help on CUB (Joint-Joint)",
        _pairs([("gcgpn-aux-split", "gcgpn-aux")], ("cub",), measures=("joint_joint",), above=False),
    ),
    Conclusion(
        "full transforms discriminate better on CUB at one shot",
        _pairs([("gcgpn-aux-fc", "gcgpn-aux")], ("cub",), (1,), ("seen_seen", "novel_novel", "h_mean")),
    ),
    Conclusion(
        "distance generally has a slight advantage over cosine (Joint-Joint)",
        _pairs([("gcgpn-l2", "gcgpn-cos"), ("gcgpn-l2-aux", "gcgpn-cos-aux")], measures=("joint_joint",)),
        mostly=True,
    ),
    Conclusion("PN+ collapses: Novel-Joint is below half of Novel-Novel", _collapse()),
    Conclusion(
        "DFSLwoF keeps an edge over the cosine of prototypes on miniImageNet",
        _pairs([("dfslwof-att", "gcgpn-cos-aux")], ("mini-imagenet",)),
    ),
    Conclusion(
        "the cosine of prototypes and every GcGPN with side information are better than DFSLwoF on CUB",
        _pairs([(variant, "dfslwof-att") for variant in RELATIONAL], ("cub",)),
    ),
    Conclusion(
        "the best GcGPN is better than DFSLwoF on miniImageNet at one shot",
        _pairs([("gcgpn-aux-split", "dfslwof-att")], ("mini-imagenet",), (1,)),
    ),
    Conclusion(
        "all relations are better than those from seen to novel alone", _pairs([("gcgpn-aux", "gcgpn-aux-sn")], ("cub",))
    ),
    Conclusion("DFSLwoF and GcGPN with side information beat few-shot methods on Novel-Novel", _few_shot()),
    Conclusion(
        "relations improve Novel-Novel further",
        _pairs([("gcgpn-aux-split", "dfslwof-att")], ("mini-imagenet",), measures=("novel_novel",)),
    ),
)
