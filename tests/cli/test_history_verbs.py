"""The verbs history, undo and redo: what they print, and that every verb that changes a file says what it did."""

from pathlib import Path

import numpy as np
import pytest

from cli.test_classifier_verbs import answer, protograph
from kept import SPARSE, blobs
from protograph import Classifier
from protograph.classifier.history import history


@pytest.fixture
def model(tmp_path: Path) -> Path:
    features, labels = blobs(6, 8)
    Classifier(keep_features=True).fit(features, labels, SPARSE).save(tmp_path / "blobs.pg")
    np.savez(tmp_path / "two.npz", vectors=features[:2].astype(np.float32))
    return tmp_path / "blobs.pg"


def test_every_change_is_listed_undone_and_redone(model: Path) -> None:
    two, before = model.with_name("two.npz"), model.read_bytes()
    assert answer("history", model) == {"file": str(model), "changes": [], "bytes": 0}
    assert protograph("history", model).stdout == f"there is nothing to undo or redo in {model}\n"
    answer("add-class", model, "x", two, "--like=a=0.5")
    answer("add-examples", model, "a", two)
    answer("rename-class", model, "x", "y")
    answer("remove-class", model, "b")
    answer("refit", model)
    whats = [
        "fitted anew", "removed 'b'", "renamed 'x' to 'y'", "added 2 examples to 'a'", "added 'x' from 2 examples"
    ]  # fmt: skip
    assert [change["what"] for change in answer("history", model)["changes"]] == whats
    shown = protograph("history", model).stdout
    assert shown.endswith(f"{model}.history holds 5 versions of it, {answer('history', model)['bytes'] / 1e6:.1f} MB\n")
    for index, what in enumerate(whats):
        following = whats[index + 1] if index + 1 < len(whats) else None
        rest = "nothing more to undo" if following is None else f"the change before it: {following}"
        assert protograph("undo", model).stdout == f"undone in {model}: {what} ({rest})\n"
    assert model.read_bytes() == before
    assert "undone" in protograph("history", model).stdout
    assert answer("redo", model)["redone"]["what"] == whats[-1]
    undone = answer("undo", model)["undone"]
    assert answer("history", model)["changes"][-1] == undone


def test_mistakes_are_one_line(model: Path) -> None:
    for verb in ("undo", "redo"):
        refused = protograph(verb, model)
        assert refused.exit_code == 2
        assert f"there is nothing to {verb}" in refused.stderr
    assert protograph("history", model.with_name("none.pg")).exit_code == 2


def test_a_class_with_markup_in_its_name_is_shown_as_it_is(model: Path) -> None:
    answer("add-class", model, "[red]\x1b[31m", model.with_name("two.npz"))
    (change,) = history(model)
    assert "\x1b" in change.what
    assert "[red]\\x1b[31m" in protograph("history", model).stdout
    assert "\x1b" not in protograph("undo", model).stdout
