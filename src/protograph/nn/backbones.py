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
from torch.nn.functional import conv2d, max_pool2d, pad

from protograph._internal.errors import unknown_name
from protograph.device import TRITON
from protograph.nn.classify import normalise


class Backbone(nn.Module, ABC):
    """A network that takes the parts of a batch itself.

    Attributes:
        compiles: whether training on a GPU gains if PyTorch compiles the network
        depths: at how many depths it can mix images, see `mixed`; the first one is that of the images themselves

    """

    compiles = False
    depths = 0

    @abstractmethod
    def forward(
        self,
        images: Tensor,
        parts: Sequence[int] | None = None,
        masks: Sequence[Tensor] = (),
        mixes: Sequence[Tensor] = (),
    ) -> Tensor:
        """Return the features of a batch.

        In training, the result must be that of one call for each part in turn, running statistics of batch norm included. In
        evaluation mode the parts make no difference. `batch_norm_parts` is what most backbones need.

        Args:
            images: [n, C, H, W]
            parts: how many of the n images each part has, in order; by default all are one part
            masks: what `drop_masks` drew for these images; none: nothing is dropped
            mixes: for each of its `depths`, the shares that `mixed` takes; none: nothing is mixed

        Returns:
            [n, D]

        """

    def drop_masks(self, images: Tensor, share: Tensor, generator: torch.Generator) -> list[Tensor]:
        """Return factors, 0 where activations are dropped in a training step; a backbone that drops some overrides this.

        Args:
            images: [n, C, H, W]
            share: the share of activations that is dropped, on the device of the images
            generator: the generator of the step, on that device

        """
        raise NotImplementedError(f"{type(self).__name__} drops no activations")


def embed_parts(
    backbone: nn.Module,
    images: Tensor,
    parts: Sequence[int] | None = None,
    masks: Sequence[Tensor] = (),
    mixes: Sequence[Tensor] = (),
) -> Tensor:
    """Return the features [n, D] of images [n, C, H, W] whose `parts` batch norm sees alone in training.

    `masks` and `mixes` are those of `Backbone.forward`.
    """
    if isinstance(backbone, Backbone):
        features: Tensor = backbone(images, parts, masks, mixes) if masks or mixes else backbone(images, parts)
    elif parts is None or len(parts) == 1 or not backbone.training:
        features = backbone(images)
    else:
        features = torch.cat([backbone(part) for part in torch.split(images, list(parts))])
    return features


def can_drop(backbone: nn.Module) -> bool:
    """Return whether a backbone draws masks that drop activations in training."""
    return isinstance(backbone, Backbone) and type(backbone).drop_masks is not Backbone.drop_masks


def mixed(maps: Tensor, shares: Tensor) -> Tensor:
    r"""Return maps [n, ...], of which the first m are mixed with one another: the first with the last of these, and so on,

    .. math:: x_i \leftarrow (1 - \lambda_i) \, x_i + \lambda_i \, x_{m + 1 - i}.

    The images of a step are drawn independently, so such a partner is as random as any.

    Args:
        maps: The maps.
        shares: The shares :math:`\lambda` [m].

    """
    first, others = maps[: len(shares)], maps[len(shares) :]
    shares = shares.to(maps.dtype).view(-1, *[1] * (maps.ndim - 1))
    return torch.cat([torch.lerp(first, first.flip(0), shares), others])


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

    def forward(
        self,
        images: Tensor,
        parts: Sequence[int] | None = None,
        masks: Sequence[Tensor] = (),
        mixes: Sequence[Tensor] = (),
    ) -> Tensor:
        """Return features [n, D] of images [n, C, H, W]; in training batch norm sees each of the `parts` alone."""
        parts = parts or (images.shape[0],)
        features = self.maps(images, parts).flatten(1)
        if self.mirror and not self.training:
            features = (features + self.maps(images.flip(-1), parts).flatten(1)) / 2
        return features

    def score_map(self, images: Tensor, weights: Tensor) -> Tensor:
        """Return what each position adds to features @ weights, [n, h, w], for images [n, C, H, W] and weights [D]."""
        parts = (images.shape[0],)
        maps = self.maps(images, parts)
        kernel = weights.view(maps.shape[1:])  # every position has features of its own
        scores = (maps * kernel).sum(1)
        if self.mirror:
            scores = (scores + (self.maps(images.flip(-1), parts) * kernel).sum(1).flip(-1)) / 2
        return scores

    def maps(self, images: Tensor, parts: Sequence[int] | None = None) -> Tensor:
        """Return the maps [n, D / (h w), h, w] of images [n, C, H, W] that `forward` flattens."""
        maps = images
        for block in self.blocks:
            maps = conv_block(block, maps, parts or (images.shape[0],))  # type: ignore[arg-type]
        return maps


def conv_block(block: nn.Sequential, inputs: Tensor, parts: Sequence[int]) -> Tensor:
    """Return the outputs of one block, with batch norm of each part alone; on a GPU, kernels fuse what they can."""
    conv, norm, relu, pool = block
    if not norm.training:  # the largest of four is the same before and after a ReLU
        folds = isinstance(norm, nn.BatchNorm2d) and not inputs.is_cuda
        normed = conv_norm(conv, norm, inputs) if folds else norm(conv(inputs))  # type: ignore[arg-type]
        return relu(pool(normed))  # type: ignore[no-any-return]
    channels: int = conv.out_channels  # type: ignore[assignment]
    fused = type(norm) is nn.BatchNorm2d and inputs.is_cuda and TRITON and len(parts) <= 2 and channels & (channels - 1) == 0
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


class ResNet12(Backbone):
    r"""The usual residual net of few-shot learning: four blocks of three convolutions, average-pooled to 640 features.

    In training, DropBlock sets whole squares of some channels to zero behind the last two blocks.

    Args:
        channels: the channels of the images
        last_relu: whether the last block has its activation
        mirror: whether features in evaluation mode are the mean of those of an image and of its mirror image, as of `Conv4`
        widths: the channels of the four blocks

    """

    compiles = True
    depths = 4  # before each of its blocks

    def __init__(
        self,
        channels: int = 3,
        last_relu: bool = True,
        mirror: bool = False,
        widths: tuple[int, int, int, int] = (64, 160, 320, 640),
    ) -> None:
        super().__init__()
        self.mirror = mirror
        self.blocks = nn.Sequential()
        for position, width in enumerate(widths):
            self.blocks.append(ResidualBlock(channels, width, relu=last_relu or position < len(widths) - 1))
            channels = width

    def forward(
        self,
        images: Tensor,
        parts: Sequence[int] | None = None,
        masks: Sequence[Tensor] = (),
        mixes: Sequence[Tensor] = (),
    ) -> Tensor:
        """Return features [n, D] of images [n, C, H, W]; in training batch norm sees each of the `parts` alone."""
        parts = parts or (images.shape[0],)
        features = self._maps(images, parts, masks, mixes).mean(dim=(2, 3))
        if self.mirror and not self.training:
            features = (features + self._maps(images.flip(-1), parts, masks).mean(dim=(2, 3))) / 2
        return features

    def score_map(self, images: Tensor, weights: Tensor) -> Tensor:
        """Return what each position adds to features @ weights, [n, h, w], for images [n, C, H, W] and weights [D]."""
        parts = (images.shape[0],)
        scores = mean_score_map(self._maps(images, parts, ()), weights)
        if self.mirror:
            scores = (scores + mean_score_map(self._maps(images.flip(-1), parts, ()), weights).flip(-1)) / 2
        return scores

    def _maps(self, images: Tensor, parts: Sequence[int], masks: Sequence[Tensor], mixes: Sequence[Tensor] = ()) -> Tensor:
        maps = images
        first_dropped = len(self.blocks) - len(masks)
        for position, block in enumerate(self.blocks):
            maps = block(mixed(maps, mixes[position]) if mixes else maps, parts)
            if position >= first_dropped:
                maps = maps * masks[position - first_dropped].to(maps.dtype)
        return maps

    def drop_masks(self, images: Tensor, share: Tensor, generator: torch.Generator) -> list[Tensor]:
        """Return the masks of DropBlock behind the last two blocks; the other arguments are those of `Backbone.drop_masks`."""
        count, _, height, width = images.shape
        masks = []
        for position in (len(self.blocks) - 2, len(self.blocks) - 1):
            block = self.blocks[position]
            assert isinstance(block, ResidualBlock)
            rows, columns = (side >> (position + 1) for side in (height, width))  # each block halves the sides
            masks.append(drop_block((count, block.width, rows, columns), share, generator))
        return masks


def mean_score_map(maps: Tensor, weights: Tensor) -> Tensor:
    r"""Return what each position p adds to a linear score of features that are a mean over positions, [n, h, w],

    .. math:: \frac{w \cdot f_p}{h w} \quad\text{for}\quad w \cdot z = w \cdot \frac{1}{h w} \sum_p f_p.

    Args:
        maps: The features f of every position, [n, D, h, w].
        weights: The weights w [D].

    """
    return torch.einsum("ndhw,d->nhw", maps, weights) / (maps.shape[2] * maps.shape[3])


DROPPED_SIDE = 5  # of the squares that DropBlock drops


def drop_block(shape: tuple[int, int, int, int], share: Tensor, generator: torch.Generator) -> Tensor:
    r"""Return a mask [n, C, H, W] of DropBlock: zero in random squares, and elsewhere so large that its mean is 1.

    A square starts at any of the positions where it fits, with the same probability :math:`\gamma`. So that the expected share
    of zeros is about `share`, :math:`\gamma = \mathrm{share}\, H W / (s^2 (H - s + 1) (W - s + 1))` for squares of side s.

    Args:
        shape: n, C, H, W
        share: the share of activations to drop, a number on the generator's device
        generator: where the squares are drawn from

    """
    count, channels, height, width = shape
    side = min(DROPPED_SIDE, height, width)
    rows, columns = height - side + 1, width - side + 1
    drawn = torch.rand(count, channels, rows, columns, device=generator.device, generator=generator)
    drawn = drawn.contiguous(memory_format=torch.channels_last)
    starts = (drawn < share * (height * width / (side * side * rows * columns))).float()
    # A position is in a square that starts there, or up to s - 1 positions before.
    dropped = max_pool2d(pad(starts, (side - 1,) * 4), side, stride=1)
    kept = 1 - dropped
    return kept / kept.mean().clamp(min=torch.finfo(kept.dtype).tiny)


class ResidualBlock(nn.Module):
    """Three 3x3 convolutions beside a 1x1 one, added, then LeakyReLU (unless `relu` is False) and 2x2 max-pooling."""

    def __init__(self, channels: int, width: int, relu: bool = True) -> None:
        super().__init__()
        self.width = width
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

    def forward(self, inputs: Tensor, parts: Sequence[int] | None = None) -> Tensor:
        """Return [n, width, H // 2, W // 2] of inputs [n, C, H, W]; in training batch norm sees each of the `parts` alone."""
        parts = parts if parts and self.training else (inputs.shape[0],)
        added = layers_of_parts(self.path, inputs, parts) + layers_of_parts(self.shortcut, inputs, parts)
        pooled: Tensor = self.pool(self.activation(added))
        return pooled


def layers_of_parts(layers: nn.Sequential, inputs: Tensor, parts: Sequence[int]) -> Tensor:
    """Return what layers make of `inputs` [n, ...], with batch norm of each of the parts alone."""
    outputs = inputs
    for layer in layers:
        outputs = batch_norm_parts(layer, outputs, parts) if isinstance(layer, nn.BatchNorm2d) else layer(outputs)
    return outputs


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
    # Features of the residual net transfer to new classes better with the last activation, whatever the variant wants.
    "resnet12-mirror": lambda channels, last_relu: ResNet12(channels, last_relu=True, mirror=True),
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
