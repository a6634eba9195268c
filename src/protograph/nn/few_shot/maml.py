"""Model-agnostic meta-learning."""

from torch import Tensor

from protograph.nn.few_shot.adaptation import AdaptedNetwork, AdaptingMethod, NetworkWeights


class Maml(AdaptingMethod):
    r"""MAML: weights from which a few gradient steps on the support lead to a low loss on the queries,

    .. math:: \theta_{t+1} = \theta_t - \alpha \nabla_{\theta_t} L_{\text{support}}(\theta_t), \quad
              \min_{\theta_0} \sum_{\text{episodes}} L_{\text{queries}}(\theta_T).

    The outer gradient goes through the inner steps, so it has second derivatives. In first order the inner gradients count as
    constants.

    Finn, Abbeel, Levine, "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks", ICML 2017. On miniImageNet: 32
    channels, 5 inner steps at 0.01 in training and 10 in testing, Adam at 0.001, 60,000 steps of 4 episodes (5 shots: 2) with
    15 queries a class, batch norm by the statistics of the batch. The authors leave open how often they choose the weights.
    Their public code clips the outer gradients; this is left out.

    Args:
        network: The network.
        steps: Inner steps in training.
        test_steps: Inner steps in evaluation.
        rate: The inner learning rate.
        first_order: Whether inner gradients count as constants.

    """

    def __init__(
        self, network: AdaptedNetwork, steps: int = 5, test_steps: int = 10, rate: float = 0.01, first_order: bool = False
    ) -> None:
        super().__init__(network)
        self.steps, self.test_steps, self.rate, self.first_order = steps, test_steps, rate, first_order

    def adapt(self, support: Tensor, labels: Tensor, shares: Tensor) -> NetworkWeights:
        """Return the weights after the inner steps on one episode."""
        weights = self.initial()
        for _ in range(self.steps if self.training else self.test_steps):
            gradients = self.gradients(weights, support, labels, shares)
            if self.first_order:
                gradients = {name: gradient.detach() for name, gradient in gradients.items()}
            weights = {name: value - self.rate * gradients[name] for name, value in weights.items()}
        return weights
