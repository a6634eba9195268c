"""Scores of cells and the uncertainty of their differences: functions of numbers, without tables or texts."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean, stdev, variance

from scipy.special import stdtrit

from protograph.paper.published import Cell
from protograph.variants import find_variant

LEVEL = 0.05  # the share of intervals that miss the true value

SpreadGroup = tuple[str, str, bool, str]  # dataset, objective or few-shot method, whether a second stage, measure
Draw = str | tuple[Cell, int]  # the source of randomness of a value: a shared first stage, or a seed of one cell


@dataclass(frozen=True)
class Score:
    """One measure of a cell over its seeds.

    Attributes:
        values: The value of each seed.
        ci95: The 95 % interval over test episodes of one seed; for several seeds, the mean of their intervals.
        draws: The first stage that each seed started from, which other cells may share; "" where a seed shares nothing. An
            empty tuple stands for all "".
        trained_further: Whether all weights were trained further after the shared first stage, so that seeds also differ on
            their own.

    """

    values: tuple[float, ...]
    ci95: float
    draws: tuple[str, ...] = ()
    trained_further: bool = False

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return fmean(self.values)

    @property
    def spread(self) -> float:
        """The standard deviation between seeds; for one seed, its interval over episodes."""
        return stdev(self.values) if len(self.values) > 1 else self.ci95

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.spread:.2f}"


Scores = dict[str, Score]  # by measure


@dataclass(frozen=True)
class Spread:
    """How much a measure differs between seeds of a cell.

    Attributes:
        group: The cells and the measure that the spread was estimated from.
        deviation: The standard deviation.
        freedom: The degrees of freedom of the estimate.

    """

    group: SpreadGroup
    deviation: float
    freedom: int


Spreads = Mapping[SpreadGroup, Spread]


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a measure of a cell, or a number that the paper quotes.

    Attributes:
        cell: The cell.
        measure: The measure's name.
        factor: What the measure is multiplied by.
        quoted: The quoted number, where the side is one.
        name: The name of the quoted number.

    """

    cell: Cell
    measure: str
    factor: float = 1.0
    quoted: Score | None = None
    name: str = ""

    def term(self, known: Mapping[Cell, Scores], spreads: Spreads) -> "Term | None":
        """Return this side as a term of a sum, or None where its cell is not known."""
        if self.quoted is not None:
            return Term(self, self.quoted, weight=self.factor)
        if self.cell not in known:
            return None
        return Term(self, known[self.cell][self.measure], spreads.get(spread_group(self.cell, self.measure)), self.factor)


@dataclass(frozen=True)
class Term:
    """A score in a weighted sum of scores.

    Attributes:
        side: What the score is of.
        score: The score.
        spread: How much its measure differs between seeds, where that is known.
        weight: What the score is multiplied by.

    """

    side: Side
    score: Score
    spread: Spread | None = None
    weight: float = 1.0


@dataclass(frozen=True)
class Difference:
    """The difference of two scores.

    Attributes:
        mean: The difference.
        error: Its standard error.
        freedom: The degrees of freedom of the error.
        seeds: Whether the error includes the spread between seeds.

    """

    mean: float
    error: float
    freedom: float = math.inf
    seeds: bool = True

    def half(self, level: float = LEVEL) -> float:
        """Return half the width of the interval that misses the true value with probability `level`."""
        return self.error * student_quantile(self.freedom, level)

    def __str__(self) -> str:
        return f"{self.mean:+.2f} ± {self.half():.2f}{'' if self.seeds else ' *'}"


_ANY_CELL = Cell("", 0, "")


@cache
def student_quantile(freedom: float = math.inf, level: float = LEVEL) -> float:
    """Return the point of Student's t that is exceeded, on either side, with probability `level`."""
    return float(stdtrit(min(freedom, 1e9), 1 - level / 2))


def spread_group(cell: Cell, measure: str) -> SpreadGroup:
    """Return the group of cells that are trained alike, over which the spread between seeds is pooled."""
    variant = find_variant(cell.variant)
    trained_alike = variant.method.name if variant.method else variant.objective
    return cell.dataset, trained_alike, variant.after is not None, measure


def pooled_spreads(known: Mapping[Cell, Scores]) -> dict[SpreadGroup, Spread]:
    """Return how much measures differ between draws, pooled over the cells of a group that have several draws.

    Cells whose second stages started from the same first stages differ together, so they count once in the degrees of
    freedom. A group without a cell of several draws has no spread.
    """
    by_group: dict[SpreadGroup, list[dict[Draw, float]]] = {}
    for cell, scores in known.items():
        for name, score in scores.items():
            if len(means := _means_by_draw(cell, score)) > 1:
                by_group.setdefault(spread_group(cell, name), []).append(means)
    spreads = {}
    for group, cells in by_group.items():
        weight = sum(len(means) - 1 for means in cells)
        squares = sum((len(means) - 1) * variance(means.values()) for means in cells)
        spreads[group] = Spread(group, math.sqrt(squares / weight), _degrees_of_freedom(cells))
    return spreads


def best_spreads(known: Iterable[Mapping[Cell, Scores]]) -> dict[SpreadGroup, Spread]:
    """Return for every group the spread by the recipe that has most degrees of freedom, to be used for all recipes.

    Args:
        known: The scores of each recipe.

    """
    best: dict[SpreadGroup, Spread] = {}
    for spread in (spread for cells in known for spread in pooled_spreads(cells).values()):
        if spread.group not in best or spread.freedom > best[spread.group].freedom:
            best[spread.group] = spread
    return best


def contrast(terms: Sequence[Term]) -> Difference:
    r"""Return a weighted sum of scores, :math:`\sum_i w_i x_i`, with its uncertainty.

    The variance is

    .. math:: \sum_i w_i^2 e_i^2 + \sum_d \sigma_d^2 \Big(\sum_{i \ni d} w_i / n_i\Big)^2

    from the error e of the test episodes, which all seeds of a cell share, and from the spread between draws d. A draw is one
    of the n seeds of a score, or a first stage, which moves all cells that started from it. Where seeds were trained further
    from a first stage, the share of the spread that each of the two causes is not known: the spread counts in full for both.
    The degrees of freedom follow Welch and Satterthwaite. The spread of a group keeps its degrees of freedom however many
    terms use it.
    """
    mean = sum(term.weight * term.score.mean for term in terms)
    episodes = sum((term.weight * term.score.ci95 / student_quantile()) ** 2 for term in terms)
    weights: dict[tuple[Spread, Draw], float] = {}
    for term in terms:
        if term.spread is not None:
            for index, draw in enumerate(_draws(term.side.cell, term.score)):
                seed: Draw = term.side.cell, index
                for key in {(term.spread, draw), (term.spread, seed if term.score.trained_further else draw)}:
                    weights[key] = weights.get(key, 0.0) + term.weight / len(term.score.values)
    variances: dict[Spread, float] = {}
    for (spread, _), weight in weights.items():
        variances[spread] = variances.get(spread, 0.0) + (weight * spread.deviation) ** 2
    total = episodes + sum(variances.values())
    estimated = sum(value**2 / spread.freedom for spread, value in variances.items())
    known = all(term.spread or term.side.quoted for term in terms)
    return Difference(mean, math.sqrt(total), total**2 / estimated if estimated else math.inf, known)


def difference(left: Term, right: Term) -> Difference:
    """Return the left score minus the right one."""
    return contrast((left, replace(right, weight=-right.weight)))


def cell_difference(known: Mapping[Cell, Scores], spreads: Spreads, left: Cell, right: Cell, measure: str) -> Difference | None:
    """Return a measure of the left cell minus that of the right one, or None where a cell is not known."""
    first, second = (Side(cell, measure).term(known, spreads) for cell in (left, right))
    return difference(first, second) if first and second else None


def mean_difference(pairs: Sequence[tuple[Term, Term]]) -> Difference:
    """Return the mean of several differences."""
    return contrast(mean_terms(pairs))


def mean_terms(pairs: Sequence[tuple[Term, Term]]) -> list[Term]:
    """Return the terms whose sum is the mean of several differences."""
    count = len(pairs)
    lefts = [replace(left, weight=left.weight / count) for left, _ in pairs]
    return merged([*lefts, *(replace(right, weight=-right.weight / count) for _, right in pairs)])


def merged(terms: Sequence[Term]) -> list[Term]:
    """Return the same sum with every score in it once, since a score of several terms is uncertain only once."""
    by_score: dict[tuple[Side, Score], Term] = {}
    for term in terms:
        # A quoted number is the same one, whichever cell it is compared with.
        side = replace(term.side, cell=_ANY_CELL) if term.side.quoted else term.side
        before = by_score[side, term.score].weight if (side, term.score) in by_score else 0.0
        by_score[side, term.score] = replace(term, weight=before + term.weight)
    return list(by_score.values())


def _draws(cell: Cell, score: Score) -> list[Draw]:
    """Return the draw of each value of a score."""
    shared = score.draws or ("",) * len(score.values)
    return [draw or (cell, index) for index, draw in enumerate(shared)]


def _means_by_draw(cell: Cell, score: Score) -> dict[Draw, float]:
    """Return the mean of a score's values for each draw."""
    values: dict[Draw, list[float]] = {}
    for draw, value in zip(_draws(cell, score), score.values, strict=True):
        values.setdefault(draw, []).append(value)
    return {draw: fmean(of_draw) for draw, of_draw in values.items()}


def _degrees_of_freedom(cells: Sequence[Iterable[Draw]]) -> int:
    """Count the different draws, less one for each group of cells that share draws."""
    groups: list[set[Draw]] = []
    for draws in cells:
        joined = [group for group in groups if not group.isdisjoint(draws)]
        groups = [group for group in groups if group not in joined] + [set(draws).union(*joined)]
    return sum(len(group) - 1 for group in groups)
