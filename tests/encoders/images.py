"""Encoders that take a blink, and images of every awkward kind."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from data.layouts import blocks
from protograph.data.augmentation import Augmentation
from protograph.data.store import Normalisation
from protograph.encoders import ImageEncoder, backbone_encoder
from protograph.nn.backbones import build_backbone

NORMAL = Normalisation((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))


def backbone_weights(seed: int = 0, channels: int = 3, name: str = "conv4-32") -> dict[str, torch.Tensor]:
    """Weights of a backbone that nobody trained, with norms that fit images of noise."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        network = build_backbone(name, channels, False)
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = None  # the mean over all that it sees
        with torch.no_grad():
            network.train()(torch.randn(32, channels, 20, 20))
    return network.state_dict()


def tiny_encoder(seed: int = 0, channels: int = 3, size: int = 20, pad: int = 2) -> ImageEncoder:
    normal = NORMAL if channels == 3 else Normalisation((0.5,), (0.25,))
    shape = channels, size, size
    device = torch.device("cpu")
    return backbone_encoder("conv4-32", backbone_weights(seed, channels), shape, normal, Augmentation(pad, True), device=device)


def write_images(folder: Path, count: int, seed: int = 0, size: tuple[int, int] = (30, 24)) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{place:03d}.png" for place in range(count)]
    for place, path in enumerate(paths):
        Image.fromarray(blocks(*size, seed, place)).save(path)
    return paths


def bomb(path: Path) -> Path:
    """A hundred million pixels in a few kilobytes."""
    Image.new("1", (10_000, 10_000)).save(path)
    return path


def animated(path: Path) -> Path:
    frames = [Image.new("RGB", (30, 24), colour) for colour in ("red", "blue", "green")]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=20, loop=0)
    return path


def rotated(path: Path, **options: Any) -> Path:
    """What a camera held upright wrote: the image on its side, and a note to turn it."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.rot90(blocks(30, 24, 5)).copy()).save(path, exif=exif, **options)
    return path
