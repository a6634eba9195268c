import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data.layouts import blocks, save, write_folder
from protograph._internal.errors import InputError
from protograph._internal.progress import Silent
from protograph.data import Dataset, open_dataset
from protograph.data.kept_split import SPLIT_FILE, keep_split, with_kept_split
from protograph.data.splits import DATASET_PARTS, draw_roles, split_freely

CLASSES = {f"kind {number}": 8 for number in range(12)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "root", CLASSES)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def files_by_part(dataset: Dataset) -> dict[str, dict[str, list[str]]]:
    assert dataset.images is not None
    names = dataset.images.names
    return {
        part: {
            dataset.classes[class_id]: [names[index] for index in images.tolist()]
            for class_id, images in zip(pool.classes.tolist(), pool.by_class(), strict=True)
        }
        for part, pool in ((part, getattr(dataset, part)) for part in DATASET_PARTS)
    }


class Lines(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def add_class(root: Path) -> None:
    write_folder(root.parent / "more", {"kind 99": 40, "akind": 40})
    for name in ("kind 99", "akind"):
        shutil.move(root.parent / "more" / name, root / name)


def add_image(root: Path) -> None:
    save(root / "kind 3" / "0000.png", blocks(12, 10, 991))


def write_split(root: Path) -> None:
    roles = ["novel-test", "novel-validation", *["seen"] * 10]
    lines = [f"{name},{role}" for name, role in zip(CLASSES, roles, strict=True)]
    (root / "split.csv").write_text("\n".join(["class,split", *lines]) + "\n")


@pytest.mark.slow
@pytest.mark.parametrize("change", [add_class, add_image, write_split])
def test_a_run_keeps_its_split_when_the_folder_changes(root: Path, run: Path, change: Callable[[Path], None]) -> None:
    before = open_dataset("folder", root)
    keep_split(before, run)
    change(root)
    today, lines = open_dataset("folder", root), Lines()
    assert today.fingerprint != before.fingerprint
    restored = with_kept_split(today, run, before.fingerprint, lines)
    assert (restored.fingerprint, restored.classes) == (before.fingerprint, before.classes)
    assert files_by_part(restored) == files_by_part(before)
    new = " without 2 new classes (" if change is add_class else ""
    assert len(lines.lines) == 1
    assert lines.lines[0].startswith(f"{run} keeps the split it was trained on{new}")


@pytest.mark.slow
def test_the_split_is_written_once_and_only_where_it_was_drawn(root: Path, run: Path, toy: Dataset) -> None:
    keep_split(toy, run)
    assert list(run.iterdir()) == []
    keep_split(open_dataset("folder", root), run)
    content = (run / SPLIT_FILE).read_text()
    assert json.loads(content)["images"] == 96
    add_class(root)
    keep_split(open_dataset("folder", root), run)
    assert (run / SPLIT_FILE).read_text() == content


def test_an_unchanged_dataset_and_one_with_a_fixed_split_are_left_alone(root: Path, run: Path, toy: Dataset) -> None:
    dataset = open_dataset("folder", root)
    assert with_kept_split(dataset, run, dataset.fingerprint, Silent()) is dataset
    assert with_kept_split(toy, run, "another", Silent()) is toy


def old_split(dataset: Dataset) -> Dataset:
    """The dataset as versions before split.json divided it."""
    members: dict[str, list[int]] = {}
    assert dataset.images is not None
    for index, name in enumerate(dataset.images.names):
        members.setdefault(name.split("/")[0], []).append(index)
    from protograph.data.dataset import assemble

    split = split_freely(members, draw_roles(members, by_index=True))
    return assemble("folder", split, dataset.images, dataset.augmentation, {}, dataset.titles, drawn_split=True)


@pytest.mark.slow
def test_a_run_older_than_kept_splits_gets_the_rule_of_its_time(root: Path, run: Path) -> None:
    today = open_dataset("folder", root)
    before = old_split(today)
    assert before.fingerprint != today.fingerprint
    restored = with_kept_split(today, run, before.fingerprint, Silent())
    assert restored.fingerprint == before.fingerprint
    assert files_by_part(restored) == files_by_part(before)
    add_class(root)
    with pytest.raises(InputError, match="kept no list of them; restore them, or train again into another folder"):
        with_kept_split(open_dataset("folder", root), run, before.fingerprint, Silent())


@pytest.mark.slow
def test_images_that_are_gone_or_changed_are_named(root: Path, run: Path) -> None:
    before = open_dataset("folder", root)
    keep_split(before, run)
    path = root / "kind 3" / "002.png"
    content = path.read_bytes()
    save(path, blocks(12, 10, 77))
    with pytest.raises(InputError, match=f"{before.fingerprint}, here .*some were changed; restore them, or train again"):
        with_kept_split(open_dataset("folder", root), run, before.fingerprint, Silent())
    path.unlink()
    with pytest.raises(InputError, match=r"1 images that are gone, such as kind 3/002\.png: restore them"):
        with_kept_split(open_dataset("folder", root), run, before.fingerprint, Silent())
    path.write_bytes(content)
    restored = with_kept_split(open_dataset("folder", root), run, before.fingerprint, Silent())
    assert restored.fingerprint == before.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("content", ["", "[]", '{"format": 1}', '{"format": 1, "images": 1, "parts": {"train": 3}}'])
def test_a_damaged_split_is_named(root: Path, run: Path, content: str) -> None:
    (run / SPLIT_FILE).write_text(content)
    with pytest.raises(InputError, match=r"split\.json is damaged"):
        with_kept_split(open_dataset("folder", root), run, "another", Silent())


def test_a_split_of_a_newer_version_is_refused(root: Path, run: Path) -> None:
    (run / SPLIT_FILE).write_text('{"format": 2}')
    with pytest.raises(InputError, match="format 2: install a newer protograph"):
        with_kept_split(open_dataset("folder", root), run, "another", Silent())


def test_features_that_are_added_at_the_end_leave_the_split(tmp_path: Path, run: Path) -> None:
    vectors, labels = np.random.default_rng(0).standard_normal((130, 4)).astype(np.float32), np.arange(130) % 10
    labels[100:] = 99
    np.savez(tmp_path / "own.npz", vectors=vectors[:100], labels=labels[:100])
    before = open_dataset("features", tmp_path / "own.npz")
    keep_split(before, run)
    np.savez(tmp_path / "own.npz", vectors=vectors, labels=labels)
    restored = with_kept_split(open_dataset("features", tmp_path / "own.npz"), run, before.fingerprint, Silent())
    assert (restored.fingerprint, restored.classes) == (before.fingerprint, before.classes)
    for part in DATASET_PARTS:
        assert getattr(restored, part).images.tolist() == getattr(before, part).images.tolist()


@pytest.mark.slow
def test_a_renamed_dataset_keeps_its_split(root: Path, run: Path) -> None:
    before = replace(open_dataset("folder", root), name="mine")
    keep_split(before, run)
    add_class(root)
    assert with_kept_split(open_dataset("folder", root), run, before.fingerprint, Silent()).classes == before.classes
