"""Large model files: a base, and the changes behind it, each with what is different (`protograph._internal.segments`).

The tensors of a segment are those of a plain model file, and one more that holds JSON as bytes: in the base `classifier`, the
values of a plain file, without the names where these are the labels; in a change `changes`: what is different. Notes hold the
number of classes, and the change that history tells.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec
import torch
from msgspec import Struct
from torch import Tensor

from protograph._internal.segments import (
    MOST_SEGMENTS,
    NewSegment,
    Reader,
    RowParts,
    Segment,
    SegmentList,
    read_segments,
    row_bytes,
    write_segment,
)
from protograph._internal.splices import (
    FEWEST_SPLICED,
    Piece,
    Splice,
    apply_differences,
    part_splices,
    row_splices,
    splice_pieces,
    splices_between,
)
from protograph._version import __version__
from protograph.classifier.model_schema import check_tensor, parse_as

FILE_FORMAT = "protograph-classifier"
SEGMENTED_VERSION = 4  # of the format; plain files have versions up to 3
SEGMENTED_BYTES = 2**26  # of tensors, from which on a file has segments
LARGEST_APPENDED = 1 / 2  # of the base, up to which changes are appended; then the file is written anew
SEGMENTS_UNTIL_REWRITE = 1024  # segments, from which on the file is written anew
ROOM = 16  # every tensor of the base has room for a further 1 / 16 of its rows
BASE_METADATA = {"format": FILE_FORMAT, "version": str(SEGMENTED_VERSION), "protograph": __version__}
OPENING = f'{{"__metadata__":{{"format":"{FILE_FORMAT}","version":"{SEGMENTED_VERSION}"'.encode()  # of the header of a base
VALUES, CHANGES = "classifier", "changes"  # the names of the tensors that hold JSON


class SplicedTensor(Struct, forbid_unknown_fields=True):
    """The rows of a tensor that are different; the new ones are a tensor of the same name.

    Attributes:
        axis: The axis of the rows.
        splices: The splices.

    """

    axis: Literal[0, 1]
    splices: list[Splice]


class Changes(Struct, forbid_unknown_fields=True):
    """What a change makes different, beside its tensors, which take the place of others or of some rows.

    Attributes:
        steps: The steps of a difference of the values (`protograph._internal.splices`).
        removed: The tensors that go.
        spliced: The tensors of which some rows are different.

    """

    steps: list[list[Any]]
    removed: list[str]
    spliced: dict[str, SplicedTensor]


@dataclass(frozen=True, eq=False)
class Stored:
    """What a file with segments holds. A copy of it, or a pickled one, is None: it belongs to one classifier.

    Attributes:
        identity: What tells the file from one that took its place.
        last: The digest of its last segment.
        state: The digest of the state.
        values: The values.
        tensors: The tensors.

    """

    identity: tuple[int, int]
    last: str
    state: str
    values: dict[str, Any]
    tensors: Mapping[str, RowParts]

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _nothing, ()


def _nothing() -> None:
    return None


def has_segments(path: Path) -> bool:
    """Return whether a file is laid out in segments, by its first bytes."""
    with path.open("rb", buffering=0) as file:
        return file.read(8 + len(OPENING))[8:] == OPENING


def list_segments(path: Path) -> SegmentList:
    """Return the segments of a file, by their headers.

    Raises:
        ValueError: One is damaged.

    """
    with path.open("rb", buffering=0) as file:
        return read_segments(file)


def read_stored(path: Path) -> Stored:
    """Return what a file holds, with tensors that are mapped from it, and checked by their digests.

    Raises:
        ValueError: It is damaged.

    """
    with path.open("rb", buffering=0) as file:
        segments = read_segments(file)
        reader = Reader(file, segments.stop)
    line = segments.line(segments.head)
    base = reader.tensors(line[0])
    values = parse_as(_text(base, VALUES), dict[str, Any])
    tensors, pieces = dict(base), dict[str, tuple[int, list[Piece]]]()
    for segment in line[1:]:
        given = reader.tensors(segment)
        changes = parse_as(_text(given, CHANGES), Changes)
        for name in changes.removed:
            if tensors.pop(name, None) is None and pieces.pop(name, None) is None:
                raise ValueError(f"a change removes the tensor '{name}', which it does not have")
        if strangers := changes.spliced.keys() - given.keys():
            raise ValueError(f"a change of the tensor '{min(strangers)}' has no rows")
        for name, rows in given.items():
            if name in changes.spliced:
                pieces[name] = _spliced(name, tensors.pop(name, None), pieces.get(name), changes.spliced[name], rows)
            else:
                pieces.pop(name, None)
                tensors[name] = rows
        apply_differences(values, changes.steps)
    for name, (axis, parts) in pieces.items():
        room = reader.with_room(line[0], name) if name in base and not axis else None
        tensors[name] = _joined(axis, parts, base.get(name), room)
    return Stored(segments.identity, segments.segments[-1].digest, segments.head.digest, values, tensors)


def read_values(path: Path, segments: SegmentList) -> dict[str, Any]:
    """Return the values of the present state of a file, whose other tensors are not read.

    Raises:
        ValueError: The values are damaged.

    """
    with path.open("rb", buffering=0) as file:
        reader = Reader(file, segments.stop)
    line = segments.line(segments.head)
    values = parse_as(_text(reader.tensors(line[0], VALUES), VALUES), dict[str, Any])
    for segment in line[1:]:
        apply_differences(values, parse_as(_text(reader.tensors(segment, CHANGES), CHANGES), Changes).steps)
    values.setdefault("names", values.get("classes"))
    return values


def _text(tensors: dict[str, Tensor], name: str) -> memoryview:
    """Take the JSON out of the tensors of a segment."""
    tensor = tensors.pop(name, None)
    if tensor is None or tensor.dtype != torch.uint8 or tensor.ndim != 1:
        raise ValueError(f"the tensor '{name}' is missing")
    return tensor.numpy().data


def _spliced(
    name: str, tensor: Tensor | None, before: tuple[int, list[Piece]] | None, change: SplicedTensor, rows: Tensor
) -> tuple[int, list[Piece]]:
    """Return the axis and the pieces of a tensor after a change of some rows."""
    axis = change.axis
    if before is None:
        if tensor is None or tensor.ndim <= axis:
            raise ValueError(f"a change of the tensor '{name}' has nothing to change")
        before = axis, [(tensor, 0, tensor.shape[axis])]
    like = before[1][0][0]
    fits = rows.dtype == like.dtype and rows.ndim == like.ndim > axis
    if before[0] != axis or not fits or not all(rows.shape[i] == like.shape[i] for i in range(rows.ndim) if i != axis):
        raise ValueError(f"a change of the tensor '{name}' has rows of another form")
    return axis, splice_pieces(before[1], change.splices, rows, axis)


def _joined(axis: int, pieces: Sequence[Piece], base: Tensor | None, room: Tensor | None) -> Tensor:
    """Return a tensor of its pieces: in the memory of the base's, where its rows stay where they are and there is room."""
    ends = [0]
    for _, start, stop in pieces:
        ends.append(ends[-1] + stop - start)
    stays = all(source is not base or start == end for (source, start, _), end in zip(pieces, ends, strict=False))
    if room is not None and stays and ends[-1] <= len(room):
        for (source, start, stop), end in zip(pieces, ends, strict=False):
            if source is not base:
                room[end : end + stop - start] = source[start:stop]
        return room[: ends[-1]]
    return torch.cat([source.narrow(axis, start, stop - start) for source, start, stop in pieces], axis)


def write_stored(
    file: BinaryIO, values: Mapping[str, Any], tensors: Mapping[str, RowParts], note: Mapping[str, Any]
) -> Segment:
    """Write a base into an empty file, without a buffer, and return it."""
    text = _encoded(values)
    return write_segment(file, NewSegment("base", "", note, {VALUES: text, **tensors}, BASE_METADATA), room=ROOM)


def append_change(
    path: Path, stored: Stored, values: Mapping[str, Any], tensors: Mapping[str, RowParts], note: Mapping[str, Any]
) -> Stored | None:
    """Append what is different to a file, whose lock the caller holds, and return what the file then holds.

    Args:
        path: The file.
        stored: What it held when it was read or written.
        values: The values it shall hold.
        tensors: The tensors it shall hold.
        note: What is said of the change.

    Returns:
        What it holds then; None where the file is not as it was, or has another name that would change with it, or where so
        much is different that it is to be written anew. It then stays as it is.

    """
    if not has_segments(path):
        return None
    with path.open("r+b", buffering=0) as file:
        segments = read_segments(file)
        last, base = segments.segments[-1], segments.segments[0]
        as_it_was = (segments.identity, last.digest) == (stored.identity, stored.last) and segments.links == 1
        if not as_it_was or len(segments.segments) >= SEGMENTS_UNTIL_REWRITE:
            return None
        parts, changes = _changes(stored, tensors)
        for name, rows in parts.items():
            for tensor in [rows] if isinstance(rows, Tensor) else rows:
                check_tensor(name, tensor, None)
        changes.steps = splices_between(stored.values, values)
        check_steps(stored.values, changes.steps, values)
        parts[CHANGES] = _encoded(changes)
        if sum(map(row_bytes, parts.values())) + segments.stop - base.stop > LARGEST_APPENDED * (base.stop - base.start):
            return None
        segment = write_segment(file, NewSegment("change", stored.state, note, parts, BASE_METADATA), last)
    return Stored(stored.identity, segment.digest, segment.digest, dict(values), dict(tensors))


def append_return(path: Path, state: str) -> None:
    """Append to a file, whose lock the caller holds, that it returns to one of its states.

    Raises:
        ValueError: It is damaged.

    """
    with path.open("r+b", buffering=0) as file:
        segments = read_segments(file)
        if len(segments.segments) == MOST_SEGMENTS:
            raise ValueError(f"it went back and forth {MOST_SEGMENTS} times: change it first")
        write_segment(file, NewSegment("return", state, {}, {}, BASE_METADATA), segments.segments[-1])


def check_steps(old: Mapping[str, Any], steps: Sequence[Sequence[Any]], new: Mapping[str, Any]) -> None:
    """Raise an `AssertionError` unless the steps of a difference lead from the old values to the new ones."""
    changed = {key: _copied(value) for key, value in old.items()}
    apply_differences(changed, msgspec.json.decode(msgspec.json.encode(steps, enc_hook=_plain)))
    assert not splices_between(changed, new), "a difference of values is wrong"


def _copied(value: Any) -> Any:
    """Return a copy of JSON values, in which short lists of lists are copied too, and long ones share what they hold."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(inner) for inner in value] if len(value) <= FEWEST_SPLICED else list(value)
    return value


def _changes(stored: Stored, tensors: Mapping[str, RowParts]) -> tuple[dict[str, RowParts], Changes]:
    """Return the tensors that a change has, and what it says of them."""
    parts: dict[str, RowParts] = {}
    spliced: dict[str, SplicedTensor] = {}
    for name, rows in tensors.items():
        axis: Literal[0, 1] = 1 if name.endswith(".edges") else 0
        splices = _difference(stored.tensors.get(name), rows, axis)
        if splices is None:
            parts[name] = rows
        elif splices:
            parts[name], spliced[name] = _inserted(rows, splices, axis), SplicedTensor(axis, splices)
    return parts, Changes([], [name for name in stored.tensors if name not in tensors], spliced)


def _difference(old: RowParts | None, new: RowParts, axis: int) -> list[Splice] | None:
    if old is None:
        return None
    if not isinstance(old, Tensor) and not isinstance(new, Tensor) and old[0].dtype == new[0].dtype:
        return part_splices(old, new) if old[0].shape[1:] == new[0].shape[1:] else None
    old, new = (rows if isinstance(rows, Tensor) else torch.cat(list(rows)) for rows in (old, new))
    if old.dtype != new.dtype or old.ndim != new.ndim:
        return None
    if not new.ndim:
        return [] if torch.equal(old, new) else None
    alike = all(old.shape[i] == new.shape[i] for i in range(new.ndim) if i != axis)
    return row_splices(old, new, axis) if alike else None


def _inserted(rows: RowParts, splices: Sequence[Splice], axis: int) -> Tensor:
    """Return the new rows of splices, one after another."""
    shift, ranges = 0, []
    for at, removed, inserted in splices:
        ranges.append((at + shift, inserted))
        shift += inserted - removed
    if isinstance(rows, Tensor):
        return torch.cat([rows.narrow(axis, start, count) for start, count in ranges], axis)
    ends = list(accumulate(map(len, rows)))
    chosen = [rows[0][:0]]
    for start, count in ranges:  # splices of parts take whole ones
        chosen += rows[bisect_right(ends, start) : bisect_right(ends, start + count - 1) + 1] if count else []
    return torch.cat(chosen)


def _encoded(values: Any) -> Tensor:
    """Return JSON values as a tensor of bytes."""
    return torch.frombuffer(bytearray(msgspec.json.encode(values, enc_hook=_plain)), dtype=torch.uint8)


def _plain(number: Any) -> Any:
    """Return a number of NumPy as one of Python."""
    return number.item()
