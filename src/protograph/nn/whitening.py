"""Features whitened by the covariance within classes.

Shapes: n images, C classes, D features, r directions of the largest spread.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from protograph.nn.classify import normalise

DIRECTIONS = 256  # r: along all others, the spread counts as equal
LARGEST_EXACT = 1500  # rows or columns of a matrix that is decomposed exactly; of a larger one, a random sketch is
SKETCH_SEED = 0


@dataclass(frozen=True)
class WithinSpread:
    r"""How examples spread around the means of their classes: the scatter :math:`S = F^\top F + \text{rest}` of low rank.

    Attributes:
        rows: F [r, D], orthogonal rows.
        rest: The trace of what F leaves out, spread evenly over the other directions.
        freedom: The degrees of freedom: the number of examples less the number of classes.

    """

    rows: Tensor
    rest: float
    freedom: int

    @classmethod
    def of(cls, residuals: Tensor, freedom: int, rest: float = 0.0, directions: int = DIRECTIONS) -> "WithinSpread":
        """Return the spread of residuals [n, D] with so many degrees of freedom, by so many directions at most."""
        rows = strongest_rows(residuals.double(), directions)
        left_out = residuals.double().square().sum() - rows.square().sum()
        return cls(rows, rest + max(0.0, left_out.item()), freedom)

    @classmethod
    def of_scatter(cls, scatter: Tensor, freedom: int, directions: int = DIRECTIONS) -> "WithinSpread":
        """Return the spread of residuals with the scatter [D, D], which has so many degrees of freedom."""
        rows = strongest_of_scatter(scatter.double(), directions)
        return cls(rows, max(0.0, scatter.double().trace().item() - rows.square().sum().item()), freedom)

    def floor(self, strength: float) -> float:
        """Return the strength of a shrinkage, in degrees of freedom, times the mean variance."""
        return strength * (self.rows.double().square().sum().item() + self.rest) / (max(1, self.freedom) * self.rows.shape[1])

    def explained(self, strength: float) -> float:
        r"""Return :math:`\operatorname{tr}(S (S + \lambda \bar s I)^{-1})` for the strength :math:`\lambda` of a shrinkage."""
        squares, others = self.rows.double().square().sum(1), self.rows.shape[1] - len(self.rows)
        floor, evenly = self.floor(strength), self.rest / max(1, others)
        if not floor + evenly:
            return 0.0
        return (squares / (squares + floor)).sum().item() + others * evenly / (evenly + floor)

    def with_residuals(self, residuals: Tensor, freedom: int, directions: int = DIRECTIONS) -> "WithinSpread":
        """Return the spread with more residuals [n, D], by so many directions at most."""
        if not len(residuals) or not freedom:
            return self
        rows = torch.cat([self.rows.double(), residuals.double()])
        return WithinSpread.of(rows, self.freedom + freedom, self.rest, directions)


def strongest_rows(rows: Tensor, count: int = DIRECTIONS) -> Tensor:
    """Return orthogonal rows [r, D] whose scatter is that of rows [n, D] along its r strongest directions.

    There are at most as many as `count`; of a matrix that is not decomposed exactly, at most `DIRECTIONS`.
    """
    if not rows.numel():
        return rows[:0]
    if min(rows.shape) > LARGEST_EXACT:
        count = min(count, DIRECTIONS)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(SKETCH_SEED)
            _, values, vectors = torch.svd_lowrank(rows.float(), count + 16, niter=2)
        return (values[:, None] * vectors.T)[:count].to(rows)
    if rows.shape[0] > rows.shape[1]:
        return strongest_of_scatter(rows.T @ rows, count)
    _, vectors = _strongest(rows @ rows.T, count)
    rows_kept: Tensor = vectors.T @ rows
    return rows_kept


def strongest_of_scatter(scatter: Tensor, count: int = DIRECTIONS) -> Tensor:
    """Return orthogonal rows [r, D] whose scatter is a given one [D, D] along its r strongest directions."""
    squares, vectors = _strongest(scatter, count)
    return squares.sqrt()[:, None] * vectors.T


def _strongest(matrix: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest eigenvalues [r] of a matrix, those near zero left out, and the eigenvectors as columns."""
    squares, vectors = torch.linalg.eigh(matrix)
    kept = squares.flip(0)[:count] > 1e-9 * squares[-1].clamp(min=torch.finfo(matrix.dtype).tiny)
    return squares.flip(0)[:count][kept], vectors.flip(1)[:, :count][:, kept]


@dataclass(frozen=True)
class Whitening:
    r"""Features x -> vectors u of length 1, in which the classes have equal spread in all directions,

    .. math:: u = \overline{W t}, \quad t = \overline{\overline{x^p} - c}, \quad
              W = \Big(\frac{S + \lambda \bar s I}{\nu + \lambda}\Big)^{-1/2},

    where the bar makes the length 1, :math:`x^p` keeps the sign, S is the scatter within classes with :math:`\nu` degrees of
    freedom, and :math:`\bar s` is its mean variance. The stronger :math:`\lambda`, the more W is like the identity.

    Attributes:
        power: p.
        centre: c [D].
        directions: The directions [r, D] along which W differs from a multiple of the identity.
        gains: By how much [r].
        base: The multiple.
        freedom: The degrees of freedom of the spread that it is of.

    """

    power: float
    centre: Tensor
    directions: Tensor
    gains: Tensor
    base: float
    freedom: int = 0

    @classmethod
    def of(cls, power: float, centre: Tensor, spread: WithinSpread, strength: float) -> "Whitening":
        r"""Return the whitening of a spread, shrunk by the strength :math:`\lambda`, in degrees of freedom."""
        features = len(centre)
        rows = spread.rows.double()
        squares = rows.square().sum(1)
        total = squares.sum().item() + spread.rest
        if not spread.freedom or total <= 0:
            return cls(power, centre.double(), rows[:0], squares[:0], 1.0, spread.freedom)
        evenly = spread.rest / max(1, features - len(squares))
        floor = spread.floor(strength)
        base = (evenly + floor) ** -0.5
        directions = rows / squares.sqrt()[:, None]
        scale = (total / features) ** 0.5  # for numbers near 1
        gains = ((squares + floor) ** -0.5 - base) * scale
        return cls(power, centre.double(), _rounded(directions), _rounded(gains), base * scale, spread.freedom)

    def aligned(self, features: Tensor) -> Tensor:
        """Return features [n, D] raised to the power, centred, with length 1: the vectors t."""
        rows = features.double()
        rows = rows if self.power == 1 else rows.sign() * rows.abs().pow(self.power)
        return normalise(normalise(rows) - self.centre)

    def whiten(self, aligned: Tensor) -> Tensor:
        """Return W t [n, D] of vectors t [n, D]."""
        return self.base * aligned + ((aligned @ self.directions.T) * self.gains) @ self.directions

    def embed(self, features: Tensor) -> Tensor:
        """Return the vectors u [n, D] of features [n, D]."""
        return normalise(self.whiten(self.aligned(features)))

    def pulled_back(self, features: Tensor, direction: Tensor, constant: Tensor) -> tuple[Tensor, float]:
        """Return weights [D] and a constant by which features [D] give u @ direction + constant.

        The lengths that the features are divided by count as constants, and so does the factor that the power gives each.
        """
        row = features.double()
        factors = torch.ones_like(row) if self.power == 1 else row.abs().pow(self.power - 1).masked_fill(row == 0, 0)
        length = (factors * row).norm()
        moved = (factors * row / length if length > 0 else 0 * row) - self.centre
        whitened = self.whiten(normalise(moved)[None])[0]
        size = moved.norm() * whitened.norm()
        back = self.whiten(direction.double()[None])[0] / size if size > 0 else torch.zeros_like(row)
        weights = back * factors / length if length > 0 else torch.zeros_like(row)
        return weights, (constant - back @ self.centre).item()


def _rounded(values: Tensor) -> Tensor:
    """Return values as a model file in float32 keeps them."""
    return values.float().double()
