import threading
from pathlib import Path

import pytest
import torch

from protograph._internal.progress import Silent
from protograph.encoders import cache
from protograph.encoders.cache import BlockWriter, Shelf


def test_what_was_added_is_found_and_nothing_else(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "shelf")
    assert shelf.find(["a"]) == {}
    features = {name: torch.randn(2, 5) for name in "abc"}
    shelf.add({name: features[name] for name in "ab"})
    shelf.add({"c": features["c"]})
    found = shelf.find(["c", "a", "x"])
    assert found.keys() == {"a", "c"}
    for name, value in found.items():
        assert torch.equal(value, features[name])


def test_nothing_new_leaves_nothing(tmp_path: Path) -> None:
    Shelf(tmp_path / "shelf").add({})
    assert not (tmp_path / "shelf").exists()


def test_damaged_and_half_written_files_are_passed_over(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.add({"a": torch.ones(1, 3)})
    (whole,) = tmp_path.glob("*.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(whole.read_bytes()[:40])
    (tmp_path / "empty.safetensors").touch()
    (tmp_path / ".half.safetensors").write_bytes(whole.read_bytes()[:10])
    assert shelf.find(["a"]).keys() == {"a"}
    whole.unlink()
    assert shelf.find(["a"]) == {}


def test_several_writers_keep_what_each_added(tmp_path: Path) -> None:
    writers = [threading.Thread(target=Shelf(tmp_path).add, args=({str(one): torch.full((1, 3), one)},)) for one in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = Shelf(tmp_path).find([str(one) for one in range(8)])
    assert {name: value[0, 0].item() for name, value in found.items()} == {str(one): one for one in range(8)}


def test_features_are_written_in_blocks_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(cache.time, "monotonic", lambda: now)
    shelf = Shelf(tmp_path)
    with BlockWriter(shelf, Silent()) as writer:
        writer.add({"a": torch.ones(1, 3)})
        assert shelf.find(["a"]) == {}, "the block is not old enough"
        now = 10.0
        writer.add({"b": torch.ones(1, 3)})
        assert shelf.find(["a", "b"]).keys() == {"a", "b"}
        writer.add({"c": torch.ones(1, 3)})
    assert shelf.find(["c"]).keys() == {"c"}, "the last block is written at the end"
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_what_was_encoded_before_an_error_is_kept(tmp_path: Path, kind: type[BaseException]) -> None:
    def interrupted(writer: BlockWriter) -> None:
        with writer:
            writer.add({"a": torch.ones(1, 3)})
            raise kind

    with pytest.raises(kind):
        interrupted(BlockWriter(Shelf(tmp_path), Silent()))
    assert Shelf(tmp_path).find(["a"]).keys() == {"a"}


def test_without_a_shelf_nothing_is_written() -> None:
    with BlockWriter(None, Silent()) as writer:
        writer.add({"a": torch.ones(1, 3)})
