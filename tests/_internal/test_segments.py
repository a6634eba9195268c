"""Files of segments: what is sealed comes back, what is torn is left out, what is damaged is refused."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from protograph._internal import segments as module
from protograph._internal.segments import (
    SEAL,
    NewSegment,
    Reader,
    Segment,
    SegmentList,
    portions,
    portions_digest,
    read_segments,
    write_segment,
)

TENSORS = {
    "a": torch.arange(6.0).view(3, 2),
    "b": torch.tensor(3),
    "c": [torch.zeros(0, 2), torch.ones(1, 2), torch.full((2, 2), 2.0)],
    "none": torch.zeros(0, 4),
    "flags": torch.tensor([True, False]),
}
METADATA = {"format": "test"}


def write(path: Path) -> list[Segment]:
    """Write a base, a change, a return to the base, and another change."""
    with path.open("w+b", buffering=0) as file:
        base = write_segment(file, NewSegment("base", "", {"said": 1}, TENSORS, METADATA), room=2)
        made = [base]
        for kind, on in (("change", base.digest), ("return", base.digest), ("change", base.digest)):
            tensors = {} if kind == "return" else {"a": torch.full((len(made), 2), 7.0)}
            made.append(write_segment(file, NewSegment(kind, on, {}, tensors, METADATA), made[-1]))  # type: ignore[arg-type]
    return made


def read(path: Path) -> SegmentList:
    with path.open("rb", buffering=0) as file:
        return read_segments(file)


def read_all(file: Any) -> None:
    found = read_segments(file)
    for segment in found.segments:
        Reader(file, found.stop).tensors(segment)


def test_segments_come_back_with_their_tensors(tmp_path: Path) -> None:
    made = write(tmp_path / "x")
    found = read(tmp_path / "x")
    assert list(found.segments) == made
    assert found.size == found.stop == (tmp_path / "x").stat().st_size
    assert [segment.digest for segment in found.line(found.head)] == [made[0].digest, made[3].digest]
    assert list(found.states) == [made[0].digest, made[1].digest, made[3].digest]
    with (tmp_path / "x").open("rb", buffering=0) as file:
        reader = Reader(file, found.stop)
    tensors = reader.tensors(made[0])
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
        "a": [[0, 1], [2, 3], [4, 5]], "b": 3, "c": [[1, 1], [2, 2], [2, 2]], "none": [], "flags": [True, False]
    }  # fmt: skip
    assert tensors["none"].shape == (0, 4)
    assert all(tensor.data_ptr() % 64 == 0 for tensor in tensors.values() if tensor.numel())
    assert reader.tensors(made[3])["a"].shape == (3, 2)
    assert made[0].header.note == {"said": 1}


def test_what_is_written_into_a_tensor_stays_in_memory(tmp_path: Path) -> None:
    made = write(tmp_path / "x")
    before = (tmp_path / "x").read_bytes()
    with (tmp_path / "x").open("rb", buffering=0) as file:
        reader = Reader(file, made[-1].stop)
    room = reader.with_room(made[0], "a")
    assert room is not None
    assert len(room) > 3
    room[:] = 9
    assert reader._tensor(made[0], made[0].header.parts["a"], [3, 2]).tolist() == [[9, 9]] * 3
    assert (tmp_path / "x").read_bytes() == before
    assert reader.with_room(made[0], "b") is None


def test_a_return_is_to_a_state(tmp_path: Path) -> None:
    made = write(tmp_path / "x")
    with (tmp_path / "x").open("r+b", buffering=0) as file:
        write_segment(file, NewSegment("return", made[1].digest, {}, {}, METADATA), made[-1])
    assert read(tmp_path / "x").head == made[1]


def test_a_last_segment_that_is_cut_anywhere_is_left_out_and_overwritten(tmp_path: Path) -> None:
    made = write(tmp_path / "x")
    content = (tmp_path / "x").read_bytes()
    for size in range(made[-2].stop, len(content)):
        (tmp_path / "y").write_bytes(content[:size])
        found = read(tmp_path / "y")
        assert list(found.segments) == made[:-1]
        assert found.size == size
    with (tmp_path / "y").open("r+b", buffering=0) as file:
        write_segment(file, NewSegment("return", made[0].digest, {}, {}, METADATA), found.segments[-1])
    assert len(read(tmp_path / "y").segments) == 4
    for tail in (bytes(999), Random(0).randbytes(999), content[:300]):
        (tmp_path / "y").write_bytes(content + tail)
        assert list(read(tmp_path / "y").segments) == made


def test_a_base_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    made = write(tmp_path / "x")
    content = (tmp_path / "x").read_bytes()
    for size in range(0, made[0].stop, 7):
        (tmp_path / "y").write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"its base|empty"):
            read(tmp_path / "y")


def test_every_changed_byte_of_what_is_sealed_is_noticed(tmp_path: Path) -> None:
    """But in the empty room behind a tensor, and in the magic number of the last seal, without which it is torn."""
    made = write(tmp_path / "x")
    content = (tmp_path / "x").read_bytes()
    empty: set[int] = set()
    for segment in made:
        for part in segment.header.parts.values():
            empty |= set(range(segment.data + part.at + part.size, segment.data + part.at + part.room))
    with (tmp_path / "y").open("w+b", buffering=0) as file:
        file.write(content)
        for at in sorted(set(range(len(content))) - empty):
            file.seek(at)
            file.write(bytes([content[at] ^ 1]))
            if len(content) - SEAL.size <= at < len(content) - SEAL.size + 16:
                assert list(read_segments(file).segments) == made[:-1]
            else:
                with pytest.raises(ValueError, match=r"^(its base|change \d|the tensor)"):
                    read_all(file)
            file.seek(at)
            file.write(content[at : at + 1])


def test_segments_that_are_left_out_or_exchanged_are_refused(tmp_path: Path) -> None:
    made = write(tmp_path / "x")
    content = (tmp_path / "x").read_bytes()
    parts = [content[segment.start : segment.stop] for segment in made]
    for order in ([0, 2, 3], [0, 2, 1, 3], [0, 1, 3], [1, 2, 3], [0, 0, 1], [0, 1, 1]):
        (tmp_path / "y").write_bytes(b"".join(parts[index] for index in order))
        with pytest.raises(ValueError, match=r"its base|change"):
            read(tmp_path / "y")


@pytest.mark.parametrize(
    ("kind", "on", "said"),
    [("base", "", "one base"), ("change", "", "a state"), ("change", "0" * 32, "a state"), ("return", "0" * 32, "a state")],
)
def test_a_segment_of_a_state_that_is_not_there_is_refused(tmp_path: Path, kind: Any, on: str, said: str) -> None:
    made = write(tmp_path / "x")
    with (tmp_path / "x").open("r+b", buffering=0) as file:
        write_segment(file, NewSegment(kind, on, {}, {}, METADATA), made[-1])
    with pytest.raises(ValueError, match=said):
        read(tmp_path / "x")


def test_no_more_segments_are_read_than_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "x")
    monkeypatch.setattr(module, "MOST_SEGMENTS", 3)
    with pytest.raises(ValueError, match="change 3: there are more than 3"):
        read(tmp_path / "x")


def test_portions_of_a_tensor_and_of_its_parts_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PORTION", 64)
    whole = torch.arange(300.0).view(100, 3)
    parts = list(whole.split([0, 1, 30, 5, 64]))
    assert [bytes(part) for part in portions(whole)] == [bytes(part) for part in portions(parts)]
    assert portions_digest(whole) == portions_digest(parts) != portions_digest(whole + 1)
