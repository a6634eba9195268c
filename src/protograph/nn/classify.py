"""Features and prototypes -> logits."""

import torch
from torch import Tensor, nn


def normalise(rows: Tensor) -> Tensor:
    r"""Return rows of unit length, :math:`\bar x = x / \|x\|`; a row of zeros stays zero, with gradient zero."""
    squares = rows.square().sum(-1, keepdim=True)
    zero = squares < torch.finfo(rows.dtype).tiny
    return rows * squares.masked_fill(zero, 1).rsqrt().masked_fill(zero, 0)


class CosineClassifier(nn.Module):
    r"""Logits :math:`\tau \cos(z, c'_n)` with a learnable temperature.

    Args:
        temperature: the start of :math:`\tau`

    """

    def __init__(self, temperature: float = 10.0) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(temperature))

    def forward(self, queries: Tensor, prototypes: Tensor) -> Tensor:
        """Return logits [E, Q, V] of queries [E, Q, D] and prototypes [E, V, D]."""
        return self.temperature * (normalise(queries) @ normalise(prototypes).mT)


class SquaredDistance(nn.Module):
    r"""Prototypical Networks' logits :math:`-\alpha \|z - c'_n\|^2 / D` with a learnable scale.

    Args:
        scale: the start of :math:`\alpha`

    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, queries: Tensor, prototypes: Tensor) -> Tensor:
        """Return logits [E, Q, V] of queries [E, Q, D] and prototypes [E, V, D]; its memory does not grow with Q x V x D."""
        squares = queries.square().sum(-1)[..., :, None] + prototypes.square().sum(-1)[..., None, :]
        return -self.scale / queries.shape[-1] * (squares - 2 * queries @ prototypes.mT)
