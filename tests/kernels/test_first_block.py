import copy

import pytest
import torch
from torch import nn

from kernels.test_norm_pool import PARTS, naive, near, rand, started
from protograph.nn.backbones import Conv4, conv_block

pytestmark = pytest.mark.gpu


def block(channels: int, outputs: int) -> nn.Sequential:
    """A backbone's first block, with weights that bfloat16 has, too."""
    layers = started(Conv4((outputs, 16, 16, 16), channels)).blocks[0]
    layers[0].weight.data = layers[0].weight.data.bfloat16().float()
    return layers


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """As close as numbers are that are rounded on the way: in bfloat16 alike but for a hundredth of their size."""
    rounding = 1e-2 if actual.is_cuda else 1e-5
    assert (actual.double() - expected).norm() <= rounding * expected.norm()


@pytest.mark.slow
@pytest.mark.kernel
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize(
    ("channels", "outputs", "size"), [(3, 64, (10, 10)), (3, 128, (6, 8)), (3, 16, (2, 4)), (1, 32, (6, 12)), (2, 16, (12, 6))]
)
def test_the_first_block_is_convolution_norm_relu_and_pool(kernels, parts, channels, outputs, size):
    from protograph.kernels.first_block import conv_norm_relu_pool

    layers = block(channels, outputs).to(kernels)
    exact = copy.deepcopy(layers).double()
    images = rand(9, channels, *size).bfloat16().double().to(kernels)
    actual, expected = conv_norm_relu_pool(images.float(), layers[0], layers[1], parts), naive(exact, images, parts)
    close(actual, expected)
    slopes = rand(*actual.shape, seed=1).bfloat16().double().to(kernels)
    actual.backward(slopes.to(actual.dtype))
    expected.backward(slopes)
    for one, other in zip(layers.parameters(), exact.parameters(), strict=True):
        close(one.grad, other.grad)
    for one, other in zip(layers.buffers(), exact.buffers(), strict=True):
        near(one.double(), other.double())


@pytest.mark.kernel
def test_the_first_block_hides_no_nan(kernels):
    from protograph.kernels.first_block import conv_norm_relu_pool

    layers = block(3, 16).to(kernels)
    images = torch.full((4, 3, 6, 6), torch.nan, device=kernels)
    assert conv_norm_relu_pool(images, layers[0], layers[1], (1, 3)).isnan().all()


@pytest.mark.parametrize("parts", PARTS)
def test_a_backbone_opens_with_it_in_bfloat16(parts):
    layers = block(3, 64).cuda()
    exact = copy.deepcopy(layers).double()
    images = rand(9, 3, 84, 84).bfloat16().cuda()
    with torch.autocast("cuda", torch.bfloat16):
        actual = conv_block(layers, images.float(), parts)
    assert type(actual.grad_fn).__name__ == "_FirstBlockBackward"
    close(actual, naive(exact, images.double(), parts))


@pytest.mark.parametrize(("side", "half", "gradient"), [(6, False, False), (6, True, True), (7, True, False)])
def test_in_float32_for_odd_sizes_or_where_its_images_need_a_gradient_the_first_block_is_its_layers(side, half, gradient):
    images = rand(4, 3, side, side).float().cuda().requires_grad_(gradient)
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        assert type(conv_block(block(3, 16).cuda(), images, (4,)).grad_fn).__name__ != "_FirstBlockBackward"
