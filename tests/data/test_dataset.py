import pytest

from protograph.data import Dataset, Pool


def test_a_pool_pads_short_classes_behind_their_last_picture() -> None:
    pool = Pool.of({4: [7, 3], 9: [1, 8, 5], 2: [6]})
    assert pool.classes.tolist() == [4, 9, 2]
    assert pool.pictures.tolist() == [[7, 3, -1], [1, 8, 5], [6, -1, -1]]
    assert pool.counts.tolist() == [2, 3, 1]
    assert len(pool) == 3


def test_all_pictures_are_ascending_and_without_padding() -> None:
    assert Pool.of({4: [7, 3], 9: [1, 8, 5], 2: []}).all_pictures().tolist() == [1, 3, 5, 7, 8]


def test_held_out_pools_belong_to_their_split(toy: Dataset) -> None:
    assert toy.held_out("validation") == (toy.seen_validation, toy.novel_validation)
    assert toy.held_out("test") == (toy.seen_test, toy.novel_test)


def test_training_pictures_are_not_held_out(toy: Dataset) -> None:
    with pytest.raises(ValueError, match="unknown split 'train': use validation or test"):
        toy.held_out("train")


def test_seen_class_ids_are_rows_of_the_learned_prototypes(toy: Dataset) -> None:
    assert toy.train.classes.tolist() == list(range(toy.seen))
