from pathlib import Path

import numpy as np
import pytest
import torch

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


@pytest.mark.parametrize("variant", [None, "gcgpn-cos-aux"])
def test_numbers_by_class_multiply_the_odds(variant: str | None) -> None:
    features, labels = blobs()
    known = Classifier(variant=variant, steps=variant and 2).fit(features, labels)
    before = known.predict_proba(features[:4])
    known.set_params(prior={"b": 3.0, "c": 0.5})
    after = known.predict_proba(features[:4])
    expected = before * np.array([1, 3, 0.5, 1, 1, 1])
    np.testing.assert_allclose(after, expected / expected.sum(1, keepdims=True), atol=1e-9)


def test_of_a_variant_a_prior_moves_logits_and_the_default_leaves_them_as_they_were(tmp_path: Path) -> None:
    features, labels = blobs()
    known = Classifier(variant="gcgpn-cos-aux", steps=2).fit(features, labels).add_class("new", -features[:2])
    bare = known.space_.logits(torch.from_numpy(features).float()).numpy()
    assert np.array_equal(known.decision_function(features), bare)
    known.set_params(prior="half").save(tmp_path / "known.pg")
    moved = Classifier.load(tmp_path / "known.pg").decision_function(features)
    np.testing.assert_allclose(moved - bare, [[-np.log(6)] * 6 + [0.0]] * len(features), atol=1e-12)
    assert known.explain(features[0], 7)[0].probability == pytest.approx(known.predict_proba(features[:1]).max())
    assert Classifier(variant="gcgpn-cos-aux", steps=2, prior={"b": 2.0}).fit(features, labels).prior == {"b": 2.0}


def test_wrong_priors_are_named() -> None:
    with pytest.raises(InputError, match="unknown class in the prior 'q'"):
        prior_offsets({"q": 1.0}, list("ab"), 2)
    for wrong in (-1.0, 0, True, float("inf"), "much"):
        with pytest.raises(InputError, match="prior of class 'a' must be a positive number"):
            prior_offsets({"a": wrong}, list("ab"), 2)
    with pytest.raises(InputError, match="unknown prior 'halves'"):
        prior_offsets("halves", list("ab"), 2)
