"""The uncertainty of differences, recomputed naively and by simulation."""

import math
import random
from statistics import NormalDist

import pytest

from paper.made_up import assert_interval
from protograph.evaluation.metrics import MEASURES
from protograph.paper.published import Cell
from protograph.paper.statistics import (
    Score,
    Side,
    Spread,
    Term,
    best_spreads,
    difference,
    mean_difference,
    pooled_spreads,
    spread_group,
)


def part(name: str, values: tuple[float, ...], ci95: float = 0.0, spread: Spread | None = None) -> Term:
    return Term(Side(Cell("cub", 1, name), "h_mean"), Score(values, ci95), spread)


ONE_STAGE, TWO_STAGES = (Spread(("cub", "joint", second, "h_mean"), 0.6, 4 + second) for second in (False, True))


def test_a_mean_of_differences_counts_a_shared_score_once() -> None:
    one, two, shared = part("gcgpn", (44.0,), 0.3), part("gcgpn-aux", (45.0,), 0.4), part("gcgpn-cos-aux", (40.0,), 0.5)
    found = mean_difference([(one, shared), (two, shared)])
    assert found.mean == pytest.approx(4.5)
    assert found.half() == pytest.approx(math.sqrt((0.3 / 2) ** 2 + (0.4 / 2) ** 2 + 0.5**2))
    one, two, shared = (
        part("gcgpn", (44.0, 45.0), spread=ONE_STAGE),
        part("gcgpn-aux", (45.0,), spread=ONE_STAGE),
        part("dfslwof-att", (40.0, 42.0, 41.0), spread=TWO_STAGES),
    )
    found = mean_difference([(one, shared), (two, shared)])
    assert_interval(found, [(0.36 * (0.25 / 2 + 0.25), 4), (0.36 / 3, 5)], 44.75 - 41)


def test_a_number_of_others_counts_once_whatever_it_is_held_against() -> None:
    theirs = Score((40.0,), 0.5)
    quoted = [Side(Cell("cub", 1, name), "h_mean", quoted=theirs, name="theirs") for name in ("gcgpn", "gcgpn-aux")]
    ours = part("gcgpn", (44.0,), 0.3), part("gcgpn-aux", (45.0,), 0.4)
    found = mean_difference([(own, Term(side, theirs)) for own, side in zip(ours, quoted, strict=True)])
    assert found.half() == pytest.approx(math.sqrt((0.3 / 2) ** 2 + (0.4 / 2) ** 2 + 0.5**2))


def test_the_mean_of_one_difference_is_that_difference() -> None:
    one, other = part("gcgpn", (44.0, 46.0, 45.0), 0.4, ONE_STAGE), part("dfslwof-att", (40.0, 43.0), 0.5, TWO_STAGES)
    assert mean_difference([(one, other)]) == difference(one, other)


def test_a_difference_is_as_uncertain_as_its_episodes_and_its_seeds() -> None:
    one, other = part("gcgpn", (45.0,), 0.3, ONE_STAGE), part("dfslwof-att", (42.0, 43.0), 0.4, TWO_STAGES)
    episodes = [((ci95 / NormalDist().inv_cdf(0.975)) ** 2, math.inf) for ci95 in (0.3, 0.4)]
    found = difference(one, other)
    assert_interval(found, [*episodes, (0.36, 4), (0.36 / 2, 5)], 2.5)
    assert found.seeds
    assert str(found) == f"+2.50 ± {found.half():.2f}"


def test_without_any_cell_of_several_seeds_a_difference_comes_from_the_episodes_and_says_so() -> None:
    found = difference(part("gcgpn", (45.0,), 0.3), part("gcgpn-aux", (44.6,), 0.4))
    assert (found.half(), found.seeds, str(found)) == (pytest.approx(0.5), False, "+0.40 ± 0.50 *")


def test_more_seeds_never_widen_an_interval() -> None:
    halves = [
        difference(part("gcgpn", (45.0,) * ours, 0.3, ONE_STAGE), part("dfslwof-att", (42.0,) * theirs, 0.4, TWO_STAGES)).half()
        for ours, theirs in ((1, 1), (1, 2), (2, 2), (3, 2), (3, 3), (9, 9))
    ]
    assert halves == sorted(halves, reverse=True)
    assert len(set(halves)) == len(halves)


def test_the_interval_of_a_mean_difference_covers_what_it_says() -> None:
    drawn, covered, trials, episodes = random.Random(0), 0, 1000, 0.3
    for _ in range(trials):
        known = {}
        for place in range(6):
            for variant, spread in (("gcgpn-aux", 0.5), ("dfslwof-att", 1.5)):
                shared = drawn.gauss(0, episodes)
                values = tuple(shared + drawn.gauss(0, spread) for _ in range(1 + place % 3))
                known[Cell("cub", place + 1, variant)] = {"h_mean": Score(values, 1.96 * episodes)}
        between = pooled_spreads(known)
        parts = {cell: Side(cell, "h_mean").term(known, between) for cell in known}
        pairs = [(parts[Cell("cub", k, "gcgpn-aux")], parts[Cell("cub", k, "dfslwof-att")]) for k in range(1, 7)]
        found = mean_difference([(one, other) for one, other in pairs if one and other])
        covered += abs(found.mean) <= found.half()
    assert 0.935 < covered / trials < 0.975


def test_the_spread_between_seeds_is_pooled_over_cells_that_are_trained_alike() -> None:
    def scores(*values: float) -> dict[str, Score]:
        return {name: Score(tuple(value + place for value in values), 0.5) for place, name in enumerate(MEASURES)}

    known = {
        Cell("cub", 1, "gcgpn"): scores(40.0, 42.0),
        Cell("cub", 5, "gcgpn-aux"): scores(44.0, 45.0, 46.0),
        Cell("cub", 1, "dfslwof-att"): scores(30.0, 36.0),
        Cell("cub", 1, "pn+"): scores(10.0),
        Cell("mini-imagenet", 1, "gcgpn"): scores(40.0),
    }
    found = pooled_spreads(known)
    for name in MEASURES:
        spread = found[spread_group(Cell("cub", 2, "gcgpn-cos"), name)]
        assert (spread.deviation, spread.freedom) == (pytest.approx(math.sqrt((2.0 + 2.0) / 3)), 3)
        spread = found[spread_group(Cell("cub", 2, "dfslwof-avg"), name)]
        assert (spread.deviation, spread.freedom) == (pytest.approx(math.sqrt(18.0)), 1)
        for alone in (Cell("cub", 1, "pn+"), Cell("mini-imagenet", 1, "gcgpn")):
            assert spread_group(alone, name) not in found


def test_cells_that_began_from_the_same_first_stages_tell_of_them_once() -> None:
    def scores(starts: tuple[str, ...], *values: float) -> dict[str, Score]:
        return {"h_mean": Score(values, 0.5, starts)}

    one, five, other, two = (Cell("cub", k, "dfslwof-att") for k in (1, 5, 2, 3))
    known = {
        one: scores(("a", "b", "c"), 40.0, 42.0, 44.0),
        five: scores(("a", "b", "c"), 50.0, 53.0, 56.0),
        other: scores(("c", "d"), 44.0, 45.0),
        two: scores(("e", "f"), 44.0, 45.0),
    }
    spread = pooled_spreads(known)[spread_group(one, "h_mean")]
    assert spread.deviation == pytest.approx(math.sqrt((2 * 4.0 + 2 * 9.0 + 0.5 + 0.5) / 6))
    assert spread.freedom == 3 + 1  # a to d move together, e and f on their own


def test_a_shared_first_stage_moves_all_that_began_from_it() -> None:
    def began(shots: int, *starts: str) -> Term:
        score = Score(tuple(40.0 for _ in starts), 0.0, starts)
        return Term(Side(Cell("cub", shots, "dfslwof-att"), "h_mean"), score, TWO_STAGES)

    ours = part("gcgpn", (44.0, 45.0), spread=ONE_STAGE)
    shared = mean_difference([(ours, began(1, "a", "b")), (ours, began(5, "a", "b"))])
    assert_interval(shared, [(0.36 / 2, 4), (0.36 / 2, 5)], 4.5)
    apart = mean_difference([(ours, began(1, "a", "b")), (ours, began(5, "c", "d"))])
    assert_interval(apart, [(0.36 / 2, 4), (0.36 / 4, 5)], 4.5)
    some = mean_difference([(ours, began(1, "a", "b")), (ours, began(10, "a"))])
    assert_interval(some, [(0.36 / 2, 4), (0.36 * (0.75**2 + 0.25**2), 5)], 4.5)
    cancelled = difference(began(1, "a", "b"), began(5, "a", "b"))
    assert cancelled.half() == 0.0


def test_the_interval_covers_what_it_says_where_first_stages_are_shared() -> None:
    drawn, covered, trials = random.Random(0), 0, 1000
    for _ in range(trials):
        shifts = {f"{seed}": drawn.gauss(0, 1.5) for seed in range(3)}
        known = {
            Cell("cub", k, "dfslwof-att"): {"h_mean": Score(tuple(shifts.values()), 0.0, tuple(shifts))} for k in (1, 5)
        } | {Cell("cub", k, "gcgpn-aux"): {"h_mean": Score(tuple(drawn.gauss(0, 0.5) for _ in range(3)), 0.0)} for k in (1, 5)}
        between = pooled_spreads(known)
        parts = {cell: Side(cell, "h_mean").term(known, between) for cell in known}
        pairs = [(parts[Cell("cub", k, "gcgpn-aux")], parts[Cell("cub", k, "dfslwof-att")]) for k in (1, 5)]
        found = mean_difference([(one, other) for one, other in pairs if one and other])
        covered += abs(found.mean) <= found.half()
    assert 0.935 < covered / trials < 0.975


def test_seeds_that_began_from_the_same_first_stage_are_one_draw() -> None:
    def scores(draws: tuple[str, ...], *values: float) -> dict[str, Score]:
        return {"h_mean": Score(values, 0.5, draws)}

    one, five = (Cell("cub", k, "dfslwof-att") for k in (1, 5))
    assert pooled_spreads({one: scores(("a", "a"), 40.0, 41.0), five: scores(("b",), 50.0)}) == {}
    spread = pooled_spreads({one: scores(("a", "a", "b"), 40.0, 42.0, 45.0)})[spread_group(one, "h_mean")]
    assert (spread.deviation, spread.freedom) == (pytest.approx(math.sqrt((41 - 43) ** 2 + (45 - 43) ** 2)), 1)
    mixed = pooled_spreads({one: scores(("a", "", ""), 40.0, 42.0, 44.0), five: scores(("a", "", "c"), 50.0, 52.0, 54.0)})
    assert mixed[spread_group(one, "h_mean")].freedom == 4, "a is shared, all others are not"


@pytest.mark.parametrize("together", [1.0, 0.5, 0.0])  # of the variance between seeds
def test_the_interval_covers_at_least_what_it_says_where_cells_are_trained_further(together: float) -> None:
    drawn, trials = random.Random(1), 1000
    covered = {"difference": 0, "mean": 0}
    first, second, other = Cell("cub", 1, "gcgpn"), Cell("cub", 1, "gcgpn-aux"), Cell("cub", 1, "pn+")
    for _ in range(trials):
        shifts = [drawn.gauss(0, math.sqrt(together)) for _ in range(3)]
        known = {
            cell: {
                "h_mean": Score(tuple(s + drawn.gauss(0, math.sqrt(1 - together)) for s in shifts), 0.0, ("a", "b", "c"), True)
            }
            for cell in (first, second)
        } | {other: {"h_mean": Score(tuple(drawn.gauss(0, 0.1) for _ in range(3)), 0.0)}}
        parts = {cell: Side(cell, "h_mean").term(known, pooled_spreads(known)) for cell in known}
        one, two, three = [part for part in parts.values() if part]
        found = {"difference": difference(one, two), "mean": mean_difference([(one, three), (two, three)])}
        for what, apart in found.items():
            covered[what] += abs(apart.mean) <= apart.half()
    assert min(covered.values()) / trials > 0.935


def test_every_recipe_is_judged_by_the_spread_that_is_known_best() -> None:
    def scores(*values: float) -> dict[str, Score]:
        return {"h_mean": Score(values, 0.5)}

    aux, dfsl = Cell("cub", 1, "gcgpn-aux"), Cell("cub", 1, "dfslwof-att")
    known = (
        {aux: scores(40.0), dfsl: scores(40.0, 46.0)},
        {aux: scores(44.0, 45.0, 46.0)},
        {aux: scores(10.0, 30.0)},
    )
    found = best_spreads(known)
    assert found[spread_group(aux, "h_mean")].deviation == 1.0
    assert found[spread_group(dfsl, "h_mean")].deviation == pytest.approx(math.sqrt(18.0))
