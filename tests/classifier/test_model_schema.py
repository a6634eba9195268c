"""The schema of model files: what a file may not say, however right its checksum is."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kept import SPARSE, blobs
from protograph import AttributeRelation, Classifier
from protograph._internal.errors import InputError
from protograph._internal.sealed import unseal
from protograph.classifier.model_schema import check_contents, check_tensor, parse_values

Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], object]
CHANGE = {"number": 1, "what": "added 'x'", "when": "2026-01-02T03:04:05Z", "after": "0" * 32}
KINDS = ("gaussian", "variant", "encoder", "labels")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model file of each kind."""
    folder, (features, labels) = tmp_path_factory.mktemp("models"), blobs()
    table = AttributeRelation(torch.eye(6, 3) + 0.1, list("abcdef"))
    gaussian = Classifier(unknown=0.1, keep_features=True).fit(features, labels, {"look": table, "by hand": SPARSE})
    gaussian.add_class("x", features[:2], {"look": "a", "by hand": {"a": 0.5}}).add_examples("a", features[:3])
    variant = Classifier(variant="gcgpn-aux", steps=2).fit(features, labels, SPARSE).add_class("x", features[:1], {"a": 0.5})
    images = np.random.default_rng(0).integers(0, 255, (8, 20, 20, 3), dtype=np.uint8)
    encoder = Classifier("conv4", thumbnails=True).fit(list(images), list("aaaabbbb")).add_class("x", list(images[:2]))
    encoder.add_examples("a", list(images[:1]))
    numbers = Classifier(variant="gcgpn-cos-aux", steps=0).fit(
        features.astype(np.float32), [float(ord(label)) for label in labels]
    )
    for kind, classifier in zip(KINDS, (gaussian, variant, encoder, numbers), strict=True):
        classifier.save(folder / f"{kind}.pg")
    return {kind: folder / f"{kind}.pg" for kind in KINDS}


def contents(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    text, tensors = unseal(path.read_bytes(), "classifier")
    return parse_values(text), tensors


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_today_is_right(kind: str, files: dict[str, Path]) -> None:
    check_contents(*contents(files[kind]))


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        ("gaussian", lambda values, _: values.update(classes="abcdef"), "Expected `array`, got `str`"),
        ("gaussian", lambda values, _: values.update(dtype="|V8"), "Expected `str` matching regex"),
        ("gaussian", lambda values, _: values.update(dtype="<i8"), "the label 'a' is not of type int64"),
        ("gaussian", lambda values, _: values["classes"].__setitem__(0, "z"), "the label 'z' and the name 'a' .* disagree"),
        ("gaussian", lambda values, _: values["names"].__setitem__(0, "b"), "7 labels, and 6 different names"),
        ("gaussian", lambda values, _: values.update(examples=[1] * 9), "examples of 9 classes, and 7 names"),
        ("gaussian", lambda values, _: values.update(features=10**9), "is .*, not .*1000000000"),
        ("gaussian", lambda values, _: values["settings"].update(power=-1), "Expected `float` > 0"),
        ("gaussian", lambda values, _: values["settings"].update(temperature="hot"), "Expected `float`, got `str`"),
        ("gaussian", lambda values, _: values["settings"]["relations"].update(labels=["none"]), "uses relation 'none'"),
        ("gaussian", lambda values, _: values["settings"].update(limits=[[1, 0.5]]), "no value for fitted classes"),
        ("gaussian", lambda values, _: values["counts"].pop(), "images of 5 fitted classes"),
        ("gaussian", lambda values, _: values.update(further=["x"]), "further examples of 'x', which is no fitted class"),
        ("gaussian", lambda values, _: values.update(further=["a", "a"]), "further examples of a class twice"),
        ("gaussian", lambda values, _: values["kept"].append(["nobody", 0]), "keeps features of 'nobody'"),
        ("gaussian", lambda values, _: values["kept"][0].__setitem__(1, 10**12), "'kept' is"),
        ("gaussian", lambda values, _: values["relations"].append(values["relations"][0]), "same label"),
        ("gaussian", lambda values, _: values["relations"][0].pop("floor"), "missing required field `floor`"),
        ("gaussian", lambda values, _: values["relations"][0]["source"].update(kind=3), "a source of no kind"),
        ("gaussian", lambda values, _: values["relations"][0]["source"].update(names=["a"]), "'table' is"),
        ("gaussian", lambda _, tensors: tensors.pop("gaussian.means"), "'gaussian.means' is missing"),
        ("gaussian", lambda _, tensors: tensors.update(more=torch.zeros(1)), "nothing needs the tensor 'more'"),
        ("gaussian", lambda _, tensors: tensors["prototypes"].fill_(torch.nan), "'prototypes' holds NaN or infinity"),
        ("gaussian", lambda _, tensors: tensors["kept"][3].fill_(torch.inf), "'kept' holds NaN or infinity"),
        ("gaussian", lambda _, tensors: tensors.update(support=tensors["support"].int()), "'support' is of int32"),
        ("gaussian", lambda _, tensors: tensors.update({"gaussian.gains": torch.zeros(99)}), "'gaussian.gains' is"),
        ("gaussian", lambda _, tensors: tensors.pop("relation.0.centre"), "has no table of attributes"),
        ("gaussian", lambda _, tensors: tensors["relation.1.similarities.edges"].fill_(7), "names classes beyond 7"),
        ("gaussian", lambda _, tensors: tensors["relation.1.similarities.edges"].fill_(-1), "names classes beyond 7"),
        ("variant", lambda values, _: values["variant"].update(layers=10**6), "Expected `int` <= 64"),
        ("variant", lambda values, _: values["variant"]["operators"][0].update(order=10**6), "Expected `int` <= 64"),
        ("variant", lambda values, _: values["parameters"].update(learning_rate=-1), "Expected `float` > 0"),
        ("variant", lambda values, _: values.update(model="else"), "Invalid value 'else'"),
        ("labels", lambda values, _: values["classes"].__setitem__(0, True), "label True is not of type float64"),
        ("encoder", lambda values, _: values["thumbnails"][0].__setitem__(0, "nobody"), "thumbnails of 'nobody', which is no"),
        ("encoder", lambda values, _: values["thumbnails"].append(["a", [0] * 5]), "thumbnails of a class twice"),
        ("encoder", lambda values, _: values["thumbnails"][0][1].pop(), "thumbnails of 4 examples of 'a', which has 5"),
        ("encoder", lambda values, _: values["thumbnails"][2][1].append(0), "thumbnails of 3 examples of 'x', which has 2"),
        ("encoder", lambda values, _: values["thumbnails"][0][1].__setitem__(0, -1), "Expected `int` >= 0"),
        ("encoder", lambda values, _: values["thumbnails"][0][1].__setitem__(0, 2**17), "Expected `int` <= 65536"),
        ("encoder", lambda values, _: values["thumbnails"][0][1].__setitem__(0, 5), "'thumbnails' is"),
        ("encoder", lambda _, tensors: tensors.update(thumbnails=tensors["thumbnails"].float()), "'thumbnails' is of float32"),
        ("encoder", lambda _, tensors: tensors.pop("thumbnails"), "'thumbnails' is missing"),
        ("encoder", lambda values, _: values.pop("thumbnails"), "nothing needs the tensor 'thumbnails'"),
        ("encoder", lambda values, _: values["parameters"].update(thumbnails=1), "Expected `bool`"),
        ("encoder", lambda values, _: values["parameters"].update(refit_up_to=-1), "Expected `int` >= 0"),
        ("encoder", lambda values, _: values.update(change={"number": 1}), "missing required field `what`"),
        ("encoder", lambda values, _: values.update(change={**CHANGE, "number": 0}), "Expected `int` >= 1"),
        ("encoder", lambda values, _: values.update(change={**CHANGE, "what": "x" * 501}), "length <= 500"),
        ("encoder", lambda values, _: values.update(change={**CHANGE, "when": "today"}), "matching regex"),
        ("encoder", lambda values, _: values.update(change={**CHANGE, "after": "../../x"}), "matching regex"),
        ("encoder", lambda values, _: values["encoder"]["preparation"].update(shape=[3, 9999, 9]), "Expected `int` <= 1024"),
        ("encoder", lambda values, _: values["encoder"]["preparation"].update(resize=10**6), r"Expected `int` <= 4096"),
        ("encoder", lambda values, _: values["encoder"]["preparation"].update(resize=5), "cannot be cut out"),
        ("encoder", lambda values, _: values["encoder"]["preparation"].update(mean=[0.0]), "3 channels have 1 means"),
        ("encoder", lambda values, _: values["encoder"]["augmentation"].update(spin=3), "unknown field `spin`"),
    ],
)  # fmt: skip
def test_contents_at_odds_with_themselves_are_refused(kind: str, change: Change, reason: str, files: dict[str, Path]) -> None:
    values, tensors = contents(files[kind])
    change(values, tensors)
    with pytest.raises(ValueError, match=reason):
        check_contents(values, tensors)


def test_a_variant_larger_than_its_file_is_refused_before_it_is_built(files: dict[str, Path], tmp_path: Path) -> None:
    """A few numbers that would build a matrix of 100 GB: the file holds none of it."""
    from test_model_file import rewritten

    huge = [{"kind": "difference", "blocks": None, "order": 1, "options": {"hidden": 2**31}}]
    for change in ({"operators": huge}, {"theta": "full"}, {"layers": 60}):
        path = tmp_path / "huge.pg"
        path.write_bytes(files["variant"].read_bytes())
        rewritten(path, lambda values, tensors, change=change: values["variant"].update(change))
        with pytest.raises(InputError, match=r"huge.pg is damaged .the parameters of its variant do not fit"):
            Classifier.load(path)


@pytest.mark.parametrize(
    "text",
    [
        '{"x": [1, {"y": 9223372036854775808}]}',
        '{"x": NaN}',
        '{"x": Infinity}',
        '{"x": 1e999}',
        "[1]",
        "{" * 100_000,
        "[" * 100_000,
        "",
    ],
)
def test_json_that_is_not_plain_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_values(text)


def test_finite_numbers_of_any_size_pass() -> None:
    check_tensor("x", torch.tensor([3e38, -3e38, 3e38]))
    check_tensor("x", torch.zeros(0, 5), shape=(None, 5))
    with pytest.raises(ValueError, match="'x' holds NaN or infinity"):
        check_tensor("x", torch.tensor([0.0, -torch.inf]))


def test_the_garbage_collector_can_walk_through_the_schema() -> None:
    """Versions of msgspec crash where a tuple of bounded numbers stands in a union."""
    script = (
        "import gc; gc.disable()\nimport msgspec\nfrom protograph.classifier import model_schema as schema\n"
        "msgspec.json.Decoder(schema.TrainedValues | schema.GaussianValues | None)\n"
        "[msgspec.json.Decoder(kind) for kind in (*schema.SOURCES.values(), schema.EncoderValues)]\ngc.collect()"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_msgspec_is_imported_where_a_model_file_is_read_alone() -> None:
    script = "import sys, protograph.cli, protograph.training.loop, protograph.encoders; assert 'msgspec' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
