"""One name space for backbones."""

import copy
from dataclasses import replace

import pytest
import torch

from data.layouts import blocks
from encoders.images import backbone_weights, tiny_encoder
from protograph._internal.errors import InputError
from protograph.encoders import backbone_title, check_trainable, open_encoder, strongest_backbone, usual_copies
from protograph.encoders.efficientnet_lite import RELEASES
from protograph.encoders.registry import resolve_backbone
from protograph.nn.backbones import BACKBONES, build_backbone


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("conv4", ("shipped", "conv4")),
        ("efficientnet-lite2", ("efficientnet-lite", "efficientnet-lite2")),
        ("timm:resnet18@a:b", ("timm", "resnet18@a:b")),
        ("transformers:facebook/dino", ("transformers", "facebook/dino")),
        ("resnet12", ("registered", "resnet12")),
    ],
)
def test_every_name_has_one_meaning(name: str, expected: tuple[str, str]) -> None:
    assert resolve_backbone(name) == expected


def test_an_unknown_name_is_refused_alike_everywhere_with_all_that_there_are() -> None:
    for function in (resolve_backbone, open_encoder, check_trainable):
        with pytest.raises(InputError, match=r"unknown backbone 'xyz': known: conv4, conv4-128, .*resnet12-mirror, timm:NAME"):
            function("xyz")
    with pytest.raises(InputError, match="backbone 'timm:' names no model: give timm:NAME"):
        open_encoder("timm:")


def test_only_registered_backbones_are_trained() -> None:
    check_trainable("conv4-64")
    for name in ("conv4", "timm:resnet18"):
        with pytest.raises(InputError, match=f"backbone '{name}' is pretrained and stays frozen: .*conv4-64"):
            check_trainable(name)


def test_a_registered_backbone_is_an_encoder_if_its_builder_gives_it_trained_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    network = build_backbone("conv4-32", 3, False)
    network.load_state_dict(dict(backbone_weights(1, 3, "conv4-32")))
    monkeypatch.setitem(BACKBONES, "trained", lambda channels, last_relu: copy.deepcopy(network))
    encoder = open_encoder("trained", device=torch.device("cpu"))
    images = [blocks(84, 84, 3, seed) for seed in range(2)]
    again = open_encoder(encoder.description(), encoder.tensors(), torch.device("cpu"))
    assert torch.equal(encoder.encode(images), again.encode(images))
    for name, weights in encoder.tensors().items():
        assert torch.equal(weights, network.state_dict()[name])
    with pytest.raises(InputError, match="backbone 'conv4-32' has no trained weights: train it"):
        open_encoder("conv4-32")


def test_the_default_is_the_strongest_whose_weights_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert strongest_backbone() == "efficientnet-lite0"
    monkeypatch.setitem(RELEASES, "efficientnet-lite0", replace(RELEASES["efficientnet-lite0"], module="no_such_module"))
    assert strongest_backbone() == "conv4"


def test_a_described_backbone_has_the_name_that_opens_it() -> None:
    assert backbone_title(open_encoder("efficientnet-lite0", size=32).description()) == "efficientnet-lite0"
    assert backbone_title(tiny_encoder().description()) == "conv4-32"
    assert backbone_title({"kind": "timm", "name": "resnet18"}) == "timm:resnet18"


def test_only_networks_of_little_training_get_augmented_copies() -> None:
    assert usual_copies(tiny_encoder()) == 4
    assert usual_copies(open_encoder("efficientnet-lite0", size=32)) == 0


def test_a_backbone_of_one_size_takes_no_other() -> None:
    with pytest.raises(InputError, match=r"'conv4' takes images of 84 x 84 pixels, not 128: leave out --size, or choose effic"):
        open_encoder("conv4", size=128)
    assert open_encoder("conv4", size=84).preparation.shape == (3, 84, 84)
