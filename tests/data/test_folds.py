from dataclasses import replace
from itertools import chain

import pytest
import torch

from protograph._internal.errors import InputError
from protograph.data import Dataset, Pool
from protograph.data.folds import QUERY_SHARE, fold_classes, fold_of


def test_every_class_is_in_one_fold() -> None:
    for classes, folds in ((12, 4), (64, 4), (7, 3), (5, 5)):
        parts = [fold_classes(classes, fold, folds) for fold in range(folds)]
        assert sorted(chain(*parts)) == list(range(classes))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(("fold", "folds"), [(-1, 4), (4, 4), (0, 1), (0, 13)])
def test_a_fold_that_does_not_exist_is_refused(fold: int, folds: int) -> None:
    with pytest.raises(InputError, match=f"no fold {fold} of {folds} of 12 classes"):
        fold_classes(12, fold, folds)


def test_a_fold_trains_on_neither_its_classes_nor_its_queries(toy: Dataset) -> None:
    names, fingerprints = [], set()
    for fold in range(4):
        part = fold_of(toy, fold, 4)
        fitted, novel = part.classes[: part.seen], part.classes[part.seen :]
        assert (len(fitted), len(novel)) == (9, 3)
        names += novel
        fingerprints.add(part.fingerprint)
        by_name = {toy.classes[row]: set(images.tolist()) for row, images in enumerate(toy.train.by_class())}
        pools = zip(part.train.by_class(), part.seen_validation.by_class(), fitted, strict=True)
        for row, (trained, held_out, name) in enumerate(pools):
            assert int(part.train.classes[row]) == int(part.seen_validation.classes[row]) == row
            assert set(trained.tolist()) | set(held_out.tolist()) == by_name[name]
            assert not set(trained.tolist()) & set(held_out.tolist())
            assert len(held_out) == -(-(len(by_name[name]) - fold) // QUERY_SHARE)
        for images, class_id, name in zip(part.novel_validation.by_class(), part.novel_validation.classes, novel, strict=True):
            assert part.classes[int(class_id)] == name
            assert set(images.tolist()) == by_name[name]
        others = torch.cat([toy.novel_validation.all_images(), toy.novel_test.all_images(), toy.seen_test.all_images()])
        used = [getattr(part, pool).all_images() for pool in ("train", "seen_validation", "novel_validation", "seen_test")]
        assert not set(torch.cat(used).tolist()) & set(others.tolist())
    assert sorted(names) == sorted(toy.classes[: toy.seen])
    assert len(fingerprints) == 4


def test_a_class_of_one_image_cannot_be_divided(toy: Dataset) -> None:
    few = Pool.from_members({row: images.tolist()[: 1 if row == 3 else 5] for row, images in enumerate(toy.train.by_class())})
    with pytest.raises(InputError, match="class 'class-03' has too few training images for folds"):
        fold_of(replace(toy, train=few), int(3 in fold_classes(12, 0, 2)), 2)
