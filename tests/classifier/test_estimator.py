import copy
import doctest
import functools
import math
import pickle
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from PIL import Image
from sklearn.base import clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from classifier.test_gaussian_space import NaiveGaussian, agree, pair
from kept import DENSE, NAMES, SPARSE, D, NaiveSpace, blobs, fitted
from protograph import Classifier, EdgeRelation, MatrixRelation, UnicodeRelation
from protograph._internal.errors import InputError
from protograph._internal.progress import Silent
from protograph.classifier import estimator as classifier
from protograph.data import Dataset, FeatureStore, ImageStore
from protograph.episodes import sample
from protograph.evaluation.metrics import evaluation_spec, extract
from protograph.training import loop as training
from protograph.training.run_config import RunConfig
from protograph.training.run_folder import Run
from protograph.training.setup import load_weights, make_model
from protograph.training.stages import train

EXPECTED_FAILURES: dict[str, str] = {}


@pytest.mark.slow
@parametrize_with_checks(
    [Classifier(), Classifier(variant="gcgpn-cos-aux", steps=20)], expected_failed_checks=lambda estimator: EXPECTED_FAILURES
)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_the_example_in_the_docstring_runs() -> None:
    done = doctest.testmod(classifier)
    assert (done.failed, done.attempted) == (0, 5)


CASES = (
    ("gcgpn-aux", "dense", "all"),
    ("gcgpn-aux", "sparse", "all"),
    ("gcgpn-aux", "dense", "novel"),
    ("gcgpn-aux-split", "sparse", "novel"),
    ("gcgpn-cos-aux", None, "all"),
    ("gcgpn-key", None, "all"),
)
NEW = ("new", "neu", "nuovo", "nieuw", "ny")
FOLDER = TemporaryDirectory()


@functools.cache
def pickled(*case: Any) -> bytes:
    """A fitted classifier as bytes, from which a copy is made sooner than by copying."""
    return pickle.dumps(fitted(*case))


class Kept(RuleBasedStateMachine):
    """Any sequence of changes, against a model that computes everything anew from what every class came from."""

    @initialize(case=st.sampled_from(CASES), seed=st.integers(0, 2**16))
    def begin(self, case: tuple[str, str | None, str], seed: int) -> None:
        self.classifier = pickle.loads(pickled(*case))
        self.naive = NaiveSpace(self.classifier.space_)
        self.only_new = case[2] == "novel"
        self.generator = np.random.default_rng(seed)
        self.names = self.classifier.classes_.tolist()

    @precondition(lambda self: len(self.names) < 10)
    @rule(data=st.data(), count=st.integers(0, 3))
    def add(self, data: Any, count: int) -> None:
        name = data.draw(st.sampled_from([name for name in (*NEW, *"abcdef") if name not in self.names]))
        examples = self.generator.normal(size=(count, D)).astype(np.float32)
        told = {}
        if self.naive.relation is not None:
            told = {other: self.generator.uniform() for other in data.draw(st.sets(st.sampled_from(self.names), max_size=3))}
        if not count and not told:
            return
        self.classifier.add_class(name, examples, told or None)
        self.naive.add(name, list(examples.astype(np.float64)), told, self.only_new)
        self.names.append(name)

    @precondition(lambda self: len(self.names) > 1)
    @rule(data=st.data())
    def remove(self, data: Any) -> None:
        name = data.draw(st.sampled_from(self.names))
        self.classifier.remove_class(name)
        self.naive.remove(name, self.only_new)
        self.names.remove(name)

    @rule(data=st.data())
    def rename(self, data: Any) -> None:
        old = data.draw(st.sampled_from(self.names))
        new = data.draw(st.sampled_from([name for name in ("x", "a longer name", *NEW) if name not in self.names]))
        self.classifier.rename_class(old, new)
        next(one for one in self.naive.classes if one.name == old).name = new
        self.names[self.names.index(old)] = new

    @rule()
    def save_and_load(self) -> None:
        self.classifier.save(Path(FOLDER.name) / "kept.pg")
        self.classifier = Classifier.load(Path(FOLDER.name) / "kept.pg")

    @rule()
    def predict(self) -> None:
        queries = self.generator.normal(size=(4, D)).astype(np.float32)
        rows = self.naive.kept()
        lengths = np.linalg.norm(rows, axis=1)
        cosines = np.array(
            [[query @ row / np.linalg.norm(query) for row in rows] for query in queries.astype(np.float64) - self.naive.centre]
        )
        cosines /= np.where(lengths, lengths, 1)
        answers = self.classifier.predict(queries)
        for answer, scores in zip(answers.tolist(), cosines, strict=True):
            assert scores[self.names.index(answer)] >= scores.max() - 1e-5
        found = self.classifier.space_.cosines(self.classifier._features(queries)).numpy()
        np.testing.assert_allclose(found, cosines, atol=2e-5)

    @invariant()
    def same_classes_and_prototypes(self) -> None:
        assert self.classifier.classes_.tolist() == sorted(self.names)
        assert self.classifier.space_.names == self.names
        np.testing.assert_allclose(self.classifier.space_.prototypes.numpy(), self.naive.kept(), atol=2e-5)


Kept.TestCase.settings = settings(
    max_examples=1000, stateful_step_count=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
test_a_thousand_sequences_of_changes_agree_with_a_naive_model = Kept.TestCase
test_a_thousand_sequences_of_changes_agree_with_a_naive_model.pytestmark = [pytest.mark.slow]


class KeptGaussian(RuleBasedStateMachine):
    """Any sequence of changes of the Gaussian model, against one that computes everything anew from all images."""

    @initialize(related=st.booleans(), seed=st.integers(0, 2**16))
    def begin(self, related: bool, seed: int) -> None:
        self.known, self.naive = pair(relations=DENSE if related else None, keep_features=True)
        self.related, self.generator = related, np.random.default_rng(seed)

    def images(self, count: int) -> Any:
        return self.generator.normal(size=(count, D)).astype(np.float32)

    def told(self, count: int) -> dict[str, float] | None:
        if not self.related or (count and self.generator.uniform() < 0.5):
            return None
        return {name: float(self.generator.uniform()) for name in self.naive.fitted}

    @precondition(lambda self: len(self.naive.names()) < 10)
    @rule(data=st.data(), counts=st.lists(st.integers(0, 3), min_size=1, max_size=3))
    def add(self, data: Any, counts: list[int]) -> None:
        free = [name for name in NEW if name not in self.naive.names()]
        names = data.draw(st.permutations(free))[: len(counts)]
        told = {name: self.told(count) for name, count in zip(names, counts, strict=False)}
        new = {name: self.images(count) for name, count in zip(names, counts, strict=False) if count or told[name] is not None}
        if len(new) == 1:
            ((name, images),) = new.items()
            self.known.add_class(name, images, told[name])
        else:
            self.known.add_classes(new, told)
        self.naive.added |= new
        if self.related:
            self.naive.similar |= {name: told[name] for name in new if told[name] is not None}

    @rule(data=st.data(), count=st.integers(1, 3))
    def add_examples(self, data: Any, count: int) -> None:
        name, images = data.draw(st.sampled_from(self.naive.names())), self.images(count)
        self.known.add_examples(name, images)
        group = self.naive.added if name in self.naive.added else self.naive.later
        group[name] = np.concatenate([group.get(name, images[:0]), images])

    @precondition(lambda self: len(self.naive.fitted) > 3)
    @rule(data=st.data())
    def remove(self, data: Any) -> None:
        name = data.draw(st.sampled_from(self.naive.names()))
        self.known.remove_class(name)
        self.naive.remove(name)

    @rule(data=st.data())
    def rename(self, data: Any) -> None:
        old = data.draw(st.sampled_from(self.naive.names()))
        new = data.draw(st.sampled_from([name for name in ("x", "a longer name", *NEW) if name not in self.naive.names()]))
        self.known.rename_class(old, new)
        self.naive.rename(old, new)

    @precondition(lambda self: not self.related)  # relations between classes added together are not of the naive model
    @rule()
    def refit(self) -> None:
        self.known.refit()
        images = self.naive.fitted | self.naive.added
        images |= {name: np.concatenate([images[name], later]) for name, later in self.naive.later.items()}
        self.naive = NaiveGaussian(self.known.space_.settings, {name: images[name] for name in sorted(images)})

    @rule()
    def fail(self) -> None:
        with pytest.raises(InputError, match="already"):
            self.known.add_classes({"one more": self.images(1), self.naive.names()[0]: self.images(1)})

    @rule()
    def save_and_load(self) -> None:
        self.known.save(Path(FOLDER.name) / "gaussian.pg")
        self.known = Classifier.load(Path(FOLDER.name) / "gaussian.pg")

    @invariant()
    def answers_agree(self) -> None:
        agree(self.known, self.naive)


KeptGaussian.TestCase.settings = settings(
    max_examples=12, stateful_step_count=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
test_sequences_of_changes_of_the_gaussian_model_agree_with_a_naive_one = KeptGaussian.TestCase
test_sequences_of_changes_of_the_gaussian_model_agree_with_a_naive_one.pytestmark = [pytest.mark.slow]


def strokes(drawings: Tensor) -> Tensor:
    """How much of a stroke runs in each of eight directions in each part of a drawing [n, 1, H, W]."""
    blurred = avg_pool2d(drawings, 3, 1, 1)
    across, down = (pad(blurred.diff(dim=-1), (0, 1)), pad(blurred.diff(dim=-2), (0, 0, 0, 1)))
    length, angle = torch.hypot(across, down), torch.atan2(down, across)
    turned = [(angle - math.tau * part / 8).cos().relu() ** 3 * length for part in range(8)]
    return avg_pool2d(torch.cat(turned, 1), 7, 3).flatten(1)


Letters = Callable[[Sequence[str], str], tuple[Tensor, list[str]]]


@pytest.fixture(scope="module")
def drawn(letters: Dataset) -> Letters:
    """Features and names of letters of a part of the dataset; the features tell seen letters in training faces apart."""

    def rows(names: Sequence[str], part: str) -> tuple[Tensor, list[str]]:
        pool, found, labels = getattr(letters, part), [], []
        for name in names:
            row = int((pool.classes == letters.classes.index(name)).nonzero())
            images = pool.images[row][pool.images[row] >= 0]
            found.append(strokes(letters.store.gather(images)))
            labels += [name] * len(images)
        return torch.cat(found), labels

    seen, names = rows(letters.classes[: letters.seen], "train")
    telling = LinearDiscriminantAnalysis(solver="eigen", shrinkage=0.3, n_components=40).fit(seen.numpy(), names)

    def features(names: Sequence[str], part: str) -> tuple[Tensor, list[str]]:
        found, labels = rows(names, part)
        return torch.from_numpy(telling.transform(found.numpy())).float(), labels

    return features


@pytest.mark.slow
def test_a_new_letter_from_one_example_in_ten_lines(letters: Dataset, drawn: Letters) -> None:
    drawings, names = drawn(letters.classes[: letters.seen], "train")
    new, _ = drawn("ê", "novel_test")
    known = Classifier(variant="gcgpn-aux", steps=60).fit(drawings, names, relations=letters.relations)
    known.add_class("ê", new[:1])
    assert known.classes_.tolist() == sorted([*letters.classes[: letters.seen], "ê"])
    assert np.mean(known.predict(new[1:]) == "ê") > 0.4, "one of 209 would be right by chance"


@pytest.mark.slow
def test_answers_change_only_where_the_graph_relates_letters_to_the_new_one(letters: Dataset, drawn: Letters) -> None:
    seen = letters.classes[: letters.seen]
    alike = [(a, b, 1.0) for a in (*seen, "ê") for b in (*seen, "ê") if a < b and base_letter(a) == base_letter(b)]
    drawings, names = drawn(seen, "train")
    known = Classifier(variant="gcgpn-aux", steps=10).fit(
        drawings, names, EdgeRelation(alike, seen, "adjacency", directed=False)
    )
    before, prototypes = known.predict(drawings), known.prototypes_.copy()
    known.add_class("ê", drawn("ê", "novel_test")[0][:1])
    related = {name for name in seen if base_letter(name) == base_letter("ê")}
    assert 1 < len(related) < 20
    others = known.prototypes_[known.classes_ != "ê"]
    for name, old, new in zip(sorted(seen), prototypes, others, strict=True):
        assert np.array_equal(old, new) == (name not in related), name
    after = known.predict(drawings)
    changed = {(old, new) for old, new in zip(before.tolist(), after.tolist(), strict=True) if old != new}
    assert changed
    assert all(new == "ê" or {old, new} & related for old, new in changed)


def base_letter(letter: str) -> str:
    return unicodedata.normalize("NFD", letter)[0]


def test_update_novel_changes_no_answer_but_to_the_new_class(letters: Dataset, drawn: Letters) -> None:
    drawings, names = drawn(letters.classes[:30], "train")
    known = Classifier(variant="gcgpn-aux", steps=5, update="novel").fit(drawings, names, relations=letters.relations["base"])
    before, prototypes = known.predict(drawings), known.prototypes_.copy()
    known.add_class("ẻ", drawings[40:42] + 0.1)
    assert np.array_equal(known.prototypes_[:-1], prototypes)
    changed = known.predict(drawings) != before
    assert 0 < changed.sum() < len(names)
    assert set(known.predict(drawings)[changed]) == {"ẻ"}


def test_a_sparse_relation_changes_only_prototypes_with_an_edge_to_the_new_class() -> None:
    known = copy.deepcopy(fitted("gcgpn-aux", "sparse"))
    before = known.prototypes_.copy()
    known.add_class("new", np.ones((2, D)), relations={"b": 0.5, "e": 0.2})
    same = [np.array_equal(known.prototypes_[place], before[place]) for place in range(len(NAMES))]
    assert same == [name not in "be" for name in NAMES]


@pytest.mark.parametrize("case", [("gcgpn-aux", "dense"), ("gcgpn-cos-aux", None), ("gcgpn-key", None)])
def test_the_order_of_adding_does_not_matter(case: tuple[str, str | None]) -> None:
    examples = np.random.default_rng(1).normal(size=(3, 2, D))
    orders = []
    for order in ((0, 1, 2), (2, 0, 1)):
        known = copy.deepcopy(fitted(*case))
        for place in order:
            known.add_class(f"new {place}", examples[place])
        rows = [known.classes_.tolist().index(name) for name in (*NAMES, "new 0", "new 1", "new 2")]
        orders.append(known.prototypes_[rows])
    np.testing.assert_allclose(*orders, atol=1e-5)


def test_the_same_seed_gives_the_same_classifier_and_another_another() -> None:
    features, labels = blobs()
    one, same, other = (Classifier(variant="gcgpn-cos-aux", steps=5, seed=seed).fit(features, labels) for seed in (0, 0, 1))
    assert np.array_equal(one.prototypes_, same.prototypes_)
    assert not np.array_equal(one.prototypes_, other.prototypes_)


@pytest.mark.slow
def test_training_teaches_to_find_added_classes_among_the_others(letters: Dataset, drawn: Letters) -> None:
    drawings, labels = drawn(letters.classes[: letters.seen], "train")
    novel = [letters.classes[class_id] for class_id in letters.novel_validation.classes[:5]]
    new, names = drawn(novel, "novel_validation")
    found = []
    for steps in (0, 40):
        known = Classifier(variant="gcgpn-cos-aux", steps=steps).fit(drawings, labels)
        for name in novel:
            known.add_class(name, drawn([name], "novel_validation")[0][:5])
        found.append(known.score(new, names))
    assert found[1] > found[0] + 0.1


@pytest.mark.parametrize(("classes", "images"), [(1, 3), (2, 6), (5, 1)])
def test_too_few_classes_or_images_for_episodes_are_served_by_class_means(classes: int, images: int) -> None:
    features, labels = blobs(classes, images)
    known = Classifier(variant="gcgpn-cos-aux").fit(features, labels)
    centred = features - features.mean(0) * (classes > 1)
    means = [normal(centred[labels == name]).mean(0) for name in known.classes_]
    np.testing.assert_allclose(known.space_.model.prototypes.numpy(), normal(np.array(means)), atol=1e-5)
    known.add_class("new", -features[:1])
    assert known.predict(-features[:1]).tolist() == ["new"]


def normal(rows: Any) -> Any:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_a_class_with_a_single_image_keeps_its_mean_and_the_others_train() -> None:
    features, labels = blobs()
    keep = (labels != "c") | (np.arange(len(labels)) == 24)
    known = Classifier(variant="gcgpn-cos-aux", steps=5).fit(features[keep], labels[keep])
    row = known.space_.model.prototypes.numpy()[2]
    centred = features[24:25] - features[keep].mean(0)
    np.testing.assert_allclose(row, normal(centred)[0], atol=2e-2)  # weight decay pulls on its length
    assert known.predict(features[24:25]).tolist() == ["c"]


def test_a_class_without_examples_lies_where_its_relations_say() -> None:
    known = copy.deepcopy(fitted("gcgpn-aux", "sparse"))
    known.add_class("ab", relations={"a": 0.9, "b": 0.9})
    prototypes = normal(known.space_.prototypes.numpy())
    nearest = (prototypes @ prototypes[-1]).argsort()[::-1].tolist()
    assert nearest[0] == 6
    assert set(nearest[1:3]) == {0, 1}
    with pytest.raises(InputError, match="nothing is known of class 'x': give at least one example"):
        known.add_class("x")
    with pytest.raises(InputError, match="nothing is known of class 'x'"):
        copy.deepcopy(fitted("gcgpn-cos-aux", None)).add_class("x", np.zeros((0, D)))


def test_relations_are_given_in_many_ways() -> None:
    features, labels = blobs()
    nested = {"a": {"b": 0.9, "c": 0.7}, "b": {"c": 0.5}, "d": {"e": 0.3}, "e": {"d": 0.6}}
    pairs = {**SPARSE, ("a", "c"): 0.7}
    by_pair, by_class = (Classifier(variant="gcgpn-aux", steps=2).fit(features, labels, given) for given in (pairs, nested))
    assert np.array_equal(by_pair.prototypes_, by_class.prototypes_)
    given: list[Any] = [DENSE, torch.from_numpy(DENSE), DENSE.tolist(), MatrixRelation(torch.from_numpy(DENSE), NAMES)]
    assert (
        len({Classifier(variant="gcgpn-aux", steps=2).fit(features, labels, one).prototypes_.tobytes() for one in given}) == 1
    )
    several = Classifier().fit(features, labels, [DENSE, UnicodeRelation({"base": 1.0, "script": 1.0})])
    assert list(several.space_.relations) == ["similarity", "unicode"]
    named = Classifier().fit(features, labels, {"look": DENSE, "also": DENSE})
    assert list(named.space_.relations) == ["look", "also"]
    named.add_class("new", features[:1], {"look": {"a": 1.0}, "also": {"b": 1.0}})
    assert named.space_.relations["look"].similarities[-1, :2].tolist() == [1.0, named.space_.relations["look"].floor]


def test_a_source_is_asked_for_new_names_and_one_that_lacks_them_is_warned_of() -> None:
    features, labels = blobs()
    known = Classifier().fit(features, labels, UnicodeRelation({"base": 1.0, "script": 1.0}))
    known.add_class("á", features[:1])
    similar = known.space_.relations["unicode"].similarities[-1]
    assert similar[0] == pytest.approx(1.0)
    assert similar[1] == pytest.approx(0.5)
    with pytest.warns(UserWarning, match="class 'much' is taken as unrelated: 'much' is not a single letter"):
        known.add_class("much", features[:1])
    known.add_class("more", features[:1], relations="è")  # a name under which the source knows it
    assert known.space_.relations["unicode"].similarities[-1, 4] == pytest.approx(1.0)


def test_mistakes_are_named() -> None:
    features, labels = blobs()
    quick = functools.partial(Classifier, variant="gcgpn-cos-aux", steps=2)
    known = copy.deepcopy(fitted("gcgpn-aux", "dense"))
    plain = copy.deepcopy(fitted("gcgpn-cos-aux", None))
    for say, what in (
        (lambda: known.add_class("a", features[:1]), "there is a class 'a' already"),
        (lambda: known.add_class(7, features[:1]), "class 7 must be a text"),
        (lambda: known.add_class("", features[:1]), "a class needs a name"),
        (lambda: known.add_class("x", features[:1], {"q": 1.0}), "unknown class in relation 'similarity' 'q'"),
        (lambda: known.add_class("x", features[:1], {"a": float("nan")}), "no finite similarity"),
        (lambda: known.add_class("x", features[:1], [1.0, 2.0]), "takes no attributes of class 'x'"),
        (lambda: known.add_class("x", features[:1], "text"), "has no source that could answer for 'text'"),
        (lambda: plain.add_class("x", features[:1], {"a": 1.0}), "of variant 'gcgpn-cos-aux', which uses no relations"),
        (lambda: known.remove_class("q"), "there is no class 'q': the classes are 'a', 'b'"),
        (lambda: known.rename_class("a", "b"), "there is a class 'b' already"),
        (lambda: known.explain(features[:2]), "explain takes one image at a time, not 2"),
        (lambda: quick(variant="pn+").fit(features, labels), "variant 'pn\\+' is not trained"),
        (lambda: quick(variant="dfslwof-att").fit(features, labels), "variant 'dfslwof-att' is not trained"),
        (lambda: quick(variant="gcgpn-aux").fit(features, labels), "needs side information"),
        (lambda: quick(variant="aux-only").fit(features, labels, DENSE), "'aux-only' uses no side information"),
        (lambda: quick(update="some").fit(features, labels), "unknown update 'some'"),
        (lambda: Classifier(steps=3).fit(features, labels), "steps belongs to the training of a variant"),
        (lambda: Classifier(prior="most").fit(features, labels), "unknown prior 'most'"),
        (lambda: Classifier(prior={"a": 0.0}).fit(features, labels), "prior of class 'a' must be a positive number"),
        (lambda: Classifier(unknown=0.1).fit(features[::12], labels[::12]), "too few images to calibrate 'unknown'"),
        (lambda: Classifier().fit(features, labels).add_class("x", features[:1], {"a": 1.0}), "was fitted without relations"),
        (lambda: quick(shots=(3, 2)).fit(features, labels), "fewest and the most"),
        (lambda: quick(shots=(1, 2.5)).fit(features, labels), "fewest and the most"),
        (lambda: quick(steps=-1).fit(features, labels), "steps must be a whole number from 0 on"),
        (lambda: quick(copies=-1).fit(features, labels), "copies must be a whole number from 0 on"),
        (lambda: quick(learning_rate=float("nan")).fit(features, labels), "learning rate must be a positive number"),
        (lambda: quick().fit(features * 1e20, labels), "the largest feature is .*: multiply"),
        (lambda: quick().fit(features * 1e-20, labels), "the largest feature is .*: multiply"),
        (lambda: plain.predict(features * 1e20), "the largest feature is .*: multiply"),
        (lambda: Classifier().fit(features, [float("nan"), *range(len(labels) - 1)]), "label 0 is missing"),
        (lambda: Classifier().fit(features, [*labels[:-1], None]), f"label {len(labels) - 1} is missing"),
        (lambda: Classifier().fit(features, [*labels[:-1], "a\0"]), r"class 'a\\x00' has the character NUL"),
        (lambda: known.add_class("a\0", features[:1]), r"class 'a\\x00' has the character NUL"),
        (lambda: known.rename_class("a", "a\0"), r"class 'a\\x00' has the character NUL"),
        (lambda: quick(unknown=2.0).fit(features, labels), "rate must lie between 0 and 1, not 2.0"),
        (lambda: quick(unknown=0.1, unknown_label="a").fit(features, labels), "a class is called 'a'"),
        (lambda: quick(unknown=0.1).fit(features[::12], labels[::12]), "held-out images, and there are 0"),
        (lambda: Classifier(variant="gcgpn-cos-aux", learning_rate=1e9).fit(features, labels), "training diverged"),
        (lambda: Classifier().fit(features, labels, DENSE[:2]), "2 x 6 matrix for 6 classes"),
        (lambda: Classifier().fit(features, labels, {("a", "q"): 1.0}), "unknown class in relation 'similarity' 'q'"),
        (lambda: Classifier().fit(features, labels, "wordnets"), "unknown relation 'wordnets'"),
        (lambda: Classifier().fit(features, labels, 3.5), "matrix for 6 classes"),
    ):
        with pytest.raises(InputError, match=what):
            say()
    trained = Classifier(variant="gcgpn-cos-aux", steps=1).fit(features, labels)
    with pytest.raises(InputError, match="class 'a' is the last one"):
        trained.remove_class("f").remove_class("e").remove_class("d").remove_class("c").remove_class("b").remove_class("a")


def test_a_classifier_taught_from_nothing_is_the_fitted_one() -> None:
    features, labels = blobs(images=8)
    expected = Classifier(keep_features=True, unknown=0.1).fit(features, labels)
    known = Classifier.empty(features=D, unknown=0.1)
    for name in "fbadce":
        of_class = features[labels == name]
        known.add_class(name, of_class[:1]).add_examples(name, of_class[1:])
    assert known.threshold_ == expected.threshold_
    assert np.array_equal(known.predict_proba(features), expected.predict_proba(features))
    assert known.space_.seen == 6
    known.add_class("g", -features[:2]).remove_class("g")
    assert np.array_equal(known.predict_proba(features), expected.predict_proba(features))
    known.set_params(refit_up_to=len(features)).add_class("g", -features[:2])  # too many images now
    assert (known.space_.seen, len(known.space_.support)) == (6, 1)


@pytest.mark.parametrize("keep", [True, False])
def test_no_class_and_a_single_one_are_valid(keep: bool, tmp_path: Path) -> None:
    features, _ = blobs()
    known = Classifier.empty(features=D, keep_features=keep)
    known.save(tmp_path / "empty.pg")
    known = Classifier.load(tmp_path / "empty.pg")
    assert known.classes_.tolist() == []
    for ask in (known.predict, known.predict_proba, known.predictions, known.decision_function, known.explain):
        with pytest.raises(InputError, match="knows no class yet: add one first"):
            ask(features[:1])
    with pytest.raises(InputError, match="there is no class 'a', nor any other yet"):
        known.add_examples("a", features[:1])
    with pytest.raises(InputError, match="all texts, or all numbers"):
        copy.deepcopy(known).add_classes({"a": features[:1], 2: features[1:2]})
    known.add_class("a", features[:2])
    known.save(tmp_path / "single.pg")
    known = Classifier.load(tmp_path / "single.pg")
    assert known.predict(features).tolist() == ["a"] * len(features)
    assert known.predict_proba(features).tolist() == [[1.0]] * len(features)
    assert known.explain(features[0])[0].probability == 1
    known.remove_class("a").add_class(3, features[:1]).add_class(12, features[-1:])
    assert known.classes_.tolist() == [3, 12]
    assert known.predict(features[[0, -1]]).tolist() == [3, 12]


def test_relations_place_a_class_once_others_are_taught() -> None:
    known = Classifier.empty(features=D, relations=UnicodeRelation({"base": 1.0}))
    features, labels = blobs()
    for name in "abcdef":
        known.add_class(name, features[labels == name])
    expected = Classifier(keep_features=True).fit(features, labels, UnicodeRelation({"base": 1.0}))
    for one in (known, expected):
        one.set_params(refit_up_to=0).add_class("á")
    np.testing.assert_allclose(known.predict_proba(features), expected.predict_proba(features), atol=1e-6)


def test_mistakes_of_a_classifier_without_a_class_are_named() -> None:
    for arguments, reason in (
        ({}, "give an encoder, or the number of features"),
        ({"features": 0}, "must be a positive whole number, not 0"),
        ({"features": 3, "refit_up_to": -1}, "refit_up_to must be a whole number"),
        ({"features": 3, "keep_features": False, "refit_up_to": 5}, "would be ignored without keep_features"),
        ({"features": 3, "variant": "gcgpn-aux", "keep_features": False}, "leave it out to begin without any"),
    ):
        with pytest.raises(InputError, match=reason):
            Classifier.empty(**arguments)


def test_answers_do_not_depend_on_the_scale_of_features() -> None:
    features, labels = blobs(images=20)
    expected = Classifier(unknown=0.1).fit(features, labels).add_class("x", -features[:2]).predict(features)
    for scale in (1e-30, 1e-20, 1e20, 1e30):
        scaled = Classifier(unknown=0.1).fit(scale * features, labels).add_class("x", -scale * features[:2])
        assert np.array_equal(scaled.predict(scale * features), expected)


def test_more_shots_than_any_class_has_are_as_many_as_it_has() -> None:
    features, labels = blobs(images=8)
    some, many = (Classifier(variant="gcgpn-cos-aux", steps=2, shots=(5, most)).fit(features, labels) for most in (8, 10**9))
    assert np.array_equal(some.prototypes_, many.prototypes_)


def test_it_can_be_cloned_pickled_and_kept_by_joblib(tmp_path: Path) -> None:
    known = copy.deepcopy(fitted("gcgpn-aux", "sparse")).add_class("new", np.ones((1, D)), {"a": 0.5})
    features, _ = blobs()
    joblib.dump(known, tmp_path / "kept.joblib")
    for other in (pickle.loads(pickle.dumps(known)), joblib.load(tmp_path / "kept.joblib")):
        assert np.array_equal(other.predict_proba(features), known.predict_proba(features))
        other.add_class("newer", np.ones((1, D)), {"new": 0.5})
    fresh = clone(known)
    assert fresh.get_params() == known.get_params()
    assert not hasattr(fresh, "classes_")
    assert not hasattr(fresh, "prototypes_")


def test_numbers_are_labels_too(tmp_path: Path) -> None:
    features, labels = blobs()
    known = Classifier(unknown=0.2, unknown_label=-1).fit(features, [ord(label) for label in labels])
    known.add_class(7, -features[:2]).rename_class(97, 3)
    known.save(tmp_path / "kept.pg")
    for one in (known, Classifier.load(tmp_path / "kept.pg")):
        assert one.classes_.tolist() == [3, 7, 98, 99, 100, 101, 102]
        assert one.classes_.dtype == np.int64
        assert set(one.predict(np.vstack([features, -features])).tolist()) >= {-1, 7, 3}
    with pytest.raises(InputError, match="class 'x' must be a whole number"):
        known.add_class("x", features[:1])


class FakeEncoder:
    """Images are vectors in disguise: of a path its numbers, of an image the first pixels. Copies are moved a little."""

    features = D

    def encode(self, images: Sequence[Any], progress: Any = None) -> Tensor:
        rows = [
            [float(part) for part in one.split(",")] if isinstance(one, str) else np.asarray(one, np.float32).ravel()[:D]
            for one in images
        ]
        return torch.tensor(np.array(rows), dtype=torch.float32)

    def encode_augmented(self, images: Sequence[Any], copies: int, seed: int, progress: Any = None) -> Tensor:
        noise = torch.randn(len(images), copies, D, generator=torch.Generator().manual_seed(seed))
        return self.encode(images)[:, None] + 0.05 * noise

    def description(self) -> dict[str, Any]:
        return {"kind": "fake"}

    def tensors(self) -> dict[str, Tensor]:
        return {"weight": torch.arange(3.0)}


@pytest.fixture
def fake_encoders(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Stands in for the real encoders; what was asked to be opened."""
    opened: list[tuple[Any, ...]] = []

    def open_any(*given: Any) -> FakeEncoder:
        opened.append(given)
        return FakeEncoder()

    for place in ("estimator.open_encoder", "model_file.open_encoder", "fitting.backbone_encoder"):
        monkeypatch.setattr(f"protograph.classifier.{place}", open_any)
    return opened


def test_images_pass_the_encoder_and_features_do_not(tmp_path: Path, fake_encoders: list[tuple[Any, ...]]) -> None:
    features, labels = blobs()
    paths = [",".join(map(str, row)) for row in features]
    known = Classifier("fake", variant="gcgpn-cos-aux", steps=5, copies=2).fit(paths, labels)
    assert fake_encoders == [("fake",)]
    np.testing.assert_allclose(known.predict_proba(paths), known.predict_proba(features), atol=1e-6)
    plain = Classifier(FakeEncoder(), variant="gcgpn-cos-aux", steps=5).fit(paths, labels)
    assert not np.array_equal(known.prototypes_, plain.prototypes_), "copies are trained on"
    pixels = (np.abs(features[0]) * 50).astype(np.uint8)[None]
    images = [Image.fromarray(pixels), pixels, torch.from_numpy(pixels.astype(np.float32))[None], paths[3]]
    assert known.predict(images).shape == (4,)
    assert len({known.predict_proba([image]).tobytes() for image in images[:3]}) == 1
    assert known.predict(paths[0]).shape == known.predict(images[0]).shape == known.predict(pixels).shape == (1,)
    known.add_class("new", paths[:1]).add_class("newer", images[0])
    known.save(tmp_path / "kept.pg")
    loaded = Classifier.load(tmp_path / "kept.pg")
    assert len(fake_encoders) == 1, "it is opened when an image comes"
    assert np.array_equal(loaded.predict(paths), known.predict(paths))
    assert fake_encoders[1][0] == {"kind": "fake"}
    assert torch.equal(fake_encoders[1][1]["weight"], torch.arange(3.0))
    assert loaded.explain(paths[0])[0] == known.explain(paths[0])[0]
    with pytest.raises(InputError, match="72 images have 71 labels"):
        Classifier(FakeEncoder()).fit(paths, labels[:-1])


def test_progress_is_shown() -> None:
    class Counting(Silent):
        shown: list[tuple[str, int, str]] = []  # noqa: RUF012

        def task(self, title: str, total: int, unit: str, done: int = 0) -> Any:
            self.shown.append((title, total, unit))
            return super().task(title, total, unit, done)

    features, labels = blobs()
    Classifier(variant="gcgpn-cos-aux", steps=3).fit(features, labels, progress=Counting())
    assert Counting.shown == [("fit gcgpn-cos-aux", 3, "steps")]


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_false_alarms_on_other_images_are_as_many_as_chosen(letters: Dataset, drawn: Letters, rate: float) -> None:
    drawings, labels = drawn(letters.classes[:100], "train")
    other = np.arange(len(labels)) % 3 == 0
    known = Classifier(unknown=rate).fit(drawings[~other], np.array(labels)[~other])
    answers = known.predict(drawings[other])
    assert np.mean(answers == "unknown") == pytest.approx(rate, abs=0.03)
    assert np.array_equal(answers == "unknown", known.unknown_score(drawings[other]) < known.threshold_)
    noise = torch.randn(200, drawings.shape[1], generator=torch.Generator().manual_seed(0))
    assert np.mean(known.predict(noise) == "unknown") > 0.9
    assert known.auroc(drawings[other], noise) > 0.95


def test_predictions_are_those_of_the_single_methods_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = blobs(images=30)
    known = Classifier(unknown=0.3).fit(features, labels)
    expected = known.predict(features), known.predict_proba(features), known.unknown_score(features)
    calls: list[str] = []
    for name in ("logits", "likeness"):

        def counted(*inputs: Any, name: str = name, method: Callable[..., Tensor] = getattr(known.space_, name)) -> Tensor:
            calls.append(name)
            return method(*inputs)

        monkeypatch.setattr(known.space_, name, counted)
    found = known.predictions(features)
    assert "unknown" in found.labels
    assert np.array_equal(found.labels, expected[0])
    assert np.array_equal(found.probabilities, expected[1])
    assert np.array_equal(found.likeness, expected[2])
    assert sorted(calls) == ["likeness", "logits"]


def test_held_out_classes_need_image_files(toy: Dataset, tmp_path: Path) -> None:
    features, labels = blobs()
    with pytest.raises(InputError, match="has no image files to add classes from: use add_class"):
        Classifier().fit(features, labels).add_held_out(toy, tmp_path)


def test_unknown_images_are_no_right_answers_whatever_the_labels_are() -> None:
    features, labels = blobs(images=30)
    numbers = np.unique(labels, return_inverse=True)[1]
    known = Classifier(unknown=0.3).fit(features, numbers)
    answers = known.predict(features)
    assert "unknown" in answers.tolist()
    expected = sum(one == other for one, other in zip(answers.tolist(), numbers.tolist(), strict=True)) / len(numbers)
    assert known.score(features, numbers) == pytest.approx(expected)
    assert known.score(features[:2], numbers[:2], [1, 0]) == float(answers[0] == numbers[0])


def test_the_bias_of_an_earlier_file_moves_the_logits_of_added_classes_alone(tmp_path: Path) -> None:
    features, labels = blobs(classes=8, images=30, seed=2)
    known = Classifier(variant="gcgpn-cos-aux", steps=10).fit(features, labels)
    known.add_class("new", -features[:1])
    before, known.bias_ = known.decision_function(features), 0.5
    logits = known.decision_function(features)
    np.testing.assert_allclose(logits - before, [[0] * 8 + [0.5]] * len(labels), atol=1e-9)
    known.save(tmp_path / "kept.pg")
    assert np.array_equal(Classifier.load(tmp_path / "kept.pg").decision_function(features), logits)


@pytest.mark.slow
@pytest.mark.parametrize(("shots", "seen_least", "new_least"), [(1, 0.7, 0.4), (5, 0.7, 0.7)])
def test_classes_added_after_a_default_fit_are_found_and_the_others_kept(
    shots: int, seen_least: float, new_least: float
) -> None:
    """Of 16 classes whose features lie far from zero, as encoders' do, 12 are fitted and 4 added."""
    features, labels = blobs(classes=16, images=40, size=32, seed=4)
    features = 3 + features + 0.8 * np.random.default_rng(5).normal(size=features.shape)
    new = labels > "l"
    asked = np.tile(np.arange(40) >= 25, 16)
    known = Classifier(variant="gcgpn-cos-aux").fit(features[~new & ~asked], labels[~new & ~asked])
    for name in "mnop":
        known.add_class(name, features[labels == name][:shots])
    assert known.score(features[~new & asked], labels[~new & asked]) > seen_least
    assert known.score(features[new & asked], labels[new & asked]) > new_least


@pytest.mark.slow
def test_what_all_features_of_a_run_share_makes_no_difference(
    toy: Dataset, toy_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run on features centres them, and so does the classifier that keeps it; both answer alike."""
    monkeypatch.setattr(training, "EvaluationSizes", functools.partial(training.EvaluationSizes, episodes=20))
    assert isinstance(toy.store, ImageStore)
    vectors = toy.store.pixels.flatten(1).float() / 255
    config = replace(toy_config(learning_rate=0.1, steps=20), backbone="identity")
    asked = torch.cat([toy.seen_test.all_images(), toy.novel_test.all_images()])
    found, answers = [], []
    for offset in (0.0, 8.0):
        features = replace(toy, store=FeatureStore(vectors + offset))
        found.append(train(config, features, tmp_path / str(offset))["measures"]["h_mean"]["mean"])
        known = Classifier.from_run(tmp_path / str(offset), features, unknown=0.1)
        for class_id, rows in zip(toy.novel_test.classes.tolist(), toy.novel_test.by_class(), strict=True):
            known.add_class(toy.classes[class_id], vectors[rows[:2]] + offset)
        known.save(tmp_path / "kept.pg")
        answers.append(Classifier.load(tmp_path / "kept.pg").decision_function(vectors[asked] + offset).argmax(1))
    assert found[0] > 50
    assert found[1] == pytest.approx(found[0], abs=3)
    assert np.mean(answers[0] == answers[1]) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("most", [500, 2000])
def test_a_class_of_many_images_is_found_as_well_as_the_others(most: int) -> None:
    generator = np.random.default_rng(0)
    rows = np.repeat(np.arange(10), [most] + [20] * 9)
    centres = 3 + generator.normal(size=(10, 32))
    known = Classifier().fit(centres[rows] + 1.2 * generator.normal(size=(len(rows), 32)), rows)
    asked = np.repeat(np.arange(10), 40)
    right = known.predict(centres[asked] + 1.2 * generator.normal(size=(400, 32))) == asked
    assert right[:40].mean() > 0.85
    assert right[40:].mean() > 0.85


@pytest.fixture
def toy_run(
    tmp_path: Path, toy: Dataset, toy_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    monkeypatch.setattr(training, "EvaluationSizes", functools.partial(training.EvaluationSizes, episodes=5))

    def make(variant: str, **changes: Any) -> Path:
        train(toy_config(variant, learning_rate=0.1, **changes), toy, tmp_path / variant)
        return tmp_path / variant

    return make


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["gcgpn-aux", "gcgpn-key", "gcgpn-cos-aux"])
def test_a_run_becomes_a_classifier_that_answers_as_evaluation_does(
    toy: Dataset, toy_run: Callable[..., Path], fake_encoders: list[tuple[Any, ...]], variant: str, tmp_path: Path
) -> None:
    run = Run.open(toy_run(variant))
    model = make_model(run.config, toy)
    load_weights(model, run.weights("best"), run)
    known = Classifier.from_run(run.folder, toy, unknown=0.1)
    assert known.classes_.tolist() == sorted(toy.classes[: toy.seen])
    name, weights, shape, *_ = fake_encoders[0]
    assert (name, shape) == ("conv4-32", (1, 16, 16))
    assert all(torch.equal(weights[name], value) for name, value in model.backbone.state_dict().items())
    scores = known.unknown_score(extract(model, toy.store, toy.seen_validation.all_images()))
    assert np.mean(scores < known.threshold_) == pytest.approx(0.1, abs=2 / len(scores))
    known.save(tmp_path / "kept.pg")
    known = Classifier.load(tmp_path / "kept.pg")
    for index in range(3):
        episode = sample(evaluation_spec(toy, "test", 3, 4, 4, fewest_shots=1), 5, index)
        support, queries = (extract(model, toy.store, part.flatten()) for part in (episode.support, episode.queries))
        support = support.view(*episode.support.shape, -1)
        with torch.no_grad():
            logits = model(support, episode.mask, queries[None], episode.classes, episode.seen)[0]
        grown = copy.deepcopy(known)
        for class_id, examples, mask in zip(episode.classes[0, episode.seen :], support[0], episode.mask[0], strict=True):
            grown.add_class(toy.classes[class_id], examples[mask])
        in_space = grown.decision_function(queries)[:, np.argsort(grown.order_)]
        np.testing.assert_allclose(in_space, logits, atol=2e-4)


def test_the_encoder_of_a_run_changes_copies_as_its_training_changed_images(
    toy: Dataset, toy_run: Callable[..., Path], fake_encoders: list[tuple[Any, ...]]
) -> None:
    Classifier.from_run(toy_run("aux-only", zoom=1.2, erase=0.3), toy)
    *_, augmentation, _ = fake_encoders[0]
    assert augmentation == replace(toy.augmentation, zoom=1.2, erase=0.3) != toy.augmentation


def test_a_prior_moves_the_logits_of_a_run(
    toy: Dataset, toy_run: Callable[..., Path], fake_encoders: list[tuple[Any, ...]]
) -> None:
    known = Classifier.from_run(toy_run("aux-only"), toy, prior="half")
    known.add_class("new", np.ones((1, known.n_features_in_)))
    asked = np.eye(known.n_features_in_)[:3]
    moved = known.decision_function(asked)
    expected = np.where(known.classes_ == "new", 0.0, -np.log(toy.seen))
    np.testing.assert_allclose(moved - known.set_params(prior="uniform").decision_function(asked), [expected] * 3, atol=1e-9)


@pytest.mark.slow
def test_a_run_of_another_kind_or_dataset_is_refused(
    toy: Dataset, toy_run: Callable[..., Path], fake_encoders: list[tuple[Any, ...]]
) -> None:
    with pytest.raises(InputError, match="variant 'pn\\+', which has no cosine classifier"):
        Classifier.from_run(toy_run("pn+"), toy)
    folder = toy_run("aux-only")
    with pytest.raises(InputError, match="another version of toy"):
        Classifier.from_run(folder, replace(toy, fingerprint="x"))
    with pytest.raises(InputError, match="is not a run folder"):
        Classifier.from_run(folder / "nowhere", toy)
