import numpy as np
import pytest

from protograph._internal.errors import InputError
from protograph.classifier.labels import as_label, as_labels


@pytest.mark.parametrize(
    ("labels", "right", "wrong"),
    [
        (np.array(["a"]), "longer", 3),
        (np.array([1, 2]), np.int32(3), "c"),
        (np.array([1, 2]), 3, True),
        (np.array([1.5]), 2.5, "c"),
        (np.array([1.5]), 2, True),
        (np.array([False]), True, "c"),
        (np.array(["a"], object), "b", ""),
    ],
)
def test_a_name_is_of_the_same_kind_as_the_others(labels, right, wrong):
    grown = as_labels([*labels.tolist(), as_label(right, labels)], labels.dtype.str)
    assert grown[-1] == right
    assert grown.dtype.kind == labels.dtype.kind
    with pytest.raises(InputError, match=r"must be|needs a name"):
        as_label(wrong, labels)


def test_whole_numbers_may_be_larger_than_before_but_not_than_any():
    small = np.array([1, 2], np.uint8)
    assert as_labels([1, 2, as_label(300, small)], small.dtype.str).tolist() == [1, 2, 300]
    assert as_labels([1, 2, as_label(-1, small)], small.dtype.str).tolist() == [1, 2, -1]
    assert as_labels([1, 2, 200], small.dtype.str).dtype == np.uint8
    with pytest.raises(InputError, match="too large a number"):
        as_labels([1, 2, 10**30], small.dtype.str)


def test_a_name_that_is_not_utf8_is_refused_before_it_is_kept():
    with pytest.raises(InputError, match=r"the name of class 'a\\udcff' is not UTF-8: choose another"):
        as_label("a\udcff", np.array(["b"]))
