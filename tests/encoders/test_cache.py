import threading
from pathlib import Path

import torch

from protograph.encoders.cache import Shelf


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
