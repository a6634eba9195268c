"""Export of a classifier to ONNX, with prototypes as an input: one network serves any classes.

inputs     pixels [n, C, H, W] uint8 (or, where the classifier knows features alone, features [n, D] float32)
           prototypes [V, D] float32 and bias [V] float32, of any number of classes
outputs    logits [n, V], whose softmax are the probabilities
           cosines [n, V] before centring; an image whose largest is below the threshold in the metadata is unknown

A .npz file beside it holds prototypes, bias and class names. Only this file changes when a class is added.
"""

import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor, nn

from protograph._internal.errors import InputError
from protograph._internal.files import write_atomically
from protograph._version import __version__
from protograph.encoders import ImageEncoder, open_encoder
from protograph.nn.backbones import Centred
from protograph.nn.classify import normalise

if TYPE_CHECKING:
    from protograph.classifier.estimator import Classifier

LARGEST = 2**31  # bytes that the format allows in one ONNX file


class JointNetwork(nn.Module):
    """Images or features, prototypes and bias -> logits and cosines.

    Args:
        encoder: The encoder of images; None where the inputs are features.
        centred: The module that centres features.
        temperature: The temperature of the cosine classifier.

    """

    scale: Tensor
    shift: Tensor

    def __init__(self, encoder: ImageEncoder | None, centred: Centred, temperature: float) -> None:
        super().__init__()
        self.centred = centred
        self.network = None if encoder is None else encoder.network
        if encoder is not None:
            mean, std = (
                torch.tensor(values).view(1, -1, 1, 1) for values in (encoder.preparation.mean, encoder.preparation.std)
            )
            self.register_buffer("scale", 1 / (255 * std))
            self.register_buffer("shift", -mean / std)
        self.temperature = temperature

    def forward(self, inputs: Tensor, prototypes: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and cosines [n, V] of inputs [n, C, H, W] or [n, D], prototypes [V, D] and bias [V]."""
        features = inputs if self.network is None else self.network(inputs.float() * self.scale + self.shift)
        logits = self.temperature * (normalise(self.centred(features)) @ normalise(prototypes).T) + bias
        return logits, normalise(features) @ normalise(self.centred.back(prototypes)).T


def export_onnx(classifier: "Classifier", path: Path) -> Path:
    """Write a classifier's network as ONNX and its classes beside it; return the path of the classes.

    Raises:
        InputError: A package is missing, the network is too large, or another file is in the way.

    """
    try:
        import onnx  # noqa: F401 - PyTorch's exporter needs it
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(f'export needs onnx and onnxscript ({error}): pip install "protograph[onnx]"') from error
    encoder = None
    if classifier.encoder_ is not None:
        encoder = open_encoder(classifier.encoder_.description(), classifier.encoder_.tensors(), torch.device("cpu"))
    network = JointNetwork(encoder, classifier.space_.centred, classifier.space_.temperature).eval()
    beside = path.with_suffix(".prototypes.npz")
    check_replaceable(beside)
    size = sum(value.nbytes for value in network.state_dict().values())
    if size >= LARGEST:
        raise InputError(f"a network of {size / 2**30:.1f} GiB does not fit into one ONNX file: choose a smaller backbone")
    inputs = torch.zeros(2, classifier.n_features_in_)
    if encoder is not None:
        inputs = torch.zeros(2, *encoder.preparation.shape, dtype=torch.uint8)
    prototypes, bias = class_tensors(classifier)
    images, classes = torch.export.Dim("n"), torch.export.Dim("V")
    with _quiet():
        program = torch.onnx.export(
            network,
            (inputs, prototypes[:1].repeat(3, 1), bias[:1].repeat(3)),  # the sizes are examples
            dynamo=True,
            verbose=False,
            input_names=["features" if encoder is None else "pixels", "prototypes", "bias"],
            output_names=["logits", "cosines"],
            dynamic_shapes=({0: images}, {0: classes}, {0: classes}),
        )
    assert program is not None
    program.model.metadata_props.update(_metadata(classifier, encoder))
    write_atomically(path, program.model_proto.SerializeToString())
    return write_classes(classifier, beside)


def write_classes(classifier: "Classifier", path: Path) -> Path:
    """Write `prototypes` [V, D], `bias` [V] and `classes` [V] as .npz and return the path.

    Only a file of exported classes is replaced.
    """
    check_replaceable(path)
    prototypes, bias = class_tensors(classifier)
    labels = classifier.classes_
    content = io.BytesIO()
    np.savez(
        content,
        prototypes=prototypes.numpy(),
        bias=bias.numpy(),
        classes=labels.astype(str) if labels.dtype == object else labels,
    )
    write_atomically(path, content.getvalue())
    return path


def check_replaceable(path: Path) -> None:
    """Raise an `InputError` if a path holds anything but exported classes."""
    if not path.exists():
        return
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            exported = set(arrays.files) == {"prototypes", "bias", "classes"}
    except (ValueError, OSError, EOFError, AttributeError, BadZipFile):
        exported = False
    if not exported:
        raise InputError(f"{path} exists and holds no exported classes: choose another --out")


def class_tensors(classifier: "Classifier") -> tuple[Tensor, Tensor]:
    """Return prototypes [V, D] and bias [V], the inputs that represent the classes."""
    space = classifier.space_
    bias = torch.zeros(len(space.names))
    bias[space.seen :] = classifier.bias_
    return space.prototypes.float(), bias


def _metadata(classifier: "Classifier", encoder: ImageEncoder | None) -> dict[str, str]:
    """Return the metadata of the network, as texts."""
    return {
        "protograph": __version__,
        "temperature": repr(classifier.space_.temperature),
        "threshold": "" if classifier.threshold_ is None else repr(classifier.threshold_),
        "unknown_label": str(classifier.unknown_label),
        "bias": repr(float(classifier.bias_)),
        "preparation": "" if encoder is None else json.dumps(encoder.preparation.to_dict()),
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log and the warnings of the exporter."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
