import os
from pathlib import Path

import pytest

from data.layouts import blocks, save, write_folder, write_rows
from protograph._internal.errors import InputError
from protograph._internal.progress import Silent
from protograph.data import Dataset, open_dataset
from protograph.data.splits import DATASET_PARTS

CLASSES = {f"kind {number}": 6 + number % 3 for number in range(9)}


class Told(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "root", CLASSES)


def used(dataset: Dataset) -> dict[str, dict[str, list[str]]]:
    """Part -> class -> names of its images."""
    assert dataset.images is not None
    names = dataset.images.names
    return {
        part: {
            dataset.classes[class_id]: [names[row] for row in rows if row >= 0]
            for class_id, rows in zip(
                getattr(dataset, part).classes.tolist(), getattr(dataset, part).images.tolist(), strict=True
            )
        }
        for part in DATASET_PARTS
    }


def test_every_image_of_every_class_has_one_part(root: Path) -> None:
    told = Told()
    dataset = open_dataset("folder", root, told)
    parts = used(dataset)
    names = [name for part in parts.values() for own in part.values() for name in own]
    assert sorted(names) == sorted(str(path.relative_to(root)) for path in root.rglob("*.png"))
    assert all(name.startswith(f"{own}/") for part in parts.values() for own, files in part.items() for name in files)
    assert [len(parts[part]) for part in DATASET_PARTS] == [5, 5, 5, 2, 2]
    assert told.lines == [
        f"{root}: 5 seen classes ({sum(map(len, parts['train'].values()))} images for training, 5 for validation, "
        f"{sum(map(len, parts['seen_test'].values()))} for test), 2 novel classes for validation, 2 for test "
        f"({', '.join([*parts['novel_validation'], *parts['novel_test']])}); drawn by rule; "
        "to choose, write a split.csv with the columns class and split"
    ]


@pytest.mark.slow
def test_the_same_images_in_another_place_have_the_same_fingerprint(root: Path, tmp_path: Path) -> None:
    one = open_dataset("folder", root)
    other = open_dataset("folder", write_folder(tmp_path / "other", CLASSES))
    assert one.fingerprint == other.fingerprint
    path = tmp_path / "other" / "kind 3" / "002.png"
    size, content = path.stat().st_size, path.read_bytes()
    save(path, blocks(12, 10, 77))
    assert open_dataset("folder", tmp_path / "other").fingerprint != one.fingerprint
    path.write_bytes(content)
    os.utime(path, ns=(5, 5))
    assert path.stat().st_size == size
    assert open_dataset("folder", tmp_path / "other").fingerprint == one.fingerprint


def test_a_split_file_settles_the_classes(root: Path) -> None:
    kinds = ["novel-test"] * 3 + ["novel-validation"] * 1 + ["seen"] * 5
    write_rows(root / "split.csv", ("split", "class"), *zip(kinds, CLASSES, strict=True))
    told = Told()
    dataset = open_dataset("folder", root, told)
    assert dataset.classes == ("kind 4", "kind 5", "kind 6", "kind 7", "kind 8", "kind 3", "kind 0", "kind 1", "kind 2")
    assert [len(getattr(dataset, part)) for part in DATASET_PARTS] == [5, 5, 5, 1, 3]
    assert told.lines[-1].endswith("as split.csv says")


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([("class", "part")], r"split\.csv has the columns \['class', 'part'\]: it needs 'class' and 'split'"),
        ([("class", "split"), ("kind 0", "novel")], r"split of class 'kind 0' in .*split\.csv 'novel': did you mean novel-"),
        ([("class", "split"), ("kind 0", "seen")], r"split\.csv does not assign class 'kind 1'"),
        ([("class", "split"), ("kind 0", "seen"), ("kind 0", "novel-test")], "gives class 'kind 0' to two splits"),
        (
            [("class", "split"), *((name, "seen") for name in (*CLASSES, "x"))],
            "names class 'x', which has no images",
        ),
        ([("class", "split"), *((name, "seen") for name in CLASSES)], "has no class for 'novel-validation'"),
        ([("class", "split"), ("kind 0",)], "'None'"),
    ],
    ids=range(7),
)
def test_a_wrong_split_file_is_named(root: Path, rows: list[tuple[str, str]], named: str) -> None:
    write_rows(root / "split.csv", *rows)
    with pytest.raises(InputError, match=named):
        open_dataset("folder", root)


def test_what_is_no_image_is_left_alone(root: Path) -> None:
    before = open_dataset("folder", root).fingerprint
    for name in ("kind 0/notes.txt", "kind 0/.hidden.png", "readme.png", ".git/config.png", "kind 0/Thumbs.db"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"no image")
    assert open_dataset("folder", root).fingerprint == before


def test_folders_without_classes_or_images_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no folder at .*absent"):
        open_dataset("folder", tmp_path / "absent")
    with pytest.raises(InputError, match=f"{tmp_path} has no class folders: put"):
        open_dataset("folder", tmp_path)
    (tmp_path / "cats").mkdir()
    with pytest.raises(InputError, match="hold no images: put the images of each class into its folder"):
        open_dataset("folder", tmp_path)
    (tmp_path / "train" / "cats").mkdir(parents=True)
    with pytest.raises(InputError, match=f"hold no images: give {tmp_path / 'train'} instead"):
        open_dataset("folder", tmp_path)


def test_names_that_differ_only_in_case_are_named(root: Path) -> None:
    (root / "Kind 3").mkdir()
    with pytest.raises(InputError, match=r"class folders 'Kind 3' and 'kind 3' in .* differ only in case: rename or merge"):
        open_dataset("folder", root)


@pytest.mark.slow
def test_a_class_with_too_few_images_is_named_or_left_out_with_a_count(root: Path) -> None:
    before = open_dataset("folder", root)
    save(root / "few" / "1.png", blocks(5, 5, 1))
    with pytest.raises(InputError, match=r"class 'few' has 1 images in .*at least 6, .*--skip-bad"):
        open_dataset("folder", root)
    (root / "empty").mkdir()
    with pytest.raises(InputError, match="class 'empty' has 0 images and 1 more have too few"):
        open_dataset("folder", root)
    told = Told()
    after = open_dataset("folder", root, told, skip_bad=True)
    assert told.lines[0] == "left out 2 of 11 classes with fewer than 6 images: class 'empty' has 0 images"
    assert after.classes == before.classes


@pytest.mark.slow
def test_leaving_out_all_classes_of_a_kind_is_too_much(root: Path) -> None:
    kinds = ["novel-test"] * 3 + ["novel-validation"] * 2 + ["seen"] * 4
    write_rows(root / "split.csv", ("split", "class"), *zip(kinds, CLASSES, strict=True))
    for name in ("kind 3", "kind 4"):
        for place in range(4):
            (root / name / f"00{place}.png").unlink()
    said = r"split\.csv, of the classes with enough images, has no class for 'novel-validation'"
    with pytest.raises(InputError, match=said):
        open_dataset("folder", root, skip_bad=True)


def test_a_name_that_is_not_utf_8_is_named(root: Path) -> None:
    os.rename(os.fsencode(root / "kind 3"), os.fsencode(root) + b"/Caf\xe9")
    with pytest.raises(InputError, match=r"class folder of .* is not UTF-8 \('Caf\\udce9'\): rename it"):
        open_dataset("folder", root)


def test_leaving_out_every_class_is_too_much(tmp_path: Path) -> None:
    write_folder(tmp_path, {f"{number}": 2 for number in range(9)})
    with pytest.raises(InputError, match="0 classes are too few"):
        open_dataset("folder", tmp_path, skip_bad=True)


def test_unreadable_images_are_named_or_left_out_with_a_count(root: Path) -> None:
    for name in ("kind 2/000.png", "kind 2/001.png"):
        (root / name).write_bytes((root / name).read_bytes()[:50])
    with pytest.raises(InputError, match=r"image kind 2/000\.png and 1 more cannot be read \(.*\): repair .*--skip-bad"):
        open_dataset("folder", root)
    told = Told()
    dataset = open_dataset("folder", root, told, skip_bad=True)
    assert told.lines[0].startswith(
        f"left out 2 of {sum(CLASSES.values())} images that cannot be read, such as kind 2/000.png ("
    )
    names = {name for part in used(dataset).values() for own in part.values() for name in own}
    assert len(names) == sum(CLASSES.values()) - 2
    assert not names & {"kind 2/000.png", "kind 2/001.png"}


def test_a_class_of_which_too_few_images_can_be_read_is_left_out_with_a_count(root: Path) -> None:
    for name in ("kind 2/000.png", "kind 2/001.png", "kind 2/002.png"):
        (root / name).write_bytes(b"nothing")
    told = Told()
    dataset = open_dataset("folder", root, told, skip_bad=True)
    assert told.lines[1] == "left out 1 of 9 classes with fewer than 6 images: class 'kind 2' has 5 images"
    assert sorted(dataset.classes) == [name for name in CLASSES if name != "kind 2"]
    assert all(images for part in used(dataset).values() for images in part.values())


def test_leaving_out_too_many_classes_is_refused(root: Path) -> None:
    for number in (1, 2):
        for path in (root / f"kind {number}").iterdir():
            path.write_bytes(b"nothing")
    with pytest.raises(InputError, match="7 classes are too few to hold some out"):
        open_dataset("folder", root, skip_bad=True)


def test_images_for_test_are_those_that_seen_classes_are_tested_on(tmp_path: Path) -> None:
    for part, count in (("train", 6), ("test", 2)):
        write_folder(tmp_path / part, dict.fromkeys(CLASSES, count))
    parts = used(open_dataset("folder", tmp_path))
    for name in parts["train"]:
        assert parts["seen_test"][name] == [f"test/{name}/000.png", f"test/{name}/001.png"]
        assert len(parts["train"][name]) == 5
        assert {file[:6] for file in parts["train"][name] + parts["seen_validation"][name]} == {"train/"}
    assert all(len(files) == 8 for part in DATASET_PARTS[3:] for files in parts[part].values())


def test_a_table_is_the_same_dataset_as_the_folders_it_names(root: Path, tmp_path: Path) -> None:
    rows = [(f"root/{path.relative_to(root)}", path.parent.name) for path in sorted(root.rglob("*.png"), reverse=True)]
    table = write_rows(tmp_path / "own.csv", ("path", "label"), *rows)
    assert len(open_dataset("folder", table).classes) == len(CLASSES)
    kinds = ["novel-test"] * 2 + ["novel-validation"] * 2 + ["seen"] * 5
    write_rows(tmp_path / "split.csv", ("split", "class"), *zip(kinds, CLASSES, strict=True))
    dataset = open_dataset("folder", table)
    assert dataset.classes[-2:] == ("kind 0", "kind 1"), "split.csv stands beside the table"
    write_rows(tmp_path / "own.csv", ("path", "label"), *rows, ("root/gone.png", "kind 8"))
    with pytest.raises(InputError, match=r"line \d+ of .*own\.csv: there is no image root/gone\.png"):
        open_dataset("folder", table)
    told = Told()
    again = open_dataset("folder", table, told, skip_bad=True)
    assert told.lines[0].startswith(f"left out 1 of {len(rows) + 1} images that cannot be read, such as root/gone.png")
    assert again.fingerprint == dataset.fingerprint
