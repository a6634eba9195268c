import numpy as np
import pytest

from kept import blobs
from protograph import Classifier
from protograph._internal.errors import InputError
from protograph.classifier.prior import prior_offsets


def test_half_of_the_probability_is_of_added_classes() -> None:
    offsets = prior_offsets("half", list("abcde"), 3).exp()
    assert offsets[:3].sum().item() == pytest.approx(offsets[3:].sum().item())
    for labels, seen in ((list("abc"), 3), (list("abc"), 0)):
        assert prior_offsets("half", labels, seen).tolist() == [0, 0, 0]
    assert prior_offsets("uniform", list("abcde"), 3).tolist() == [0] * 5


def test_numbers_by_class_multiply_the_odds() -> None:
    features, labels = blobs()
    known = Classifier().fit(features, labels)
    before = known.predict_proba(features[:4])
    known.set_params(prior={"b": 3.0, "c": 0.5})
    after = known.predict_proba(features[:4])
    expected = before * np.array([1, 3, 0.5, 1, 1, 1])
    np.testing.assert_allclose(after, expected / expected.sum(1, keepdims=True), atol=1e-9)


def test_wrong_priors_are_named() -> None:
    with pytest.raises(InputError, match="unknown class in the prior 'q'"):
        prior_offsets({"q": 1.0}, list("ab"), 2)
    for wrong in (-1.0, 0, True, float("inf"), "much"):
        with pytest.raises(InputError, match="prior of class 'a' must be a positive number"):
            prior_offsets({"a": wrong}, list("ab"), 2)
    with pytest.raises(InputError, match="unknown prior 'halves'"):
        prior_offsets("halves", list("ab"), 2)
