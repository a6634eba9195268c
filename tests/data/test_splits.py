import string
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from protograph._internal.errors import InputError
from protograph.data import splits
from protograph.data.splits import (
    CLASS_ROLES,
    DATASET_PARTS,
    Split,
    check_roles,
    divide_images,
    draw_by_index,
    draw_by_name,
    draw_roles,
    split_by_parts,
    split_freely,
    split_seen,
)

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
    return [row for part in DATASET_PARTS for own in getattr(split, part).values() for row in own]


@given(things=rows, count=st.integers(0, 90), seed=seeds, scope=names)
@settings(max_examples=40, deadline=None)
def test_drawing_takes_so_many_in_their_order(things: list[int], count: int, seed: int, scope: str) -> None:
    chosen = draw_by_index(things, count, seed, scope)
    assert len(chosen) == min(count, len(things))
    places = [things.index(thing) for thing in chosen]
    assert places == sorted(set(places))
    assert draw_by_index(list(things), count, seed, scope) == chosen


@given(things=rows, count=st.integers(0, 90))
@settings(max_examples=40, deadline=None)
def test_drawing_more_keeps_what_was_drawn(things: list[int], count: int) -> None:
    assert set(draw_by_index(things, count, 0, "a")) <= set(draw_by_index(things, count + 1, 0, "a"))


def test_drawing_depends_on_seed_and_scope_and_is_the_same_everywhere() -> None:
    assert draw_by_index(range(20), 5, 0, "a") == [6, 12, 17, 18, 19]
    assert len({tuple(draw_by_index(range(100), 10, seed, scope)) for seed in range(3) for scope in "abc"}) == 9


def test_drawing_is_even() -> None:
    counts = [0] * 20
    for seed in range(2000):
        for thing in draw_by_index(range(20), 5, seed, "a"):
            counts[thing] += 1
    assert min(counts) > 420
    assert max(counts) < 580


@given(things=rows, name=names, validation=st.integers(0, 30), test=st.integers(0, 30), seed=seeds)
@settings(max_examples=40, deadline=None)
def test_holding_out_divides_the_images(things: list[int], name: str, validation: int, test: int, seed: int) -> None:
    train, validated, tested = divide_images(things, name, validation, test, seed)
    assert sorted(train + validated + tested) == sorted(things)
    assert len(tested) == min(test, len(things))
    assert len(validated) == min(validation, len(things) - len(tested))
    assert divide_images(things, name, validation, test, seed) == (train, validated, tested)


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
    for part in DATASET_PARTS:
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
    for part in DATASET_PARTS:
        assert getattr(one, part) == getattr(other, part)


def test_other_seeds_give_other_novel_classes() -> None:
    members = {f"class {number}": range(20 * number, 20 * number + 20) for number in range(30)}
    assert len({tuple(split_freely(members, seed=seed).novel_test) for seed in range(5)}) == 5


@given(members=classes(), data=st.data())
@settings(max_examples=20, deadline=None)
def test_assigned_classes_are_what_they_are_assigned_to(members: dict[str, list[int]], data: st.DataObject) -> None:
    assigned = {name: data.draw(st.sampled_from(CLASS_ROLES)) for name in members}
    split = split_freely(members, assigned)
    for kind, part in zip(CLASS_ROLES, ("train", "novel_validation", "novel_test"), strict=True):
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
        ({"a": "seen", "b": "novel-validation"}, "does not assign class 'c'"),
        ({"a": "seen", "b": "novel-validation", "c": "novel-test", "d": "seen"}, "names class 'd', which has no images"),
        ({"a": "seen", "b": "seen", "c": "novel-test"}, "no class for 'novel-validation'"),
    ],
    ids=range(4),
)
def test_an_assignment_with_a_gap_is_refused(assigned: dict[str, str], named: str) -> None:
    with pytest.raises(InputError, match=named) as raised:
        check_roles(assigned, ["a", "b", "c"], "own.csv")
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


@pytest.mark.slow
@given(members=classes(fewest=8, most=45), name=names, count=st.integers(6, 40), seed=seeds)
@settings(max_examples=150, deadline=None)
def test_a_class_that_is_added_moves_at_most_one_other_per_part(
    members: dict[str, list[int]], name: str, count: int, seed: int
) -> None:
    """But for the parts that grow: these take as many more classes."""
    assume(name not in members)
    before = draw_roles(members, seed)
    after = draw_roles({**members, name: list(range(10_000, 10_000 + count))}, seed)
    size = {role: (list(before.values()).count(role), list(after.values()).count(role)) for role in CLASS_ROLES}
    growth = sum(size[role][1] - size[role][0] for role in CLASS_ROLES[1:])
    for role in CLASS_ROLES:
        left = {other for other in members if before[other] == role != after[other]}
        assert len(left) <= (max(1, growth) if role == "seen" else 1)
    if growth == 0:
        for role in CLASS_ROLES:
            joined = {other for other in members if after[other] == role != before[other]}
            assert len(joined) <= 1


def test_two_of_25_novel_classes_at_most_are_others_when_one_is_added() -> None:
    members = {f"class {number:02}": range(20 * number, 20 * number + 20) for number in range(25)}
    before = draw_roles(members)
    for number in range(25, 60):
        after = draw_roles({**members, f"class {number:02}": range(2000, 2020)})
        moved = [name for name, role in before.items() if after[name] != role]
        assert len(moved) <= 2
    old = draw_roles(members, by_index=True)
    assert [name[-2:] for name, role in old.items() if role == "novel-test"] == ["06", "07", "11", "13", "21"]
    assert [name[-2:] for name, role in old.items() if role == "novel-validation"] == ["12", "16", "18", "19", "20"]


@given(things=rows, count=st.integers(0, 30), seed=seeds, added=st.integers(20_000, 20_010))
@settings(max_examples=60, deadline=None)
def test_drawing_by_name_depends_on_no_order_and_changes_by_one(things: list[int], count: int, seed: int, added: int) -> None:
    chosen = draw_by_name(things, things, count, seed, "a")
    assert sorted(chosen) == sorted(draw_by_name(things[::-1], things[::-1], count, seed, "a"))
    more = [added, *things]
    assert len({*chosen} - {*draw_by_name(more, more, count, seed, "a")}) <= 1


@given(things=st.lists(st.integers(0, 10_000), min_size=6, max_size=60, unique=True), seed=seeds)
@settings(max_examples=60, deadline=None)
def test_an_image_that_is_added_moves_at_most_one_other_per_part(things: list[int], seed: int) -> None:
    named = [f"{row}.png" for row in range(10_002)]
    before = divide_images(things, "a", 5, 5, seed, named)
    after = divide_images([10_001, *things], "a", 5, 5, seed, named)
    for old, new in zip(before[1:], after[1:], strict=True):
        assert len(set(old) - set(new)) <= 1
    assert sorted([*before[0], *before[1], *before[2]]) == sorted(things)


def test_names_that_are_no_utf8_can_be_drawn() -> None:
    assert draw_by_name(["a\udcff", "b"], ["a\udcff", "b"], 2, 0) == ["a\udcff", "b"]


def parted(counts: dict[str, tuple[int, int, int]]) -> tuple[dict[str, list[int]], list[str], list[str]]:
    """Image indices by class, the part of each image, and its name."""
    members: dict[str, list[int]] = {}
    parts: list[str] = []
    for name, numbers in counts.items():
        start = len(parts)
        parts += [part for part, count in zip(("train", "validation", "test"), numbers, strict=True) for _ in range(count)]
        members[name] = list(range(start, len(parts)))
    return members, parts, [f"{row}.jpg" for row in range(len(parts))]


def test_parts_of_seen_classes_stay_what_they_are() -> None:
    members, parts, names = parted({f"class {number}": (6, 2, 3) for number in range(10)})
    split = split_by_parts(members, parts, names)
    for part, chosen in (("train", split.train), ("validation", split.seen_validation), ("test", split.seen_test)):
        assert chosen == {name: [image for image in members[name] if parts[image] == part] for name in split.train}
    for novel in (split.novel_validation, split.novel_test):
        assert all(images == members[name] for name, images in novel.items()), "all images of a novel class"
    assert {*split.classes} == {*members}


def test_parts_that_are_missing_are_drawn_from_the_images_for_training() -> None:
    members, parts, names = parted({f"class {number}": (20, 0, 3) for number in range(10)})
    split = split_by_parts(members, parts, names)
    for name in split.train:
        assert (len(split.train[name]), len(split.seen_validation[name]), len(split.seen_test[name])) == (18, 2, 3)
        assert sorted([*split.train[name], *split.seen_validation[name], *split.seen_test[name]]) == members[name]
    alone = {name: images[:20] for name, images in members.items()}
    none = ["train"] * len(parts)
    assert split_by_parts(alone, none, names) == split_freely(alone, names=names), "without parts, as ever"


def test_a_class_without_images_in_a_part_is_named() -> None:
    members, parts, names = parted({f"class {number}": (6, 2, 0 if number == 3 else 3) for number in range(10)})
    roles = dict.fromkeys(members, "seen") | {"class 8": "novel-validation", "class 9": "novel-test"}
    with pytest.raises(InputError, match="class 'class 3' has no image for test in birds: give it some there"):
        split_by_parts(members, parts, names, roles, "birds")
