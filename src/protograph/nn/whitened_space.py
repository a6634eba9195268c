"""A space of features in which images spread alike in all directions around the means of their classes.

Shapes: n images, T training classes, D features.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from protograph.nn.classify import normalise


def aligned(features: Tensor, centre: Tensor) -> Tensor:
    """Return features [n, D] of length 1, less a centre [D], of length 1 again."""
    return normalise(normalise(features) - centre)


@dataclass(frozen=True)
class FeatureSpread:
    """How the features of training images spread around the means of their classes.

    Attributes:
        centre: Mean [D] over classes of their mean feature of length 1.
        means: Mean [T, D] of the aligned features of each class.
        covariance: Covariance [D, D] of aligned features within classes.

    """

    centre: Tensor
    means: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, classes: Sequence[Tensor]) -> "FeatureSpread":
        """Return the spread of the features [n, D] of each class, computed in float64."""
        wide = [features.double() for features in classes]
        centre = torch.stack([normalise(features).mean(0) for features in wide]).mean(0)
        rows = [aligned(features, centre) for features in wide]
        means = torch.stack([features.mean(0) for features in rows])
        scatter = torch.zeros(len(centre), len(centre), dtype=torch.float64, device=centre.device)
        for features, mean in zip(rows, means, strict=True):
            residuals = features - mean
            scatter += residuals.T @ residuals
        freedom = sum(map(len, rows)) - len(rows)
        return cls(centre, means, scatter / max(1, freedom))

    def whitening(self, shrinkage: float) -> Tensor:
        r"""Return the symmetric matrix [D, D], for a shrinkage :math:`\sigma` from 0 to 1,

        .. math:: W = \Big((1 - \sigma) \frac{\Sigma}{\bar s} + \sigma I\Big)^{-1/2},

        where :math:`\Sigma` is the covariance within classes and :math:`\bar s` its mean variance. With :math:`\sigma = 1`
        it is the identity. A direction without any spread counts as one of the smallest that is above rounding.
        """
        variances, directions = torch.linalg.eigh(self.covariance)
        mean = variances.mean()
        if mean <= 0:
            return torch.eye(len(variances), dtype=variances.dtype, device=variances.device)
        shrunk = (1 - shrinkage) * variances / mean + shrinkage
        smallest = 1e-9 * shrunk.max()
        matrix: Tensor = (directions * shrunk.clamp(min=smallest).rsqrt()) @ directions.T
        return matrix


class WhitenedSpace(nn.Module):
    r"""Features x -> :math:`W \, \overline{\bar x - c}`, where the bar makes the length 1; see `FeatureSpread.whitening`.

    Centre and matrix are computed from the features of a start, and stay as they are when the backbone is trained further.

    Args:
        features: D

    """

    centre: Tensor
    matrix: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(features))
        self.register_buffer("matrix", torch.eye(features))

    def fit(self, spread: FeatureSpread, shrinkage: float) -> Tensor:
        """Take centre and matrix from a spread, and return the class means [T, D] in this space."""
        matrix = spread.whitening(shrinkage)
        self.centre.copy_(spread.centre)
        self.matrix.copy_(matrix)
        return spread.means @ matrix

    def forward(self, features: Tensor) -> Tensor:
        """Return features [n, D] in this space."""
        return aligned(features, self.centre.to(features.dtype)) @ self.matrix.to(features.dtype)
