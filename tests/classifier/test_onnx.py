import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from data.layouts import blocks
from encoders.images import NORMAL, backbone_weights, tiny_encoder
from protograph import Classifier, open_dataset
from protograph._internal.errors import InputError
from protograph.classifier.onnx import export_onnx, write_classes
from protograph.data import Dataset
from protograph.data.augmentation import Augmentation
from protograph.data.store import ImageStore
from protograph.encoders import backbone_encoder, open_encoder


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def check_parity(classifier: Classifier, images: Sequence[Any], inputs: Any, new: Any, tmp_path: Path) -> dict[str, str]:
    """The exported network's logits and cosines are PyTorch's, for 1 image and 64, before and after a class is added.

    images, inputs: the same 64, as the classifier and as the network takes them
    """
    label, example = new
    classes = export_onnx(classifier, tmp_path / "one.onnx")
    assert classes == tmp_path / "one.prototypes.npz"
    opened = session(tmp_path / "one.onnx")
    for added in (False, True):
        if added:
            classifier.add_class(label, [example])
            write_classes(classifier, classes)  # all that changes
        with np.load(classes) as arrays:
            given = {name: arrays[name] for name in ("prototypes", "bias")}
            assert arrays["classes"].tolist() == classifier.classes_.tolist()
        for count in (1, 64):
            logits, cosines = opened.run(None, {opened.get_inputs()[0].name: inputs[:count], **given})
            assert logits.shape == cosines.shape == (count, len(classifier.classes_))
            assert np.abs(logits - classifier.decision_function(images[:count])).max() < 1e-4
            assert np.abs(cosines.max(1) - classifier.unknown_score(images[:count])).max() < 1e-4
    said: dict[str, str] = opened.get_modelmeta().custom_metadata_map
    return said


@pytest.mark.slow
def test_letters(letters: Dataset, tmp_path: Path) -> None:
    """Grey images, with a threshold, and a bias on added classes."""
    store = letters.store
    assert isinstance(store, ImageStore)
    weights, device = backbone_weights(0, 1), torch.device("cpu")
    encoder = backbone_encoder("conv4-32", weights, store.image_shape, store.normalisation, Augmentation(2), device=device)
    pixels = store.pixels.numpy()
    classifier = Classifier(encoder, variant="gcgpn-cos-aux", steps=5, copies=1, unknown=0.1, update="novel")
    names = np.repeat(letters.classes[:12], 6)
    classifier.fit(list(pixels[letters.train.images[:12, :6].flatten(), 0]), names)
    classifier.bias_ = 0.75  # as a balance would set it
    inputs = pixels[letters.seen_test.images[:64, 0]]
    example = pixels[letters.novel_test.images[0, 0], 0]
    said = check_parity(classifier, list(inputs[:, 0]), inputs, ("new", example), tmp_path)
    assert float(said["threshold"]) == classifier.threshold_
    assert float(said["bias"]) == 0.75
    assert float(said["temperature"]) == classifier.space_.temperature
    assert json.loads(said["preparation"]) == json.loads(json.dumps(encoder.preparation.to_dict()))


@pytest.mark.slow
@pytest.mark.parametrize(("network", "size"), [("conv4-64-128", 84), ("conv4-128-mirror", 32)])
def test_the_networks_of_the_birds(tmp_path: Path, network: str, size: int) -> None:
    weights, device = backbone_weights(1, 3, network), torch.device("cpu")
    encoder = backbone_encoder(network, weights, (3, size, size), NORMAL, Augmentation(8, True), device=device)
    images = [blocks(size, size, 3, place) for place in range(64)]
    classifier = Classifier(encoder, variant="gcgpn-cos-aux", steps=2).fit(images[:12], np.repeat(["a", "b", "c"], 4))
    inputs = np.stack(images).transpose(0, 3, 1, 2)
    said = check_parity(classifier, images, inputs, ("new", blocks(size, size, 4)), tmp_path)
    assert said["threshold"] == ""


@pytest.mark.slow
def test_the_strong_encoder(tmp_path: Path) -> None:
    """Its weights, which no model file holds, go into the network."""
    encoder = open_encoder("efficientnet-lite0", device=torch.device("cpu"), size=40)
    images = [blocks(40, 40, 3, place) for place in range(64)]
    classifier = Classifier(encoder, variant="gcgpn-cos-aux", steps=2).fit(images[:12], np.repeat(["a", "b", "c"], 4))
    inputs = np.stack(images).transpose(0, 3, 1, 2)
    said = check_parity(classifier, images, inputs, ("new", blocks(40, 40, 4)), tmp_path)
    assert json.loads(said["preparation"])["shape"] == [3, 40, 40]


def test_real_birds_through_the_net_that_ships(real_root: Path, tmp_path: Path) -> None:
    birds = open_dataset("cub", real_root)
    assert isinstance(birds.store, ImageStore)
    pixels = birds.store.pixels.numpy()
    rows = birds.train.images[:8, :12]
    classifier = Classifier("conv4", variant="gcgpn-aux", unknown=0.1)
    classifier.fit(list(pixels[rows.flatten()].transpose(0, 2, 3, 1)), np.repeat(birds.classes[:8], 12), birds.relations)
    inputs = pixels[birds.seen_test.images[:64, 0]]
    example = pixels[birds.novel_test.images[0, 0]].transpose(1, 2, 0)
    new = birds.classes[int(birds.novel_test.classes[0])], example
    check_parity(classifier, list(inputs.transpose(0, 2, 3, 1)), inputs, new, tmp_path)


@pytest.mark.slow
def test_features(tmp_path: Path) -> None:
    features = np.random.default_rng(0).normal(size=(64, 7)).astype(np.float32)
    classifier = Classifier(variant="gcgpn-cos-aux", steps=3).fit(features, np.arange(64) % 4)
    said = check_parity(classifier, features, features, (7, features[0]), tmp_path)
    assert said["preparation"] == ""


@pytest.mark.slow
@pytest.mark.parametrize("update", ["all", "novel"])
def test_the_gaussian_model(tmp_path: Path, update: str) -> None:
    generator = np.random.default_rng(0)
    features = (np.eye(6, 9)[np.arange(96) % 6] + 0.4 * generator.normal(size=(96, 9))).astype(np.float32)
    known = Classifier(update=update, unknown=0.1, prior="half").fit(features, np.arange(96) % 6)
    for label in (None, 7):
        if label is not None:
            known.add_class(label, features[:3] - 1)
        if label is None or update == "all":  # adding changed the whitening, which is in the network
            classes = export_onnx(known, tmp_path / "one.onnx")
        else:
            write_classes(known, classes)
        opened = session(tmp_path / "one.onnx")
        with np.load(classes) as arrays:
            given = {name: arrays[name] for name in ("prototypes", "bias", "likeness_bias")}
            names = arrays["classes"]
        for count in (1, 96):
            logits, likeness = opened.run(None, {"features": features[:count], **given})
            assert np.abs(logits - known.decision_function(features[:count])).max() < 1e-3
            answers = np.where(likeness.max(1) < 0, "unknown", names[logits.argmax(1)].astype(str))
            assert answers.tolist() == known.predict(features[:count]).astype(str).tolist()
        assert opened.get_modelmeta().custom_metadata_map["threshold"] == "0.0"


def test_it_needs_what_pytorch_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = Classifier().fit(np.eye(4, dtype=np.float32), ["a", "a", "b", "b"])
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(InputError, match=r'pip install "protograph\[onnx\]"'):
        export_onnx(classifier, tmp_path / "one.onnx")
    assert not list(tmp_path.iterdir())


def test_a_network_that_one_file_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = [blocks(20, 20, place) for place in range(4)]
    classifier = Classifier(tiny_encoder()).fit(images, ["a", "a", "b", "b"])
    monkeypatch.setattr("protograph.classifier.onnx.LARGEST", 1000)
    with pytest.raises(InputError, match="does not fit into one ONNX file"):
        export_onnx(classifier, tmp_path / "one.onnx")
