import numpy as np
import pytest

from protograph import Classifier
from protograph._internal.progress import Silent
from protograph.classifier.file_measures import FileMeasures, measure_files
from protograph.classifier.inputs import LabelledFiles

CLASSES = ("cat", "owl", "pig")
GENERATOR = np.random.default_rng(0)
VECTORS = (np.eye(3).repeat(8, 0) * 4 + GENERATOR.normal(size=(24, 3))).astype(np.float32)
LABELS = [name for name in CLASSES for _ in range(8)]


def measured(classifier: Classifier, vectors: np.ndarray, labels: list[str]) -> FileMeasures:
    return measure_files(classifier, LabelledFiles(vectors, labels, True), Silent())


@pytest.mark.parametrize("keep", [False, True])
def test_known_classes_are_measured_and_examples_counted(keep: bool) -> None:
    classifier = Classifier(keep_features=keep).fit(VECTORS[:16], LABELS[:16])
    answers = classifier.predict(VECTORS[:16])
    found = measured(classifier, VECTORS, LABELS)
    assert found.answers is not None
    assert (found.answers.images, found.strangers, found.strangers_unknown) == (16, ["pig"], 0.0)
    assert found.answers.joint == pytest.approx(np.mean(answers == np.array(LABELS[:16])))
    assert found.examples == (16 if keep else 0)
    classifier.add_class("pig", VECTORS[16:20])
    classifier.add_examples("owl", VECTORS[20:21] * 0 + [1, 5, 0])
    again = measured(classifier, VECTORS, LABELS)
    assert (again.strangers, again.strangers_unknown) == ([], None)
    assert again.examples == (20 if keep else 4)
    assert measured(classifier, np.array([[1, 5, 0]], np.float32), ["owl"]).examples == 1


def test_strangers_alone_have_no_measures() -> None:
    classifier = Classifier(variant="gcgpn-cos-aux", steps=3).fit(VECTORS[:16], LABELS[:16]).add_class("pig", VECTORS[16:20])
    found = measured(classifier, VECTORS[:2], ["ant", "bee"])
    assert (found.answers, found.strangers, found.examples) == (None, ["ant", "bee"], 0)
    assert measured(classifier, VECTORS[16:], ["pig"] * 8).examples == 4
