"""Export of a classifier to ONNX, with prototypes as an input: one network serves any classes.

inputs     pixels [n, C, H, W] uint8 (or, where the classifier knows features alone, features [n, D] float32)
           prototypes [V, D] float32 and bias [V] float32, of any number of classes
outputs    logits [n, V], whose softmax are the probabilities
           cosines [n, V] before centring; an image whose largest is below the threshold in the metadata is unknown

The network of the Gaussian model has `likeness_bias` [V] as a third input and `likeness` [n, V] in place of the cosines: an
image whose largest is below 0 is unknown, if there is a threshold. Its
prototypes are the weights of a linear classifier. It also contains the whitening, which adding a class changes unless the
classifier was fitted with update="novel"; then export both again.

A .npz file beside it holds these inputs and the class names. Only this file changes when a class is added.
"""

import copy
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
from protograph.classifier.gaussian_space import GaussianSettings, GaussianSpace
from protograph.classifier.joint_space import JointSpace
from protograph.encoders import Encoder, ImageEncoder, KeptEncoder, open_encoder
from protograph.nn.backbones import Centred
from protograph.nn.classify import normalise
from protograph.nn.whitening import Whitening

if TYPE_CHECKING:
    from protograph.classifier.estimator import Classifier

CLASS_INPUTS = ("prototypes", "bias", "likeness_bias")
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
            for name, values in zip(("scale", "shift"), _pixel_scale(encoder), strict=True):
                self.register_buffer(name, values)
        self.temperature = temperature

    def forward(self, inputs: Tensor, prototypes: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and cosines [n, V] of inputs [n, C, H, W] or [n, D], prototypes [V, D] and bias [V]."""
        features = inputs if self.network is None else self.network(inputs.float() * self.scale + self.shift)
        logits = self.temperature * (normalise(self.centred(features)) @ normalise(prototypes).T) + bias
        return logits, normalise(features) @ normalise(self.centred.back(prototypes)).T


class GaussianNetwork(nn.Module):
    """Images or features, weights and biases of the classes -> logits and likeness.

    Args:
        encoder: The encoder of images; None where the inputs are features.
        whitening: What makes vectors of length 1 of features.
        settings: What `fit` chose.

    """

    scale: Tensor
    shift: Tensor
    centre: Tensor
    directions: Tensor
    gains: Tensor

    def __init__(self, encoder: ImageEncoder | None, whitening: Whitening, settings: GaussianSettings) -> None:
        super().__init__()
        self.network = None if encoder is None else encoder.network
        if encoder is not None:
            for name, values in zip(("scale", "shift"), _pixel_scale(encoder), strict=True):
                self.register_buffer(name, values)
        for name in ("centre", "directions", "gains"):
            self.register_buffer(name, getattr(whitening, name).float())
        self.power, self.base, self.settings = whitening.power, whitening.base, settings

    def forward(self, inputs: Tensor, prototypes: Tensor, bias: Tensor, likeness_bias: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and likeness [n, V] of inputs [n, C, H, W] or [n, D], weights [V, D] and biases [V]."""
        features = inputs if self.network is None else self.network(inputs.float() * self.scale + self.shift)
        if self.power != 1:
            features = features.sign() * features.abs().pow(self.power)
        aligned = normalise(normalise(features) - self.centre)
        whitened = self.base * aligned + ((aligned @ self.directions.T) * self.gains) @ self.directions
        products = normalise(whitened) @ prototypes.T
        return self.settings.tempered(products + bias), products + likeness_bias


def _pixel_scale(encoder: ImageEncoder) -> tuple[Tensor, Tensor]:
    """Return factor and shift [1, C, 1, 1] that turn pixels into a network's input."""
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (encoder.preparation.mean, encoder.preparation.std))
    return 1 / (255 * std), -mean / std


def _copy_on_cpu(encoder: Encoder) -> ImageEncoder:
    opened, cpu = encoder.opened() if isinstance(encoder, KeptEncoder) else encoder, torch.device("cpu")
    if isinstance(opened, ImageEncoder):
        return copy.deepcopy(opened).to(cpu)
    return open_encoder(opened.description(), opened.tensors(), cpu)


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
        encoder = _copy_on_cpu(classifier.encoder_)
    space = classifier.space_
    if isinstance(space, GaussianSpace):
        network: nn.Module = GaussianNetwork(encoder, space.whitening, space.settings).eval()
    else:
        network = JointNetwork(encoder, space.centred, space.temperature).eval()
    beside = path.with_suffix(".prototypes.npz")
    check_replaceable(beside)
    size = sum(value.nbytes for value in network.state_dict().values())
    if size >= LARGEST:
        raise InputError(f"a network of {size / 2**30:.1f} GiB does not fit into one ONNX file: choose a smaller backbone")
    inputs = torch.zeros(2, classifier.n_features_in_)
    if encoder is not None:
        inputs = torch.zeros(2, *encoder.preparation.shape, dtype=torch.uint8)
    tensors = class_tensors(classifier)
    images, classes = torch.export.Dim("n"), torch.export.Dim("V")
    examples = tuple(tensor[:1].repeat(3, *(1,) * (tensor.ndim - 1)) for tensor in tensors.values())  # the sizes are examples
    with _quiet():
        program = torch.onnx.export(
            network,
            (inputs, *examples),
            dynamo=True,
            verbose=False,
            input_names=["features" if encoder is None else "pixels", *tensors],
            output_names=["logits", "likeness" if isinstance(space, GaussianSpace) else "cosines"],
            dynamic_shapes=({0: images}, *({0: classes} for _ in tensors)),
        )
    assert program is not None
    program.model.metadata_props.update(_metadata(classifier, encoder))
    write_atomically(path, program.model_proto.SerializeToString())
    return write_classes(classifier, beside)


def write_classes(classifier: "Classifier", path: Path) -> Path:
    """Write `classes` [V] and what represents them (`class_tensors`) as .npz and return the path.

    Only a file of exported classes is replaced.
    """
    check_replaceable(path)
    labels = classifier.classes_
    content = io.BytesIO()
    arrays = {name: tensor.numpy() for name, tensor in class_tensors(classifier).items()}
    arrays["classes"] = labels.astype(str) if labels.dtype == object else labels
    np.savez(content, **arrays)  # type: ignore[arg-type]
    write_atomically(path, content.getvalue())
    return path


def check_replaceable(path: Path) -> None:
    """Raise an `InputError` if a path holds anything but exported classes."""
    if not path.exists():
        return
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            exported = {"prototypes", "bias", "classes"} <= set(arrays.files) <= {*CLASS_INPUTS, "classes"}
    except (ValueError, OSError, EOFError, AttributeError, BadZipFile):
        exported = False
    if not exported:
        raise InputError(f"{path} exists and holds no exported classes: choose another --out")


def class_tensors(classifier: "Classifier") -> dict[str, Tensor]:
    """Return the inputs that represent the classes, by name, in the order of `classes_`."""
    space, order = classifier.space_, torch.from_numpy(classifier.order_)
    offsets = classifier.offsets()
    if isinstance(space, GaussianSpace):
        weights, biases = (part.double() for part in space.linear())
        threshold = classifier.threshold_ or 0.0
        values = [weights, biases + offsets, biases + space.sharpness * (space.limits() - threshold)]
    else:
        values = [space.prototypes, offsets]
    return {name: value[order].float() for name, value in zip(CLASS_INPUTS, values, strict=False)}


def _metadata(classifier: "Classifier", encoder: ImageEncoder | None) -> dict[str, str]:
    """Return the metadata of the network, as texts."""
    gaussian = isinstance(classifier.space_, GaussianSpace)
    return {
        "protograph": __version__,
        "temperature": repr(classifier.space_.temperature) if isinstance(classifier.space_, JointSpace) else "",
        "threshold": "" if classifier.threshold_ is None else repr(0.0 if gaussian else classifier.threshold_),
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
