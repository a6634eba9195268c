"""Folds: the seen classes of a dataset, of which a part acts as novel to a network that is fitted to the others.

A network that was fitted to a class cannot show how it does on new ones. Out-of-fold episodes take their novel classes, and the
queries of their seen ones, from what the network of the fold was not fitted to.
"""

from dataclasses import replace

import torch

from protograph._internal.errors import InputError
from protograph.data.dataset import Dataset, Pool

QUERY_SHARE = 10  # one image in so many of a fitted class is left out of the training too


def fold_classes(classes: int, fold: int, folds: int) -> list[int]:
    """Return the ids of the seen classes, of so many, that fold number `fold` leaves out; every class is in one fold."""
    if folds < 2 or folds > classes or not 0 <= fold < folds:
        raise InputError(f"there is no fold {fold} of {folds} of {classes} classes: number them from 0, two or more of them")
    order = torch.randperm(classes, generator=torch.Generator().manual_seed(0)).tolist()
    return sorted(order[fold::folds])


def fold_of(dataset: Dataset, fold: int, folds: int) -> Dataset:
    """Return a dataset of the training images alone, in which the classes of one fold are novel.

    A tenth of the images of the other classes is held out, as are all images of the fold's. Both serve as the part for
    validation and as the part for test: a fold knows nothing of the validation and test classes.

    Args:
        dataset: the dataset
        fold: number of the fold, from 0
        folds: number of folds

    Raises:
        InputError: there is no such fold

    """
    left_out = set(fold_classes(dataset.seen, fold, folds))
    images = [rows.tolist() for rows in dataset.train.by_class()]
    fitted = [row for row in range(dataset.seen) if row not in left_out]
    order = [*fitted, *sorted(left_out)]
    train, held_out = {}, {}
    for class_id, row in enumerate(fitted):
        chosen = images[row][fold % QUERY_SHARE :: QUERY_SHARE]
        if not chosen or len(chosen) == len(images[row]):
            raise InputError(f"class '{dataset.classes[row]}' has too few training images for folds: leave them out")
        held_out[class_id] = chosen
        train[class_id] = [image for image in images[row] if image not in set(chosen)]
    novel = {len(fitted) + position: images[row] for position, row in enumerate(sorted(left_out))}
    seen_pool, novel_pool = Pool.from_members(held_out), Pool.from_members(novel)
    return replace(
        dataset,
        classes=tuple(dataset.classes[row] for row in order),
        train=Pool.from_members(train),
        seen_validation=seen_pool,
        novel_validation=novel_pool,
        seen_test=seen_pool,
        novel_test=novel_pool,
        fingerprint=f"{dataset.fingerprint}-fold-{fold}-of-{folds}",
    )
