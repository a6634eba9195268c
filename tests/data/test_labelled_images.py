from pathlib import Path

import pytest

from data.layouts import write_rows
from protograph._internal.errors import InputError
from protograph._internal.progress import Silent
from protograph.data.labelled_images import LabelledImages, find_labelled_images, part_folders


class Told(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def found(source: Path, skip_bad: bool = False) -> LabelledImages:
    return find_labelled_images(source, skip_bad, Silent())


def test_class_folders_have_no_parts(tmp_path: Path) -> None:
    touch(tmp_path, "owl/2.jpg", "owl/1.jpg", "cat/3.jpg").joinpath("empty").mkdir()
    images = found(tmp_path)
    assert images.files == {"cat": ["cat/3.jpg"], "empty": [], "owl": ["owl/1.jpg", "owl/2.jpg"]}
    assert (images.parts, images.folders) == ({}, ["cat", "empty", "owl"])


def test_a_table_beside_the_images_counts_before_folders(tmp_path: Path) -> None:
    touch(tmp_path, "x/1.jpg", "x/2.jpg", "3.jpg", "x/left.jpg", ".hidden/4.jpg")
    write_rows(tmp_path / "metadata.csv", ("file_name", "label"), ("x/2.jpg", "owl"), ("3.jpg", "cat"), ("x/1.jpg", "owl"))
    told = Told()
    images = find_labelled_images(tmp_path, False, told)
    assert images == LabelledImages(tmp_path, {"cat": ["3.jpg"], "owl": ["x/1.jpg", "x/2.jpg"]})
    assert told.lines == [
        f"left out 1 images that {tmp_path / 'metadata.csv'} does not name, such as {tmp_path / 'x/left.jpg'}"
    ]
    assert found(tmp_path / "metadata.csv").files == images.files, "the table itself names the same"
    (tmp_path / "metadata.jsonl").write_text("")
    with pytest.raises(InputError, match=r"has both metadata\.jsonl and metadata\.csv: keep one of them"):
        found(tmp_path)


@pytest.mark.parametrize("validation", ["val", "validation"])
def test_parts_are_told_by_their_folders(tmp_path: Path, validation: str) -> None:
    touch(tmp_path, "train/owl/1.jpg", "train/cat/1.jpg", "test/owl/1.jpg", f"{validation}/owl/1.jpg", "readme.md")
    images = found(tmp_path)
    assert part_folders(tmp_path) == ["train", validation, "test"]
    assert images.files == {"cat": ["train/cat/1.jpg"], "owl": [f"{part}/owl/1.jpg" for part in ("train", validation, "test")]}
    assert images.of_part("test") == LabelledImages(tmp_path, {"owl": ["test/owl/1.jpg"]}, folders=["test/owl"])
    assert images.of_part("validation").files == {"owl": [f"{validation}/owl/1.jpg"]}
    assert {*images.of_part("train").files} == {"cat", "owl"}


def test_each_part_may_have_a_table(tmp_path: Path) -> None:
    for part in ("train", "test"):
        touch(tmp_path, f"{part}/1.jpg")
        write_rows(tmp_path / part / "metadata.csv", ("file_name", "label"), ("1.jpg", "owl"))
    images = found(tmp_path)
    assert images.files == {"owl": ["train/1.jpg", "test/1.jpg"]}
    assert images.parts == {"train/1.jpg": "train", "test/1.jpg": "test"}
    (tmp_path / "test" / "1.jpg").unlink()
    with pytest.raises(InputError, match=r"line 2 of .*test/metadata\.csv: there is no image 1\.jpg"):
        found(tmp_path)
    assert found(tmp_path, skip_bad=True) == images, "it will be counted among those that cannot be read"


def test_a_table_above_the_parts_names_them_by_its_paths(tmp_path: Path) -> None:
    touch(tmp_path, "train/1.jpg", "test/2.jpg", "own/3.jpg")
    rows = [("train/1.jpg", "owl"), ("test/2.jpg", "owl")]
    assert found(write_rows(tmp_path / "own.csv", ("path", "label"), *rows)).parts == {
        "train/1.jpg": "train",
        "test/2.jpg": "test",
    }
    assert found(write_rows(tmp_path / "own.csv", ("path", "label"), *rows, ("own/3.jpg", "owl"))).parts == {}
    assert found(write_rows(tmp_path / "own.csv", ("path", "label"), *rows[:1])).parts == {}


def test_classes_may_be_called_as_parts_are(tmp_path: Path) -> None:
    touch(tmp_path, "train/1.jpg", "test/1.jpg")
    assert found(tmp_path).files == {"test": ["test/1.jpg"], "train": ["train/1.jpg"]}
    touch(tmp_path, "bus/1.jpg", "train/deep/1.jpg")
    assert part_folders(tmp_path) == []


def test_parts_that_do_not_fit_are_named(tmp_path: Path) -> None:
    touch(tmp_path, "train/owl/1.jpg", "val/owl/1.jpg", "validation/owl/1.jpg")
    with pytest.raises(InputError, match="has both val and validation: keep one"):
        found(tmp_path)
    other = touch(tmp_path / "other", "train/owl/1.jpg", "test/Owl/1.jpg")
    with pytest.raises(InputError, match=r"class folders 'Owl' and 'owl' in .*other differ only in case"):
        found(other)
    with pytest.raises(InputError, match=r"no folder at .*absent: give one with a folder of images for each class, or a \.csv"):
        found(tmp_path / "absent")
