from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protograph._internal.errors import InputError
from protograph._internal.progress import Silent
from protograph.data import Augmentation, Dataset, ImageStore, Normalisation, Pool, open_dataset
from protograph.data.dataset import assemble, pools, without_bad
from protograph.data.reading import Images
from protograph.data.splits import Split


def test_a_pool_pads_short_classes_behind_their_last_image() -> None:
    pool = Pool.from_members({4: [7, 3], 9: [1, 8, 5], 2: [6]})
    assert pool.classes.tolist() == [4, 9, 2]
    assert pool.images.tolist() == [[7, 3, -1], [1, 8, 5], [6, -1, -1]]
    assert pool.counts.tolist() == [2, 3, 1]
    assert len(pool) == 3


def test_all_images_are_ascending_and_without_padding() -> None:
    assert Pool.from_members({4: [7, 3], 9: [1, 8, 5], 2: []}).all_images().tolist() == [1, 3, 5, 7, 8]


def test_held_out_pools_belong_to_their_split(toy: Dataset) -> None:
    assert toy.held_out("validation") == (toy.seen_validation, toy.novel_validation)
    assert toy.held_out("test") == (toy.seen_test, toy.novel_test)


def test_training_images_are_not_held_out(toy: Dataset) -> None:
    with pytest.raises(ValueError, match="unknown split 'train': use validation or test"):
        toy.held_out("train")


def test_seen_class_ids_are_rows_of_the_learned_prototypes(toy: Dataset) -> None:
    assert toy.train.classes.tolist() == list(range(toy.seen))


def some_images(count: int, errors: dict[int, str] | None = None) -> Images:
    pixels = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 4, 4).contiguous()
    digests = np.array([f"digest {row}" for row in range(count)], "S64")
    store = ImageStore(pixels, Normalisation((0.5,) * 3, (0.5,) * 3))
    names = [f"{row}.png" for row in range(count)]
    return Images(store, names, digests, np.full((count, 2), 4, np.int32), np.zeros(count, bool), errors or {})


SPLIT = Split({"a": [0, 1], "b": [2]}, {"a": [3], "b": [4]}, {"a": [5], "b": [6]}, {"c": [7, 8]}, {"d": [9], "e": [10, 11]})


def test_pools_number_classes_in_the_order_of_the_split() -> None:
    found = pools(SPLIT)
    assert {name: pool.classes.tolist() for name, pool in found.items()} == {
        "train": [0, 1], "seen_validation": [0, 1], "seen_test": [0, 1], "novel_validation": [2], "novel_test": [3, 4],
    }  # fmt: skip
    assert found["novel_test"].images.tolist() == [[9, -1], [10, 11]]


@pytest.mark.parametrize("part", ["novel_validation", "novel_test"])
def test_a_class_of_two_parts_is_named(part: str) -> None:
    with pytest.raises(InputError, match="class 'a' is both seen and novel, or novel twice"):
        pools(replace(SPLIT, **{part: {"a": [0]}}))


def test_an_assembled_dataset_holds_what_it_was_given(toy: Dataset) -> None:
    images = some_images(12)
    dataset = assemble("own", SPLIT, images, Augmentation(pad=1), toy.relations, {"a": "Apple"})
    assert (dataset.name, dataset.classes, dataset.seen) == ("own", ("a", "b", "c", "d", "e"), 2)
    assert dataset.images is images
    assert dataset.store is images.store
    assert [dataset.title(class_id) for class_id in range(3)] == ["Apple", "b", "c"]


def test_the_fingerprint_stands_for_contents_and_their_use() -> None:
    def fingerprint(split: Split = SPLIT, **changes: Any) -> str:
        images = replace(some_images(12), **changes)
        return assemble("own", split, images, Augmentation(), {}).fingerprint

    other = some_images(12).digests.copy()
    other[5] = b"other"
    larger = ImageStore(torch.zeros(12, 3, 5, 5, dtype=torch.uint8), Normalisation((0.5,) * 3, (0.5,) * 3))
    renamed = replace(SPLIT, novel_validation={"x": [7, 8]})
    moved = replace(SPLIT, train={"a": [0, 3], "b": [2]}, seen_validation={"a": [1], "b": [4]})
    assert (
        len({fingerprint(), fingerprint(digests=other), fingerprint(store=larger), fingerprint(renamed), fingerprint(moved)})
        == 5
    )
    assert fingerprint(names=[f"elsewhere/{row}" for row in range(12)]) == fingerprint()


class Told(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def test_a_split_with_nothing_bad_is_left_alone() -> None:
    told = Told()
    assert without_bad(SPLIT, some_images(12), False, told) == SPLIT
    assert told.lines == []


def test_bad_images_are_left_out_where_they_may_be() -> None:
    images, told = some_images(12, {1: "cut", 10: "no image"}), Told()
    with pytest.raises(InputError, match=r"image 1\.png and 1 more cannot be read \(cut\): .*--skip-bad"):
        without_bad(SPLIT, images, False, told)
    left = without_bad(SPLIT, images, True, told)
    assert left == replace(SPLIT, train={"a": [0], "b": [2]}, novel_test={"d": [9], "e": [11]})
    assert told.lines == ["left out 2 of 12 images that cannot be read, such as 1.png (cut)"]


@pytest.mark.parametrize(("row", "named"), [(2, "class 'b' has no image for train"), (9, "class 'd' .* for novel test")])
def test_a_class_that_would_be_empty_is_named(row: int, named: str) -> None:
    with pytest.raises(InputError, match=named):
        without_bad(SPLIT, some_images(12, {row: "cut"}), True, Told())


def test_a_class_that_is_empty_from_the_start_is_named() -> None:
    with pytest.raises(InputError, match="class 'a' has no image for seen validation: give it more"):
        without_bad(replace(SPLIT, seen_validation={"a": [], "b": [4]}), some_images(12), False, Told())


def test_a_dataset_needs_a_place_unless_it_is_built_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PROTOGRAPH_DATA", raising=False)
    with pytest.raises(InputError, match="dataset 'cub' needs its files: give their folder by --root or the variable"):
        open_dataset("cub")
    with pytest.raises(InputError, match="dataset 'letters' is built in and reads no files: leave out --root"):
        open_dataset("letters", tmp_path)
    monkeypatch.setenv("PROTOGRAPH_DATA", str(tmp_path))
    with pytest.raises(InputError, match=f"no CUB at {tmp_path}"):
        open_dataset("cub")
