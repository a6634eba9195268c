"""Encoders from backbones of this package: the Conv4 that ships with it, a run's backbone, a registered one."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from protograph._internal.errors import InputError
from protograph._internal.files import write_atomically
from protograph._internal.sealed import tensors_digest, with_prefix
from protograph.data.augmentation import Augmentation
from protograph.data.images import IMAGE_NORMALISATION, IMAGE_SIZE
from protograph.data.store import Normalisation
from protograph.encoders.base import ImageEncoder
from protograph.encoders.preparation import Preparation
from protograph.nn.backbones import BACKBONES, build_backbone
from protograph.training.run_folder import Run
from protograph.variants import find_variant

SHIPPED = Path(__file__).with_name("conv4.safetensors")
SHIPPED_AUGMENTATION = Augmentation(pad=8, flip=True)  # that of miniImageNet's training images


def backbone_encoder(
    name: str,
    weights: Mapping[str, Tensor],
    shape: tuple[int, int, int],
    normalisation: Normalisation,
    augmentation: Augmentation,
    last_relu: bool = False,
    device: torch.device | None = None,
) -> ImageEncoder:
    """Return an encoder from a backbone with its weights, such as those of a run.

    Args:
        name: The name of the backbone.
        weights: Its weights.
        shape: C, H, W of the images it was trained on, which are resized and not cropped.
        normalisation: The normalisation of these images.
        augmentation: How augmented copies are changed.
        last_relu: Whether its last block has its ReLU.
        device: The device it runs on; by default the GPU if there is one.

    """
    preparation = Preparation.whole(shape, normalisation)
    return build_encoder({"name": name, "last_relu": last_relu}, preparation, augmentation, weights, device)


def build_encoder(
    description: Mapping[str, Any],
    preparation: Preparation,
    augmentation: Augmentation,
    weights: Mapping[str, Tensor],
    device: torch.device | None = None,
) -> ImageEncoder:
    """Return the encoder that a description describes, with these weights.

    Raises:
        InputError: The weights are those of another backbone.

    """
    origin = {"kind": "backbone", "name": description["name"], "last_relu": bool(description["last_relu"])}
    if origin["name"] not in BACKBONES:
        raise InputError(
            f"these weights are of the backbone '{origin['name']}', which is not registered: name the file that registers it "
            "(--plugin FILE), or import it"
        )
    network = build_backbone(origin["name"], preparation.shape[0], origin["last_relu"])
    try:
        network.load_state_dict(dict(weights))
    except RuntimeError as error:
        raise InputError(f"these weights are not those of a backbone '{origin['name']}'") from error
    return ImageEncoder(network, preparation, augmentation, origin, device=device)


def open_shipped(device: torch.device | None = None) -> ImageEncoder:
    """Return the Conv4 that ships with the package."""
    return open_packed(SHIPPED, device)


def open_registered(name: str, device: torch.device | None = None) -> ImageEncoder:
    """Return a registered backbone with the weights that its builder gives it, for images like miniImageNet's.

    Raises:
        InputError: Every build draws other weights, so the backbone is not trained.

    """
    weights = [build_backbone(name, 3, False).state_dict() for _ in range(2)]
    if len({tensors_digest("", tensors) for tensors in weights}) > 1:
        raise InputError(
            f"backbone '{name}' has no trained weights: train it (`protograph fit --train-backbone`), or choose a pretrained "
            "one: conv4, timm:NAME or transformers:NAME"
        )
    return backbone_encoder(
        name, weights[0], (3, IMAGE_SIZE, IMAGE_SIZE), IMAGE_NORMALISATION, SHIPPED_AUGMENTATION, device=device
    )


def open_packed(path: Path, device: torch.device | None = None) -> ImageEncoder:
    """Return the encoder in a file that `pack_backbone` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            description = json.loads(file.metadata()["encoder"])
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        preparation = Preparation.from_dict(description["preparation"])
        augmentation = Augmentation(**description["augmentation"])
    except FileNotFoundError as error:
        raise InputError(
            f"backbone 'conv4' is missing ({path.name}): install protograph again, or choose another --backbone"
        ) from error
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged ({error}): install protograph again") from error
    return build_encoder(description, preparation, augmentation, weights, device)


def pack_backbone(run_folder: Path | str, path: Path | str = SHIPPED) -> dict[str, Any]:
    """Write the backbone of a finished miniImageNet run as the file that ships with the package; return its origin.

        python -c "from protograph.encoders import pack_backbone; pack_backbone('runs/mini-imagenet/...')"

    The metadata holds `encoder`, from which it is opened, and `origin`: how it was trained, and its measures.
    """
    run = Run.open(Path(run_folder))
    config, measured = run.config, run.measures
    if config.dataset != "mini-imagenet":
        raise InputError(f"{run_folder} was trained on {config.dataset}: the default backbone is trained on mini-imagenet")
    if measured is None:
        raise InputError(f"{run_folder} is not finished: run its command again")
    weights = with_prefix(run.weights("best"), "backbone.")
    last_relu = find_variant(config.variant).last_relu
    copies = replace(SHIPPED_AUGMENTATION, **config.recipe.image_changes)
    encoder = backbone_encoder(config.backbone, weights, (3, IMAGE_SIZE, IMAGE_SIZE), IMAGE_NORMALISATION, copies, last_relu)
    environment = run.environment
    origin = {
        "configuration": config.to_dict(),
        **{name: measured[name] for name in ("epoch", "measures")},
        "versions": {name: environment[name] for name in ("protograph", "torch")},
    }
    metadata = {"encoder": json.dumps(encoder.description()), "origin": json.dumps(origin)}
    write_atomically(Path(path), save(encoder.tensors(), metadata))
    return origin
