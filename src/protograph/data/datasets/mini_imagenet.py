"""miniImageNet: 100 classes of ImageNet with 600 images each, 84 x 84, with the split of Ravi & Larochelle.

It is read from any of its common layouts: an images folder with train.csv, val.csv and test.csv; folders by class,
or by split and class; the three mini-imagenet-cache-*.pkl; or miniImageNet_category_split_*.pickle, which bring further
images of the seen classes for validation and test. Where these are missing, every seen class holds out 25 of its 600 images
for validation and 75 for test.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protograph._internal.errors import InputError
from protograph._internal.progress import Progress
from protograph._internal.unpickle import as_string, read_pickled_arrays
from protograph.data.augmentation import Augmentation
from protograph.data.dataset import Dataset, assemble, without_bad
from protograph.data.images import IMAGE_NORMALISATION, IMAGE_SIZE, Images
from protograph.data.reading import find_folders, find_names, read_columns, read_image_arrays, read_images, unpacked
from protograph.data.splits import ImagesByClass, Split, split_seen
from protograph.relations.mini_imagenet import mini_imagenet_classes, mini_imagenet_names, mini_imagenet_relation

FOLDERS = ("mini-imagenet", "miniImageNet", "miniImagenet", "MiniImagenet", "miniimagenet", "mini_imagenet")
SPLITS = ("train", "val", "test")
SEEN_VALIDATION, SEEN_TEST = 25 / 600, 75 / 600

SplitRows = dict[str, dict[str, list[int]]]  # split -> class -> rows


def open_mini_imagenet(root: Path, progress: Progress, skip_bad: bool) -> Dataset:
    """Return the dataset from any of its layouts at `root`, or in a folder or archive of its name there."""
    images, members, extra = _read(root, progress)
    train, validation, test = (members["train"], *extra) if extra else split_seen(members["train"], SEEN_VALIDATION, SEEN_TEST)
    split = without_bad(Split(train, validation, test, members["val"], members["test"]), images, skip_bad, progress)
    return assemble(
        "mini-imagenet",
        split,
        images,
        Augmentation(pad=8, flip=True),
        {"wordnet": mini_imagenet_relation(), "names": mini_imagenet_names()},
        {wnid: known.name.replace("_", " ") for wnid, known in mini_imagenet_classes().items()},
        default_relations=("wordnet",),
    )


def mini_imagenet_verdict(dataset: Dataset) -> str:
    """Return one sentence on whether these are the images and classes of the paper."""
    split = {"train": dataset.train, "val": dataset.novel_validation, "test": dataset.novel_test}
    ids = {name: [dataset.classes[int(c)] for c in pool.classes] for name, pool in split.items()}
    expected = {name: {wnid for wnid, known in mini_imagenet_classes().items() if known.split == name} for name in SPLITS}
    if any(set(ids[name]) != expected[name] for name in SPLITS):
        return "This is not the paper's dataset: its classes are not those of the split by Ravi & Larochelle."
    seen = [int(pool.counts.sum()) for pool in (dataset.train, dataset.seen_validation, dataset.seen_test)]
    novel = {int(count) for pool in (dataset.novel_validation, dataset.novel_test) for count in pool.counts}
    if novel != {600} or seen[0] not in (64 * 600, 64 * 500):
        return "These are the paper's classes, but not all of their 600 images each."
    if seen[0] == 64 * 600:
        return "This is the dataset the paper used, with the further images of the seen classes for validation and test."
    return (
        "This is the dataset the paper used, but for one thing: the further images of the seen classes for validation and "
        "test are not here, so each holds 25 + 75 of its own 600 out and is trained on 500."
    )


def _read(root: Path, progress: Progress) -> tuple[Images, SplitRows, tuple[ImagesByClass, ImagesByClass] | None]:
    """Return images, their rows by split and class, and further rows of the seen classes for validation and test, if any."""
    for folder in (root, *(root / name for name in FOLDERS)):
        if (folder / "miniImageNet_category_split_train_phase_train.pickle").is_file():
            return _from_category_pickles(folder)
        if (folder / "mini-imagenet-cache-train.pkl").is_file():
            return *_from_cache_pickles(folder), None
        if (folder / "train.csv").is_file():
            return *_from_csv(folder, progress), None
        if (folder / "train").is_dir() and (folder / "test").is_dir():
            listed = {split: _class_folders(folder, split) for split in SPLITS}
            return *_from_names(folder, listed, progress), None
        if folder.is_dir() and any((folder / wnid).is_dir() for wnid in mini_imagenet_classes()):
            missing = [wnid for wnid in mini_imagenet_classes() if not (folder / wnid).is_dir()]
            if missing:
                raise InputError(
                    f"{folder} lacks the class folder {missing[0]}"
                    + (f" and {len(missing) - 1} more" if missing[1:] else "")
                    + ": miniImageNet has 100 classes; for other classes use --dataset folder"
                )
            listed = {
                split: _class_folders(folder, "", [w for w, known in mini_imagenet_classes().items() if known.split == split])
                for split in SPLITS
            }
            return *_from_names(folder, listed, progress), None
    archives = sorted(path for path in root.glob("*") if _is_archive(path)) if root.is_dir() else []
    if archives:
        return _read(unpacked(archives, progress), progress)
    raise InputError(
        f"no miniImageNet at {root}: give a folder with images/ and train.csv, val.csv, test.csv; with folders by class or by "
        "split and class; with mini-imagenet-cache-train.pkl, -val.pkl, -test.pkl; or with miniImageNet_category_split_*.pickle"
    )


def _is_archive(path: Path) -> bool:
    name = path.name.lower()
    return name.replace("-", "").replace("_", "").startswith("miniimagenet") and name.endswith(
        (".tgz", ".tar.gz", ".tar", ".zip")
    )


def _from_csv(folder: Path, progress: Progress) -> tuple[Images, SplitRows]:
    image_folder = next((folder / name for name in ("images", "img") if (folder / name).is_dir()), None)
    if image_folder is None:
        raise InputError(f"{folder} has a train.csv but no images folder: put the images into {folder / 'images'}")
    listed: dict[str, dict[str, list[str]]] = {}
    for split in SPLITS:
        path = folder / f"{split}.csv"
        if not path.is_file():
            raise InputError(f"{folder} has a train.csv but no {split}.csv: all three are needed")
        classes: dict[str, list[str]] = {}
        for line, row in enumerate(read_columns(path, "filename", "label"), 2):
            name, label = row["filename"], row["label"]
            if not name or not label:
                raise InputError(f"{path} lacks a file name or a label in line {line}: fill it in, or remove the line")
            if os.path.isabs(name) or ".." in Path(name).parts:  # noqa: PTH117
                raise InputError(f"{path} names a file outside the images folder: {name}")
            classes.setdefault(label, []).append(name)
        listed[split] = classes
    return _from_names(image_folder, listed, progress)


def _class_folders(root: Path, split: str, classes: list[str] | None = None) -> dict[str, list[str]]:
    """Image names relative to `root`, by class folder under `split`."""
    base = root / split
    if not base.is_dir():
        raise InputError(f"{root} has no folder '{split}': train, val and test are needed")
    names = classes if classes is not None else find_folders(base)
    return {name: [os.path.join(split, name, file) for file in find_names(base / name)] for name in names}  # noqa: PTH118


def _from_names(root: Path, listed: Mapping[str, Mapping[str, list[str]]], progress: Progress) -> tuple[Images, SplitRows]:
    """Return images in the order of their names, so that class ids and held-out images do not depend on the layout."""
    ordered = {split: {wnid: sorted(files) for wnid, files in sorted(listed[split].items())} for split in SPLITS}
    names = [name for split in SPLITS for files in ordered[split].values() for name in files]
    images = read_images(root, names, IMAGE_SIZE, IMAGE_NORMALISATION, progress)
    rows = iter(range(len(names)))
    return images, {split: {wnid: [next(rows) for _ in files] for wnid, files in ordered[split].items()} for split in SPLITS}


def _from_cache_pickles(folder: Path) -> tuple[Images, SplitRows]:
    """Files with `image_data` [n, 84, 84, 3] and `class_dict`, class -> positions."""
    paths = _paths(folder, {split: f"mini-imagenet-cache-{split}.pkl" for split in SPLITS})
    images = _portions(paths, _cache_labels)
    return images, {split: _grouped(images, split) for split in SPLITS}


def _from_category_pickles(folder: Path) -> tuple[Images, SplitRows, tuple[ImagesByClass, ImagesByClass] | None]:
    """Files with `data` [n, 84, 84, 3], `labels` and `catname2label`; two of them have more images of the seen classes."""
    files = {
        "train": "miniImageNet_category_split_train_phase_train.pickle",
        "val": "miniImageNet_category_split_val.pickle",
        "test": "miniImageNet_category_split_test.pickle",
    }
    further = {f"seen-{part}": f"miniImageNet_category_split_train_phase_{part}.pickle" for part in ("val", "test")}
    if all((folder / name).is_file() for name in further.values()):
        files |= further
    images = _portions(_paths(folder, files), _category_labels)
    grouped = {split: _grouped(images, split) for split in files}
    for split in files.keys() - SPLITS:
        if odd := grouped[split].keys() ^ grouped["train"].keys():
            raise InputError(f"{folder / files[split]} and {files['train']} differ in class '{min(odd)}': fetch them again")
    return images, grouped, (grouped["seen-val"], grouped["seen-test"]) if "seen-val" in grouped else None


def _paths(folder: Path, files: Mapping[str, str]) -> dict[str, Path]:
    for name in files.values():
        if not (folder / name).is_file():
            raise InputError(f"{folder} lacks {name}: all of {', '.join(files.values())} are needed")
    return {split: folder / name for split, name in files.items()}


def _portions(paths: Mapping[str, Path], labels: Callable[[dict[str, Any], Path], tuple[Any, list[str]]]) -> Images:
    """Images of pickles, each named split/class/position."""

    def load() -> tuple[list[str], Iterator[NDArray[np.uint8]]]:
        names, portions = [], []
        for split, path in paths.items():
            data, classes = labels(read_pickled_arrays(path), path)
            if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (IMAGE_SIZE, IMAGE_SIZE, 3):
                raise InputError(f"{path} does not hold images [n, {IMAGE_SIZE}, {IMAGE_SIZE}, 3] of uint8: fetch it again")
            if len(data) != len(classes):
                raise InputError(f"{path} has {len(data)} images and {len(classes)} labels: fetch it again")
            names += [f"{split}/{name}/{position}" for position, name in enumerate(classes)]
            portions.append(data)
        return names, iter(portions)

    return read_image_arrays(list(paths.values()), load, IMAGE_NORMALISATION)


def _cache_labels(content: dict[str, Any], path: Path) -> tuple[Any, list[str]]:
    try:
        data = content["image_data"]
        labels = [""] * len(data)
        for name, positions in content["class_dict"].items():
            for position in positions:
                labels[int(position)] = as_string(name)
    except (KeyError, AttributeError, TypeError, IndexError) as error:
        raise InputError(f"{path} lacks image_data or class_dict ({error!r}): fetch it again") from error
    if "" in labels:
        raise InputError(f"{path}: image {labels.index('')} belongs to no class: fetch it again")
    return data, labels


def _category_labels(content: dict[str, Any], path: Path) -> tuple[Any, list[str]]:
    try:
        names = {int(label): as_string(name) for name, label in content["catname2label"].items()}
        return content["data"], [names[int(label)] for label in content["labels"]]
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise InputError(f"{path} lacks data, labels or catname2label ({error!r}): fetch it again") from error


def _grouped(images: Images, split: str) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for row, name in enumerate(images.names):
        part, _, rest = name.partition("/")
        if part == split:
            grouped.setdefault(rest.rpartition("/")[0], []).append(row)
    return {wnid: grouped[wnid] for wnid in sorted(grouped)}
