"""Images -> features: what a classifier on images stands on."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from protograph._internal.errors import InputError, unknown_name
from protograph.data.augmentation import Augmentation
from protograph.encoders.encoder import ImageEncoder
from protograph.encoders.preparation import Preparation
from protograph.encoders.pretrained import open_timm, open_transformers
from protograph.encoders.shipped import backbone_encoder, build_encoder, open_shipped, pack_backbone

__all__ = ["NAMES", "ImageEncoder", "Preparation", "backbone_encoder", "open_encoder", "pack_backbone"]

NAMES = "conv4 (ships with the package), timm:NAME, timm:NAME@FILE, transformers:NAME or transformers:FOLDER"


def open_encoder(
    named: str | Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None, device: torch.device | None = None
) -> ImageEncoder:
    """An encoder by its name, or as its `description` and `tensors` say.

    device: where it runs; by default the GPU where there is one
    """
    if isinstance(named, str):
        return _open_named(named, device)
    try:
        kind, name = named["kind"], named["name"]
        preparation = Preparation.from_dict(named["preparation"])
        augmentation = Augmentation(**named["augmentation"])
        if kind == "backbone":
            return build_encoder(named, preparation, augmentation, tensors or {}, device)
        weights = named["weights"]
    except (KeyError, TypeError) as error:
        raise InputError(f"this does not describe an encoder ({error!r})") from error
    if kind not in ("timm", "transformers"):
        raise unknown_name("kind of encoder", kind, ("backbone", "timm", "transformers"))
    found = _open_named(f"{kind}:{name}", device)
    if found.origin["weights"] != weights:
        raise InputError(
            f"the weights of {kind} model '{name}' are not those the classifier was fitted with: restore them, or fit again"
        )
    found.preparation, found.augmentation = preparation, augmentation
    return found


def _open_named(name: str, device: torch.device | None) -> ImageEncoder:
    kind, _, rest = name.partition(":")
    if name == "conv4":
        return open_shipped(device)
    if kind not in ("timm", "transformers"):
        raise unknown_name("backbone", kind, ("conv4", "timm:NAME", "transformers:NAME"))
    if not rest:
        raise InputError(f"backbone '{name}' names no model: give {kind}:NAME")
    return open_timm(rest, device) if kind == "timm" else open_transformers(rest, device)
