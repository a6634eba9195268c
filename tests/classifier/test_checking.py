"""Each example asked as if it had not been one, against loops that really take it away and ask."""

import copy
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from kept import DENSE, blobs, fitted
from protograph import Classifier
from protograph.classifier.checking import AskedImage, ClassCheck, ExampleCheck, class_check, confused_pairs
from protograph.classifier.gaussian_fitting import class_statistics
from protograph.classifier.gaussian_space import GaussianSpace

Vector = Any


def images_by_class(classes: int = 10, images: int = 9) -> dict[str, Vector]:
    features, labels = blobs(classes, images)
    return {str(name): features[labels == name].astype(np.float32) for name in np.unique(labels)}


def grown(start: Classifier, added: dict[str, Vector]) -> Classifier:
    classifier = copy.deepcopy(start)
    for name, images in added.items():
        classifier.add_class(name, images)
    return classifier


def without(images: Vector, index: int) -> Vector:
    return np.concatenate([images[:index], images[index + 1 :]])


def asked_naively(start: Classifier, added: dict[str, Vector]) -> list[tuple[str, str, float, float]]:
    """The class, the answer, its probability, and that of the class, of each added image, taken away for the question."""
    rows = []
    for name, images in added.items():
        for index in range(len(images)):
            rest = {other: without(images, index) if other == name else part for other, part in added.items()}
            classifier = grown(start, rest)
            said = classifier.predictions(images[[index]])
            chances = dict(zip(said.classes.tolist(), said.probabilities[0].tolist(), strict=True))
            rows.append((name, str(said.labels[0]), max(chances.values()), chances[name]))
    return rows


def answers(images: Sequence[AskedImage]) -> list[tuple[str, str]]:
    return [(image.label, image.answer) for image in images]


@pytest.mark.parametrize("relations", [None, DENSE])
@pytest.mark.parametrize("update", ["all", "novel"])
def test_added_examples_are_asked_as_if_they_had_never_been_added(update: Any, relations: Any) -> None:
    images = images_by_class()
    known, new = list(images)[:6], {name: images[name][: 3 + index] for index, name in enumerate(list(images)[6:])}
    features, labels = np.concatenate([images[name] for name in known]), np.repeat(known, 9)
    start = Classifier(update=update, unknown=0.1, prior="half").fit(features, labels, relations)
    check = grown(start, new).check_examples()
    naive = asked_naively(start, new)
    assert answers(check.images) == [(label, answer) for label, answer, _, _ in naive]
    chances = np.array([[image.probability, image.own_probability] for image in check.images])
    exact = {"all": 0.05, "novel": 1e-5}[update]  # with "all", the mean variance and the scale are held
    np.testing.assert_allclose(chances, [row[2:] for row in naive], atol=exact)
    assert not check.covers_fitted
    for part in check.classes:
        rows = [row for row in naive if row[0] == part.label]
        assert (part.asked, part.right) == (len(rows), sum(label == answer for label, answer, _, _ in rows))
        assert sum(times for _, times in part.taken_for) == part.asked - part.right
    shares = [np.mean([row[0] == row[1] for row in naive if row[0] == name]) for name in new]
    assert check.accuracy == pytest.approx(np.mean(shares))


@pytest.mark.parametrize("count", [3, 9])
def test_fitted_images_are_asked_as_if_they_had_not_been_fitted(count: int) -> None:
    images = {name: part[:count] for name, part in images_by_class(6).items()}
    features, labels = np.concatenate(list(images.values())), np.repeat(list(images), count)
    classifier = Classifier(keep_features=True).fit(features, labels)
    check = classifier.check_examples()
    space = classifier.space_
    assert isinstance(space, GaussianSpace)
    assert check.covers_fitted
    naive = []
    table = torch.from_numpy(features)
    for row, label in enumerate(labels.tolist()):
        rows = [[other for other in np.flatnonzero(labels == name).tolist() if other != row] for name in images]
        fit = class_statistics(table, rows, space.settings.power)
        scores = GaussianSpace(space.settings, fit, space.names, {}).scores(table[[row]])
        naive.append((label, space.names[int(scores.argmax())]))
    assert answers(check.images) == naive
    assert [image.index for image in check.images] == [*range(count)] * 6


def test_examples_that_a_fitted_class_was_given_later_are_covered_without_kept_features() -> None:
    images = images_by_class(6)
    features, labels = np.concatenate([part[:6] for part in images.values()]), np.repeat(list(images), 6)
    start = Classifier().fit(features, labels)
    check = copy.deepcopy(start).add_examples("b", images["b"][6:]).check_examples()
    naive = []
    for index in range(3):
        classifier = copy.deepcopy(start).add_examples("b", without(images["b"][6:], index))
        naive.append(("b", str(classifier.predict(images["b"][[6 + index]])[0])))
    assert answers(check.images) == naive
    assert not check.covers_fitted


@pytest.mark.parametrize("update", ["all", "novel"])
def test_a_variants_added_examples_are_asked_as_if_they_had_never_been_added(update: Any) -> None:
    images = images_by_class(9)
    start = fitted("gcgpn-aux", "dense", update)
    new = {name: images[name][:4] for name in list(images)[6:]}
    if update == "novel":  # later classes would be updated by the earlier ones
        new = {"g": images["g"][:4]}
    check = grown(start, new).check_examples()
    naive = asked_naively(start, new)
    assert answers(check.images) == [(label, answer) for label, answer, _, _ in naive]
    np.testing.assert_allclose(
        [[image.probability, image.own_probability] for image in check.images], [row[2:] for row in naive], atol=1e-4
    )
    assert not check.covers_fitted


def test_a_class_that_is_alone_is_not_asked() -> None:
    images = images_by_class(2)
    classifier = Classifier(keep_features=True).fit(np.concatenate([*images.values()]), np.repeat(list(images), 9))
    assert classifier.check_examples().accuracy is not None
    check = classifier.remove_class("b").check_examples()
    assert (check.accuracy, check.images, check.classes[0].verdict) == (None, (), "not asked")


def test_asking_changes_nothing() -> None:
    classifier = grown(fitted("gcgpn-aux", "dense"), {"g": images_by_class(7)["g"][:3]})
    before = classifier.predictions(images_by_class(7)["g"])
    classifier.check_examples()
    np.testing.assert_array_equal(classifier.predictions(images_by_class(7)["g"]).probabilities, before.probabilities)


def check_of(*classes: tuple[str, int, dict[str, int]], covers_fitted: bool = True) -> ExampleCheck:
    """A check from classes with the number of their images and the wrong answers about these."""
    parts = []
    for name, count, wrong in classes:
        said = [answer for answer, times in wrong.items() for _ in range(times)]
        said = [*said, *[name] * (count - len(said))] if count > 1 else []
        images = [AskedImage(name, index, answer, 0.6, 0.3) for index, answer in enumerate(said)]
        parts.append(class_check(name, False, count, images))
    pairs = confused_pairs(parts, "unknown")
    shares = [part.accuracy for part in parts if part.accuracy is not None]
    mean = sum(shares) / len(shares) if shares else None
    return ExampleCheck(mean, tuple(parts), pairs, (), "unknown", covers_fitted)


def test_the_verdict_is_given_in_plain_words() -> None:
    assert check_of(("crow", 8, {}), ("gull", 5, {"crow": 1})).verdict() == (
        "Yes. Both classes are learned: at least 80 % of the images left out of each were recognised, 90.0 % in the mean over "
        "classes."
    )
    assert check_of(("crow", 8, {"gull": 4}), ("gull", 8, {}), ("ibis", 3, {}), ("owl", 1, {})).verdict() == (
        "Not yet. 1 of 4 classes is learned. 'crow' needs more images. 'ibis' has too few images to tell. No image of 'owl' "
        "could be left out."
    )
    assert check_of(("crow", 8, {}), ("gull", 2, {})).verdict() == (
        "This cannot be told of all classes yet. 1 of 2 classes is learned. 'gull' has too few images to tell."
    )
    assert check_of(("crow", 1, {}), ("gull", 1, {})).verdict().endswith("no class of which an image can be left out.")
    assert check_of(("crow", 8, {})).verdict().endswith("every image is taken for 'crow', the only class.")


def test_the_advice_names_what_the_answers_support() -> None:
    check = check_of(
        ("crow", 10, {"gull": 4}),
        ("gull", 10, {"crow": 3}),
        ("ibis", 10, {"crow": 1, "gull": 1, "tern": 1}),
        ("tern", 10, {"unknown": 3, "crow": 1}),
        ("owl", 1, {}),
        ("kite", 3, {}),
        ("dodo", 0, {}),
    )
    assert check.advice() == [
        "'crow' is taken for 'gull' 4 times of 10, and 'gull' for 'crow' 3 times of 10: add images of both that show how they "
        "differ",
        "'tern' is answered as 'unknown' 3 times of 10: add images of it that differ from those it has",
        "'ibis' is recognised 7 times of 10, and taken for 3 others: add more images of it",
        "'kite' has fewer than 5 images: add some, so that it can be told",
        "'owl' has one image alone, which cannot be left out: add some",
        "'dodo' has no image: add some",
    ]
    first = check.pairs[0]
    assert (first.first, first.second, first.times, first.asked, first.times_back, first.asked_back) == (
        "crow", "gull", 4, 10, 3, 10,
    )  # fmt: skip
    assert len([pair for pair in check.pairs if {pair.first, pair.second} == {"crow", "gull"}]) == 1


def test_images_that_another_class_is_sure_of_are_named() -> None:
    images = images_by_class(6)
    features, labels = np.concatenate(list(images.values())), np.repeat(list(images), 9)
    labels[0] = "f"  # an image of "a"
    check = Classifier(keep_features=True).fit(features, labels).check_examples()
    wrong = next(image for image in check.doubtful if image.label == "f")
    assert (wrong.index, wrong.answer) == (0, "a")
    note = next(line for line in check.notes() if "of 'f'" in line)
    assert note == f"image 1 of 'f' is taken for 'a' at {100 * wrong.probability:.0f} %: look whether it is labelled right"


def test_the_values_are_plain() -> None:
    images = images_by_class(8)
    features, labels = np.concatenate([images[name] for name in "abcdef"]), np.repeat(np.arange(6), 9)
    check = Classifier(keep_features=True).fit(features, labels).add_class(6, images["g"][:4]).check_examples()
    values = json.loads(json.dumps(check.as_json()))
    assert [row["class"] for row in values["classes"]] == list(range(7))
    assert values["accuracy"] == check.accuracy
    assert len(values["images"]) == 6 * 9 + 4
    assert values["classes"][6]["examples"] == 4
    assert all(isinstance(part, ClassCheck) for part in check.classes)
