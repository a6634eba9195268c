"""Backbones: networks from images [n, C, H, W] to features [n, D].

Training passes the support and query images of its episodes together, as the parts of one batch, and batch norm must see each
part alone. A backbone that is any module is called once for each part. A `Backbone` gets the whole batch with the sizes of its
parts, and may run everything but batch norm on the whole batch at once.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from protograph._internal.errors import unknown_name
from protograph.device import TRITON
from protograph.nn.classify import normalise


class Backbone(nn.Module, ABC):
    """A network that takes the parts of a batch itself."""

    @abstractmethod
    def forward(self, images: Tensor, parts: Sequence[int] | None = None) -> Tensor:
        """Return the features of a batch.

        In training, the result must be that of one call for each part in turn, running statistics of batch norm included. In
        evaluation mode the parts make no difference. `batch_norm_parts` is what most backbones need.

        Args:
            images: [n, C, H, W]
            parts: how many of the n images each part has, in order; by default all are one part

        Returns:
            [n, D]

        """


def embed_parts(backbone: nn.Module, images: Tensor, parts: Sequence[int] | None = None) -> Tensor:
    """Return the features [n, D] of images [n, C, H, W] whose `parts` batch norm sees alone in training."""
    if isinstance(backbone, Backbone):
        features: Tensor = backbone(images, parts)
    elif parts is None or len(parts) == 1 or not backbone.training:
        features = backbone(images)
    else:
        features = torch.cat([backbone(part) for part in torch.split(images, list(parts))])
    return features


def batch_norm_parts(norm: nn.Module, inputs: Tensor, parts: Sequence[int]) -> Tensor:
    """Return what batch norm makes of each of the parts of `inputs` [n, ...] alone, joined again to [n, ...]."""
    outputs = [norm(part) for part in torch.split(inputs, list(parts))]
    return torch.cat(outputs) if len(outputs) > 1 else outputs[0]


class Conv4(Backbone):
    r"""Four blocks of 3x3 convolution, batch norm, ReLU and 2x2 max-pooling, flattened.

    84 px become 5 x 5, so the widths 64-64-128-128 give D = 128 * 5 * 5 = 3200. Cosine models drop the last block's ReLU
    (its pooling stays); Prototypical Networks keep it.

    Args:
        widths: the channels of the four blocks
        channels: the channels of the images
        last_relu: whether the last block has its ReLU
        mirror: whether features in evaluation mode are the mean of those of an image and of its mirror image,
            :math:`\tfrac12 (f(x) + f(x\,\mathrm{flipped}))`; for images that training flips at random

    """

    def __init__(
        self, widths: tuple[int, int, int, int], channels: int = 3, last_relu: bool = False, mirror: bool = False
    ) -> None:
        super().__init__()
        self.mirror = mirror
        self.blocks = nn.Sequential()
        for position, width in enumerate(widths):
            conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
            nn.init.normal_(conv.weight, std=math.sqrt(2 / (9 * width)))
            relu = nn.ReLU() if last_relu or position < len(widths) - 1 else nn.Identity()
            self.blocks.append(nn.Sequential(conv, nn.BatchNorm2d(width), relu, nn.MaxPool2d(2)))
            channels = width

    def forward(self, images: Tensor, parts: Sequence[int] | None = None) -> Tensor:
        """Return features [n, D] of images [n, C, H, W]; in training batch norm sees each of the `parts` alone."""
        parts = parts or (images.shape[0],)
        features = self._features(images, parts)
        if self.mirror and not self.training:
            features = (features + self._features(images.flip(-1), parts)) / 2
        return features

    def _features(self, images: Tensor, parts: Sequence[int]) -> Tensor:
        features = images
        for block in self.blocks:
            features = conv_block(block, features, parts)  # type: ignore[arg-type]
        return features.flatten(1)


def conv_block(block: nn.Sequential, inputs: Tensor, parts: Sequence[int]) -> Tensor:
    """Return the outputs of one block, with batch norm of each part alone; on a GPU, kernels fuse what they can."""
    conv, norm, relu, pool = block
    if not norm.training:  # the largest of four is the same before and after a ReLU
        normed = norm(conv(inputs)) if inputs.is_cuda else conv_norm(conv, norm, inputs)  # type: ignore[arg-type]
        return relu(pool(normed))  # type: ignore[no-any-return]
    channels: int = conv.out_channels  # type: ignore[assignment]
    fused = inputs.is_cuda and TRITON and len(parts) <= 2 and channels & (channels - 1) == 0
    if fused and isinstance(relu, nn.ReLU):
        from protograph.kernels.first_block import can_fuse_first_block, conv_norm_relu_pool

        if can_fuse_first_block(conv, inputs):  # type: ignore[arg-type]
            return conv_norm_relu_pool(inputs, conv, norm, parts)  # type: ignore[arg-type]
    outputs: Tensor = conv(inputs)
    if fused:
        from protograph.kernels.norm_pool import norm_relu_pool

        return norm_relu_pool(outputs, norm, isinstance(relu, nn.ReLU), parts)  # type: ignore[arg-type]
    return pool(relu(batch_norm_parts(norm, outputs, parts)))  # type: ignore[no-any-return]


def conv_norm(conv: nn.Conv2d, norm: nn.BatchNorm2d, inputs: Tensor) -> Tensor:
    r"""Return convolution and batch norm in evaluation mode, computed as one convolution,

    .. math:: \frac{\gamma}{\sigma} (w * x - \mu) + \beta.
    """
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    shift = norm.bias - norm.running_mean * scale
    return conv2d(inputs, conv.weight * scale[:, None, None, None], shift, conv.stride, conv.padding)


class ResNet12(nn.Module):
    """The usual residual net of few-shot learning: four blocks of three convolutions, 64-160-320-640, average-pooled to 640."""

    def __init__(self, channels: int = 3, last_relu: bool = True) -> None:
        super().__init__()
        self.blocks = nn.Sequential()
        for width in (64, 160, 320, 640):
            self.blocks.append(ResidualBlock(channels, width, relu=last_relu or width < 640))
            channels = width

    def forward(self, images: Tensor) -> Tensor:
        """Return features [n, 640] of images [n, C, H, W]."""
        features: Tensor = self.blocks(images)
        return features.mean(dim=(2, 3))


class ResidualBlock(nn.Module):
    """Three 3x3 convolutions beside a 1x1 one, added, then LeakyReLU (unless `relu` is False) and 2x2 max-pooling."""

    def __init__(self, channels: int, width: int, relu: bool = True) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for position in range(3):
            layers += [nn.Conv2d(channels if position == 0 else width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)]
            if position < 2:
                layers.append(nn.LeakyReLU(0.1))
        self.path = nn.Sequential(*layers)
        self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width))
        self.activation = nn.LeakyReLU(0.1) if relu else nn.Identity()
        self.pool = nn.MaxPool2d(2)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="leaky_relu", a=0.1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [n, width, H // 2, W // 2] of inputs [n, C, H, W]."""
        pooled: Tensor = self.pool(self.activation(self.path(inputs) + self.shortcut(inputs)))
        return pooled


class Flatten(nn.Module):
    """The identity, for features [n, D] computed elsewhere."""

    def forward(self, features: Tensor) -> Tensor:
        """Return features [n, ...] flattened to [n, D]."""
        return features.flatten(1)


class Centred(nn.Module):
    """Features of a frozen encoder minus their centre, so that cosines compare only what differs between classes.

    Args:
        centre: [D]
        radius: the mean distance of features from the centre

    """

    centre: Tensor
    radius: Tensor

    def __init__(self, centre: Tensor, radius: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("centre", centre)
        self.register_buffer("radius", torch.tensor(radius))

    @classmethod
    def of(cls, classes: Sequence[Tensor]) -> "Centred":
        """Centre at the mean of the class means of the features [n, D] of several classes; a single class is not centred.

        All classes count alike. Otherwise a class with most of the images would lie at the centre and lose its direction.
        """
        if len(classes) < 2:
            return cls(torch.zeros_like(classes[0][0]))
        centre = torch.stack([features.mean(0) for features in classes]).mean(0)
        return cls(centre, torch.stack([(features - centre).norm(dim=1).mean() for features in classes]).mean().item())

    def forward(self, features: Tensor) -> Tensor:
        """Return features [n, D] minus the centre."""
        return features - self.centre

    def back(self, prototypes: Tensor) -> Tensor:
        """Return where features with the directions of prototypes [V, D] lie before they are centred."""
        return self.centre + self.radius * normalise(prototypes)


BackboneBuilder = Callable[[int, bool], nn.Module]  # (channels, last_relu) -> network

BACKBONES: dict[str, BackboneBuilder] = {
    "conv4-64-128": lambda channels, last_relu: Conv4((64, 64, 128, 128), channels, last_relu),
    "conv4-128": lambda channels, last_relu: Conv4((128, 128, 128, 128), channels, last_relu),
    "conv4-128-mirror": lambda channels, last_relu: Conv4((128, 128, 128, 128), channels, last_relu, mirror=True),
    "conv4-wide": lambda channels, last_relu: Conv4((64, 128, 256, 128), channels, last_relu),
    "conv4-64": lambda channels, last_relu: Conv4((64, 64, 64, 64), channels, last_relu),
    "conv4-32": lambda channels, last_relu: Conv4((32, 32, 32, 32), channels, last_relu),
    "resnet12": lambda channels, last_relu: ResNet12(channels, last_relu),
    "identity": lambda channels, last_relu: Flatten(),
}


def register_backbone(name: str, build: BackboneBuilder) -> None:
    """Make a backbone known by its name, to `configure` and to the command.

    Args:
        name: what `backbone=` and `--backbone` are given
        build: called as `build(channels, last_relu)`; returns a new network from images [n, C, H, W] to features [n, D].
            `channels` is C; `last_relu` is whether the variant wants features that end in a ReLU, and may be ignored

    """
    BACKBONES[name] = build


def build_backbone(name: str, channels: int, last_relu: bool) -> nn.Module:
    """Return a new backbone by its name.

    Raises:
        InputError: no backbone has this name

    """
    if name not in BACKBONES:
        raise unknown_name("backbone", name, BACKBONES)
    return BACKBONES[name](channels, last_relu)


def feature_count(backbone: nn.Module, image_shape: tuple[int, ...]) -> int:
    """Return D of a backbone for images of this shape, by passing one image through it."""
    modes = {module: module.training for module in backbone.modules()}
    with torch.no_grad():
        features: Tensor = backbone.eval()(torch.zeros(1, *image_shape))
    for module, training in modes.items():
        module.training = training
    if features.ndim != 2:
        raise ValueError(f"a backbone must return features [n, D], not {tuple(features.shape)}")
    return features.shape[1]
