"""Tensors in a file of segments: a base, and changes that are appended to it and never written again.

A segment is a JSON header, its tensors, and a seal of 64 bytes:

    8 bytes       the length of the header, as a whole number (little-endian)
    header        JSON in UTF-8, with spaces at its end: `Header`
    tensors       as the header says, each at a multiple of 64 bytes, and in the base with room for further rows behind it
    seal          MAGIC, where the segment begins, its length, the digest of its header

The header has the digests of its tensors and of the segment before, so the digest of the last header is one of the whole file.
The seal is written once all the rest is on the disk. So a tail without a seal is what a killed process left: readers leave it
out, and the next change overwrites it. Behind it nothing is sealed. Whatever else is not as its digests say is damaged.
"""

import mmap
import os
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from math import prod
from typing import Annotated, Any, BinaryIO, Literal

import msgspec
import torch
from msgspec import Meta, Struct, field
from torch import Tensor

MAGIC = bytes.fromhex("a3f1c65e0d9b47288ec41b73d25f9a60")
SEAL = struct.Struct("<16sQQ16s16x")
ALIGNMENT = 64  # bytes
LARGEST_SEGMENT_HEADER = 2**24  # bytes
MOST_SEGMENTS = 4096  # of a file
LARGEST_SHAPE = 2**53  # elements of a tensor, were no axis empty
PORTION = 2**24  # bytes that are read, written and hashed at once
FEWEST_THREADED = 4  # portions that several threads hash
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}

RowParts = Tensor | Sequence[Tensor]  # a tensor, or parts of one along its first axis
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]
NoDigest = Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?$")]
Size = Annotated[int, Meta(ge=0, le=2**53)]


class StoredPart(Struct, forbid_unknown_fields=True):
    """A tensor in a segment.

    Attributes:
        dtype: Its type, such as F32.
        shape: Its shape.
        at: Where it begins, behind the header.
        room: The bytes that it has, with those for further rows.
        digest: The digest of the digests of its portions.

    """

    dtype: str
    shape: Annotated[list[Size], Meta(max_length=8)]
    at: Size
    room: Size
    digest: Digest

    @property
    def size(self) -> int:
        """Its bytes."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize


class Header(Struct, forbid_unknown_fields=True):
    """The header of a segment.

    Attributes:
        metadata: Texts about the file, in the place where safetensors has them, so that earlier versions name its version.
        kind: A base, a change of a state, or a return to one.
        before: The digest of the segment before; "" of the base.
        on: The digest of the state that is changed or returned to; "" of the base.
        note: What is said of the segment.
        parts: Its tensors by name.
        length: The bytes of its tensors.

    """

    metadata: dict[str, str] = field(name="__metadata__")
    kind: Literal["base", "change", "return"]
    before: NoDigest
    on: NoDigest
    note: dict[str, Any]
    parts: dict[str, StoredPart]
    length: Size


@dataclass(frozen=True)
class Segment:
    """A segment in a file.

    Attributes:
        header: Its header.
        digest: The digest of the header: the name of the file up to here.
        start: Where it begins.
        data: Where its tensors begin.
        stop: Where it ends, behind the seal.

    """

    header: Header
    digest: str
    start: int
    data: int
    stop: int


@dataclass(frozen=True)
class SegmentList:
    """The sealed segments of a file.

    Attributes:
        segments: All of them, the base first.
        size: The bytes of the file, with an unfinished segment at its end, if there is one.
        identity: What tells this file from one that took its place: the device and the number.
        links: The number of its names.

    """

    segments: tuple[Segment, ...]
    size: int
    identity: tuple[int, int]
    links: int

    @property
    def stop(self) -> int:
        """Where the last segment ends."""
        return self.segments[-1].stop

    @cached_property
    def states(self) -> dict[str, Segment]:
        """The segments that made a state, by their digests, in their order."""
        return {segment.digest: segment for segment in self.segments if segment.header.kind != "return"}

    @property
    def head(self) -> Segment:
        """The segment that made the present state."""
        last = self.segments[-1]
        return self.states[last.header.on] if last.header.kind == "return" else last

    def line(self, segment: Segment) -> list[Segment]:
        """Return the segments that lead to a state, from the base on."""
        line = [segment]
        while line[-1].header.on:
            line.append(self.states[line[-1].header.on])
        return line[::-1]


@dataclass(frozen=True)
class NewSegment:
    """A segment to write.

    Attributes:
        kind: As in `Header`.
        on: As in `Header`.
        note: As in `Header`.
        tensors: Its tensors by name.
        metadata: Texts about the file.

    """

    kind: Literal["base", "change", "return"]
    on: str
    note: Mapping[str, Any]
    tensors: Mapping[str, RowParts]
    metadata: Mapping[str, str]


def read_segments(file: BinaryIO) -> SegmentList:
    """Return the sealed segments of a file, by their headers; their tensors are checked where they are read.

    Raises:
        ValueError: The file has no base, or a segment is damaged.

    """
    status = os.fstat(file.fileno())
    segments: list[Segment] = []
    states: set[str] = set()
    start, before = 0, ""
    while start < status.st_size:
        try:
            segment = _read_segment(file, start, status.st_size)
            _check_order(segment.header, before, states)
            if len(segments) == MOST_SEGMENTS:
                raise ValueError(f"there are more than {MOST_SEGMENTS}")
        except ValueError as error:
            if segments and not _sealed_from(file, start, status.st_size):
                break  # what a killed process left
            which = f"change {len(segments)}" if segments else "its base"
            raise ValueError(f"{which}: {error}") from error
        segments.append(segment)
        if segment.header.kind != "return":
            states.add(segment.digest)
        start, before = segment.stop, segment.digest
    if not segments:
        raise ValueError("it is empty")
    return SegmentList(tuple(segments), status.st_size, (status.st_dev, status.st_ino), status.st_nlink)


def _read_segment(file: BinaryIO, start: int, size: int) -> Segment:
    length = int.from_bytes(_read(file, start, 8), "little")
    data = start + 8 + length
    if length > LARGEST_SEGMENT_HEADER or data % ALIGNMENT or data + SEAL.size > size:
        raise ValueError("its header does not fit the file")
    text = _read(file, start + 8, length)
    try:
        header = msgspec.json.decode(text, type=Header)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"its header is none ({error})") from error
    digest = _digest(text)
    stop = data + header.length + SEAL.size
    if stop > size or header.length % ALIGNMENT:
        raise ValueError("its tensors do not fit the file")
    sealed = _read(file, stop - SEAL.size, SEAL.size)
    if sealed != SEAL.pack(MAGIC, start, stop - start, bytes.fromhex(digest)):
        raise ValueError("its header does not match its seal")
    end = 0
    for name, part in sorted(header.parts.items(), key=lambda item: item[1].at):
        if part.dtype not in DTYPES:
            raise ValueError(f"the tensor '{name}' is of type {part.dtype}")
        if prod(max(1, size) for size in part.shape) > LARGEST_SHAPE:
            raise ValueError(f"the tensor '{name}' is too large")
        if part.at < end or part.at % ALIGNMENT or part.size > part.room or part.at + part.room > header.length:
            raise ValueError(f"the tensor '{name}' lies outside of its place")
        end = part.at + part.room
    return Segment(header, digest, start, data, stop)


def _check_order(header: Header, before: str, states: Collection[str]) -> None:
    """Raise a `ValueError` unless a segment belongs behind the one before, in a file with these states."""
    if header.before != before:
        raise ValueError("it does not belong behind the segment before")
    if (header.kind == "base") != (not states):
        raise ValueError("a file has one base, which comes first")
    if header.on not in (states or ("",)):
        raise ValueError("it changes a state that the file does not have")


def _sealed_from(file: BinaryIO, start: int, size: int) -> bool:
    """Return whether any segment behind a start is sealed."""
    position = start
    while position < size:
        content = _read(file, position, min(PORTION + SEAL.size, size - position))
        at = content.find(MAGIC)
        while at >= 0:
            if at % ALIGNMENT == 0 and len(content) - at >= SEAL.size:
                return True
            at = content.find(MAGIC, at + 1)
        position += PORTION
    return False


def _read(file: BinaryIO, at: int, length: int) -> bytes:
    file.seek(at)
    content = b""
    while len(content) < length and (more := file.read(length - len(content))):
        content += more
    if len(content) < length:
        raise ValueError("it is cut off")
    return content


def write_segment(file: BinaryIO, new: NewSegment, before: Segment | None = None, room: int = 0) -> Segment:
    """Write a segment behind another one, or at the start of a file, and return it. It is on the disk when this returns.

    Args:
        file: The file, without a buffer.
        new: What to write.
        before: The segment before.
        room: Every tensor gets room for a further 1 / `room` of it; none if it is 0.

    """
    start = before.stop if before else 0
    parts, at = {}, 0
    for name, rows in new.tensors.items():
        dtype, shape = _form(rows)
        size = prod(shape) * dtype.itemsize
        bytes_kept = _aligned(size + (size // room if room else 0))
        parts[name] = StoredPart(NAMES[dtype], list(shape), at, bytes_kept, portions_digest(rows))
        at += bytes_kept
    header = Header(dict(new.metadata), new.kind, before.digest if before else "", new.on, dict(new.note), parts, at)
    text = msgspec.json.encode(header)
    text += b" " * (_aligned(8 + len(text)) - 8 - len(text))
    if len(text) > LARGEST_SEGMENT_HEADER:
        raise ValueError("its header would be too large")
    data = start + 8 + len(text)
    segment = Segment(header, _digest(text), start, data, data + at + SEAL.size)
    file.truncate(start)  # what a killed process left
    try:
        file.seek(start)
        _write(file, len(text).to_bytes(8, "little") + text)
        for name, rows in new.tensors.items():
            file.seek(data + parts[name].at)
            for portion in portions(rows):
                _write(file, portion)
        os.fsync(file.fileno())
    except BaseException:
        with suppress(OSError):
            file.truncate(start)  # so that a full disk has room again
        raise
    file.seek(data + at)
    _write(file, SEAL.pack(MAGIC, start, segment.stop - start, bytes.fromhex(segment.digest)))
    os.fsync(file.fileno())
    return segment


def _write(file: BinaryIO, content: bytes | memoryview) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _digest(content: bytes | memoryview) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _form(rows: RowParts) -> tuple[torch.dtype, tuple[int, ...]]:
    """Return the type and the shape of rows."""
    if isinstance(rows, Tensor):
        return rows.dtype, tuple(rows.shape)
    return rows[0].dtype, (sum(map(len, rows)), *rows[0].shape[1:])


def row_bytes(rows: RowParts) -> int:
    """Return the bytes of rows."""
    dtype, shape = _form(rows)
    return prod(shape) * dtype.itemsize


def portions(rows: RowParts) -> Iterator[memoryview]:
    """Yield the bytes of rows in portions of equal size, but for the last."""
    if isinstance(rows, Tensor):
        content = _bytes(rows)
        for start in range(0, len(content), PORTION):
            yield content[start : start + PORTION]
        return
    waiting = bytearray()
    for start in range(0, len(rows), 1024):
        waiting += _bytes(torch.cat(list(rows[start : start + 1024])))
        while len(waiting) >= PORTION:
            yield memoryview(bytes(waiting[:PORTION]))
            del waiting[:PORTION]
    if waiting:
        yield memoryview(bytes(waiting))


def _bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor, in its memory where they lie one after another there."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def portions_digest(rows: RowParts) -> str:
    """Return the digest of the digests of the portions of rows; several threads hash a large tensor."""
    contents: Iterable[memoryview] = portions(rows)
    if isinstance(rows, Tensor) and rows.nbytes > FEWEST_THREADED * PORTION:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return _digest(b"".join(pool.map(_short_digest, contents)))
    return _digest(b"".join(map(_short_digest, contents)))


def _short_digest(content: memoryview) -> bytes:
    return blake2b(content, digest_size=16).digest()


class Reader:
    """The tensors of a file's segments, in memory that is mapped from the file: it is read where it is used.

    Whoever writes into such a tensor writes into memory alone, never into the file.

    Args:
        file: The file.
        stop: Where its last segment ends.

    """

    def __init__(self, file: BinaryIO, stop: int) -> None:
        if os.name == "nt":  # Windows replaces no file that is mapped
            self.buffer: bytearray | mmap.mmap = bytearray(stop)
            file.seek(0)
            file.readinto(memoryview(self.buffer))  # type: ignore[attr-defined]
        else:
            self.buffer = mmap.mmap(file.fileno(), stop, access=mmap.ACCESS_COPY)

    def tensors(self, segment: Segment, *names: str) -> dict[str, Tensor]:
        """Return the tensors of a segment.

        Args:
            segment: The segment.
            names: The names of the tensors, by default all.

        Raises:
            ValueError: One does not match its digest.

        """
        parts = {name: part for name, part in segment.header.parts.items() if not names or name in names}
        tensors = {name: self._tensor(segment, part, part.shape) for name, part in parts.items()}
        for name, tensor in tensors.items():
            if portions_digest(tensor) != segment.header.parts[name].digest:
                raise ValueError(f"the tensor '{name}' does not match its checksum")
        return tensors

    def with_room(self, segment: Segment, name: str) -> Tensor | None:
        """Return a tensor of a segment with all rows that there is room for, whatever they hold; None if it has no rows."""
        part = segment.header.parts[name]
        row = prod(part.shape[1:]) * DTYPES[part.dtype].itemsize
        return self._tensor(segment, part, [part.room // row, *part.shape[1:]]) if part.shape and row else None

    def _tensor(self, segment: Segment, part: StoredPart, shape: Sequence[int]) -> Tensor:
        dtype, count = DTYPES[part.dtype], prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self.buffer, dtype=dtype, count=count, offset=segment.data + part.at).view(tuple(shape))
