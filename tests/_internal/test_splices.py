"""Differences of sequences: what they say leads from the old sequence to the new one, to the last bit."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protograph._internal.splices import (
    apply_differences,
    check_splices,
    list_splices,
    part_splices,
    row_splices,
    splice_pieces,
    splices_between,
)

Change = tuple[int, int, list[int]]
CHANGES = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 4), st.lists(st.integers(0, 50), max_size=4)), max_size=4)


def changed(old: list[int], changes: list[Change]) -> list[int]:
    """Return a list after a few splices of any kind, one after another."""
    new = list(old)
    for at, removed, inserted in changes:
        new[at : at + removed] = inserted
    return new


def spliced(old: list[Any], splices: list[tuple[int, int, int]], new: list[Any]) -> list[Any]:
    """Return the old list after splices whose elements are those of the new one, found by counting."""
    made, shift, end = [], 0, 0
    for at, removed, inserted in splices:
        made += old[end:at]
        made += new[at + shift : at + shift + inserted]
        shift, end = shift + inserted - removed, at + removed
    return made + old[end:]


@settings(deadline=None, max_examples=200, derandomize=True)
@given(st.integers(0, 400), CHANGES)
def test_splices_lead_from_the_old_sequence_to_the_new_one(length: int, changes: list[Change]) -> None:
    old = [(7 * index) % 31 for index in range(length)]
    new = changed(old, changes)
    splices = list_splices(old, new)
    if splices is None:  # a single change of a long list is always found
        assert length < 100 or len(changes) > 1
        return
    assert check_splices(splices, len(old)) == len(new)
    assert spliced(old, splices, new) == new


@pytest.mark.parametrize("axis", [0, 1])
@settings(deadline=None, max_examples=100, derandomize=True)
@given(length=st.integers(0, 400), changes=CHANGES)
def test_pieces_of_a_tensor_are_those_of_the_new_one(axis: int, length: int, changes: list[Change]) -> None:
    numbers = [(7 * index) % 31 for index in range(length)]
    old, new = (
        torch.tensor(part, dtype=torch.float32).expand(2, -1).contiguous() for part in (numbers, changed(numbers, changes))
    )
    if not axis:
        old, new = old.T.contiguous(), new.T.contiguous()
    splices = row_splices(old, new, axis)
    if splices is None:
        return
    shift, rows = 0, [new.narrow(axis, 0, 0)]
    for at, removed, inserted in splices:
        rows.append(new.narrow(axis, at + shift, inserted))
        shift += inserted - removed
    pieces = splice_pieces([(old, 0, old.shape[axis])], splices, torch.cat(rows, axis), axis)
    made = [rows[0], *(source.narrow(axis, start, stop - start) for source, start, stop in pieces)]
    assert torch.equal(torch.cat(made, axis), new)


def test_few_rows_are_found_in_a_long_tensor() -> None:
    old = torch.arange(300_000.0)[:, None].expand(-1, 2).contiguous()
    changed_row = old.clone()
    changed_row[200_000] = 7
    removed = torch.cat([old[:1234], old[1235:200_000], old[200_003:]])
    assert row_splices(old, old.clone()) == []
    assert row_splices(old, changed_row) == [(200_000, 1, 1)]
    assert row_splices(old, removed) == [(1234, 1, 0), (200_000, 3, 0)]
    assert row_splices(old, torch.cat([old, changed_row[:2]])) == [(300_000, 0, 2)]
    assert row_splices(old, torch.cat([old[:5], changed_row[:2], old[5:]])) == [(5, 0, 2)]
    assert row_splices(old, 2 * old + 1) is None


def test_the_sign_of_zero_counts_and_shared_memory_is_not_compared() -> None:
    old = torch.zeros(8, 1)
    new = old.clone()
    new[3] = -0.0
    assert row_splices(old, new) == [(3, 1, 1)]
    room = torch.arange(12.0).view(6, 2)
    assert row_splices(room[:4], room) == [(4, 0, 2)]
    assert row_splices(room, room[:4]) == [(4, 2, 0)]


def test_parts_are_compared_as_wholes() -> None:
    parts = [torch.full((count, 2), float(count)) for count in (0, *range(1, 40))]
    longer = [*parts[:20], torch.cat([parts[20], parts[1]]), *parts[21:]]
    start = sum(range(20))
    assert part_splices(parts, [part.clone() for part in parts]) == []
    assert part_splices(parts, longer) == [(start, 20, 21)]
    assert part_splices(parts, [*parts[:20], *parts[21:]]) == [(start, 20, 0)]
    assert part_splices(parts, [*parts, parts[3]]) == [(sum(range(40)), 0, 3)]
    assert part_splices(parts[:1], parts[:2]) == [(0, 0, 1)]
    assert part_splices(parts[:1], parts[:1]) == []


@pytest.mark.parametrize("splices", [[(-1, 0, 1)], [(0, -1, 0)], [(0, 0, -1)], [(3, 3, 0)], [(2, 2, 0), (3, 1, 1)]])
def test_splices_beyond_a_sequence_or_one_another_are_refused(splices: list[tuple[int, int, int]]) -> None:
    with pytest.raises(ValueError, match="goes beyond"):
        check_splices(splices, 5)
    with pytest.raises(ValueError, match="goes beyond"):
        splice_pieces([(torch.zeros(5, 1), 0, 5)], splices, torch.zeros(0, 1))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)
VALUES = st.dictionaries(st.sampled_from("abc"), JSON, max_size=3)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(VALUES, VALUES, st.lists(st.integers(0, 3), max_size=200), CHANGES)
def test_steps_lead_from_old_values_to_new_ones(old: Any, new: Any, long: list[int], changes: list[Change]) -> None:
    old, new = {**old, "long": long}, {**new, "long": changed(long, changes)}
    made = deepcopy(old)
    apply_differences(made, splices_between(old, new))
    assert made == new


def test_tuples_are_lists_and_types_count() -> None:
    assert splices_between({"a": (1, (2, 3))}, {"a": [1, [2, 3]]}) == []
    assert splices_between({"a": 1, "b": 1}, {"a": True, "b": 1.0}) == [["set", ["a"], True], ["set", ["b"], 1.0]]


@pytest.mark.parametrize(
    "step",
    [
        [], ["set"], ["set", [], 1], ["set", ["x", "y"], 1], ["unset", ["x"]], ["unset", ["a", 9]], ["set", ["a", 9], 1],
        ["splice", ["a"], [[0, 9, []]]], ["splice", ["a"], [["0", 0, []]]], ["splice", ["b"], [[0, 0, [1]]]], ["turn", ["a"]],
        ["splice", ["a"], 3], "set", None, ["set", 3, 4], ["set", [[1]], 4], ["splice", ["a"], [[0.5, 0, []]]],
    ],
)  # fmt: skip
def test_steps_that_do_not_fit_are_refused(step: Any) -> None:
    with pytest.raises(ValueError, match="change"):
        apply_differences({"a": [1, 2], "b": {}}, [step])
