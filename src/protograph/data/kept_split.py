"""The split that a run was trained on, kept in its folder.

A folder of images grows, and the rule that splits it may change; a run must be tested on images it was not trained on all the
same. So the run folder holds split.json: the names of the images of every class, by part.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from protograph._internal.errors import InputError
from protograph._internal.files import write_atomically
from protograph._internal.progress import Progress
from protograph.data.dataset import Dataset, features_fingerprint, images_fingerprint, pools
from protograph.data.splits import CLASS_ROLES, DATASET_PARTS, FEWEST_SPLIT_CLASSES, Split, draw_roles, split_freely
from protograph.data.store import FeatureStore

SPLIT_FILE = "split.json"
SPLIT_FORMAT = 1


def keep_split(dataset: Dataset, folder: Path) -> None:
    """Write the split of a dataset into a run folder, unless the dataset has only one or the folder has it already."""
    path = folder / SPLIT_FILE
    if not dataset.drawn_split or path.exists():
        return
    names = _image_names(dataset)
    split = _split_of(dataset)
    parts = {
        part: {name: [names[index] for index in members] for name, members in getattr(split, part).items()}
        for part in DATASET_PARTS
    }
    content = {"format": SPLIT_FORMAT, "images": len(names), "parts": parts}
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


def with_kept_split(dataset: Dataset, folder: Path, fingerprint: str, progress: Progress) -> Dataset:
    """Return a dataset with the split that a run was trained on.

    Args:
        dataset: The dataset as it is today.
        folder: The run folder. Runs older than split.json are tried with the rule of their time.
        fingerprint: Fingerprint of the dataset that the run was trained on.
        progress: Is told where the split of today is another.

    Raises:
        InputError: An image that the run used is gone, or nothing here gives its fingerprint.

    """
    if not dataset.drawn_split or dataset.fingerprint == fingerprint:
        return dataset
    path = folder / SPLIT_FILE
    if path.exists():
        restored = _with_stored_split(dataset, path)
    else:
        restored = next((again for again in _with_old_splits(dataset) if again.fingerprint == fingerprint), dataset)
    if restored.fingerprint != fingerprint:
        cause = "were changed" if path.exists() else "were added, removed or changed, and it kept no list of them"
        raise InputError(
            f"{folder} was trained on other images ({fingerprint}, here {dataset.fingerprint}): since then some {cause}; "
            "restore them, or train again into another folder"
        )
    absent = [name for name in dataset.classes if name not in set(restored.classes)]
    left_out = f" without {len(absent)} new classes ({', '.join(absent[:3])})" if absent else ""
    progress.say(f"{folder} keeps the split it was trained on{left_out}")
    return restored


def _with_stored_split(dataset: Dataset, path: Path) -> Dataset:
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["format"] != SPLIT_FORMAT:
            raise InputError(f"{path} has format {stored['format']}: install a newer protograph")
        parts, total = {part: stored["parts"][part] for part in DATASET_PARTS}, int(stored["images"])
        names = [name for members in parts.values() for images in members.values() for name in images]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is damaged ({error}): restore it, or train again into another folder") from error
    index_of = {name: index for index, name in enumerate(_image_names(dataset))}
    if gone := [name for name in names if name not in index_of]:
        raise InputError(
            f"{path.parent} was trained and tested with {len(gone)} images that are gone, such as {gone[0]}: restore them, "
            "or train again into another folder"
        )
    indices: dict[str, Any] = {
        part: {name: [index_of[image] for image in images] for name, images in members.items()}
        for part, members in parts.items()
    }
    return _with_split(dataset, Split(**indices), total)


def _with_old_splits(dataset: Dataset) -> list[Dataset]:
    """Return the dataset with the splits that versions before split.json drew, by index instead of by name."""
    today = _split_of(dataset)
    members: dict[str, list[int]] = {name: [] for name in sorted(dataset.classes)}
    for part in DATASET_PARTS:
        for name, indices in getattr(today, part).items():
            members[name] = sorted([*members[name], *indices])
    assigned = {
        name: role
        for role, part in zip(CLASS_ROLES, ("train", "novel_validation", "novel_test"), strict=True)
        for name in getattr(today, part)
    }
    drawn = [draw_roles(members, by_index=True)] if len(members) >= FEWEST_SPLIT_CLASSES else []
    return [_with_split(dataset, split_freely(members, roles)) for roles in (*drawn, assigned)]


def _with_split(dataset: Dataset, split: Split, total: int | None = None) -> Dataset:
    """Return the dataset divided otherwise; `total` is how many features it had when it was divided so."""
    if dataset.images is not None:
        fingerprint = images_fingerprint(dataset.images, split)
    else:
        assert isinstance(dataset.store, FeatureStore)
        fingerprint = features_fingerprint(dataset.store.features[:total], split)
    return replace(dataset, classes=split.classes, fingerprint=fingerprint, **pools(split))


def _split_of(dataset: Dataset) -> Split:
    parts: dict[str, Any] = {
        part: {
            dataset.classes[class_id]: images.tolist()
            for class_id, images in zip(pool.classes.tolist(), pool.by_class(), strict=True)
        }
        for part, pool in ((part, getattr(dataset, part)) for part in DATASET_PARTS)
    }
    return Split(**parts)


def _image_names(dataset: Dataset) -> list[str]:
    """Return the names of images or, of features, which have none, their positions in the file."""
    return [*dataset.images.names] if dataset.images is not None else [str(row) for row in range(len(dataset.store))]
