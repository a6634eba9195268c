import copy
import runpy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from protograph.data import Dataset
from protograph.nn.backbones import BACKBONES, Backbone, batch_norm_parts, build_backbone, embed_parts, register_backbone
from protograph.training.run_config import RunConfig, configure
from protograph.training.setup import make_model
from protograph.training.stages import train

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_backbone.py"
REGISTERED = [name for name in BACKBONES if name != "identity"]


class Contracted(Backbone):
    """A small backbone that takes parts itself."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4)

    def forward(self, images: Tensor, parts: Sequence[int] | None = None) -> Tensor:
        """[n, C, H, W] -> [n, 4]."""
        return batch_norm_parts(self.norm, self.conv(images), parts or (len(images),)).mean((2, 3))


@pytest.fixture
def strided(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("protograph.nn.backbones.BACKBONES", dict(BACKBONES))
    runpy.run_path(str(EXAMPLE))
    register_backbone("contracted", lambda channels, last_relu: Contracted(channels))
    return "strided"


@pytest.mark.slow
@pytest.mark.parametrize("name", [*REGISTERED, "strided", "contracted"])
def test_every_backbone_sees_parts_as_if_each_came_alone(strided: str, name: str) -> None:
    backbone = build_backbone(name, 2, last_relu=True).double().train()
    twin = copy.deepcopy(backbone)
    images = torch.randn(7, 2, 32, 32).double()
    features = embed_parts(backbone, images, (3, 4))
    expected = torch.cat([twin(images[:3]), twin(images[3:])])
    slopes = torch.randn(features.shape).double()
    features.backward(slopes)
    expected.backward(slopes)
    torch.testing.assert_close(features, expected, rtol=1e-9, atol=1e-9)
    for (label, values), (_, others) in zip(backbone.named_buffers(), twin.named_buffers(), strict=True):
        torch.testing.assert_close(values, others, rtol=1e-9, atol=1e-9, msg=label)
    for (label, values), (_, others) in zip(backbone.named_parameters(), twin.named_parameters(), strict=True):
        torch.testing.assert_close(values.grad, others.grad, rtol=1e-7, atol=1e-7, msg=label)


def test_a_plain_module_is_called_once_for_each_part_to_the_last_bit(strided: str) -> None:
    backbone = build_backbone(strided, 2, last_relu=True).train()
    twin = copy.deepcopy(backbone)
    images = torch.randn(7, 2, 32, 32)
    assert torch.equal(embed_parts(backbone, images, (3, 4)), torch.cat([twin(images[:3]), twin(images[3:])]))
    assert all(torch.equal(values, others) for values, others in zip(backbone.buffers(), twin.buffers(), strict=True))


@pytest.mark.parametrize("name", [*REGISTERED, "strided", "contracted"])
def test_parts_make_no_difference_in_evaluation(strided: str, name: str) -> None:
    backbone = build_backbone(name, 2, last_relu=False).eval()
    images = torch.randn(5, 2, 32, 32)
    assert torch.equal(embed_parts(backbone, images, (2, 3)), backbone(images))


@pytest.mark.slow
def test_a_registered_backbone_is_trained_by_its_name(
    strided: str, toy: Dataset, toy_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    recipe = toy_config("aux-only").recipe
    config = configure(toy, "aux-only", backbone=strided)
    config = RunConfig("toy", "aux-only", 1, 0, config.backbone, (), recipe, "toy-1")
    assert make_model(config, toy).prototypes.shape == (12, 128)
    assert train(config, toy, tmp_path / "run")["measures"]["h_mean"]["mean"] >= 0
