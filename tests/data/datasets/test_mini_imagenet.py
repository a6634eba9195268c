import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data import layouts
from protograph._internal.errors import InputError
from protograph.data import Dataset, open_dataset
from protograph.data.check import DatasetCheck, inspect_dataset
from protograph.data.datasets.mini_imagenet import mini_imagenet_verdict
from protograph.data.splits import DATASET_PARTS

FILES: dict[str, Callable[[Path], Path]] = {
    "csvs": layouts.write_csvs,
    "class folders": layouts.write_class_folders,
    "split folders": layouts.write_split_folders,
}
PICKLES: dict[str, Callable[[Path], Path]] = {
    "cache pickles": layouts.write_cache_pickles,
    "cache pickles of Python 2": lambda root: layouts.write_cache_pickles(root, python2=True),
    "category pickles": lambda root: layouts.write_category_pickles(root, extra=()),
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    """The same images from every layout, in places where they are found."""
    places = {"csvs": "MiniImagenet", "category pickles": "mini-imagenet"}
    found = {}
    for layout, write in (FILES | PICKLES).items():
        root = tmp_path_factory.mktemp("root")
        write(root / places.get(layout, "."))
        found[layout] = open_dataset("mini-imagenet", root)
    return found


def pixels(dataset: Dataset, part: str) -> dict[str, list[bytes]]:
    """Class -> its images in a part."""
    pool = getattr(dataset, part)
    return {
        dataset.classes[class_id]: [dataset.store.pixels[row].numpy().tobytes() for row in rows.tolist() if row >= 0]
        for class_id, rows in zip(pool.classes.tolist(), pool.images, strict=True)
    }


@pytest.mark.slow
@pytest.mark.parametrize("layout", FILES | PICKLES)
def test_every_layout_gives_the_same_classes_and_the_same_images_to_every_part(opened: dict[str, Dataset], layout: str) -> None:
    dataset, first = opened[layout], opened["csvs"]
    assert dataset.classes == first.classes
    for part in DATASET_PARTS:
        assert pixels(dataset, part) == pixels(first, part)


@pytest.mark.parametrize("layout", FILES | PICKLES)
def test_the_classes_are_those_of_the_published_split(opened: dict[str, Dataset], layout: str) -> None:
    dataset = opened[layout]
    parts = (dataset.train, dataset.novel_validation, dataset.novel_test)
    assert [len(part) for part in parts] == [64, 16, 20]
    for part, split in zip(parts, layouts.SPLITS, strict=True):
        assert [dataset.classes[class_id] for class_id in part.classes.tolist()] == layouts.mini_split(split)
    assert set(dataset.train.counts.tolist()) == {6}
    assert set(dataset.seen_validation.counts.tolist()) == {1}
    assert set(dataset.seen_test.counts.tolist()) == {1}
    assert dataset.title(0) == "house finch"
    assert dataset.default_relations == ("wordnet",)
    for relation in dataset.relations.values():
        assert relation.similarities(dataset.classes).shape == (100, 100)


@pytest.mark.parametrize("layout", FILES | PICKLES)
def test_images_of_84_pixels_are_kept_as_they_are(opened: dict[str, Dataset], layout: str) -> None:
    dataset, novel = opened[layout], opened[layout].novel_test
    for class_id, rows in zip(novel.classes.tolist(), novel.images.tolist(), strict=True):
        own = layouts.mini_pixels()[dataset.classes[class_id]]
        assert np.array_equal(dataset.store.pixels[rows].numpy(), own.transpose(0, 3, 1, 2))


def test_the_same_files_in_another_layout_have_the_same_fingerprint(opened: dict[str, Dataset]) -> None:
    assert len({opened[layout].fingerprint for layout in FILES}) == 1
    assert len({opened[layout].fingerprint for layout in PICKLES}) == 1


def test_the_verdict_says_that_images_are_missing(opened: dict[str, Dataset]) -> None:
    assert mini_imagenet_verdict(opened["csvs"]) == "These are the paper's classes, but not all of their 600 images each."


@pytest.mark.slow
def test_an_archive_is_the_same_dataset(opened: dict[str, Dataset], mini_root: Path, tmp_path: Path) -> None:
    layouts.write_tgz(tmp_path / "miniImageNet.tar.gz", mini_root)
    assert open_dataset("mini-imagenet", tmp_path).fingerprint == opened["csvs"].fingerprint


@pytest.mark.slow
def test_one_changed_image_gives_another_fingerprint_and_another_time_does_not(
    opened: dict[str, Dataset], tmp_path: Path
) -> None:
    root = layouts.write_class_folders(tmp_path)
    wnid = layouts.mini_split("test")[3]
    path = root / wnid / layouts.mini_name(wnid, 5)
    os.utime(path, ns=(1, 1))
    assert open_dataset("mini-imagenet", root).fingerprint == opened["csvs"].fingerprint
    layouts.save(path, 255 - layouts.mini_pixels()[wnid][5])
    os.utime(path, ns=(1, 1))
    changed = open_dataset("mini-imagenet", root)
    assert changed.fingerprint != opened["csvs"].fingerprint
    assert pixels(changed, "novel_test") != pixels(opened["csvs"], "novel_test")


@pytest.mark.parametrize("python2", [False, True])
def test_further_images_of_the_seen_classes_validate_and_test(
    opened: dict[str, Dataset], tmp_path: Path, python2: bool
) -> None:
    """Their files list the classes in another order."""
    dataset = open_dataset("mini-imagenet", layouts.write_category_pickles(tmp_path, python2=python2))
    assert dataset.classes == opened["csvs"].classes
    assert dataset.train.classes.tolist() == dataset.seen_validation.classes.tolist() == dataset.seen_test.classes.tolist()
    for part, count in (("seen_validation", 2), ("seen_test", 3)):
        further = layouts.mini_pixels(count, salt=count)
        assert pixels(dataset, part) == {
            wnid: [np.ascontiguousarray(image.transpose(2, 0, 1)).tobytes() for image in further[wnid]]
            for wnid in layouts.mini_split("train")
        }
    assert set(dataset.train.counts.tolist()) == {8}
    assert dataset.fingerprint != opened["csvs"].fingerprint


def cache_content(**changes: Any) -> dict[str, Any]:
    return {"image_data": np.zeros((2, 84, 84, 3), np.uint8), "class_dict": {"a": [0], "b": [1]}} | changes


def category_content(**changes: Any) -> dict[str, Any]:
    content = {"data": np.zeros((2, 84, 84, 3), np.uint8), "labels": [0, 1], "catname2label": {"a": 0, "b": 1}}
    return content | changes


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"image_data": cache_content()["image_data"]}, "lacks image_data or class_dict"),
        ({}, "lacks image_data or class_dict"),
        (cache_content(class_dict={"a": [0]}), "image 1 belongs to no class"),
        (cache_content(class_dict={"a": [0], "b": [2]}), "lacks image_data or class_dict"),
        (cache_content(class_dict=[0, 1]), "lacks image_data or class_dict"),
        (cache_content(image_data=np.zeros((2, 84, 84, 3))), "uint8"),
        (cache_content(image_data=np.zeros((2, 80, 84, 3), np.uint8)), "84, 84, 3"),
        (cache_content(image_data=[1, 2]), "uint8"),
    ],
    ids=range(8),
)
def test_a_cache_pickle_with_something_else_is_named(tmp_path: Path, content: dict[str, Any], named: str) -> None:
    for split in layouts.SPLITS:
        layouts.dump(tmp_path / f"mini-imagenet-cache-{split}.pkl", content)
    with pytest.raises(InputError, match=rf"mini-imagenet-cache-train\.pkl.*{named}.*fetch it again"):
        open_dataset("mini-imagenet", tmp_path)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({"data": 1}, "lacks data, labels or catname2label"),
        (category_content(labels=[0, 5]), "lacks data, labels or catname2label"),
        (category_content(labels=[0]), "has 2 images and 1 labels"),
        (category_content(data=np.zeros((2, 3, 84, 84), np.uint8)), "84, 84, 3"),
    ],
    ids=range(4),
)
def test_a_category_pickle_with_something_else_is_named(tmp_path: Path, content: dict[str, Any], named: str) -> None:
    for part in ("train_phase_train", "val", "test"):
        layouts.dump(tmp_path / f"miniImageNet_category_split_{part}.pickle", content)
    with pytest.raises(InputError, match=rf"category_split_train_phase_train\.pickle.*{named}.*fetch it again"):
        open_dataset("mini-imagenet", tmp_path)


def test_further_images_of_other_classes_are_refused(tmp_path: Path) -> None:
    layouts.write_category_pickles(tmp_path)
    path = tmp_path / "miniImageNet_category_split_train_phase_val.pickle"
    layouts.dump(path, category_content())
    with pytest.raises(InputError, match=r"phase_val\.pickle and .*phase_train\.pickle differ in class 'a'"):
        open_dataset("mini-imagenet", tmp_path)


@pytest.mark.parametrize("name", ["mini-imagenet-cache-val.pkl", "miniImageNet_category_split_test.pickle"])
def test_a_missing_pickle_is_named(tmp_path: Path, name: str) -> None:
    (layouts.write_cache_pickles if "cache" in name else layouts.write_category_pickles)(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(InputError, match=f"lacks {name}: all of .* are needed"):
        open_dataset("mini-imagenet", tmp_path)


def write_few(root: Path) -> Path:
    """CSVs of one class each, enough to find mistakes in them."""
    for place, split in enumerate(layouts.SPLITS):
        files = [f"{split}{number}.png" for number in range(4)]
        for number, file in enumerate(files):
            layouts.save(root / "images" / file, layouts.blocks(10, 10, place, number))
        layouts.write_rows(root / f"{split}.csv", ("filename", "label"), *((file, f"class of {split}") for file in files))
    return root


def test_other_classes_are_not_the_papers(tmp_path: Path) -> None:
    dataset = open_dataset("mini-imagenet", write_few(tmp_path))
    assert dataset.classes == ("class of train", "class of val", "class of test")
    assert mini_imagenet_verdict(dataset).startswith("This is not the paper's dataset")


def test_the_order_of_rows_does_not_matter(tmp_path: Path) -> None:
    one = open_dataset("mini-imagenet", write_few(tmp_path))
    path = tmp_path / "train.csv"
    head, *rows = path.read_text().splitlines()
    path.write_text("\n".join([head, *reversed(rows)]))
    assert open_dataset("mini-imagenet", tmp_path).fingerprint == one.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "named"),
    [
        (("../train.csv", "a"), r"val\.csv names a file outside the images folder: \.\./train\.csv"),
        (("/etc/passwd", "a"), r"val\.csv names a file outside the images folder: /etc/passwd"),
        (("x/../../y.png", "a"), "outside the images folder"),
        (("absent.png", "class of val"), r"image absent\.png cannot be read \(.*No such file.*--skip-bad"),
        (("val0.png",), r"val\.csv lacks a file name or a label in line 6"),
        (("", "a"), r"val\.csv lacks a file name or a label in line 6"),
        (("val0.png", "class of train"), "class 'class of train' is both seen and novel"),
    ],
    ids=range(7),
)
def test_a_wrong_row_is_named(tmp_path: Path, row: tuple[str, ...], named: str) -> None:
    write_few(tmp_path)
    with (tmp_path / "val.csv").open("a") as file:
        file.write(",".join(row) + "\n")
    with pytest.raises(InputError, match=named):
        open_dataset("mini-imagenet", tmp_path)


def test_a_class_with_too_few_images_for_a_part_is_named(tmp_path: Path) -> None:
    write_few(tmp_path)
    layouts.write_rows(tmp_path / "train.csv", ("filename", "label"), ("train0.png", "a"), ("train1.png", "a"))
    with pytest.raises(InputError, match="class 'a' has no image for train: give it more"):
        open_dataset("mini-imagenet", tmp_path)


@pytest.mark.parametrize(
    ("gone", "named"),
    [("images", "has a train.csv but no images folder"), ("val.csv", "has a train.csv but no val.csv")],
)
def test_missing_parts_of_a_layout_are_named(tmp_path: Path, gone: str, named: str) -> None:
    write_few(tmp_path)
    (tmp_path / gone).rename(tmp_path / "gone")
    with pytest.raises(InputError, match=named):
        open_dataset("mini-imagenet", tmp_path)


def test_missing_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no miniImageNet at .*train\.csv.*pickle"):
        open_dataset("mini-imagenet", tmp_path / "absent")
    (tmp_path / "train" / "n01532829").mkdir(parents=True)
    (tmp_path / "test").mkdir()
    with pytest.raises(InputError, match="has no folder 'val'"):
        open_dataset("mini-imagenet", tmp_path)
    (tmp_path / "other" / "n01532829").mkdir(parents=True)
    with pytest.raises(InputError, match=r"lacks the class folder .* and 98 more.*--dataset folder"):
        open_dataset("mini-imagenet", tmp_path / "other")


@pytest.fixture(scope="module")
def real(real_root: Path) -> tuple[Dataset, DatasetCheck]:
    """Once for all tests: it reads 60,000 images."""
    dataset = open_dataset("mini-imagenet", real_root)
    return dataset, inspect_dataset(dataset)


def test_the_real_dataset_is_the_papers(real: tuple[Dataset, DatasetCheck]) -> None:
    dataset, findings = real
    assert (findings.classes, findings.images, findings.unreadable) == (100, 60_000, {})
    assert {part: tuple(found.values()) for part, found in findings.parts.items()} == {
        "train": (64, 32_000, 500, 500),
        "seen_validation": (64, 1_600, 25, 25),
        "seen_test": (64, 4_800, 75, 75),
        "novel_validation": (16, 9_600, 600, 600),
        "novel_test": (20, 12_000, 600, 600),
    }
    assert findings.sizes == {"width": (84, 84), "height": (84, 84)}
    assert mini_imagenet_verdict(dataset).startswith("This is the dataset the paper used, but for one thing")


def test_the_real_dataset_has_eight_pairs_of_equal_images(real: tuple[Dataset, DatasetCheck]) -> None:
    _, findings = real
    assert [len(names) for names in findings.duplicates] == [2] * 8
    assert len(findings.crossing) == 6
    assert all("(train) = " in " = ".join(names) for names in findings.crossing)


def test_the_real_dataset_is_the_one_measured_before(real: tuple[Dataset, DatasetCheck]) -> None:
    """Of the copy in which every image was encoded once more; another copy of the same images has another one."""
    dataset, _ = real
    assert dataset.fingerprint == "74bca8f224d5a459"
