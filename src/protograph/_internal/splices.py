"""Differences of sequences and of JSON values, as splices.

A splice (at, removed, inserted) says: at this index of the old sequence so many elements go, and so many others come instead.
The splices of a difference are in the order of their indices and do not touch what another one removes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from operator import is_
from typing import Any

import torch
from torch import Tensor

Splice = tuple[int, int, int]
Step = list[Any]  # of a difference of JSON values: SET, path, value; UNSET, path; or SPLICE, path, [[at, removed, [elements]]]

SET, UNSET, SPLICE = "set", "unset", "splice"
FEWEST_SPLICED = 64  # elements of a list: a shorter one with a difference is replaced, or compared element by element
MOST_SPLICES = 65_536  # of a difference; one with more is no small change
MOST_STEPS = 1024  # of the search for where two sequences go on alike
MOST_SHIFTED = 64  # elements that come or go in one of these steps
ALIKE = 8  # elements in a row that are equal where two sequences go on alike
MOST_CHANGED = 64  # elements that changed where others also came or went
LARGEST_INSERTED = 1 / 4  # of the elements of the new sequence that a difference may insert
CHUNK = 65_536  # elements that are compared at once


def list_splices(old: Sequence[Any], new: Sequence[Any]) -> list[Splice] | None:
    """Return the difference of two lists; None where most of the list is new."""

    def equal(at: int, other: int, count: int) -> bool:
        return bool(old[at : at + count] == new[other : other + count])

    def unequal(at: int, other: int, count: int) -> list[int]:
        return [index for index in range(count) if old[at + index] != new[other + index]]

    return _splices(len(old), len(new), equal, unequal)


def row_splices(old: Tensor, new: Tensor, axis: int = 0) -> list[Splice] | None:
    """Return the difference of two tensors of equal type along an axis, to the last bit; None where most of it is new.

    Tensors in the same memory are equal as far as both reach: nobody writes into one that is kept.
    """
    length, grown = old.shape[axis], new.shape[axis]
    if old.data_ptr() == new.data_ptr() and old.stride() == new.stride():
        shared = min(length, grown)
        return [(shared, length - shared, grown - shared)] if length != grown else []
    before, after = as_whole_numbers(old), as_whole_numbers(new)

    def equal(at: int, other: int, count: int) -> bool:
        return torch.equal(before.narrow(axis, at, count), after.narrow(axis, other, count))

    def unequal(at: int, other: int, count: int) -> list[int]:
        differs = before.narrow(axis, at, count) != after.narrow(axis, other, count)
        indices: list[int] = differs.movedim(axis, 0).reshape(count, -1).any(1).nonzero()[:, 0].tolist()
        return indices

    return _splices(length, grown, equal, unequal)


def part_splices(old: Sequence[Tensor], new: Sequence[Tensor]) -> list[Splice] | None:
    """Return the difference of two tensors that are given as parts [K, D], one after another, by their rows.

    Parts are compared as wholes: a part with one more row counts as another one.
    """
    if not any(len(part) for part in old) or not any(len(part) for part in new):
        counts = sum(map(len, old)), sum(map(len, new))
        return [(0, *counts)] if any(counts) else []

    def equal_parts(part: Tensor, other: Tensor) -> bool:
        if part is other or (part.data_ptr() == other.data_ptr() and part.shape == other.shape):
            return True
        return part.shape == other.shape and torch.equal(as_whole_numbers(part), as_whole_numbers(other))

    def equal(at: int, other: int, count: int) -> bool:
        parts = old[at : at + count], new[other : other + count]
        return all(map(is_, *parts)) or all(map(equal_parts, *parts))

    def unequal(at: int, other: int, count: int) -> list[int]:
        return [index for index in range(count) if not equal_parts(old[at + index], new[other + index])]

    splices = _splices(len(old), len(new), equal, unequal)
    if splices is None:
        return None
    ends, grown_ends = ([0, *accumulate(map(len, parts))] for parts in (old, new))
    shift = 0
    rows: list[Splice] = []
    for at, removed, inserted in splices:
        first = at + shift
        rows.append((ends[at], ends[at + removed] - ends[at], grown_ends[first + inserted] - grown_ends[first]))
        shift += inserted - removed
    return [splice for splice in rows if any(splice[1:])]


def as_whole_numbers(tensor: Tensor) -> Tensor:
    """Return a tensor whose floating-point numbers are taken as whole ones of the same bits."""
    kinds = {torch.float64: torch.int64, torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
    tensor = tensor.contiguous()
    return tensor.view(kinds[tensor.dtype]) if tensor.dtype in kinds else tensor


def _splices(
    length: int, grown: int, equal: Callable[[int, int, int], bool], unequal: Callable[[int, int, int], list[int]]
) -> list[Splice] | None:
    """Return the difference of two sequences.

    Args:
        length: The length of the old sequence.
        grown: That of the new one.
        equal: Whether so many elements from an index of the old one equal those from an index of the new one.
        unequal: Which of them differ.

    """
    most = LARGEST_INSERTED * grown
    if grown >= length:  # elements that changed, and others behind all
        differing = _differing(0, 0, length, min(most, MOST_SPLICES), equal, unequal)
        if differing is not None:
            rest = [(length, 0, grown - length)] if grown > length else []
            return [*_runs(differing, 0), *rest]
    at = other = inserted = changed = 0
    splices: list[Splice] = []
    for _ in range(MOST_STEPS):
        count = _common(at, other, min(length - at, grown - other), equal)
        at, other = at + count, other + count
        surplus = (length - at) - (grown - other)
        if at == length or other == grown:
            splices += [(at, length - at, grown - other)] if surplus else []
            return splices if inserted + grown - other <= max(most, 1) else None
        if not surplus:
            differing = _differing(at, other, length - at, min(most, MOST_SPLICES) - inserted, equal, unequal)
            return None if differing is None else [*splices, *_runs(differing, at)]
        removed, added = _shift(at, other, length, grown, equal)
        splices.append((at, removed, added))
        at, other, inserted, changed = at + removed, other + added, inserted + added, changed + (removed == added)
        if changed > MOST_CHANGED:
            break
    return None


def _differing(
    at: int,
    other: int,
    count: int,
    most: float,
    equal: Callable[[int, int, int], bool],
    unequal: Callable[[int, int, int], list[int]],
) -> list[int] | None:
    """Return which of so many elements from two indices on differ; None where these are too many."""
    indices: list[int] = []
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        if not equal(at + start, other + start, size):
            indices += [start + index for index in unequal(at + start, other + start, size)]
            if len(indices) > most:
                return None
    return indices


def _runs(indices: Sequence[int], start: int) -> list[Splice]:
    """Return the splices that replace the elements at these indices, counted from a start."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][0] + runs[-1][1] == start + index:
            runs[-1][1] += 1
        else:
            runs.append([start + index, 1])
    return [(at, count, count) for at, count in runs]


def _common(at: int, other: int, most: int, equal: Callable[[int, int, int], bool]) -> int:
    """Return how many elements, at most so many, are equal from here on."""
    count, size = 0, ALIKE
    while count < most:  # larger and larger pieces, and where one differs, its halves
        size = min(size, most - count)
        if equal(at + count, other + count, size):
            count, size = count + size, min(CHUNK, 4 * size)
        elif size == 1:
            break
        else:
            most, size = count + size, (size + 1) // 2
    return count


def _shift(at: int, other: int, length: int, grown: int, equal: Callable[[int, int, int], bool]) -> tuple[int, int]:
    """Return how many elements go and come at two indices where sequences differ, so that they go on alike."""
    surplus = (length - at) - (grown - other)
    for count in range(1, 1 + min(abs(surplus), MOST_SHIFTED)):
        removed, added = (count, 0) if surplus > 0 else (0, count)
        alike = min(ALIKE, length - at - removed, grown - other - added)
        if equal(at + removed, other + added, alike):
            return removed, added
    return 1, 1


def check_splices(splices: Sequence[Splice], length: int) -> int:
    """Return the length of a sequence after these splices.

    Raises:
        ValueError: One reaches beyond the sequence or into another one.

    """
    end, grown = 0, length
    for at, removed, inserted in splices:
        if at < end or removed < 0 or inserted < 0 or at + removed > length:
            raise ValueError(f"a change of {length} rows goes beyond them")
        end, grown = at + removed, grown + inserted - removed
    return grown


Piece = tuple[Tensor, int, int]  # rows of a tensor, from a start to a stop


def splice_pieces(pieces: Sequence[Piece], splices: Sequence[Splice], rows: Tensor, axis: int = 0) -> list[Piece]:
    """Return the pieces of a tensor after splices along an axis, whose elements are rows, one after another.

    Raises:
        ValueError: The splices do not fit the pieces, or not the rows.

    """
    length, given = sum(stop - start for _, start, stop in pieces), sum(inserted for *_, inserted in splices)
    check_splices(splices, length)
    if given != rows.shape[axis]:
        raise ValueError(f"a change of {given} rows has {rows.shape[axis]}")
    spliced: list[Piece] = []
    rest, used, position = iter(_cut(pieces, splices)), 0, 0
    for at, removed, inserted in splices:
        while position < at:
            piece = next(rest)
            spliced.append(piece)
            position += piece[2] - piece[1]
        while position < at + removed:
            _, start, stop = next(rest)
            position += stop - start
        if inserted:
            spliced.append((rows, used, used + inserted))
            used += inserted
    spliced.extend(rest)
    return spliced or [(rows, 0, 0)]  # which has the form of the tensor


def _cut(pieces: Sequence[Piece], splices: Sequence[Splice]) -> Iterator[Piece]:
    """Yield pieces that are cut wherever a splice begins or ends."""
    cuts = sorted({edge for at, removed, _ in splices for edge in (at, at + removed)}, reverse=True)
    position = 0
    for source, start, stop in pieces:
        while start < stop:
            while cuts and cuts[-1] <= position:
                cuts.pop()
            end = min(stop, start + cuts[-1] - position) if cuts else stop
            yield source, start, end
            position, start = position + end - start, end


def splices_between(old: Any, new: Any) -> list[Step]:
    """Return the steps that make new JSON values of old ones. Tuples count as lists."""
    return list(_steps(old, new, []))


def _steps(old: Any, new: Any, path: list[Any]) -> Iterator[Step]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in old:
            if key not in new:
                yield [UNSET, [*path, key]]
        for key, value in new.items():
            if key in old:
                yield from _steps(old[key], value, [*path, key])
            else:
                yield [SET, [*path, key], value]
    elif isinstance(old, list | tuple) and isinstance(new, list | tuple):
        old, new = list(old), list(new)
        if len(old) == len(new) <= FEWEST_SPLICED:
            for index, (before, after) in enumerate(zip(old, new, strict=True)):
                yield from _steps(before, after, [*path, index])
        elif old != new:
            splices = list_splices(old, new) if len(old) > FEWEST_SPLICED else None
            if splices is None:
                yield [SET, path, new]
            else:
                yield [SPLICE, path, _with_elements(splices, new)]
    elif type(old) is not type(new) or old != new:
        yield [SET, path, new]


def _with_elements(splices: Sequence[Splice], new: Sequence[Any]) -> list[Any]:
    shift, filled = 0, []
    for at, removed, inserted in splices:
        filled.append([at, removed, list(new[at + shift : at + shift + inserted])])
        shift += inserted - removed
    return filled


def apply_differences(values: dict[str, Any], steps: Sequence[Step]) -> None:
    """Change JSON values in place by the steps of `splices_between`.

    Raises:
        ValueError: A step does not fit the values.

    """
    for step in steps:
        try:
            kind, path, *rest = step
            parent = values
            for key in path[:-1]:
                parent = parent[key]
            match kind, rest:
                case "set", [value]:
                    parent[path[-1]] = value
                case "unset", []:
                    del parent[path[-1]]
                case "splice", [filled]:
                    _apply_splices(parent[path[-1]], filled)
                case _:
                    raise ValueError(f"there is no change '{kind}'")
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"a change does not fit what it changes ({type(error).__name__}: {error})") from error


def _apply_splices(elements: list[Any], filled: Sequence[Any]) -> None:
    """Change a list in place by splices with their elements."""
    check_splices([(at, removed, len(inserted)) for at, removed, inserted in filled], len(elements))
    for at, removed, inserted in reversed(filled):  # from the end on, so that indices stay those of the old list
        elements[at : at + removed] = inserted
