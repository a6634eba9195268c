from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from protograph._internal.errors import InputError
from protograph._internal.progress import Silent
from protograph.classifier.inputs import as_array, as_images, encode_files, list_files, read_training_files

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
