import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from protograph._internal.errors import InputError
from protograph._internal.progress import Silent
from protograph.data import FeatureStore, open_dataset
from protograph.data.splits import DATASET_PARTS

RANDOM = np.random.default_rng(0)
VECTORS = RANDOM.standard_normal((90, 5)).astype(np.float32)
LABELS = np.arange(90) % 9
NAMES = np.array([f"kind {label}" for label in LABELS])
KINDS = np.array([part.replace("_", "-") for part in DATASET_PARTS])
SPLIT = np.where(LABELS < 5, KINDS[np.arange(90) // 9 % 3], np.where(LABELS < 7, KINDS[3], KINDS[4]))


def write_npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_vectors_are_divided_by_rule_and_gathered_as_they_are(tmp_path: Path) -> None:
    dataset = open_dataset("features", write_npz(tmp_path / "own.npz", vectors=VECTORS, labels=NAMES))
    assert isinstance(dataset.store, FeatureStore)
    assert sorted(dataset.classes) == sorted(set(NAMES.tolist()))
    assert [len(getattr(dataset, part)) for part in DATASET_PARTS] == [5, 5, 5, 2, 2]
    rows = [row for part in DATASET_PARTS for row in getattr(dataset, part).all_images().tolist()]
    assert sorted(rows) == list(range(90))
    assert dataset.store.image_shape == (5,)
    assert torch.equal(dataset.store.gather(torch.tensor([4, 2, 4])), torch.from_numpy(VECTORS[[4, 2, 4]]))
    for part in DATASET_PARTS:
        pool = getattr(dataset, part)
        for class_id, own in zip(pool.classes.tolist(), pool.images.tolist(), strict=True):
            assert {NAMES[row] for row in own if row >= 0} == {dataset.classes[class_id]}


@pytest.mark.parametrize("kind", ["U", "S", "O"])
def test_a_given_split_is_kept(tmp_path: Path, kind: str) -> None:
    """Texts of numpy, bytes as other programs write them."""
    labels, split = NAMES.astype("S" if kind == "S" else "U"), SPLIT.astype("S" if kind == "S" else "U")
    dataset = open_dataset("features", write_npz(tmp_path / "own.npz", vectors=VECTORS, labels=labels, split=split))
    assert dataset.classes == tuple(f"kind {number}" for number in range(9))
    for part, written in zip(DATASET_PARTS, KINDS, strict=True):
        assert getattr(dataset, part).all_images().tolist() == (written == SPLIT).nonzero()[0].tolist()


def write_safetensors(path: Path, classes: Any = None, **tensors: Any) -> Path:
    metadata = None if classes is None else {"classes": json.dumps(classes)}
    save_file({name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in tensors.items()}, path, metadata)
    return path


def test_every_kind_of_file_is_the_same_dataset(tmp_path: Path) -> None:
    numbered = open_dataset("features", write_npz(tmp_path / "own.npz", vectors=VECTORS, labels=LABELS))
    named = open_dataset("features", write_npz(tmp_path / "named.npz", vectors=VECTORS.astype(np.float64), labels=NAMES))
    assert numbered.fingerprint != named.fingerprint
    bare = open_dataset("features", write_safetensors(tmp_path / "bare.safetensors", vectors=VECTORS, labels=LABELS))
    assert bare.fingerprint == numbered.fingerprint
    classes = [f"kind {number}" for number in range(9)]
    path = write_safetensors(tmp_path / "named.safetensors", classes, vectors=VECTORS, labels=LABELS)
    assert open_dataset("features", path).fingerprint == named.fingerprint


def test_a_parquet_file_is_the_same_dataset(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"label": NAMES.tolist(), "vector": VECTORS.tolist()}
    for name, more in (("free", {}), ("split", {"split": SPLIT.tolist()})):
        parquet.write_table(arrow.table(columns | more), tmp_path / f"{name}.parquet")
        path = write_npz(tmp_path / f"{name}.npz", vectors=VECTORS, labels=NAMES, **more)
        expected = open_dataset("features", path)
        assert open_dataset("features", tmp_path / f"{name}.parquet").fingerprint == expected.fingerprint
    (tmp_path / "bad.parquet").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"bad\.parquet is not a readable parquet file"):
        open_dataset("features", tmp_path / "bad.parquet")
    parquet.write_table(arrow.table({"label": [1], "x": [2]}), tmp_path / "columns.parquet")
    with pytest.raises(InputError, match=r"columns\.parquet is not a file of features .*'vector'"):
        open_dataset("features", tmp_path / "columns.parquet")


@pytest.mark.parametrize("labels", [["a", None, "b"], [0.5, float("nan"), 1.5]])
def test_a_missing_label_is_no_class(tmp_path: Path, labels: list[object]) -> None:
    """It used to be a class called None, or nan."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"label": labels, "vector": [[0.0, 1.0]] * 3}), tmp_path / "own.parquet")
    with pytest.raises(InputError, match=r"own\.parquet is not a file of features \(vector 1 has no label or split\)"):
        open_dataset("features", tmp_path / "own.parquet")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "own.parquet").write_bytes(b"")
    with pytest.raises(InputError, match=r'needs pyarrow: pip install "protograph\[parquet\]"'):
        open_dataset("features", tmp_path / "own.parquet")


def with_value(value: float) -> np.ndarray:
    changed = VECTORS.astype(np.float64)
    changed[13, 2] = value
    return changed


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
@pytest.mark.parametrize("split", [False, True])
def test_what_is_not_finite_is_named_or_left_out_with_a_count(tmp_path: Path, value: float, split: bool) -> None:
    more = {"split": SPLIT} if split else {}
    path = write_npz(tmp_path / "own.npz", vectors=with_value(value), labels=NAMES, **more)
    with pytest.raises(InputError, match=r"vector 13 of .*own\.npz \(class 'kind 4'\) holds NaN or infinity: .*--skip-bad"):
        open_dataset("features", path)
    told: list[str] = []

    class Told(Silent):
        def say(self, line: str) -> None:
            told.append(line)

    dataset = open_dataset("features", path, Told(), skip_bad=True)
    assert told[0] == "left out 1 of 90 vectors with NaN or infinity"
    assert "vectors for training" in told[1]
    rows = [row for part in DATASET_PARTS for row in getattr(dataset, part).all_images().tolist()]
    assert sorted(rows) == [row for row in range(90) if row != 13]


def test_other_vectors_or_another_use_of_them_have_another_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    moved = SPLIT.copy()
    moved[0] = KINDS[1]
    found = [
        open_dataset("features", write_npz(path, vectors=vectors, labels=NAMES, split=split)).fingerprint
        for vectors, split in ((VECTORS, SPLIT), (with_value(3), SPLIT), (VECTORS, moved), (VECTORS, SPLIT))
    ]
    assert len(set(found)) == 3
    assert found[0] == found[3]


def changed_split(label: int, part: str) -> np.ndarray:
    return np.where(label == LABELS, part, SPLIT)


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({"labels": NAMES}, "not a file of features .*vectors"),
        ({"vectors": VECTORS}, "not a file of features .*labels"),
        ({"vectors": VECTORS[0], "labels": NAMES}, r"float32 \(5,\): they must be floats \[P, D\]"),
        ({"vectors": VECTORS.astype(int), "labels": NAMES}, r"int64 \(90, 5\): they must be floats"),
        ({"vectors": VECTORS, "labels": NAMES[:-1]}, "90 vectors and 89 labels: give one each"),
        ({"vectors": VECTORS, "labels": NAMES, "split": SPLIT[:-1]}, "90 vectors and 89 splits: give one each"),
        ({"vectors": VECTORS, "labels": np.eye(90)}, r"labels or splits of the shape \(90, 90\)"),
        ({"vectors": VECTORS, "labels": LABELS[:, None]}, r"labels or splits of the shape \(90, 1\)"),
        ({"vectors": VECTORS, "labels": NAMES.astype(object)}, "not a file of features"),
        (
            {"vectors": VECTORS, "labels": NAMES, "split": changed_split(0, "trian")},
            "unknown split in .*'trian': did you mean tr",
        ),
        (
            {"vectors": VECTORS, "labels": NAMES, "split": changed_split(2, "train")},
            "class 'kind 2' .* not both in train and seen",
        ),
        ({"vectors": VECTORS, "labels": NAMES, "split": np.where(np.arange(90) == 5, "train", SPLIT)}, "class 'kind 5'"),
        (
            {"vectors": VECTORS, "labels": NAMES, "split": np.where(np.arange(90) == 5, KINDS[4], SPLIT)},
            "class 'kind 5' .* novel",
        ),
        ({"vectors": VECTORS, "labels": NAMES, "split": np.where(np.arange(90) == 0, KINDS[4], SPLIT)}, "both seen and novel"),
        ({"vectors": VECTORS, "labels": np.arange(90)}, "class '0' of .* has 1 vectors: give every class at least 6"),
        ({"vectors": VECTORS, "labels": LABELS % 7}, "7 classes are too few"),
        ({"vectors": VECTORS[:0], "labels": LABELS[:0]}, "0 classes are too few"),
    ],
    ids=range(17),
)
def test_arrays_that_do_not_fit_are_named(tmp_path: Path, arrays: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        open_dataset("features", write_npz(tmp_path / "own.npz", **arrays))


@pytest.mark.parametrize(
    ("write", "named"),
    [
        (lambda path: path.write_bytes(b""), "not a file of features"),
        (lambda path: path.write_bytes(b"nothing at all"), "not a file of features"),
        (lambda path: np.save(path.open("wb"), VECTORS), "not a file of features"),
        (lambda path: path.write_bytes(cut(path)), "not a file of features"),
        (lambda path: path.write_bytes(flipped(path)), "not a file of features"),
    ],
    ids=["empty", "text", "npy", "cut", "flipped"],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_file_that_is_no_npz_is_named(tmp_path: Path, write: Callable[[Path], Any], named: str) -> None:
    write(tmp_path / "own.npz")
    with pytest.raises(InputError, match=rf"own\.npz is {named}"):
        open_dataset("features", tmp_path / "own.npz")


def cut(path: Path) -> bytes:
    return write_npz(path, vectors=VECTORS, labels=NAMES).read_bytes()[:900]


def flipped(path: Path) -> bytes:
    np.savez_compressed(path, vectors=VECTORS, labels=NAMES)
    content = bytearray(path.read_bytes())
    content[300:400] = bytes(100)
    return bytes(content)


@pytest.mark.parametrize(
    ("classes", "labels", "named"),
    [
        ([f"kind {number}" for number in range(8)], LABELS, "names 8 classes, but has the label 8"),
        ([f"kind {number}" for number in range(9)], LABELS - 1, "names 9 classes, but has the label 7"),
        ([f"kind {number}" for number in range(9)], LABELS[:, None], "not a file of features"),
        ([f"kind {number}" for number in range(9)], LABELS.astype(np.float32), "not a file of features"),
        (7, LABELS, "not a file of features"),
        (None, LABELS[:, None], r"labels or splits of the shape \(90, 1\)"),
    ],
    ids=range(6),
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, classes: Any, labels: np.ndarray, named: str) -> None:
    path = write_safetensors(tmp_path / "own.safetensors", classes, vectors=VECTORS, labels=labels)
    with pytest.raises(InputError, match=named):
        open_dataset("features", path)


def test_a_file_that_is_no_safetensors_is_named(tmp_path: Path) -> None:
    (tmp_path / "own.safetensors").write_bytes(b"nothing at all")
    with pytest.raises(InputError, match=r"own\.safetensors is not a file of features"):
        open_dataset("features", tmp_path / "own.safetensors")


def test_other_files_and_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"not a file of features: give a \.npz"):
        open_dataset("features", tmp_path)
    (tmp_path / "own.csv").write_text("")
    with pytest.raises(InputError, match=r"cannot read features from .*own\.csv: give a \.npz"):
        open_dataset("features", tmp_path / "own.csv")
