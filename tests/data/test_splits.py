import string
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protograph._internal.errors import InputError
from protograph.data import splits
from protograph.data.splits import KINDS, PARTS, Split, check_assigned, drawn, hold_out, split_freely, split_seen

names = st.text(string.ascii_letters + string.digits + " -_.ßé", min_size=1, max_size=8)
seeds = st.integers(0, 5)
rows = st.lists(st.integers(0, 10_000), unique=True, max_size=80)


@st.composite
def classes(draw: st.DrawFn, fewest: int = 8, most: int = 40) -> dict[str, list[int]]:
    """Class -> images, six to forty of each."""
    chosen = draw(st.lists(names, min_size=fewest, max_size=most, unique=True))
    members, first = {}, 0
    for name in chosen:
        count = draw(st.integers(6, 40))
        members[name] = list(range(first, first + count))
        first += count
    return members


def all_rows(split: Split) -> list[int]:
    return [row for part in PARTS for own in getattr(split, part).values() for row in own]


@given(things=rows, count=st.integers(0, 90), seed=seeds, scope=names)
@settings(max_examples=40, deadline=None)
def test_drawing_takes_so_many_in_their_order(things: list[int], count: int, seed: int, scope: str) -> None:
    chosen = drawn(things, count, seed, scope)
    assert len(chosen) == min(count, len(things))
    places = [things.index(thing) for thing in chosen]
    assert places == sorted(set(places))
    assert drawn(list(things), count, seed, scope) == chosen


@given(things=rows, count=st.integers(0, 90))
@settings(max_examples=40, deadline=None)
def test_drawing_more_keeps_what_was_drawn(things: list[int], count: int) -> None:
    assert set(drawn(things, count, 0, "a")) <= set(drawn(things, count + 1, 0, "a"))


def test_drawing_depends_on_seed_and_scope_and_is_the_same_everywhere() -> None:
    assert drawn(range(20), 5, 0, "a") == [6, 12, 17, 18, 19]
    assert len({tuple(drawn(range(100), 10, seed, scope)) for seed in range(3) for scope in "abc"}) == 9


def test_drawing_is_even() -> None:
    counts = [0] * 20
    for seed in range(2000):
        for thing in drawn(range(20), 5, seed, "a"):
            counts[thing] += 1
    assert min(counts) > 420
    assert max(counts) < 580


@given(things=rows, name=names, validation=st.integers(0, 30), test=st.integers(0, 30), seed=seeds)
@settings(max_examples=40, deadline=None)
def test_holding_out_divides_the_images(things: list[int], name: str, validation: int, test: int, seed: int) -> None:
    train, validated, tested = hold_out(things, name, validation, test, seed)
    assert sorted(train + validated + tested) == sorted(things)
    assert len(tested) == min(test, len(things))
    assert len(validated) == min(validation, len(things) - len(tested))
    assert hold_out(things, name, validation, test, seed) == (train, validated, tested)


@given(members=classes(fewest=1, most=6), seed=seeds)
@settings(max_examples=30, deadline=None)
def test_seen_classes_are_divided_by_shares(members: dict[str, list[int]], seed: int) -> None:
    parts = split_seen(members, 0.1, 0.25, seed)
    for name, own in members.items():
        train, validated, tested = (list(part[name]) for part in parts)
        assert sorted(train + validated + tested) == own
        for part, share in ((validated, Fraction(1, 10)), (tested, Fraction(1, 4))):
            assert len(part) == max(1, round(share * len(own)))
        assert train
    assert [list(part) for part in parts] == [list(members)] * 3


def test_600_images_become_500_25_and_75() -> None:
    train, validated, tested = split_seen({"a": range(600)}, 25 / 600, 75 / 600)
    assert (len(train["a"]), len(validated["a"]), len(tested["a"])) == (500, 25, 75)


@given(members=classes(), seed=seeds)
@settings(max_examples=25, deadline=None)
def test_a_free_split_is_disjoint_and_complete(members: dict[str, list[int]], seed: int) -> None:
    split = split_freely(members, seed=seed)
    assert sorted(all_rows(split)) == sorted(row for own in members.values() for row in own)
    assert sorted(split.classes) == sorted(members)
    assert list(split.train) == list(split.seen_validation) == list(split.seen_test)
    for part in PARTS:
        for name, own in getattr(split, part).items():
            assert own
            assert set(own) <= set(members[name])
    assert split == split_freely(members, seed=seed)


@given(members=classes(), seed=seeds)
@settings(max_examples=25, deadline=None)
def test_a_free_split_takes_so_many_classes_as_stated(members: dict[str, list[int]], seed: int) -> None:
    split = split_freely(members, seed=seed)
    for share, novel in ((0.20, split.novel_test), (0.16, split.novel_validation)):
        assert len(novel) >= round(share * len(members))
        assert len(novel) >= 5 or len(members) < 20
        assert len(novel) >= 2
    novel_classes = {*split.novel_test, *split.novel_validation}
    ample = [name for name, own in members.items() if len(own) >= 20]
    if len(ample) >= len(novel_classes):
        assert novel_classes <= set(ample)
    else:
        assert set(ample) <= novel_classes
        fewest = min(len(members[name]) for name in novel_classes)
        assert all(len(members[name]) <= fewest for name in split.train)


@given(members=classes(), data=st.data())
@settings(max_examples=20, deadline=None)
def test_a_free_split_does_not_depend_on_the_order_of_classes(members: dict[str, list[int]], data: st.DataObject) -> None:
    order = data.draw(st.permutations(list(members)))
    one, other = split_freely(members), split_freely({name: members[name] for name in order})
    for part in PARTS:
        assert getattr(one, part) == getattr(other, part)


def test_other_seeds_give_other_novel_classes() -> None:
    members = {f"class {number}": range(20 * number, 20 * number + 20) for number in range(30)}
    assert len({tuple(split_freely(members, seed=seed).novel_test) for seed in range(5)}) == 5


@given(members=classes(), data=st.data())
@settings(max_examples=20, deadline=None)
def test_assigned_classes_are_what_they_are_assigned_to(members: dict[str, list[int]], data: st.DataObject) -> None:
    assigned = {name: data.draw(st.sampled_from(KINDS)) for name in members}
    split = split_freely(members, assigned)
    for kind, part in zip(KINDS, ("train", "novel_validation", "novel_test"), strict=True):
        assert list(getattr(split, part)) == [name for name in members if assigned[name] == kind]
    assert sorted(all_rows(split)) == sorted(row for own in members.values() for row in own)


@pytest.mark.parametrize("count", range(8))
def test_fewer_than_eight_classes_are_too_few(count: int) -> None:
    with pytest.raises(InputError, match=f"{count} classes are too few .*at least 8"):
        split_freely({str(number): range(30) for number in range(count)})


@pytest.mark.parametrize(
    ("assigned", "named"),
    [
        ({"a": "sen", "b": "novel-validation", "c": "novel-test"}, "'sen': did you mean seen"),
        ({"a": "seen", "b": "novel-validation"}, "does not say what class 'c' is"),
        ({"a": "seen", "b": "novel-validation", "c": "novel-test", "d": "seen"}, "names class 'd', of which there are no"),
        ({"a": "seen", "b": "seen", "c": "novel-test"}, "no class for 'novel-validation'"),
    ],
    ids=range(4),
)
def test_an_assignment_with_a_gap_is_refused(assigned: dict[str, str], named: str) -> None:
    with pytest.raises(InputError, match=named) as raised:
        check_assigned(assigned, ["a", "b", "c"], "own.csv")
    assert "own.csv" in str(raised.value)


def test_a_split_says_how_much_it_has_and_can_do_without() -> None:
    split = Split({"a": [1, 2, 3]}, {"a": [4]}, {"a": [5, 6]}, {"b": [7]}, {"c": [8], "d": [9]})
    assert split.counts() == (
        "1 seen classes (3 images for training, 1 for validation, 2 for test), 1 novel classes for validation, 2 for test"
    )
    assert split.without(set()) is split
    assert split.without({2, 8}) == Split({"a": [1, 3]}, {"a": [4]}, {"a": [5, 6]}, {"b": [7]}, {"c": [], "d": [9]})


def test_a_class_can_be_divided_with_the_fewest_images() -> None:
    train, validated, tested = split_seen({"a": range(splits.FEWEST_IMAGES)})
    assert (len(train["a"]), len(validated["a"]), len(tested["a"])) == (4, 1, 1)
