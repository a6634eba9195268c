import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from protograph._internal.errors import InputError
from protograph.episodes import seeded
from protograph.nn.backbones import (
    Centred,
    Conv4,
    Flatten,
    ResidualBlock,
    ResNet12,
    build_backbone,
    can_drop,
    drop_block,
    feature_count,
    mixed,
)
from protograph.variants import VARIANTS, build


@pytest.mark.parametrize(
    ("name", "features", "parameters", "mega_macs"),
    [("conv4-64-128", 3200, 260_544, 124.5), ("conv4-128", 3200, 446_848, 364.0)],
)
def test_conv4_has_the_sizes_protocol_gives(name, features, parameters, mega_macs):
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        backbone = build_backbone(name, 3, last_relu=False)
        assert feature_count(backbone, (3, 84, 84)) == features
    assert sum(parameter.numel() for parameter in backbone.parameters()) == parameters
    assert counter.get_total_flops() / 2e6 == pytest.approx(mega_macs, rel=0.002)


def test_conv4_halves_the_side_four_times():
    side = torch.zeros(1, 3, 84, 84)
    sizes = [(side := block(side)).shape[-1] for block in Conv4((2, 2, 2, 2)).blocks]
    assert sizes == [42, 21, 10, 5]


def test_conv4_starts_with_the_std_protocol_says_and_no_bias():
    torch.manual_seed(0)
    for block, width in zip(Conv4((64, 64, 128, 128)).blocks, (64, 64, 128, 128), strict=True):
        conv = block[0]
        assert conv.bias is None
        assert conv.weight.shape[0] == width
        assert conv.weight.std().item() == pytest.approx(math.sqrt(2 / (9 * width)), rel=0.05)


def test_last_relu_takes_the_negative_features_away_and_changes_nothing_else():
    torch.manual_seed(0)
    without, kept = Conv4((8, 8, 8, 8), channels=1, last_relu=False), Conv4((8, 8, 8, 8), channels=1, last_relu=True)
    kept.load_state_dict(without.state_dict())
    images = torch.randn(16, 1, 16, 16)
    assert without(images).min() < 0
    assert torch.equal(kept(images), without(images).relu())


@pytest.mark.parametrize("last_relu", [True, False])
def test_in_evaluation_convolution_and_norm_are_one_and_the_numbers_those_of_the_layers(last_relu):
    torch.manual_seed(0)
    backbone = Conv4((8, 4, 8, 4), channels=3, last_relu=last_relu).double()
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            for values in (module.weight.data, module.bias.data, module.running_mean):
                values.normal_()
            module.running_var.uniform_(0.5, 2)
    images = torch.randn(3, 3, 21, 19).double()
    expected = backbone.eval().blocks(images).flatten(1)
    torch.testing.assert_close(backbone(images), expected, rtol=1e-12, atol=1e-12)


def test_a_mirroring_network_answers_the_mean_of_both_sides_but_trains_on_images_as_they_are():
    torch.manual_seed(0)
    plain, mirroring = Conv4((4, 8, 4, 8)).double(), Conv4((4, 8, 4, 8), mirror=True).double()
    images = torch.randn(6, 3, 20, 22).double()
    plain(images)  # batch norm has seen something
    mirroring.load_state_dict(plain.state_dict())
    for parts in (None, (2, 4)):
        assert torch.equal(mirroring.train()(images, parts), plain.train()(images, parts))
    one, other = plain.eval()(images), plain(torch.from_numpy(images.numpy()[..., ::-1].copy()))
    assert (one - other).abs().max() > 0.1
    torch.testing.assert_close(mirroring.eval()(images), (one + other) / 2, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(mirroring(images.flip(3)), mirroring(images), rtol=1e-12, atol=1e-12)


def test_the_network_of_128_channels_comes_with_and_without_its_mirror_image():
    both = [build_backbone(name, 3, last_relu=True) for name in ("conv4-128", "conv4-128-mirror")]
    assert [backbone.mirror for backbone in both] == [False, True]
    both[1].load_state_dict(both[0].state_dict())
    assert all(isinstance(backbone.blocks[-1][2], nn.ReLU) for backbone in both)


def test_build_passes_the_variants_last_relu_on():
    for last_relu in (True, False):
        variant = replace(VARIANTS["aux-only"], last_relu=last_relu)
        *_, last = build(variant, "conv4-32", (1, 16, 16), seen=3).backbone.blocks
        assert any(isinstance(module, nn.ReLU) for module in last) is last_relu


def test_resnet12_gives_640_features_at_84_pixels():
    with torch.device("meta"):
        assert feature_count(build_backbone("resnet12", 3, last_relu=True), (3, 84, 84)) == 640


@pytest.mark.parametrize("last_relu", [True, False])
def test_resnet12_leaves_out_the_last_activation_only(last_relu):
    with torch.device("meta"):
        blocks = ResNet12(last_relu=last_relu).blocks
    assert [isinstance(block.activation, nn.LeakyReLU) for block in blocks] == [True, True, True, last_relu]


def test_residual_block_adds_its_two_paths_then_activates_then_pools():
    torch.manual_seed(0)
    with_relu, without = ResidualBlock(2, 3, relu=True), ResidualBlock(2, 3, relu=False)
    without.load_state_dict(with_relu.state_dict())
    inputs = torch.randn(4, 2, 6, 6)
    outputs = without(inputs)
    assert outputs.shape == (4, 3, 3, 3)
    assert outputs.min() < 0
    torch.testing.assert_close(outputs, nn.functional.max_pool2d(without.path(inputs) + without.shortcut(inputs), 2))
    torch.testing.assert_close(with_relu(inputs), nn.functional.leaky_relu(outputs, 0.1))


def small_resnet(**options: bool) -> ResNet12:
    return ResNet12(widths=(2, 3, 4, 5), **options).double()


def test_a_mirroring_residual_net_averages_both_sides_in_evaluation_alone():
    torch.manual_seed(0)
    plain, mirroring = small_resnet(), small_resnet(mirror=True)
    images = torch.randn(4, 3, 18, 20).double()
    plain(images)
    mirroring.load_state_dict(plain.state_dict())
    assert torch.equal(mirroring.train()(images), plain.train()(images))
    one, other = plain.eval()(images), plain(images.flip(3))
    assert (one - other).abs().max() > 1e-3
    torch.testing.assert_close(mirroring.eval()(images), (one + other) / 2, rtol=1e-12, atol=1e-12)


def test_the_mirroring_residual_net_keeps_its_last_activation_whatever_is_asked():
    with torch.device("meta"):
        nets = [build_backbone("resnet12-mirror", 3, last_relu) for last_relu in (False, True)]
    assert all(net.mirror and isinstance(net.blocks[-1].activation, nn.LeakyReLU) for net in nets)


def squares(starts: Tensor, side: int, height: int, width: int) -> Tensor:
    """Positions [n, C, H, W] in squares that start where `starts` [n, C, H - side + 1, W - side + 1] is true, by loops."""
    inside = torch.zeros(*starts.shape[:2], height, width, dtype=torch.bool)
    for n, channel, row, column in starts.nonzero().tolist():
        inside[n, channel, row : row + side, column : column + side] = True
    return inside


@pytest.mark.parametrize(("height", "width", "side"), [(9, 11, 5), (5, 7, 5), (4, 8, 4), (1, 1, 1)])
def test_drop_block_drops_squares_where_its_draws_say(height: int, width: int, side: int):
    mask = drop_block((3, 4, height, width), torch.tensor(0.2), seeded(1))
    drawn = torch.rand(3, 4, height - side + 1, width - side + 1, generator=seeded(1))
    probability = 0.2 * height * width / (side**2 * (height - side + 1) * (width - side + 1))
    dropped = squares(drawn < probability, side, height, width)
    assert dropped.any()
    assert torch.equal(mask == 0, dropped)
    torch.testing.assert_close(mask[~dropped], torch.full_like(mask[~dropped], dropped.numel() / (~dropped).sum().item()))


def test_drop_block_drops_about_the_share_that_is_asked():
    dropped = (drop_block((64, 32, 10, 10), torch.tensor(0.1), seeded(0)) == 0).double().mean().item()
    assert 0.085 < dropped <= 0.1  # squares may overlap
    assert torch.equal(drop_block((2, 3, 10, 10), torch.tensor(0.0), seeded(0)), torch.ones(2, 3, 10, 10))


def test_masks_multiply_what_the_last_two_blocks_return():
    torch.manual_seed(0)
    net = small_resnet().train()
    images = torch.randn(6, 3, 32, 32).double()
    masks = [mask.double() for mask in net.drop_masks(images, torch.tensor(0.5), seeded(0))]
    assert [tuple(mask.shape) for mask in masks] == [(6, 4, 4, 4), (6, 5, 2, 2)]
    expected = net.blocks[2](net.blocks[1](net.blocks[0](images))) * masks[0]
    expected = (net.blocks[3](expected) * masks[1]).mean((2, 3))
    torch.testing.assert_close(net(images, None, masks), expected, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(net(images), expected)


def test_only_residual_nets_drop_activations():
    assert can_drop(small_resnet())
    assert not can_drop(Conv4((2, 2, 2, 2)))
    assert not can_drop(nn.Flatten())


@pytest.mark.parametrize(
    ("name", "positions"),
    [("conv4-32", (2, 3)), ("conv4-128-mirror", (2, 3)), ("resnet12", (2, 3)), ("resnet12-mirror", (2, 3))],
)
def test_scores_of_positions_add_up(name, positions):
    """Naively: by a loop over the channels of each position."""
    torch.manual_seed(0)
    backbone = build_backbone(name, 3, last_relu=False).eval()
    images = torch.randn(2, 3, 32, 48)
    with torch.no_grad():
        features = backbone(images)
        weights = torch.randn(features.shape[1])
        scores = backbone.score_map(images, weights)
    assert scores.shape == (2, *positions)
    torch.testing.assert_close(scores.sum((1, 2)), features @ weights, atol=1e-4, rtol=1e-4)
    for image in range(2):
        for row in range(positions[0]):
            for column in range(positions[1]):
                naive = naive_score(backbone, images[image], weights, row, column)
                assert scores[image, row, column].item() == pytest.approx(naive, abs=1e-4)


def naive_score(backbone, image, weights, row, column):
    """The score of one position, from the outputs of the last block."""
    sides = [image, image.flip(-1)] if getattr(backbone, "mirror", False) else [image]
    total = 0.0
    with torch.no_grad():
        for side in sides:
            maps = backbone.blocks(side[None])[0]
            height, width = maps.shape[1:]
            at = column if side is image else width - 1 - column
            for channel in range(maps.shape[0]):
                if isinstance(backbone, ResNet12):
                    total += (weights[channel] * maps[channel, row, at]).item() / (height * width)
                else:
                    total += (weights[(channel * height + row) * width + at] * maps[channel, row, at]).item()
    return total / len(sides)


def test_identity_backbone_flattens_and_learns_nothing():
    backbone = build_backbone("identity", 7, last_relu=False)
    assert isinstance(backbone, Flatten)
    assert not list(backbone.parameters())
    features = torch.randn(3, 7, 1, 1)
    assert torch.equal(backbone(features), features.flatten(1))
    assert feature_count(backbone, (7,)) == feature_count(backbone, (7, 1, 1)) == 7


def test_any_module_can_be_a_backbone():
    own = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    model = build(VARIANTS["aux-only"], own, (3, 2, 2), seen=4)
    assert model.backbone is own
    assert model.prototypes.shape == (4, 5)
    assert model.embed(torch.rand(6, 3, 2, 2)).shape == (6, 5)


def test_counting_features_leaves_the_backbone_as_it_was():
    backbone = Conv4((2, 2, 2, 2))
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    feature_count(backbone, (3, 16, 16))
    assert backbone.training
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())
    backbone.eval()
    feature_count(backbone, (3, 16, 16))
    assert not backbone.training


def test_backbone_must_answer_one_row_per_image():
    with pytest.raises(ValueError, match=r"\[n, D\].*\(1, 3, 4, 4\)"):
        feature_count(nn.Identity(), (3, 4, 4))


def test_unknown_backbone_names_the_nearest():
    with pytest.raises(InputError, match=r"'conv4-126'.*conv4-128"):
        build_backbone("conv4-126", 3, last_relu=False)


def test_features_are_centred_at_the_mean_of_their_classes_and_prototypes_lie_as_far_from_it() -> None:
    features = torch.rand(20, 4, generator=seeded(0)) + 3
    one, other = features[:15], features[15:]
    centred = Centred.of([one, other])
    mean = torch.stack([one[:, column].sum() / 30 + other[:, column].sum() / 10 for column in range(4)])
    torch.testing.assert_close(centred(features), torch.stack([row - mean for row in features]))
    far = sum((row - mean).norm().item() / 30 for row in one) + sum((row - mean).norm().item() / 10 for row in other)
    torch.testing.assert_close(centred.back(5 * torch.eye(4)[:2]), mean + far * torch.eye(4)[:2])
    assert Centred(torch.zeros(4)).back(2 * torch.eye(4)).equal(torch.eye(4))
    assert torch.equal(Centred.of([one])(one), one), "of a single class nothing would be left"


def test_the_first_maps_are_mixed_with_one_another_by_their_shares():
    maps, shares = torch.randn(5, 2, 3, 3, generator=seeded(0)), torch.tensor([0.25, 0.0, 1.0])
    found = mixed(maps, shares)
    torch.testing.assert_close(found[0], 0.75 * maps[0] + 0.25 * maps[2])
    assert torch.equal(found[1], maps[1])
    torch.testing.assert_close(found[2], maps[0])
    assert torch.equal(found[3:], maps[3:])


@pytest.mark.parametrize("depth", range(4))
def test_the_residual_net_mixes_before_the_block_that_has_shares(depth: int):
    backbone = ResNet12(3, widths=(2, 3, 4, 5)).eval()
    images, none = torch.randn(4, 3, 16, 16, generator=seeded(0)), torch.zeros(4)
    shares = torch.tensor([0.3, 0.5, 0.1, 0.8])
    maps = images
    for position, block in enumerate(backbone.blocks):
        if position == depth:
            maps = torch.stack([(1 - shares[i]) * maps[i] + shares[i] * maps[3 - i] for i in range(4)])
        maps = block(maps)
    mixes = [shares if position == depth else none for position in range(4)]
    torch.testing.assert_close(backbone(images, mixes=mixes), maps.mean((2, 3)))
    assert torch.equal(backbone(images, mixes=[none] * 4), backbone(images))
