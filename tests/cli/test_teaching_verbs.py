"""The verbs that ask and mend what a model file was taught."""

from pathlib import Path

import numpy as np
import pytest

from cli.test_classifier_verbs import answer, protograph
from kept import D, blobs
from protograph import Classifier
from protograph.classifier.history import history


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


def test_correct_says_what_was_answered_before_and_is_answered_now(model: Path) -> None:
    before = Classifier.load(model)
    features, labels = blobs(6, 8)
    images = features[labels == "a"][:2].astype(np.float32)
    np.savez(model.with_name("two.npz"), vectors=images)
    two = model.with_name("two.npz")
    said = answer("correct", model, two, "e")
    after = Classifier.load(model)
    assert [row["before"]["class"] for row in said["images"]] == before.predict(images).tolist()
    assert [row["now"]["class"] for row in said["images"]] == after.predict(images).tolist()
    assert said["images"][0]["now"]["probability"] == pytest.approx(after.predict_proba(images)[0].max())
    assert (said["new"], said["examples"], after.space_.examples(4)) == (False, 7, 7)
    (change, *_) = history(model)
    assert change.what == "corrected 2 images to 'e'"
    answer("undo", model)
    assert np.array_equal(Classifier.load(model).predict_proba(features), before.predict_proba(features))


def test_a_correction_moves_a_fitted_class_as_one_more_example_would_have(model: Path) -> None:
    features, _ = blobs(6, 8)
    np.savez(model.with_name("one.npz"), vectors=features[:1].astype(np.float32))
    expected = Classifier.load(model).add_examples("b", features[:1])
    shown = protograph("correct", model, model.with_name("one.npz"), "b")
    assert "one.npz[0]: 'a' (" in shown.stdout
    assert shown.stdout.endswith("corrected 1 image to 'b', which has 9 examples now\n")
    assert "1 of 1 image is still answered otherwise: 'b' needs more examples" in shown.stderr
    np.testing.assert_allclose(Classifier.load(model).predict_proba(features), expected.predict_proba(features), atol=1e-6)


def test_a_correction_to_a_new_class_says_so(model: Path, tmp_path: Path) -> None:
    features, _ = blobs(6, 8)
    np.savez(tmp_path / "one.npz", vectors=-features[:1].astype(np.float32))
    assert protograph("correct", model, tmp_path / "one.npz", "Heron").stdout.endswith("to 'Heron', which is a new class\n")
    shown = protograph("correct", model, tmp_path / "one.npz", "heron")
    assert f"'heron' is a new class beside 'Heron': if that one was meant, `protograph undo {model}`" in shown.stderr.replace(
        "\n", ""
    )
    Classifier.empty(features=D).save(tmp_path / "empty.pg")
    said = answer("correct", tmp_path / "empty.pg", tmp_path / "one.npz", "first")
    assert (said["new"], said["images"][0]["before"], said["images"][0]["now"]["class"]) == (True, None, "first")
    answer("undo", tmp_path / "empty.pg")
    assert (
        "no class before, 'first' (100 %) now"
        in protograph("correct", tmp_path / "empty.pg", tmp_path / "one.npz", "first").stdout
    )


def test_a_wrong_image_leaves_the_file_alone(model: Path) -> None:
    before = model.read_bytes()
    refused = protograph("correct", model, model.with_name("none.npz"), "a")
    assert refused.exit_code == 2
    assert (model.read_bytes(), history(model)) == (before, [])


def test_relate_lists_suggestions_and_takes_what_it_is_told(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WNHOME", str(model.parent))
    before = model.read_bytes()
    said = answer("relate", model, "a")
    assert [(row["class"], row["source"]) for row in said["suggestions"]] == [
        (one.label, one.source) for one in Classifier.load(model).suggest_relations("a")
    ]
    assert said["suggestions"][0]["class"] in protograph("relate", model, "a").stdout
    assert "nothing is known of what 'new' is like" in protograph("relate", model, "new").stdout
    assert model.read_bytes() == before
    shown = protograph("relate", model, "a", "--like=b=0.8,c=0.3")
    assert shown.stdout == "told how 'a' relates: 0.0 % of its prototype comes from other classes by hand\n"
    assert f"only, until `protograph refit {model}` finds that they help" in shown.stderr.replace("\n", " ").replace("  ", " ")
    assert answer("add-class", model, "x", "--like=a=0.9")["relation_share"] == 1
    assert answer("relate", model, "x", "--like", "d=0.9")["notes"] == []
    assert [change.what for change in history(model)] == [
        "told how 'x' relates", "added 'x' from relations", "told how 'a' relates"
    ]  # fmt: skip
    refused = protograph("relate", model, "x", "--like=crane.n.05")
    assert refused.exit_code == 2
    assert "has no source that could answer" in refused.stderr


def test_examples_are_removed_by_the_numbers_of_check(model: Path) -> None:
    said = answer("remove-examples", model, "e", "2", "5", "2")
    assert (said["removed"], said["examples"]) == (2, 3)
    features, labels = blobs(6, 8)
    of_class = features[labels == "e"]
    expected = Classifier(keep_features=True).fit(features[labels < "e"], labels[labels < "e"])
    expected.add_class("e", of_class[[0, 2, 3]]).add_class("f", features[labels == "f"][:1])
    known = Classifier.load(model)
    np.testing.assert_allclose(known.predict_proba(features), expected.predict_proba(features), atol=1e-6)
    assert protograph("remove-examples", model, "a", "1").stdout == "removed 1 example of 'a', which has 7 now\n"
    for numbers, reason in (
        (("4",), "class 'e' has no example 4: give numbers from 1 to 3"),
        (("1", "2", "3"), "remove the class"),
    ):
        refused = protograph("remove-examples", model, "e", *numbers)
        assert refused.exit_code == 2
        assert reason in refused.stderr
