"""What changes a classifier beyond classes that come and go: how they relate, and examples that are removed."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kept import DENSE, SPARSE, D, blobs, fitted
from protograph import Classifier, UnicodeRelation
from protograph._internal.errors import InputError
from protograph.relations.kept import BY_HAND


def matrix(known: Classifier, label: str) -> Any:
    """The similarities of a classifier's classes, sorted by name."""
    similarities = known.space_.relations[label].similarities.to_dense().numpy()
    return similarities[known.order_][:, known.order_]


@pytest.mark.parametrize("relations", [DENSE, SPARSE])
def test_what_is_told_anew_is_as_if_it_had_been_told_at_first(relations: Any) -> None:
    features, labels = blobs()
    told = {"a": 0.9, "c": 0.2}
    known = Classifier().fit(features, labels, relations).add_class("x", features[:2], {"b": 0.4}).add_class("y", features[:1])
    expected = Classifier().fit(features, labels, relations).add_class("x", features[:2], told).add_class("y", features[:1])
    known.relate("x", told)
    assert np.array_equal(matrix(known, "similarity"), matrix(expected, "similarity"))
    np.testing.assert_allclose(known.predict_proba(features), expected.predict_proba(features), atol=1e-6)
    known.relate("a", {"x": 0.3})
    assert matrix(known, "similarity")[0, 6] == pytest.approx(0.3)
    assert matrix(known, "similarity")[6, 0] == pytest.approx(0.3)
    assert known.space_.names == expected.space_.names


@pytest.mark.parametrize("variant", ["gcgpn-aux", None])
def test_a_class_without_examples_moves_to_where_it_is_said_to_be(variant: str | None, tmp_path: Path) -> None:
    features, labels = blobs()
    known = Classifier().fit(features, labels, SPARSE) if variant is None else copy.deepcopy(fitted(variant, "sparse"))
    known.add_class("x", (), {"a": 1.0})
    before = known.prototypes_[-1]
    known.relate("x", {"d": 1.0}).save(tmp_path / "kept.pg")
    assert not np.allclose(before, known.prototypes_[-1])
    expected = copy.deepcopy(known).remove_class("x").add_class("x", (), {"d": 1.0})
    np.testing.assert_allclose(known.prototypes_, expected.prototypes_, atol=1e-6)
    np.testing.assert_allclose(Classifier.load(tmp_path / "kept.pg").prototypes_, known.prototypes_, atol=1e-6)
    with pytest.raises(InputError, match="nothing is known of class 'x'"):
        known.relate("x", {})
    np.testing.assert_allclose(known.prototypes_, expected.prototypes_, atol=1e-6)


def test_a_relation_that_nothing_is_said_to_stays() -> None:
    features, labels = blobs()
    known = Classifier().fit(features, labels, {"dense": DENSE, "sparse": SPARSE})
    dense = matrix(known, "dense")
    known.relate("a", {"sparse": {"f": 0.5}})
    assert np.array_equal(matrix(known, "dense"), dense)
    assert matrix(known, "sparse")[0].tolist() == pytest.approx([1, 0, 0, 0, 0, 0.5])
    known.add_class("x", (), {"dense": {"a": 0.9}}).relate("x", {"sparse": {}})
    assert known.space_.related == [True]


def test_the_source_is_asked_again() -> None:
    features, labels = blobs()
    known = Classifier().fit(features, labels, UnicodeRelation({"base": 1.0})).add_class("á", features[:1], {"f": 1.0})
    assert matrix(known, "unicode")[known.classes_.tolist().index("á"), 0] != 1.0
    known.relate("á")
    assert matrix(known, "unicode")[known.classes_.tolist().index("á"), 0] == pytest.approx(1.0)
    known.relate("á", "b")
    assert matrix(known, "unicode")[known.classes_.tolist().index("á"), 1] == pytest.approx(1.0)


def test_relations_told_by_hand_begin_where_there_were_none(tmp_path: Path) -> None:
    features, labels = blobs()
    known = Classifier().fit(features, labels)
    with pytest.raises(InputError, match=r"was fitted without relations.*or say how an existing class relates"):
        known.add_class("x", (), {"a": 0.5})
    with pytest.raises(InputError, match="was fitted without relations"):
        known.relate("a")
    before = known.predict_proba(features)
    known.relate("a", {"b": 0.8}).relate("c", {"b": 0.4})
    assert list(known.space_.relations) == [BY_HAND]
    assert matrix(known, BY_HAND)[:3, :3] == pytest.approx(np.array([[1, 0.8, 0], [0.8, 1, 0.4], [0, 0.4, 1]]))
    assert np.array_equal(known.predict_proba(features), before)  # they only place classes without examples
    known.add_class("x", (), {"a": 1.0}).save(tmp_path / "kept.pg")
    loaded = Classifier.load(tmp_path / "kept.pg").relate("x", {"d": 0.7})
    assert loaded.relation_share("x") == 1
    assert matrix(loaded, BY_HAND)[6, 3] == pytest.approx(0.7)
    with pytest.raises(InputError, match="relation 'hand' has no source that could answer for 'crane#5'"):
        loaded.relate("x", "crane#5")


def test_a_name_is_for_relations_with_a_source() -> None:
    features, labels = blobs()
    known = Classifier().fit(features, labels, {"told": SPARSE, "letters": UnicodeRelation({"base": 1.0})})
    known.add_class("x", features[:1], "á")
    assert matrix(known, "letters")[6, 0] == pytest.approx(1.0)
    assert matrix(known, "told")[6, :6].tolist() == [0] * 6


def test_relations_are_told_from_the_first_class_on() -> None:
    features, labels = blobs()
    known = Classifier.empty(features=D)
    with pytest.raises(InputError, match="there is no class 'a', nor any other yet"):
        known.relate("a", {"b": 1.0})
    known.add_class("a", features[:2])
    with pytest.raises(InputError, match="unknown class in relation 'hand' 'b'"):
        known.relate("a", {"b": 1.0})
    known.relate("a", {})
    known.add_class("b", features[12:14]).relate("b", {"a": 0.5})
    for name in "cdef":
        known.add_class(name, features[labels == name][:6], {"a": 0.3})
    assert matrix(known, BY_HAND)[:3, :3] == pytest.approx(np.array([[1, 0.5, 0.3], [0.5, 1, 0], [0.3, 0, 1]]))
    known.add_class("x", (), {"c": 0.9}).remove_class("a").rename_class("b", "β")
    assert known.relation_share("x") == 1


def test_a_variant_without_relations_cannot_be_told_any() -> None:
    with pytest.raises(InputError, match="is of variant 'gcgpn-cos-aux', which uses no relations"):
        copy.deepcopy(fitted("gcgpn-cos-aux", None)).relate("a", {"b": 0.5})


def test_an_update_of_new_classes_leaves_all_others() -> None:
    features, labels = blobs()
    known = Classifier(update="novel").fit(features, labels, SPARSE).add_class("x", (), {"a": 1.0}).add_class("y", features[:3])
    before = known.prototypes_
    known.relate("x", {"d": 1.0})
    changed = (before != known.prototypes_).any(1).tolist()
    assert changed == [False] * 6 + [True, False]
    before = known.prototypes_
    known.remove_examples("y", [1])
    assert (before != known.prototypes_).any(1).tolist() == [False] * 7 + [True]


@pytest.mark.parametrize("variant", [None, "gcgpn-cos-aux"])
def test_examples_of_an_added_class_are_removed_as_if_they_had_not_been(variant: str | None) -> None:
    features, labels = blobs()
    known = Classifier(variant=variant, steps=None if variant is None else 2).fit(features, labels)
    expected = copy.deepcopy(known).add_class("x", features[[0, 2, 5]])
    known.add_class("x", features[:6]).remove_examples("x", [4, 1, 3, 1])
    np.testing.assert_allclose(known.predict_proba(features), expected.predict_proba(features), atol=1e-6)
    assert known.space_.examples(6) == 3


def test_examples_of_a_fitted_class_are_removed(tmp_path: Path) -> None:
    features, labels = blobs()
    known = Classifier(keep_features=True).fit(features, labels).add_examples("a", features[12:15])
    known.remove_examples("a", [0, 3, 13])
    stay = torch.from_numpy(np.concatenate([features[[1, 2, *range(4, 12)]], features[[12, 14]]]).astype(np.float32))
    assert torch.equal(known.kept_["a"], stay)
    space = known.space_
    aligned = space.whitening.aligned(stay).float()
    torch.testing.assert_close(space._means([0])[0], aligned.mean(0), atol=1e-5, rtol=1e-5)
    assert (space.fitted.counts[0], len(space.further["a"]), space.examples(0)) == (10, 2, 12)
    known.save(tmp_path / "kept.pg")
    known.remove_examples("a", range(10))  # those given later take the place of the fitted ones
    assert (space.examples(0), known.space_.examples(0), "a" in known.space_.further) == (12, 2, False)
    torch.testing.assert_close(known.space_._means([0])[0], aligned[10:].mean(0), atol=1e-5, rtol=1e-5)
    known.save(tmp_path / "kept.pg")
    loaded = Classifier.load(tmp_path / "kept.pg").refit()
    rest = np.concatenate([features[[12, 14]], features[12:]]), np.concatenate([["a", "a"], labels[12:]])
    expected = Classifier().fit(*rest)
    np.testing.assert_allclose(loaded.predict_proba(features), expected.predict_proba(features), atol=1e-5)


def test_examples_given_later_are_removed_where_no_features_are_kept() -> None:
    features, labels = blobs()
    plain = Classifier().fit(features, labels)
    known = copy.deepcopy(plain).add_examples("a", features[12:15]).remove_examples("a", [13])
    expected = copy.deepcopy(plain).add_examples("a", features[[12, 14]])
    np.testing.assert_allclose(known.predict_proba(features), expected.predict_proba(features), atol=1e-6)
    with pytest.raises(InputError, match="images that 'a' was fitted on were not kept: fit with keep_features=True"):
        known.remove_examples("a", [3])
    assert known.space_.examples(0) == 14
    (image,) = (image for image in known.check_examples().images if image.index == 13)
    assert image.label == "a"
    known.remove_examples("a", [12, 13])
    np.testing.assert_allclose(known.predict_proba(features), plain.predict_proba(features), atol=1e-6)


def test_a_classifier_taught_from_nothing_forgets_examples() -> None:
    features, labels = blobs(images=8)
    known, expected = Classifier.empty(features=D), Classifier.empty(features=D)
    for name in "abc":
        known.add_class(name, features[labels == name])
        expected.add_class(name, features[labels == name][2:])
    for name in "abc":
        known.remove_examples(name, [1, 0])
    np.testing.assert_allclose(known.predict_proba(features), expected.predict_proba(features), atol=1e-6)
    single = Classifier.empty(features=D).add_class("a", features[:3]).remove_examples("a", [0])
    assert len(single.kept_["a"]) == 2


def test_mistakes_about_examples_are_named() -> None:
    known = Classifier(keep_features=True).fit(*blobs()).add_class("x", np.ones((2, D)))
    for name, indices, reason in (
        ("x", [], "no examples of class 'x' are named"),
        ("x", [2], "class 'x' has no example 2: give indices from 0 to 1"),
        ("x", [-1], "no example -1"),
        ("x", [True], "no example True"),
        ("x", [0, 1], "class 'x' would have no example left: remove the class instead"),
        ("a", range(12), "would have no example left"),
        ("y", [0], "there is no class 'y'"),
    ):
        with pytest.raises(InputError, match=reason):
            known.remove_examples(name, indices)
    with pytest.raises(InputError, match="was learned by training variant 'gcgpn-cos-aux', so no example of it can be removed"):
        copy.deepcopy(fitted("gcgpn-cos-aux", None)).remove_examples("a", [0])
