import copy

import pytest
import torch
from torch import nn

from nn.test_fused import PARTS, naive, needs_triton, rand, started
from protograph.nn.backbones import Conv4, conv_block

pytestmark = [pytest.mark.gpu, needs_triton]


def block(channels: int, outputs: int) -> nn.Sequential:
    """A backbone's first block, with weights that bfloat16 has, too."""
    layers = started(Conv4((outputs, 16, 16, 16), channels)).blocks[0].cuda()
    layers[0].weight.data = layers[0].weight.data.bfloat16().float()
    return layers


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """As close as numbers are that bfloat16 rounds on the way: alike but for a hundredth of their size."""
    assert (actual.double() - expected).norm() <= 1e-2 * expected.norm()


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("size", [(10, 10), (84, 84), (6, 12), (2, 4)])
@pytest.mark.parametrize(("channels", "outputs"), [(3, 64), (3, 128), (1, 32), (2, 16)])
def test_the_first_block_is_convolution_norm_relu_and_pool(parts, size, channels, outputs):
    layers = block(channels, outputs)
    exact = copy.deepcopy(layers).double()
    pictures = rand(9, channels, *size).bfloat16().double().cuda()
    with torch.autocast("cuda", torch.bfloat16):
        actual = conv_block(layers, pictures.float(), parts)
    expected = naive(exact, pictures, parts)
    assert type(actual.grad_fn).__name__ == "_OpeningBackward"
    close(actual, expected)
    slopes = rand(*actual.shape, seed=1).bfloat16().double().cuda()
    actual.backward(slopes.bfloat16())
    expected.backward(slopes)
    for one, other in zip(layers.parameters(), exact.parameters(), strict=True):
        close(one.grad, other.grad)
    for one, other in zip(layers.buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-4)


def test_the_first_block_hides_no_nan():
    pictures = torch.full((4, 3, 6, 6), torch.nan, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        assert conv_block(block(3, 16), pictures, (1, 3)).isnan().all()


@pytest.mark.parametrize(("side", "half", "gradient"), [(6, False, False), (6, True, True), (7, True, False)])
def test_in_float32_for_odd_sizes_or_where_its_pictures_need_a_gradient_the_first_block_is_its_layers(side, half, gradient):
    pictures = rand(4, 3, side, side).float().cuda().requires_grad_(gradient)
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        assert type(conv_block(block(3, 16), pictures, (4,)).grad_fn).__name__ != "_OpeningBackward"
