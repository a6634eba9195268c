"""What several relations together say of a class's prototype."""

import math
from collections.abc import Sequence

import torch
from torch import nn

from protograph.nn.operators.base import Operator
from protograph.nn.operators.context import Context
from protograph.nn.operators.mapped import mapped_weights, mixed_with_examples
from protograph.nn.operators.side_information import SideInformation
from protograph.nn.operators.weights import Weights


class MappedTogether(Operator):
    r"""`Mapped` by the vectors of several relations at once, each by a learned weight,

    .. math:: \Phi = \Big[\sqrt{\omega_1} \, \frac{\Phi_1}{\phi_1}, \dots, \sqrt{\omega_R} \, \frac{\Phi_R}{\phi_R}\Big],
              \quad \omega = \mathrm{softmax}(w),

    where the rows of :math:`\Phi_r` are the similarities of a class to the seen ones by relation r, less their mean over the
    seen classes, and :math:`\phi_r^2` is the mean squared length of those of seen classes. So the relations make one map, and
    what they share counts once. With one relation it is `Mapped`.

    Args:
        similarities: The relations.
        kappa: The start of :math:`\kappa`.
        ridge: The start of the ridge.

    """

    uses_relation = True
    capturable = False  # whether equations could be solved is read back from the GPU
    labels = ("mapped",)

    def __init__(
        self, similarities: Sequence[SideInformation], kappa: float = 1.0, ridge: float = 0.3, label: str = "mapped"
    ) -> None:
        super().__init__()
        self.labels = (label,)
        self.similarities = nn.ModuleList(similarities)
        self.logarithms = nn.Parameter(torch.tensor([math.log(kappa), math.log(ridge)]))
        self.logits = nn.Parameter(torch.zeros(len(similarities)))

    def forward(self, context: Context) -> Weights:
        """Return the weights [E, V, V]."""
        kappa, ridge = self.logarithms.exp()
        seen, (episodes, count) = context.seen, context.classes.shape
        vectors = []
        for similarity, weight in zip(self.similarities, self.logits.softmax(0), strict=True):
            rows = similarity(context).dense(count).to(context.prototypes).expand(episodes, count, count)[..., :seen]
            rows = rows - rows[:, :seen].mean(1, keepdim=True)
            square = rows[:, :seen].square().sum(-1).mean(-1)[:, None, None]
            vectors.append(rows * (weight / square.masked_fill(square == 0, 1)).sqrt())
        together = torch.cat(vectors, -1)
        return mixed_with_examples(mapped_weights(together[:, :seen], together[:, seen:], ridge), context, kappa)
