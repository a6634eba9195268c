"""What relations say of a class's prototype: a linear map from class vectors to prototypes, fitted to the seen classes."""

import math

import torch
from torch import Tensor, nn

from protograph.nn.operators.base import Operator
from protograph.nn.operators.context import Context
from protograph.nn.operators.side_information import SideInformation
from protograph.nn.operators.weights import Weights

LARGEST_SOLVED = 2000  # classes whose equations are solved exactly; with more, by conjugate gradients
GRADIENT_STEPS = 60


def mapped_weights(known: Tensor, new: Tensor, ridge: float | Tensor) -> Tensor:
    r"""Return the weights of seen prototypes in the prototypes that ridge regression predicts for new classes,

    .. math:: A = \frac 1 S + \Phi_n \Phi_s^\top \big(\Phi_s \Phi_s^\top + \rho \, \phi^2 I\big)^{-1} (I - \tfrac 1 S),

    where the rows of :math:`\Phi` are class vectors less their mean over the seen classes, and :math:`\phi^2` is the mean
    squared length of the rows of :math:`\Phi_s`. The similarities of a class to all seen classes are such a
    vector, by any matrix.

    Args:
        known: The vectors [..., S, F] of seen classes; without leading dimensions, they may be sparse.
        new: The vectors [..., N, F] of new classes.
        ridge: The strength :math:`\rho`, above 0, of the penalty on the map.

    Returns:
        A [..., N, S], whose rows have the sum 1.

    """
    if known.layout != torch.strided or (known.ndim == 2 and len(known) > LARGEST_SOLVED):
        return _mapped_by_gradients(known, new, float(ridge))
    count = known.shape[-2]
    mean = known.mean(-2, keepdim=True)
    seen, rows = known - mean, new - mean
    scale = seen.square().sum(-1).mean(-1)[..., None, None]
    scale = scale.masked_fill(scale == 0, 1)  # all classes are alike
    products = seen @ seen.mT + ridge * scale * torch.eye(count, dtype=seen.dtype, device=seen.device)
    weights: Tensor = torch.linalg.solve(products, seen @ rows.mT).mT
    return weights - weights.mean(-1, keepdim=True) + 1 / count


def _mapped_by_gradients(known: Tensor, new: Tensor, ridge: float) -> Tensor:
    count = known.shape[0]
    ones = known.new_ones(count, 1) if known.layout == torch.strided else torch.ones(count, 1, dtype=known.dtype)
    turned = known.mT
    mean = (turned @ ones) / count  # [F, 1]

    def centred(columns: Tensor) -> Tensor:  # the centred rows times columns [F, N]
        return known @ columns - mean.T @ columns

    def back(columns: Tensor) -> Tensor:
        return turned @ columns - mean @ columns.sum(0, keepdim=True)

    values = known if known.layout == torch.strided else known.coalesce().values()
    scale = values.square().sum() / count - mean.square().sum()
    scale = torch.where(scale > 0, scale, 1.0)
    target = centred(new.mT - mean)
    weights, residual = torch.zeros_like(target), target.clone()
    direction, length = residual.clone(), residual.square().sum(0)
    for _ in range(GRADIENT_STEPS):
        image = centred(back(direction)) + ridge * scale * direction
        step = length / (direction * image).sum(0).clamp(min=1e-30)
        weights, residual = weights + step * direction, residual - step * image
        before, length = length, residual.square().sum(0)
        if bool((length <= 1e-12 * target.square().sum(0).clamp(min=1e-30)).all()):
            break
        direction = residual + length / before.clamp(min=1e-30) * direction
    rows = weights.mT
    return rows - rows.mean(-1, keepdim=True) + 1 / count


def mixed_with_examples(mapped: Tensor, context: Context, kappa: Tensor) -> Weights:
    r"""Return weights [E, V, V] by which new classes are a mixture of their examples and of seen prototypes.

    Args:
        mapped: The weights [E, N, S] of seen prototypes.
        context: The episodes.
        kappa: By how many examples the seen prototypes count.

    """
    seen, (episodes, count) = context.seen, context.classes.shape
    shots = context.mask.sum(-1).to(mapped)[..., None]  # [E, N, 1]
    share = shots / (shots + kappa)
    new = torch.cat([(1 - share) * mapped, torch.diag_embed(share[..., 0])], -1)
    old = torch.eye(seen, count, dtype=mapped.dtype, device=mapped.device).expand(episodes, seen, count)
    return Weights.full(torch.cat([old, new], 1), count)


class Mapped(Operator):
    r"""A new class is its examples and what its relations predict, by a weight that falls with the number of its examples,

    .. math:: B_{nn} = \frac{K}{K + \kappa}, \quad B_{nm} = \frac{\kappa}{K + \kappa} A_{nm} \text{ for seen } m, \quad
              B_{mm} = 1,

    where A are the weights of `mapped_weights`: a linear map from similarities to prototypes, fitted to the seen classes of the
    episode. :math:`\kappa` and the ridge are learned.

    Args:
        similarity: The relation.
        kappa: The start of :math:`\kappa`.
        ridge: The start of the ridge.

    """

    uses_relation = True
    capturable = False  # whether equations could be solved is read back from the GPU
    labels = ("mapped",)

    def __init__(self, similarity: SideInformation, kappa: float = 1.0, ridge: float = 0.3, label: str = "mapped") -> None:
        super().__init__()
        self.similarity = similarity
        self.labels = (label,)
        self.logarithms = nn.Parameter(torch.tensor([math.log(kappa), math.log(ridge)]))

    def forward(self, context: Context) -> Weights:
        """Return the weights [E, V, V]."""
        kappa, ridge = self.logarithms.exp()
        similarities = self.similarity(context).dense(context.classes.shape[1]).to(context.prototypes)
        seen, count = context.seen, context.classes.shape[1]
        episodes = context.classes.shape[0]
        similarities = similarities.expand(episodes, count, count)
        mapped = mapped_weights(similarities[:, :seen, :seen], similarities[:, seen:, :seen], ridge)
        return mixed_with_examples(mapped, context, kappa)
