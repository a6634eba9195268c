import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import protograph as pg
from protograph._internal.errors import InputError
from protograph.cli import app
from protograph.nn.operators import Context
from protograph.variants import OPERATORS, VARIANTS

EXAMPLE = Path(__file__).parents[3] / "examples" / "custom_operator.py"
SEEN, NOVEL, D = 4, 2, 3


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """Let every test leave the registries as they were."""
    with patch.dict(VARIANTS), patch.dict(OPERATORS):
        yield


@pytest.fixture
def patrons() -> type[pg.Operator]:
    return runpy.run_path(str(EXAMPLE))["Patrons"]


def make_context(classes: list[int]) -> Context:
    generator = torch.Generator().manual_seed(0)
    prototypes = torch.randn(1, SEEN + NOVEL, D, generator=generator, dtype=torch.float64)
    nothing = torch.zeros(1, NOVEL, 0, D), torch.zeros(1, NOVEL, 0, dtype=torch.bool)
    return Context(prototypes, *nothing, torch.tensor([classes]), SEEN)


def test_the_example_is_a_softmax_over_the_offers_of_seen_classes(patrons: Callable[..., Any]) -> None:
    operator = patrons(6, D).double()
    nn.init.normal_(operator.readiness)
    context = make_context([5, 0, 2, 1, 3, 4])  # classes 3 and 4 act as novel
    (weights,) = operator.weights(context)
    matrix = weights.dense(SEEN + NOVEL)[0]
    for row, prototype in enumerate(context.prototypes[0]):
        scores = [
            np.dot((prototype / prototype.norm()).tolist(), operator.offers[class_id].tolist())
            + operator.readiness[class_id].item()
            for class_id in (5, 0, 2, 1)
        ]
        expected = np.exp(scores) / np.exp(scores).sum()
        assert matrix[row, :SEEN].tolist() == pytest.approx(expected.tolist())
        assert matrix[row, SEEN:].tolist() == [0.0, 0.0]


def test_its_state_follows_classes_that_are_removed(patrons: Callable[..., Any], tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    features, labels = generator.normal(size=(60, D)), np.repeat(list("abcdef"), 10)
    known = pg.Classifier(variant="gcgpn-patrons", steps=3).fit(features, labels)
    before = {name: value[:] for name, value in known.space_.model.operators[0].named_parameters()}
    known.add_class("new", features[:2]).remove_class("c")
    for name, value in known.space_.model.operators[0].named_parameters():
        assert torch.equal(value, before[name][[0, 1, 3, 4, 5]])
    known.save(tmp_path / "known.pg")
    assert np.array_equal(pg.Classifier.load(tmp_path / "known.pg").predict_proba(features), known.predict_proba(features))


VERBS = {
    "predict": ["DATA"], "explain": ["DATA"], "classes": [], "export": ["--out", "OUT.npz"], "rename-class": ["b", "z"],
    "remove-class": ["b"], "add-class": ["new", "DATA"], "add-examples": ["a", "DATA"], "add-classes": ["FOLDER"], "refit": [],
    "evaluate": ["LABELLED"],
}  # fmt: skip
REFUSALS = {  # for another reason, once the file is read
    "add-examples": "takes no further examples",
    "add-classes": "was fitted on features",
    "refit": "were not kept",
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_of_a_model_file_takes_the_plugin_that_registers_its_operator(verb: str, tmp_path: Path) -> None:
    runpy.run_path(str(EXAMPLE))
    features, labels = np.random.default_rng(0).normal(size=(12, D)).astype(np.float32), np.repeat(list("abc"), 4)
    pg.Classifier(variant="gcgpn-patrons", steps=1).fit(features, labels).save(tmp_path / "model.pg")
    OPERATORS.pop("patrons")
    np.savez(tmp_path / "data.npz", vectors=features[:1])
    np.savez(tmp_path / "labelled.npz", vectors=features, labels=labels)
    given = {"DATA": "data.npz", "OUT.npz": "out.npz", "LABELLED": "labelled.npz", "FOLDER": ""}
    words = [str(tmp_path / given[word]) if word in given else word for word in VERBS[verb]]
    arguments = [verb, str(tmp_path / "model.pg"), *words]
    refused = CliRunner().invoke(app, arguments)
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "operator 'patrons', which is not registered: name the file that registers it (--plugin FILE)" in refused.stderr
    done = CliRunner().invoke(app, [*arguments, "--plugin", str(EXAMPLE)])
    assert done.exit_code == (2 if verb in REFUSALS else 0), done.stderr or done.exception
    assert REFUSALS.get(verb, "") in done.stderr


@pytest.mark.parametrize(
    ("result", "complaint"),
    [
        (None, "Broken returned NoneType: return one Weights for each of its labels"),
        (torch.zeros(3, 3), "Broken returned a 3 x 3 matrix for 6 classes"),
        ((pg.Weights.full(None, 6), pg.Weights.full(None, 6)), "Broken returned Weights, Weights: .*labels .operator."),
    ],
)
def test_what_an_operator_may_not_return_is_named(result: Any, complaint: str) -> None:
    class Broken(pg.Operator):
        def forward(self, context: Context) -> Any:
            return result

    with pytest.raises(InputError, match=complaint):
        Broken().weights(make_context([0, 1, 2, 3, 4, 5]))


def test_an_operator_that_is_none_is_named() -> None:
    pg.register_operator("plain", lambda parts: nn.Linear(2, 2))  # type: ignore[arg-type,return-value]
    with pytest.raises(InputError, match="operator 'plain' is built as a Linear, not as an Operator"):
        pg.build(pg.Variant("plain", (pg.Op("plain"),), ""), "identity", (D,), SEEN)
