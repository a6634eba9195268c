"""Batch norm for networks that are adapted to an episode."""

import torch
from torch import Tensor, nn


class EpisodicNorm(nn.Module):
    """Batch norm by the statistics of the images at hand, without running ones, so that `torch.func` can transform it.

    Args:
        norm: The batch norm that it replaces.

    Attributes:
        reference: How many of the images, the first ones, give the statistics; None: all of them.

    """

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        self.reference: int | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        """Return inputs [n, C, H, W] normalised."""
        # Written out, since the second derivatives of PyTorch's `batch_norm` are wrong under `vmap` of `grad` (PyTorch 2.13).
        source = inputs[: self.reference].to(torch.promote_types(inputs.dtype, torch.float32))
        mean = source.mean((0, 2, 3), keepdim=True)
        variance = (source - mean).square().mean((0, 2, 3), keepdim=True)
        scale = self.weight[:, None, None] * (variance + self.eps).rsqrt()
        return ((inputs - mean) * scale + self.bias[:, None, None]).to(inputs.dtype)


def replace_norms(network: nn.Module) -> nn.Module:
    """Replace every `BatchNorm2d` inside a network by an `EpisodicNorm` with the same weights, and return the network."""
    for name, module in network.named_children():
        if isinstance(module, nn.BatchNorm2d):
            setattr(network, name, EpisodicNorm(module))
        else:
            replace_norms(module)
    return network


def set_reference(network: nn.Module, reference: int | None) -> None:
    """Let all norms take their statistics from the first `reference` images; None: from all images."""
    for module in network.modules():
        if isinstance(module, EpisodicNorm):
            module.reference = reference
