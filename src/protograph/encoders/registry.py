"""Encoders by name: the one name space of `--backbone`, and the encoders that a model file describes."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from protograph._internal.errors import InputError, unknown_name
from protograph.data.augmentation import Augmentation
from protograph.encoders.base import ImageEncoder
from protograph.encoders.preparation import Preparation
from protograph.encoders.pretrained import open_timm, open_transformers
from protograph.encoders.shipped import build_encoder, open_registered, open_shipped
from protograph.nn.backbones import BACKBONES

LIBRARIES: dict[str, Callable[[str, torch.device | None], ImageEncoder]] = {
    "timm": open_timm,
    "transformers": open_transformers,
}
SHIPPED_NAME = "conv4"
BACKBONE_NAMES = (
    f"{SHIPPED_NAME} (ships with the package), timm:NAME, timm:NAME@FILE, transformers:NAME or transformers:FOLDER, or the "
    "name of a registered backbone that has trained weights"
)


def resolve_backbone(name: str) -> tuple[str, str]:
    """Return the kind of a backbone and its name among this kind.

    The kinds are "shipped", "timm", "transformers" and "registered", which are those of `BACKBONES`.

    Raises:
        InputError: No backbone has this name.

    """
    kind, _, rest = name.partition(":")
    if name == SHIPPED_NAME:
        return "shipped", name
    if name in BACKBONES:
        return "registered", name
    if kind not in LIBRARIES:
        raise unknown_name("backbone", kind, (SHIPPED_NAME, *(f"{library}:NAME" for library in LIBRARIES), *BACKBONES))
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
    source: str | Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None, device: torch.device | None = None
) -> ImageEncoder:
    """Return an encoder by its name, or as its `description` and `tensors` say.

    Args:
        source: A name, or the description of an encoder.
        tensors: The weights that belong to the description.
        device: The device it runs on; by default the GPU if there is one.

    Raises:
        InputError: The name or the description is unknown, or the weights do not belong to it.

    """
    if isinstance(source, str):
        return _open_named(source, device)
    try:
        kind, name = source["kind"], source["name"]
        preparation = Preparation.from_dict(source["preparation"])
        augmentation = Augmentation(**source["augmentation"])
        if kind == "backbone":
            return build_encoder(source, preparation, augmentation, tensors or {}, device)
        weights = source["weights"]
    except (KeyError, TypeError) as error:
        raise InputError(f"this does not describe an encoder ({error!r})") from error
    if kind not in LIBRARIES:
        raise unknown_name("kind of encoder", kind, ("backbone", *LIBRARIES))
    encoder = _open_named(f"{kind}:{name}", device)
    if encoder.origin["weights"] != weights:
        raise InputError(
            f"the weights of {kind} model '{name}' are not those the classifier was fitted with: restore them, or fit again"
        )
    encoder.preparation, encoder.augmentation = preparation, augmentation
    return encoder


def _open_named(name: str, device: torch.device | None) -> ImageEncoder:
    kind, rest = resolve_backbone(name)
    if kind == "shipped":
        return open_shipped(device)
    return open_registered(rest, device) if kind == "registered" else LIBRARIES[kind](rest, device)
