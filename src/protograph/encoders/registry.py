"""Encoders by name: the one name space of `--backbone`, and the encoders that a model file describes."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protograph._internal.errors import InputError, unknown_name
from protograph.data.augmentation import Augmentation
from protograph.encoders.base import Encoder, ImageEncoder
from protograph.encoders.efficientnet_lite import KIND as EFFICIENTNET_LITE
from protograph.encoders.efficientnet_lite import RELEASES, is_installed, open_efficientnet_lite
from protograph.encoders.preparation import Preparation
from protograph.encoders.pretrained import open_timm, open_transformers
from protograph.encoders.shipped import build_encoder, open_registered, open_shipped
from protograph.nn.backbones import BACKBONES

LIBRARIES: dict[str, Callable[[str, torch.device | None], ImageEncoder]] = {
    "timm": open_timm,
    "transformers": open_transformers,
}
TIMM_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)  # MODEL.TAG, no path, and no other place to look
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)  # ORGANISATION/MODEL, no path
SHIPPED_NAME = "conv4"
COPIES = 4  # of each image to train on, for the small networks of this package
STRONG_NAME = "efficientnet-lite0"
BACKBONE_NAMES = (
    f"{' or '.join(RELEASES)} (trained on ImageNet), {SHIPPED_NAME} (small, trained on miniImageNet), timm:NAME, "
    "timm:NAME@FILE, transformers:NAME or transformers:FOLDER, or the name of a registered backbone that has trained weights"
)


def strongest_backbone() -> str:
    """Return the name of the strongest backbone whose weights are sure to be there."""
    return STRONG_NAME if is_installed(STRONG_NAME) else SHIPPED_NAME


def backbone_title(description: Mapping[str, Any]) -> str:
    """Return the name of a described encoder's backbone, as `open_encoder` takes it."""
    kind, name = description["kind"], description["name"]
    return f"{kind}:{name}" if kind in LIBRARIES else str(name)


def usual_copies(encoder: Encoder) -> int:
    """Return how many augmented copies of each image are worth their time: none where a network was trained on far more."""
    return COPIES if encoder.description().get("kind") == "backbone" else 0


def resolve_backbone(name: str) -> tuple[str, str]:
    """Return the kind of a backbone and its name among this kind.

    The kinds are "shipped", "efficientnet-lite", "timm", "transformers" and "registered", which are those of `BACKBONES`.

    Raises:
        InputError: No backbone has this name.

    """
    kind, _, rest = name.partition(":")
    if name == SHIPPED_NAME:
        return "shipped", name
    if name in RELEASES:
        return EFFICIENTNET_LITE, name
    if name in BACKBONES:
        return "registered", name
    if kind not in LIBRARIES:
        raise unknown_name(
            "backbone", kind, (SHIPPED_NAME, *RELEASES, *(f"{library}:NAME" for library in LIBRARIES), *BACKBONES)
        )
    if not rest:
        raise InputError(f"backbone '{name}' names no model: give {kind}:NAME")
    return kind, rest


def check_trainable(name: str) -> None:
    """Raise an `InputError` unless a backbone can be trained from the start."""
    if resolve_backbone(name)[0] != "registered":
        raise InputError(
            f"backbone '{name}' is pretrained and stays frozen: leave out --train-backbone, or choose {', '.join(BACKBONES)}"
        )


def open_encoder(
    source: str | Mapping[str, Any],
    tensors: Mapping[str, Tensor] | None = None,
    device: torch.device | None = None,
    size: int | None = None,
    weights: Path | None = None,
) -> ImageEncoder:
    """Return an encoder by its name, or as its `description` and `tensors` say.

    A description comes from a file that anyone may have written, so a path that it names is not opened.

    Args:
        source: A name, such as "efficientnet-lite0", or the description of an encoder.
        tensors: The weights that belong to the description.
        device: The device it runs on; by default the GPU if there is one.
        size: The edge, in pixels, to which images are resized; by default that of the network's training. Only
            EfficientNet-Lite takes other sizes. A description has a size already.
        weights: The file or folder of weights that the user names for a description of a model of timm or transformers.

    Raises:
        InputError: The name or the description is unknown, the weights do not belong to it, it takes no other size, or it names
            a path and the user none.

    """
    if isinstance(source, str):
        return _open_named(*resolve_backbone(source), size, device)
    try:
        kind, name = source["kind"], source["name"]
        preparation = Preparation.from_dict(source["preparation"])
        augmentation = Augmentation(**source["augmentation"])
        if kind == "backbone":
            return build_encoder(source, preparation, augmentation, tensors or {}, device)
        digest = source["weights"]
    except (KeyError, TypeError) as error:
        raise InputError(f"this does not describe an encoder ({error!r})") from error
    if kind not in (EFFICIENTNET_LITE, *LIBRARIES):
        raise unknown_name("kind of encoder", kind, ("backbone", EFFICIENTNET_LITE, *LIBRARIES))
    encoder = _open_named(kind, _with_weights(kind, name, weights), None, device)
    if encoder.origin["weights"] != digest:
        raise InputError(
            f"the weights of {kind} model '{name}' are not those the classifier was fitted with: restore them, or fit again"
        )
    encoder.preparation, encoder.augmentation = preparation, augmentation
    return encoder


def check_weights_used(description: Mapping[str, Any] | None, weights: Path | None) -> None:
    """Raise an `InputError` if a user names weights for an encoder that takes none."""
    if weights is not None and (description is None or description.get("kind") not in LIBRARIES):
        encoder = "no encoder" if description is None else f"the encoder '{description.get('name')}' with its own weights"
        raise InputError(f"the weights {weights} would be ignored, since the model has {encoder}: leave them out")


def names_path(kind: str, name: str) -> bool:
    """Return whether a described model names a file or a folder, and not a model in the user's cache."""
    if kind == "timm":
        return TIMM_NAME.fullmatch(name) is None
    return kind == "transformers" and (HUB_NAME.fullmatch(name) is None or Path(name).exists())


def _with_weights(kind: str, name: str, weights: Path | None) -> str:
    """Return the name of a described model with the weights that the user names, where it needs them."""
    if weights is not None and kind in LIBRARIES:
        return f"{name.partition('@')[0]}@{weights}" if kind == "timm" else str(weights)
    if names_path(kind, name):
        raise InputError(
            f"the model was made with {kind}:{name}, a path that is opened only if you name it: add --backbone-weights PATH "
            "(in Python, Classifier.load(..., backbone_weights=PATH))"
        )
    return name


def _open_named(kind: str, name: str, size: int | None, device: torch.device | None) -> ImageEncoder:
    if kind == EFFICIENTNET_LITE:
        return open_efficientnet_lite(name, size, device)
    if kind in LIBRARIES:
        encoder = LIBRARIES[kind](name, device)
    else:
        encoder = open_shipped(device) if kind == "shipped" else open_registered(name, device)
    if size is not None and encoder.preparation.shape[1:] != (size, size):
        height, width = encoder.preparation.shape[1:]
        raise InputError(
            f"backbone '{name}' takes images of {height} x {width} pixels, not {size}: leave out --size, or choose "
            f"{' or '.join(RELEASES)}"
        )
    return encoder
