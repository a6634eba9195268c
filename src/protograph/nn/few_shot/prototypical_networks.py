"""Prototypical Networks."""

from torch import Tensor

from protograph.nn.few_shot.base import FewShotMethod
from protograph.nn.operators import mean_over_shots


class PrototypicalNetworks(FewShotMethod):
    r"""Prototypical Networks: a class is the mean of its examples' features, and logits are negative squared distances,

    .. math:: c_n = \frac 1 K \sum_i z_{n,i}, \quad \ell_n(z) = -\|z - c_n\|^2.

    Snell, Swersky, Zemel, "Prototypical Networks for Few-shot Learning", NeurIPS 2017. On miniImageNet: 64 channels, Adam at
    0.001 that halves every 2,000 episodes, episodes of 30 classes at one shot and of 20 at five, with 15 queries each. The
    number of episodes is left open. Here episodes have 20 classes at any K; the numbers that the paper quotes are of episodes
    of five. `pn+` is the same method with a learned scale of the distance.
    """

    def forward(self, support: Tensor, mask: Tensor, queries: Tensor) -> Tensor:
        """Return logits [E, Q, N]."""
        prototypes = mean_over_shots(support, mask)
        squares = queries.square().sum(-1)[..., :, None] + prototypes.square().sum(-1)[..., None, :]
        return 2 * queries @ prototypes.mT - squares
