import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protograph._internal import rows
from protograph._internal.rows import Names, Rows, distinct


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["extend", "replace", "remove"]), st.integers(0, 50)), max_size=8))
def test_changed_rows_are_those_of_a_changed_matrix_and_earlier_ones_stay(changes: list[tuple[str, int]]) -> None:
    before = rows.ROWS_AT_ONCE
    rows.ROWS_AT_ONCE = 4
    try:
        matrix = torch.arange(22.0).view(11, 2)
        table, versions = Rows.of(matrix), []
        for step, (kind, number) in enumerate(changes):
            versions.append((table, matrix.clone()))
            values = torch.full((number % 3 + 1, 2), 100.0 + step)
            if kind == "extend":
                table, matrix = table.extended(values), torch.cat([matrix, values])
            elif kind == "replace":
                chosen = torch.randperm(len(matrix))[: len(values)]
                table, matrix = (
                    table.replaced(chosen, values[: len(chosen)]),
                    matrix.index_copy(0, chosen, values[: len(chosen)]),
                )
            elif len(matrix) > 1:
                row = number % len(matrix)
                table, matrix = table.without(row), torch.cat([matrix[:row], matrix[row + 1 :]])
            order = torch.randperm(len(matrix))
            assert torch.equal(table.take(order), matrix[order])
            assert max(len(block) for _, block in table) <= 4
        for version, expected in [*versions, (table, matrix)]:
            assert torch.equal(torch.cat([block for _, block in version]), expected)
            assert torch.equal(version.tensor(), expected)
            assert len(version) == len(expected)
    finally:
        rows.ROWS_AT_ONCE = before


def test_a_change_copies_the_blocks_that_it_touches() -> None:
    table = Rows.of(torch.zeros(3 * rows.ROWS_AT_ONCE, 1))
    changed = table.replaced([rows.ROWS_AT_ONCE + 5], torch.ones(1, 1))
    shared = [one.data_ptr() == other.data_ptr() for (_, one), (_, other) in zip(table, changed, strict=True)]
    assert shared == [True, False, True]
    assert not table.tensor().any()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["extend", "remove", "rename", "back"]), st.integers(0, 30)), max_size=12))
def test_names_are_found_as_in_a_list_in_every_version(changes: list[tuple[str, int]]) -> None:
    before = rows.MOST_NOTED
    rows.MOST_NOTED = 3
    try:
        plain = [f"n{index}" for index in range(5)]
        names, versions = Names(plain), []
        for step, (kind, number) in enumerate(changes):
            versions.append((names, list(plain)))
            if kind == "extend":
                further = [f"new {step}", *([f"n{number}"] if f"n{number}" not in plain else [])]
                names, plain = names.extended(further), plain + further
            elif kind == "back":  # another version goes on from an earlier one
                names, plain = versions[number % len(versions)]
                plain = list(plain)
            elif plain:
                row = number % len(plain)
                if kind == "remove":
                    names, plain = names.without(row), plain[:row] + plain[row + 1 :]
                else:
                    names, plain = names.renamed(row, f"other {step}"), [*plain[:row], f"other {step}", *plain[row + 1 :]]
        for version, expected in [*versions, (names, plain)]:
            assert list(version) == expected
            assert version == expected
            assert [version[row] for row in range(len(version))] == expected
            assert version[:3] == expected[:3]
            for name in [f"n{index}" for index in range(31)] + expected:
                assert version.find(name) == (expected.index(name) if name in expected else None)
            for other in (copy.deepcopy(version), pickle.loads(pickle.dumps(version))):
                assert other == expected
    finally:
        rows.MOST_NOTED = before


def test_what_there_is_not_is_no_index() -> None:
    names = Names("abc").without(1)
    with pytest.raises(ValueError, match="there is no 'b'"):
        names.index("b")
    with pytest.raises(IndexError, match="there are 2 names, so none at 2"):
        names[2]
    assert distinct(torch.tensor([3, 1]), torch.tensor([1])).tolist() == [1, 3]
