import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data.layouts import blocks, save, write_folder, write_rows
from protograph.data import Dataset, Pool, open_dataset
from protograph.data.check import inspect_dataset
from protograph.data.splits import DATASET_PARTS

KINDS = ["seen"] * 5 + ["novel-validation"] * 2 + ["novel-test"] * 2


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Nine classes; classes 0 to 4 are seen, 5 and 6 novel for validation, 7 and 8 for test."""
    write_folder(tmp_path, {str(number): 7 for number in range(9)}, (10, 12))
    write_rows(tmp_path / "split.csv", ("class", "split"), *((str(number), kind) for number, kind in enumerate(KINDS)))
    return tmp_path


def test_everything_is_counted(root: Path) -> None:
    save(root / "7" / "wide.png", blocks(6, 40, 99))
    save(root / "8" / "grey.png", blocks(30, 5, 98), "L")
    findings = inspect_dataset(open_dataset("folder", root))
    assert (findings.dataset, findings.classes, findings.images, findings.greyscale) == ("folder", 9, 65, 1)
    assert findings.parts == {
        "train": {"classes": 5, "images": 25, "fewest": 5, "most": 5},
        "seen_validation": {"classes": 5, "images": 5, "fewest": 1, "most": 1},
        "seen_test": {"classes": 5, "images": 5, "fewest": 1, "most": 1},
        "novel_validation": {"classes": 2, "images": 14, "fewest": 7, "most": 7},
        "novel_test": {"classes": 2, "images": 16, "fewest": 8, "most": 8},
    }
    assert (findings.image_shape, findings.sizes) == ((3, 84, 84), {"width": (5, 40), "height": (6, 30)})
    assert (findings.unreadable, findings.duplicates, findings.crossing, findings.relations) == ({}, [], [], {})


def test_equal_images_are_found_and_where_they_cross_parts(root: Path) -> None:
    (root / "7" / "copy.png").write_bytes((root / "5" / "003.png").read_bytes())
    (root / "8" / "copy.png").write_bytes((root / "8" / "001.png").read_bytes())
    findings = inspect_dataset(open_dataset("folder", root))
    assert findings.duplicates == [["5/003.png", "7/copy.png"], ["8/001.png", "8/copy.png"]]
    assert findings.crossing == [["5/003.png (novel_validation)", "7/copy.png (novel_test)"]]


@pytest.mark.slow
def test_unreadable_images_are_listed_and_count_for_nothing_else(root: Path) -> None:
    for name in ("0/000.png", "7/000.png"):
        (root / name).write_bytes(b"nothing")
    findings = inspect_dataset(open_dataset("folder", root, skip_bad=True))
    assert list(findings.unreadable) == ["0/000.png", "7/000.png"]
    assert all("not one of JPEG, PNG" in error for error in findings.unreadable.values())
    assert findings.duplicates == [], "two files with the same nonsense are no images"
    assert sum(part["images"] for part in findings.parts.values()) == 61
    assert findings.sizes == {"width": (12, 12), "height": (10, 10)}


def test_what_was_found_can_be_written_as_json(root: Path) -> None:
    findings = inspect_dataset(open_dataset("folder", root))
    assert json.loads(json.dumps(findings.as_dict()))["parts"]["train"]["classes"] == 5


def test_relations_are_described_the_same_in_every_run(toy: Dataset, letters: Dataset) -> None:
    assert inspect_dataset(toy).relations == {"kinship": "similarities of 25 classes"}
    assert all("0x" not in described for described in inspect_dataset(letters).relations.values())


def test_datasets_without_files_and_parts_without_classes_can_be_checked(toy: Dataset) -> None:
    findings = inspect_dataset(replace(toy, novel_test=Pool.from_members({})))
    assert findings.parts["novel_test"] == {"classes": 0, "images": 0, "fewest": 0, "most": 0}
    assert (findings.sizes, findings.greyscale, findings.unreadable, findings.duplicates) == (None, 0, {}, [])


def test_features_can_be_checked(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", vectors=random.standard_normal((90, 4)), labels=np.arange(90) % 9)
    findings = inspect_dataset(open_dataset("features", tmp_path / "own.npz"))
    assert (findings.images, findings.image_shape, findings.sizes) == (90, (4,), None)
    assert sum(findings.parts[part]["images"] for part in DATASET_PARTS) == 90
