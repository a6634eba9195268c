import copy

import pytest
import torch
from torch import nn

from nn.naive import close, rand
from protograph.nn.backbones import Conv4, conv_block

PARTS = ((9,), (2, 7), (5, 4), (1, 8))


def started(module, seed=0):
    """A module whose norms have weights, biases and running statistics of their own."""
    generator = torch.Generator().manual_seed(seed)
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            for values in (norm.weight, norm.bias, norm.running_mean):
                if values is not None:
                    values.data.normal_(generator=generator)
    return module


def naive(layers, inputs, parts):
    """Each part through the layers by itself, as if it came in a call of its own."""
    return torch.cat([layers(part) for part in torch.split(inputs, list(parts))])


def assert_same_training(module, twin, compare):
    """Parameters with their gradients, and running statistics."""
    for (name, one), other in zip(module.named_parameters(), twin.parameters(), strict=True):
        assert one.grad.any(), name
        compare(one.grad, other.grad)
    for one, other in zip(module.buffers(), twin.buffers(), strict=True):
        compare(one, other)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("parts", [*PARTS, (2, 3, 4)])
def test_a_block_norms_each_part_as_if_it_came_alone(parts, relu):
    layers = (nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU() if relu else nn.Identity())
    block = started(nn.Sequential(*layers, nn.MaxPool2d(2)).double())
    twin = copy.deepcopy(block)
    inputs = rand(9, 3, 7, 6).requires_grad_()
    same = inputs.detach().clone().requires_grad_()
    outputs, expected = conv_block(block, inputs, parts), naive(twin, same, parts)
    close(outputs, expected)
    slopes = rand(*outputs.shape, seed=1)
    outputs.backward(slopes)
    expected.backward(slopes)
    close(inputs.grad, same.grad)
    assert_same_training(block, twin, close)


@pytest.mark.parametrize("last_relu", [True, False])
@pytest.mark.parametrize("parts", [None, *PARTS])
def test_a_backbone_norms_each_part_as_if_it_came_alone(parts, last_relu):
    backbone = started(Conv4((2, 3, 2, 4), last_relu=last_relu).double())
    twin = copy.deepcopy(backbone)
    images = rand(9, 3, 19, 32)
    outputs, expected = backbone(images, parts), naive(nn.Sequential(twin.blocks, nn.Flatten()), images, parts or (9,))
    close(outputs, expected)
    slopes = rand(*outputs.shape, seed=1)
    outputs.backward(slopes)
    expected.backward(slopes)
    assert_same_training(backbone, twin, close)


def test_parts_make_a_difference():
    backbone = started(Conv4((2, 3, 2, 4)).double())
    images = rand(9, 3, 16, 16)
    assert not torch.allclose(backbone(images, (4, 5)), backbone(images))


@pytest.mark.parametrize("parts", PARTS)
def test_in_evaluation_parts_make_none(parts):
    backbone = started(Conv4((2, 3, 2, 4)).double()).eval()
    before = copy.deepcopy(backbone.state_dict())
    images = rand(9, 3, 16, 16)
    close(backbone(images, parts), backbone(images))
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


def near(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.kernel
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("size", [(10, 10), (9, 7), (7, 12), (2, 3)])
@pytest.mark.parametrize("channels", [1, 32, 128])
def test_the_fused_function_is_norm_relu_and_pool(kernels, parts, relu, size, channels):
    from protograph.kernels.norm_pool import norm_relu_pool

    norm = started(nn.BatchNorm2d(channels)).to(kernels)
    layers = nn.Sequential(copy.deepcopy(norm), nn.ReLU() if relu else nn.Identity(), nn.MaxPool2d(2)).double()
    # In steps of 1/8, so that of two values the same is larger, or both are alike, however they are rounded.
    inputs = (rand(9, channels, *size).mul(24).round() / 8 + 1).float().to(kernels).requires_grad_()
    exact = inputs.detach().double().requires_grad_()
    outputs, expected = norm_relu_pool(inputs, norm, relu, parts), naive(layers, exact, parts)
    assert outputs.dtype == torch.float32
    near(outputs.double(), expected)
    slopes = rand(*outputs.shape, seed=1).to(kernels)
    outputs.backward(slopes.float())
    expected.backward(slopes)
    near(inputs.grad.double(), exact.grad)
    assert_same_training(norm, layers[0], lambda one, other: near(one.double(), other.double()))


@pytest.mark.gpu
@pytest.mark.parametrize("parts", PARTS)
def test_a_fused_backbone_is_the_plain_one(parts):
    backbone = started(Conv4((16, 32, 16, 64))).cuda()
    twin = copy.deepcopy(backbone).double()
    images = rand(9, 3, 42, 42).cuda()
    with torch.backends.cudnn.flags(allow_tf32=False):
        outputs = backbone(images.float(), parts)
        outputs.square().mean().backward()
    expected = naive(nn.Sequential(twin.blocks, nn.Flatten()), images, parts)
    expected.square().mean().backward()
    torch.testing.assert_close(outputs.double(), expected, rtol=1e-3, atol=1e-3)
    for one, other in zip(backbone.parameters(), twin.parameters(), strict=True):
        assert (one.grad - other.grad).norm() < 1e-2 * other.grad.norm()


@pytest.mark.gpu
@pytest.mark.kernel
def test_the_fused_function_does_without_running_statistics(kernels):
    from protograph.kernels.norm_pool import norm_relu_pool

    norm = started(nn.BatchNorm2d(8, track_running_stats=False)).to(kernels)
    inputs = rand(5, 8, 6, 6).float().to(kernels)
    near(norm_relu_pool(inputs, norm, True, (2, 3)), naive(nn.Sequential(norm, nn.ReLU(), nn.MaxPool2d(2)), inputs, (2, 3)))


@pytest.mark.gpu
@pytest.mark.kernel
def test_a_variance_is_never_negative(kernels):
    from protograph.kernels.norm_pool import norm_relu_pool

    inputs = torch.full((6, 8, 6, 6), 300.1, device=kernels)  # whose squares' mean less its mean's square is
    outputs = norm_relu_pool(inputs, nn.BatchNorm2d(8).to(kernels), False, (6,))
    assert (outputs.abs() < 1).all()


@pytest.mark.gpu
@pytest.mark.kernel
@pytest.mark.parametrize("block", [4, 16])
@pytest.mark.parametrize("parts", [(5,), (2, 3), (4, 1), (1, 7)])
def test_every_row_belongs_to_one_program_and_to_its_own_part(kernels, parts, block):
    from nn.counting import count
    from protograph.kernels.norm_pool import plan_programs

    programs, rows = plan_programs(parts, 6, block)
    times, found = torch.zeros(2, rows[0], dtype=torch.int32, device=kernels)
    count[(programs,)](times, found, *rows, BLOCK=block)
    assert (times == 1).all()
    assert found.tolist() == [part for part, images in enumerate(parts) for _ in range(6 * images)]


@pytest.mark.gpu
@pytest.mark.kernel
def test_parts_that_are_not_all_images_are_refused_by_the_fused_function(kernels):
    from protograph.kernels.norm_pool import norm_relu_pool

    with pytest.raises(ValueError, match="parts have 5 of 6 images"):
        norm_relu_pool(torch.zeros(6, 4, 4, 4, device=kernels), nn.BatchNorm2d(4).to(kernels), True, (2, 3))


@pytest.mark.gpu
@pytest.mark.kernel
@pytest.mark.parametrize("relu", [True, False])
def test_the_fused_function_hides_no_nan(kernels, relu):
    from protograph.kernels.norm_pool import norm_relu_pool

    inputs = torch.full((4, 8, 6, 6), torch.nan, device=kernels)
    assert norm_relu_pool(inputs, nn.BatchNorm2d(8).to(kernels), relu, (1, 3)).isnan().all()


@pytest.mark.gpu
@pytest.mark.kernel
def test_more_than_two_parts_are_refused_by_the_fused_function(kernels):
    from protograph.kernels.norm_pool import norm_relu_pool

    with pytest.raises(ValueError, match="one or two parts, not 3"):
        norm_relu_pool(torch.zeros(6, 4, 4, 4, device=kernels), nn.BatchNorm2d(4).to(kernels), True, (2, 2, 2))
