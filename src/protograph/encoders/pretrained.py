"""Encoders from other libraries: any vision model of timm or transformers, frozen, with its own preprocessing.

Weights come from the user's cache or from a path, never over the network. They stay there; a model file keeps their digest.
A pickle of weights is read by `torch.load(weights_only=True)`, which runs nothing that it names.
"""

from collections.abc import Callable
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn

from protograph._internal import sealed
from protograph._internal.errors import InputError
from protograph.data.augmentation import Augmentation
from protograph.encoders.base import LARGEST_SHIFT, ImageEncoder
from protograph.encoders.preparation import Preparation

RESAMPLING = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # by Pillow's numbers


def open_timm(name: str, device: torch.device | None = None) -> ImageEncoder:
    """Return a model of timm by its name there; NAME@FILE takes the weights from a file.

    Raises:
        InputError: timm is not installed, or has no such model, or its weights are missing or wrong.

    """
    try:
        import timm
    except ImportError as error:
        raise InputError(f"backbone 'timm:{name}' needs timm ({error}): pip install \"protograph[timm]\"") from error
    model_name, _, file = name.partition("@")
    try:
        known = timm.get_pretrained_cfg(model_name)
    except RuntimeError as error:
        raise InputError(f"timm has no model '{model_name}' ({error}): see timm.list_models(pretrained=True)") from error
    if known is None:
        raise InputError(f"timm has no model '{model_name}' with weights: see timm.list_models(pretrained=True)")
    if file and not Path(file).is_file():
        raise InputError(f"no file of weights for timm model '{model_name}' at {file}")
    if file:
        name = f"{model_name}@{Path(file).resolve()}"
    weights = Path(file) if file else _cached_weights(model_name, known)
    try:
        if weights.suffix == ".npz":  # NumPy refuses pickles in it
            source = {"file": str(weights), "custom_load": True}
        else:  # read here, since older versions of timm run what a pickle names
            source = {"state_dict": timm.models.load_state_dict(str(weights), weights_only=True), "custom_load": False}
        model = timm.create_model(model_name, pretrained=True, pretrained_cfg_overlay=source)
        model.reset_classifier(0)  # after loading: a model without its head would take any weights
    except Exception as error:  # whatever a file may hold
        raise InputError(f"{weights} does not hold the weights of timm model '{model_name}' ({_line(error)})") from error
    config = timm.data.resolve_model_data_config(model)
    preparation = _timm_preparation(config, model_name)
    return _frozen("timm", name, Flat(model), model.state_dict(), preparation, device)


def _cached_weights(name: str, known: Any) -> Path:
    """Return the path of a timm model's weights in the user's caches."""
    if known.hf_hub_id:
        from huggingface_hub import try_to_load_from_cache

        for filename in filter(None, (known.hf_hub_filename, "model.safetensors", "pytorch_model.bin")):
            path = try_to_load_from_cache(known.hf_hub_id, filename)
            if isinstance(path, str):
                return Path(path)
    if known.url and (file := Path(torch.hub.get_dir(), "checkpoints", Path(known.url).name)).is_file():
        return file
    raise InputError(
        f"the weights of timm model '{name}' are not in the cache: fetch them once with "
        f"`python -c \"import timm; timm.create_model('{name}', pretrained=True)\"`, or name a file by timm:{name}@FILE"
    )


def _timm_preparation(config: dict[str, Any], name: str) -> Preparation:
    channels, height, width = config["input_size"]
    scaled = int(height / config["crop_pct"]), int(width / config["crop_pct"])
    if config["crop_mode"] == "squash":
        resize: tuple[int, int] | int = scaled
    elif config["crop_mode"] == "center" and height == width:
        resize = scaled[0]
    else:
        mode = f"{config['crop_mode']}, {height} x {width}"
        raise InputError(f"timm model '{name}' takes images in a way that is not supported ({mode}): choose another")
    shape = channels, height, width
    return Preparation(shape, tuple(config["mean"]), tuple(config["std"]), resize, config["interpolation"])


def open_transformers(name: str, device: torch.device | None = None) -> ImageEncoder:
    """Return a vision model of transformers by its name in the cache or by its folder.

    Raises:
        InputError: transformers is not installed, or there is no such model.

    """
    try:
        from transformers import AutoImageProcessor, AutoModel
        from transformers.utils import logging
    except ImportError as error:
        raise InputError(
            f"backbone 'transformers:{name}' needs transformers ({error}): pip install \"protograph[transformers]\""
        ) from error
    if Path(name).is_dir():
        name = str(Path(name).resolve())
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # it warns of unused weights, such as those of a classification head
    logging.disable_progress_bar()
    try:
        processor = AutoImageProcessor.from_pretrained(name, local_files_only=True, trust_remote_code=False)
        model, loaded = AutoModel.from_pretrained(
            name, local_files_only=True, trust_remote_code=False, weights_only=True, output_loading_info=True
        )
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise InputError(
            f"transformers has no vision model '{name}' in a folder or in the cache ({_line(error)}): give a folder, or fetch "
            f"it once with `hf download {name}`"
        ) from error
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
    missing = sorted(loaded["missing_keys"])
    pooled = not any("pooler." in key for key in missing)  # without weights, the pooler would be random
    if lacking := [key for key in missing if "pooler." not in key]:
        raise InputError(f"the weights of '{name}' lack {len(lacking)} of the model's, such as {lacking[0]}: fetch it again")
    preparation = _transformers_preparation(processor, name)
    loaded_weights = {key: value for key, value in model.float().state_dict().items() if key not in missing}
    return _frozen("transformers", name, Pooled(model, pooled), loaded_weights, preparation, device)


def _transformers_preparation(processor: Any, name: str) -> Preparation:
    """Return the preparation that an image processor's settings describe."""
    size, crop = dict(getattr(processor, "size", None) or {}), dict(getattr(processor, "crop_size", None) or {})
    resize: tuple[int, int] | int | None = size.get("shortest_edge")
    if {"height", "width"} <= size.keys():
        resize = size["height"], size["width"]
    share = getattr(processor, "crop_pct", None)
    if isinstance(resize, int) and share:  # ConvNeXt: a share of the middle, or of large images the whole
        crop = {"height": resize, "width": resize}
        resize = int(resize / share) if resize < 384 else (resize, resize)
    elif not getattr(processor, "do_center_crop", False):
        crop = {}
    if isinstance(resize, tuple) and not crop:
        crop = {"height": resize[0], "width": resize[1]}
    scale = getattr(processor, "rescale_factor", 1 / 255)
    resized = getattr(processor, "do_resize", True) and getattr(processor, "do_rescale", True)
    if resize is None or not crop or not resized or abs(255 * scale - 1) > 1e-3:
        raise InputError(f"transformers model '{name}' takes images in a way that is not supported ({size}): choose another")
    normalised = getattr(processor, "do_normalize", True)
    mean, std = (tuple(processor.image_mean), tuple(processor.image_std)) if normalised else ((0.0,) * 3, (1.0,) * 3)
    interpolation = RESAMPLING[int(getattr(processor, "resample", 2))]
    return Preparation((3, crop["height"], crop["width"]), mean, std, resize, interpolation)


class Flat(nn.Module):
    """A network whose output is flattened: images [n, C, H, W] -> features [n, D].

    Args:
        model: The network.

    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return the features [n, D] of images [n, C, H, W]."""
        features: Tensor = self.model(images)
        return features.flatten(1)


class Pooled(nn.Module):
    """The features [n, D] that a model of transformers gives for images.

    They are its image features where it has such a method (CLIP and similar models), its pooled output where that was
    trained, or else its last hidden state: the first token, or the mean over positions.

    Args:
        model: The model: pixel_values [n, C, H, W] -> the library's output.
        pooled: Whether its pooled output may be used.

    """

    def __init__(self, model: nn.Module, pooled: bool) -> None:
        super().__init__()
        self.model, self.pooled = model, pooled

    def forward(self, images: Tensor) -> Tensor:
        """Return the features [n, D] of images [n, C, H, W]."""
        answer: Callable[..., Any] = getattr(self.model, "get_image_features", self.model)
        output = answer(pixel_values=images)
        if isinstance(output, Tensor):
            return output.flatten(1)
        pooled: Tensor | None = getattr(output, "pooler_output", None)
        if self.pooled and pooled is not None:
            return pooled.flatten(1)
        hidden: Tensor = output.last_hidden_state
        return hidden[:, 0] if hidden.ndim == 3 else hidden.mean((2, 3))


def _frozen(
    kind: str,
    name: str,
    network: nn.Module,
    weights: dict[str, Tensor],
    preparation: Preparation,
    device: torch.device | None,
) -> ImageEncoder:
    origin = {"kind": kind, "name": name, "weights": sealed.tensors_digest("", weights)}
    height, width = preparation.shape[1:]
    augmentation = Augmentation(round(LARGEST_SHIFT * min(height, width)), flip=True)
    try:
        return ImageEncoder(network, preparation, augmentation, origin, kept=False, device=device)
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{kind} model '{name}' gives no features for an image ({_line(error)}): choose another") from error


def _line(error: Exception) -> str:
    """Return the message of an error in one line."""
    return shorten(str(error).strip() or type(error).__name__, 200, placeholder=" ...")
