"""Register a custom backbone, and train with it by its name.

protograph train --dataset letters --variant aux-only --backbone strided --plugin examples/custom_backbone.py
"""

from torch import nn

import protograph as pg


def build_strided(channels: int, last_relu: bool) -> nn.Module:
    """Return three strided convolutions and a mean over positions: images [n, C, H, W] -> features [n, 128]."""
    layers: list[nn.Module] = []
    for width in (32, 64, 128):
        layers += [nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width)]
        if last_relu or width < 128:
            layers.append(nn.ReLU())
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


pg.register_backbone("strided", build_strided)
