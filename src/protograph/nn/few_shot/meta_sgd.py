"""Meta-SGD."""

import torch
from torch import Tensor, nn

from protograph.nn.few_shot.adaptation import AdaptedNetwork, AdaptingMethod, NetworkWeights

SLOWEST, FASTEST = 0.005, 0.1  # inner learning rates at the start


class MetaSgd(AdaptingMethod):
    r"""Meta-SGD: like MAML with one inner step, but with a learned learning rate for each weight,

    .. math:: \theta' = \theta - \alpha \circ \nabla_\theta L_{\text{support}}(\theta), \quad
              \min_{\theta, \alpha} \sum_{\text{episodes}} L_{\text{queries}}(\theta').

    Li, Zhou, Chen, Li, "Meta-SGD: Learning to Learn Quickly for Few-Shot Learning", 2017. On miniImageNet: 32 channels, one
    inner step, rates that start between 0.005 and 0.1 at random, 60,000 steps of 4 episodes (5 shots: 2). The outer optimiser
    is left open; here it is MAML's. Rates may become negative, as theirs may.

    Args:
        network: The network.

    """

    def __init__(self, network: AdaptedNetwork) -> None:
        super().__init__(network)
        self.rates = nn.ParameterList(torch.empty_like(value).uniform_(SLOWEST, FASTEST) for value in network.parameters())

    def adapt(self, support: Tensor, labels: Tensor, shares: Tensor) -> NetworkWeights:
        """Return the weights after one step on one episode."""
        weights = self.initial()
        gradients = self.gradients(weights, support, labels, shares)
        rates = zip(weights.items(), self.rates, strict=True)
        return {name: value - rate * gradients[name] for (name, value), rate in rates}
