"""The verbs that ask and mend what a model file was taught."""

from pathlib import Path

import pytest

from cli.test_classifier_verbs import answer, protograph
from kept import blobs
from protograph import Classifier


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Four fitted classes, one added from five examples and one from a single one."""
    features, labels = blobs(6, 8)
    fitted = labels < "e"
    classifier = Classifier(keep_features=True).fit(features[fitted], labels[fitted])
    classifier.add_class("e", features[labels == "e"][:5]).add_class("f", features[labels == "f"][:1])
    classifier.save(tmp_path / "blobs.pg")
    return tmp_path / "blobs.pg"


def test_a_check_prints_what_python_says(model: Path) -> None:
    before = model.read_bytes()
    check = Classifier.load(model).check_examples()
    assert answer("check", model) == {"file": str(model), **check.as_json()}
    shown = protograph("check", model)
    assert shown.exit_code == 0
    assert check.verdict() in shown.stdout
    for line in check.advice():
        assert f"- {line}\n" in shown.stdout
    for part in check.classes:
        assert (f"{part.right} of {part.asked}" if part.asked else part.verdict) in shown.stdout
    assert model.read_bytes() == before


def test_a_check_says_that_it_covers_added_classes_only(model: Path) -> None:
    features, labels = blobs(5, 8)
    fitted = labels < "e"
    Classifier().fit(features[fitted], labels[fitted]).add_class("e", features[~fitted]).save(model)
    shown = protograph("check", model)
    assert "this covers added classes only" in shown.stderr
    assert [row.split()[1] for row in shown.stdout.splitlines() if row.startswith("│")] == ["e"]
