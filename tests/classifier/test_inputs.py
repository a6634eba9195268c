import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from protograph._internal.errors import InputError
from protograph._internal.progress import Silent
from protograph.classifier.inputs import (
    as_array,
    as_images,
    encode_files,
    find_test_files,
    list_files,
    read_test_files,
    read_training_files,
)

GREY, COLOUR = np.zeros((4, 6), np.uint8), np.zeros((4, 6, 3), np.uint8)


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ("a.png", 1),
        (Path("a.png"), 1),
        (Image.new("L", (4, 4)), 1),
        (GREY, 1),
        (COLOUR, 1),
        (torch.zeros(3, 4, 4), 1),
        (["a.png", Path("b.png"), GREY, COLOUR, torch.zeros(1, 4, 4)], 5),
        (np.zeros((7, 4, 6), np.uint8), 7),
        (np.zeros((7, 4, 6, 3), np.uint8), 7),
        (torch.zeros(7, 3, 4, 4), 7),
        (np.array(["a.png", "b.png"], object), 2),
        (np.array(["a.png", "b.png"]), 2),
    ],
    ids=["name", "path", "PIL", "grey", "colour", "tensor", "mixed", "greys", "colours", "tensors", "names", "texts"],
)
def test_images_are_told_from_features(given: Any, count: int) -> None:
    images = as_images(given)
    assert images is not None
    assert len(images) == count


@pytest.mark.parametrize(
    "given", [np.zeros((7, 5)), torch.zeros(7, 5), [[0.0, 1.0]], [torch.zeros(5)], np.zeros((7, 5), np.int64), []]
)
def test_tables_of_numbers_are_features(given: Any) -> None:
    assert as_images(given) is None


def test_tensors_become_arrays() -> None:
    assert as_array([torch.ones(3), torch.zeros(3)]).tolist() == [[1.0] * 3, [0.0] * 3]
    assert as_array(torch.ones(2, requires_grad=True)).tolist() == [1.0, 1.0]
    assert as_array("words") == "words"


def test_a_file_of_features_is_read_for_training_and_for_questions(tmp_path: Path) -> None:
    vectors = np.arange(8, dtype=np.float32).reshape(4, 2)
    np.savez(tmp_path / "some.npz", vectors=vectors, labels=["b", "a", "b", "a"])
    files = read_training_files(tmp_path / "some.npz", False, Silent())
    assert (files.features, files.labels) == (True, ["b", "a", "b", "a"])
    assert np.array_equal(files.inputs, vectors)
    names, features = encode_files([tmp_path / "some.npz"] * 2, None, 2, False, Silent())
    assert names == [f"{tmp_path / 'some.npz'}[{row}]" for row in range(4)] * 2
    assert np.array_equal(features.numpy(), np.vstack([vectors, vectors]))
    with pytest.raises(InputError, match=r"some.npz has vectors of 2 numbers, but the model was fitted on 3"):
        encode_files([tmp_path / "some.npz"], None, 3, False, Silent())


def test_folders_inside_a_folder_are_gone_through_once_where_that_is_asked_for(tmp_path: Path) -> None:
    said: list[str] = []

    class Noted(Silent):
        def say(self, line: str) -> None:
            said.append(line)

    expected = []
    for name in ("a/1.png", "a/deep/er/2.JPG", "b/3.png", "0.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
        expected.append(tmp_path / name)
    for name in (".hidden/4.png", "b/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "b" / "up").symlink_to(tmp_path)
    assert sorted(list_files([tmp_path], Noted())) == sorted(expected)
    assert said == [f"4 images in {tmp_path} and 3 folders inside"]
    assert list_files([tmp_path]) == [tmp_path / "0.png"], "the images of a class lie directly in its folder"
    with pytest.raises(InputError, match="deep holds no images"):
        list_files([tmp_path / "a" / "deep"])
    assert list_files([tmp_path / "0.png"], Noted()) == [tmp_path / "0.png"]
    assert len(said) == 1


def test_bad_vectors_are_left_out_or_refused(tmp_path: Path) -> None:
    vectors = np.array([[1, np.nan], [2, 3]], np.float32)
    np.savez(tmp_path / "some.npz", vectors=vectors, labels=["b", "a"])
    files = read_training_files(tmp_path / "some.npz", True, Silent())
    assert (files.labels, files.inputs.tolist()) == (["a"], [[2, 3]])
    with pytest.raises(InputError, match="holds NaN or infinity"):
        read_training_files(tmp_path / "some.npz", False, Silent())
    np.savez(tmp_path / "some.npz", vectors=vectors[:1], labels=["b"])
    with pytest.raises(InputError, match=r"there is nothing in .*some.npz to fit on"):
        read_training_files(tmp_path / "some.npz", True, Silent())


class Told(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def test_each_part_of_a_folder_has_its_use(tmp_path: Path) -> None:
    for name in ("train/owl/1.png", "train/owl/2.png", "val/owl/3.png", "test/owl/4.png", "test/cat/5.png", "test/cat/a.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    told = Told()
    files = read_training_files(tmp_path, False, told)
    assert (files.labels, files.inputs) == (["owl"] * 2, [tmp_path / "train/owl/1.png", tmp_path / "train/owl/2.png"])
    assert told.lines == [f"2 images in {tmp_path} are for training, 1 for validation, 2 for test"]
    told.lines.clear()
    tests = read_test_files(tmp_path, False, told)
    assert (tests.labels, tests.inputs) == (["cat", "owl"], [tmp_path / "test/cat/5.png", tmp_path / "test/owl/4.png"])
    assert told.lines[1] == "files in the class folders that are no images and were left out: .txt (1)"
    assert find_test_files(tmp_path, False, Silent()) == tests
    assert find_test_files(tmp_path / "test", False, Silent()) is None
    assert read_test_files(tmp_path / "test", False, Silent()).labels == ["cat", "owl"]
    for part in ("owl", "cat"):
        shutil.rmtree(tmp_path / "test" / part)
    (tmp_path / "test").rmdir()
    assert read_test_files(tmp_path, False, Silent()).inputs == [tmp_path / "val/owl/3.png"]


def test_vectors_for_test_are_measured_on_and_not_fitted(tmp_path: Path) -> None:
    vectors, parts = np.eye(4, dtype=np.float32), ["train", "seen-test", "train", "seen-validation"]
    np.savez(tmp_path / "some.npz", vectors=vectors, labels=["a", "b", "c", "d"], split=parts)
    told = Told()
    assert read_training_files(tmp_path / "some.npz", False, told).labels == ["a", "c"]
    assert read_test_files(tmp_path / "some.npz", False, told).labels == ["b"]
    assert told.lines == [
        f"{count} of 4 vectors are for {part}, as the file says" for count, part in ((2, "training"), (1, "test"))
    ]


def test_images_of_a_table_that_are_gone_are_left_out_where_that_is_asked_for(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "1.png")
    (tmp_path / "own.jsonl").write_text('{"path": "1.png", "label": 3}\n{"path": "2.png", "label": 4}\n')
    with pytest.raises(InputError, match=r"line 2 of .*own\.jsonl: there is no image 2\.png"):
        read_training_files(tmp_path / "own.jsonl", False, Silent())
    told = Told()
    files = read_training_files(tmp_path / "own.jsonl", True, told)
    assert (files.labels, files.inputs) == (["3"], [tmp_path / "1.png"])
    assert told.lines == [f"left out 1 of 2 images that cannot be read: image {tmp_path / '2.png'} is not there"]
