"""Features as a dataset: a file of vectors with labels, for the identity backbone.

    .npz           arrays `vectors` [P, D], `labels` [P] (names or numbers), optionally `split` [P]
    .safetensors   tensors `vectors` [P, D], `labels` [P] (numbers); optionally a JSON list `classes` in the metadata
    .parquet       columns `label`, `vector` (lists of numbers), optionally `split`
    a folder       of shards, as `protograph embed` writes them

`split` is one of train, seen-validation, seen-test, novel-validation, novel-test for every vector; without it classes and
vectors are divided as `splits.split_freely` states.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from protograph._internal.errors import InputError, unknown_name
from protograph._internal.files import check_plain_file, is_folder
from protograph._internal.npz import read_npz
from protograph._internal.parquet import equal_lists, read_parquet
from protograph._internal.progress import Progress
from protograph.data.augmentation import Augmentation
from protograph.data.dataset import Dataset, features_fingerprint, pools
from protograph.data.splits import DATASET_PARTS, Split, check_sizes, split_by_parts, split_freely
from protograph.data.store import FeatureStore

if TYPE_CHECKING:
    from protograph.data.feature_shards import ShardedFeatures

FEATURE_PARTS = {"train": "train", "validation": "seen-validation", "test": "seen-test"}  # of images, in a file of features
MAX_FEATURE_BYTES = 64_000_000_000  # of a file; more would not fit into memory


def open_features(root: Path, progress: Progress, skip_bad: bool) -> Dataset:
    """Return the vectors of the file `root` as a dataset."""
    if (sharded := _sharded(root)) is not None:
        vectors, bad = sharded.vectors, bad_rows(sharded.vectors, sharded.labels, root, skip_bad, progress)
        split = _split_as_images(sharded, bad, root)
    else:
        vectors, labels, parts = read_features(root)
        bad = bad_rows(vectors, labels, root, skip_bad, progress)
        split = _split(labels, parts, bad, root)
    progress.say(f"{root}: {split.counts().replace('images', 'vectors')}")
    tensor = torch.from_numpy(vectors)
    return Dataset(
        name="features",
        classes=split.classes,
        store=FeatureStore(tensor),
        **pools(split),
        augmentation=Augmentation(),
        relations={},
        fingerprint=features_fingerprint(tensor, split),
        drawn_split=True,
    )


def read_features(path: Path) -> tuple[NDArray[np.float32], list[str], list[str] | None]:
    """Return vectors [P, D], labels [P] and, where the file has them, the part [P] of each."""
    vectors, labels, parts = _read(path)
    if labels is None:
        raise InputError(f"{path} is not a file of features (it has no labels): it needs vectors and labels")
    _check(vectors, labels, parts, path)
    return _as_float32(vectors), labels, parts


def bad_rows(
    vectors: NDArray[np.float32], labels: Sequence[str] | None, path: Path, skip_bad: bool, progress: Progress
) -> set[int]:
    """Return the rows that hold NaN or infinity.

    Raises:
        InputError: There are some, and `skip_bad` does not allow to leave them out.

    """
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist()
    if bad and not skip_bad:
        of_class = f" (class '{labels[bad[0]]}')" if labels else ""
        raise InputError(f"vector {bad[0]} of {path}{of_class} holds NaN or infinity: repair it, or use --skip-bad")
    if bad:
        progress.say(f"left out {len(bad)} of {len(vectors)} vectors with NaN or infinity")
    return set(bad)


def read_vectors(path: Path, skip_bad: bool, progress: Progress) -> tuple[list[str], NDArray[np.float32]]:
    """Return the names [n] of the vectors of a file or a folder of shards without bad ones, and these [n, D].

    Labels are not needed. Vectors of images are called as the images were, others by the file and the row.
    """
    if (sharded := _sharded(path)) is not None:
        names, vectors = sharded.names, sharded.vectors
    else:
        read, _, _ = _read(path)
        _check(read, None, None, path)
        vectors = _as_float32(read)
        names = [f"{path}[{row}]" for row in range(len(vectors))]
    bad = bad_rows(vectors, None, path, skip_bad, progress)
    rows = [row for row in range(len(vectors)) if row not in bad]
    if not rows:
        raise InputError(f"{path} holds no vectors: give a file that does")
    return [names[row] for row in rows], vectors[rows]


def _sharded(path: Path) -> "ShardedFeatures | None":
    """Return the features of a folder of shards, None for a file; the checks of shards are imported for a folder alone."""
    if not is_folder(path):
        return None
    from protograph.data.feature_shards import is_feature_folder, read_feature_folder

    return read_feature_folder(path) if is_feature_folder(path) else None


def _read(path: Path) -> tuple[NDArray[Any], list[str] | None, list[str] | None]:
    if (sharded := _sharded(path)) is not None:
        return sharded.vectors, sharded.labels, sharded.parts and [FEATURE_PARTS[part] for part in sharded.parts]
    check_plain_file(
        path,
        "file of features",
        MAX_FEATURE_BYTES,
        "give a .npz, .safetensors or .parquet with vectors and labels, or a folder that `protograph embed` made",
    )
    if path.suffix not in READERS:
        raise InputError(f"cannot read features from {path}: give a .npz, .safetensors or .parquet file")
    try:
        return READERS[path.suffix](path)
    except (KeyError, ValueError, TypeError, OSError, SafetensorError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is not a file of features ({error}): it needs vectors and labels") from error


def _as_float32(vectors: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # too large numbers become infinite, and are refused
        return np.ascontiguousarray(vectors, np.float32)


def _check(vectors: NDArray[Any], labels: Sequence[str] | None, parts: Sequence[str] | None, path: Path) -> None:
    if vectors.ndim != 2 or not np.issubdtype(vectors.dtype, np.floating):
        raise InputError(f"the vectors of {path} are {vectors.dtype} {vectors.shape}: they must be floats [P, D]")
    for column, values in (("labels", labels), ("splits", parts)):
        if values is not None and len(values) != len(vectors):
            raise InputError(f"{path} has {len(vectors)} vectors and {len(values)} {column}: give one each")
    for part in parts or ():
        if part.replace("-", "_") not in DATASET_PARTS:
            raise unknown_name(f"split in {path}", part, [name.replace("_", "-") for name in DATASET_PARTS])


def _split_as_images(features: "ShardedFeatures", bad: set[int], path: Path) -> Split:
    """Split features of images as the images themselves would be split."""
    if features.labels is None:
        raise InputError(f"{path} has no labels: make it anew without --unlabelled")
    members = _members(features.labels, bad)
    check_sizes(members, "vectors", str(path))
    if features.parts is not None:
        return split_by_parts(members, features.parts, features.names, source=str(path))
    return split_freely(members, names=features.names)


def _members(labels: Sequence[str], bad: set[int]) -> dict[str, list[int]]:
    """Return the rows of each class without bad ones."""
    members: dict[str, list[int]] = {name: [] for name in sorted(set(labels))}
    for row, label in enumerate(labels):
        if row not in bad:
            members[label].append(row)
    return members


def _split(labels: Sequence[str], parts: Sequence[str] | None, bad: set[int], path: Path) -> Split:
    if parts is None:
        members = _members(labels, bad)
        check_sizes(members, "vectors", str(path))
        return split_freely(members)
    grouped: dict[str, dict[str, list[int]]] = {part: {} for part in DATASET_PARTS}
    for row, (label, part) in enumerate(zip(labels, parts, strict=True)):
        if row not in bad:
            grouped[part.replace("-", "_")].setdefault(label, []).append(row)
    seen = sorted(grouped["train"])
    for part in DATASET_PARTS[1:3]:
        odd = set(grouped[part]) ^ set(seen)
        if odd:
            raise InputError(f"class '{min(odd)}' of {path} is not both in train and {part.replace('_', '-')}: give it to both")
        grouped[part] = {name: grouped[part][name] for name in seen}
    grouped["train"] = {name: grouped["train"][name] for name in seen}
    for part in DATASET_PARTS[3:]:
        repeated = set(grouped[part]) & set(seen)
        if repeated:
            raise InputError(f"class '{min(repeated)}' of {path} is both seen and novel: give it to one part")
    repeated = set(grouped["novel_validation"]) & set(grouped["novel_test"])
    if repeated:
        raise InputError(f"class '{min(repeated)}' of {path} is novel for validation and for test: give it to one part")
    return Split(**grouped)


def _texts(values: Any) -> list[str]:
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"labels or splits of the shape {array.shape} instead of one for each vector")
    if missing := [row for row, value in enumerate(array.tolist()) if value is None or value != value]:
        raise ValueError(f"vector {missing[0]} has no label or split")
    return [value.decode() if isinstance(value, bytes) else str(value) for value in array.tolist()]


def _read_npz(path: Path) -> tuple[NDArray[Any], list[str] | None, list[str] | None]:
    arrays = read_npz(path, ["vectors"], ["labels", "split"])
    labels, parts = (_texts(arrays[name]) if name in arrays else None for name in ("labels", "split"))
    return arrays["vectors"], labels, parts


def _read_safetensors(path: Path) -> tuple[NDArray[Any], list[str] | None, list[str] | None]:
    with safe_open(path, framework="pt") as file:
        vectors = file.get_tensor("vectors").float().numpy()
        if "labels" not in file.keys():  # noqa: SIM118 - it is no mapping
            return vectors, None, None
        labels = file.get_tensor("labels").tolist()
        metadata = file.metadata() or {}
    if "classes" not in metadata:
        return vectors, _texts(labels), None
    names = json.loads(metadata["classes"])
    if labels and not 0 <= min(labels) <= max(labels) < len(names):
        raise InputError(f"{path} names {len(names)} classes, but has the label {max(labels)}: name all of them")
    return vectors, [str(names[label]) for label in labels], None


def _read_parquet(path: Path) -> tuple[NDArray[Any], list[str] | None, list[str] | None]:
    wanted = ("vector", "label", "split")
    try:
        columns, _ = read_parquet(path, lambda names: [name for name in wanted if name in names])
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is not a readable parquet file ({error})") from error
    labels, parts = (_texts(columns[name].to_pylist()) if name in columns else None for name in ("label", "split"))
    return equal_lists(columns["vector"]), labels, parts


READERS = {".npz": _read_npz, ".safetensors": _read_safetensors, ".parquet": _read_parquet}
