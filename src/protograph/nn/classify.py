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


class GaussianClassifier(nn.Module):
    r"""Logits of a Gaussian model in which the mean of a class is uncertain, and more so the fewer examples it has.

    Embedded images of a class are spread evenly around its mean, and class means around their expected value
    :math:`\mu_n`. From k examples with mean :math:`\bar x_n` follows

    .. math:: m_n = \frac{k \bar x_n + \kappa \mu_n}{k + \kappa}, \quad v_n = \frac{1}{k + \kappa}, \quad
              \ell_n(u) = \tau - \tau \frac{\|u - m_n\|^2}{1 + \gamma v_n} - \frac{\delta}{2} \ln(1 + v_n) + \beta_n,

    so a class from one image competes fairly with one from hundreds. With :math:`\|u\| = 1` this is linear in u.

    Args:
        kappa: By how many examples the expected mean counts.
        temperature: :math:`\tau`.
        dimensions: :math:`\delta`, the number of dimensions in which an uncertain mean costs density.
        widening: :math:`\gamma`, by how much an uncertain mean widens the spread of a class.

    """

    def __init__(self, kappa: float = 1.0, temperature: float = 20.0, dimensions: float = 25.0, widening: float = 1.0) -> None:
        super().__init__()
        start = torch.tensor([kappa, temperature, dimensions, widening], dtype=torch.float64)
        self.logarithms = nn.Parameter(start.log())  # all of them are positive

    @property
    def values(self) -> Tensor:
        r"""The values [4] of :math:`\kappa`, :math:`\tau`, :math:`\delta` and :math:`\gamma`."""
        return self.logarithms.exp()

    def linear(self, means: Tensor, precisions: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        r"""Return weights [V, D] and biases [V] with :math:`\ell(u) = A u + b` for u of length 1.

        Args:
            means: m [V, D].
            precisions: :math:`k + \kappa` [V], the inverse of v.
            offsets: :math:`\beta` [V].

        """
        factors, biases = self.scores(means.square().sum(-1), precisions)
        return 2 * factors[:, None] * means, biases + offsets

    def scores(self, squares: Tensor, precisions: Tensor) -> tuple[Tensor, Tensor]:
        r"""Return :math:`\tau / (1 + \gamma v)` [V], and logits less their products with u [V], from :math:`\|m\|^2` [V]."""
        _, temperature, dimensions, widening = self.values
        factors = temperature / (1 + widening / precisions)
        return factors, temperature - factors * (1 + squares) - dimensions / 2 * torch.log1p(1 / precisions)


LEAST_RANGE, LARGEST_RANGE = 1 / 8, 8.0  # of an image's logits, in usual ones, where tempering ends


def tempering(logits: Tensor, usual: float, power: float) -> Tensor:
    r"""Return the factor [..., 1] by which logits [..., V] become milder where one class stands out more than usual,

    .. math:: t = \Big(\frac{\max_n \ell_n - \operatorname{mean}_n \ell_n}{r}\Big)^{-p}.

    Images of length 1 share out their length between what tells classes apart and what does not. So one that is told apart
    badly has small logits, and more reason to trust their order than a softmax gives; one told apart well, less.

    Args:
        logits: Logits.
        usual: The usual range r.
        power: p; with 0, the factor is 1.

    """
    return milder(logits.amax(-1, keepdim=True) - logits.mean(-1, keepdim=True), usual, power)


def milder(spread: Tensor, usual: float, power: float) -> Tensor:
    """Return the factor of `tempering` for logits whose largest is so much above their mean."""
    return (spread / usual).clamp(LEAST_RANGE, LARGEST_RANGE) ** -power
