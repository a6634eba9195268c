"""Reptile."""

import torch
from torch import Tensor
from torch.func import vmap

from protograph.nn.few_shot.adaptation import AdaptedNetwork, AdaptingMethod, NetworkWeights, class_labels, support_examples

DECAY, TINY = 0.999, 1e-8  # of Adam's second moments, and what keeps its divisor from 0


class Reptile(AdaptingMethod):
    r"""Reptile: initial weights move towards those that ordinary training on an episode leads to,

    .. math:: \theta \leftarrow \theta + \epsilon \, \frac 1 E \sum_e (\phi_e - \theta), \quad \phi_e = \text{Adam}(\theta, e).

    So the outer gradient is :math:`\theta - \phi`, without derivatives of the inner steps. In training, support and queries
    together are what it is adapted to, in small batches; in evaluation it is adapted to the support.

    Nichol, Achiam, Schulman, "On First-Order Meta-Learning Algorithms", 2018. On miniImageNet: 32 channels, 8 inner
    steps of 10 images from 15 a class, Adam without momentum at 0.001, 100,000 outer steps of 5 episodes at a rate that falls
    from 1 to 0; 50 inner steps in testing. Their public code carries Adam's second moments from episode to episode; here each
    episode begins with none. Reported with batch norm of all queries together ("transduction") and without. In
    evaluation a step here takes the whole support, which at one shot is what theirs does.

    Args:
        network: The network.
        steps: Inner steps in training.
        batch: Images of such a step.
        test_steps: Inner steps in evaluation.
        rate: The inner learning rate.

    """

    def __init__(
        self, network: AdaptedNetwork, steps: int = 8, batch: int = 10, test_steps: int = 50, rate: float = 0.001
    ) -> None:
        super().__init__(network)
        self.steps, self.batch, self.test_steps, self.rate = steps, batch, test_steps, rate

    def adapt(self, support: Tensor, labels: Tensor, shares: Tensor) -> NetworkWeights:
        """Return the weights after the steps of evaluation on one episode, each on its whole support."""
        weights, squares = self.start()
        for step in range(self.test_steps):
            weights, squares = self.descend(weights, squares, step, support, labels, shares)
        return weights

    def loss(self, support: Tensor, mask: Tensor, queries: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
        """Return a number whose gradient is Reptile's, and whose value is the mean loss of the adapted episodes."""
        images, present = support_examples(support, mask)
        images = torch.cat([images, queries], 1)
        labels = torch.cat([class_labels(support).expand(len(images), -1), targets], 1)
        present = torch.cat([(present > 0).to(images.dtype), torch.ones_like(queries[..., 0])], 1)
        # Batches run through one random order after the other, as an epoch through its images.
        rounds = -(-self.steps * self.batch // images.shape[1])
        keys = torch.rand(len(images), rounds, images.shape[1], generator=generator, device=images.device)
        order = keys.argsort(-1).flatten(1)[:, : self.steps * self.batch].view(len(images), self.steps, -1)
        with torch.no_grad():
            adapted, losses = vmap(self.train_on)(images, labels, present, order)
        initial = self.initial()
        surrogate = torch.stack([(value * (value - adapted[name].mean(0)).detach()).sum() for name, value in initial.items()])
        return losses.mean() + surrogate.sum() - surrogate.sum().detach()

    def train_on(self, images: Tensor, labels: Tensor, present: Tensor, order: Tensor) -> tuple[NetworkWeights, Tensor]:
        """Return the weights trained on one episode's images [n, D] in batches by `order` [steps, batch], and their loss."""
        weights, squares = self.start()
        for step in range(self.steps):
            rows = order[step]
            shares = present[rows] / present[rows].sum().clamp(min=1)
            weights, squares = self.descend(weights, squares, step, images[rows], labels[rows], shares)
        return weights, self.support_loss(weights, images, labels, present / present.sum())

    def start(self) -> tuple[NetworkWeights, NetworkWeights]:
        """Return the initial weights, and Adam's second moments."""
        weights = {name: value.detach() for name, value in self.initial().items()}
        return weights, {name: torch.zeros_like(value) for name, value in weights.items()}

    def descend(
        self, weights: NetworkWeights, squares: NetworkWeights, step: int, images: Tensor, labels: Tensor, shares: Tensor
    ) -> tuple[NetworkWeights, NetworkWeights]:
        """Return weights and second moments after one step of Adam without momentum."""
        gradients = self.gradients(weights, images, labels, shares)
        squares = {name: DECAY * value + (1 - DECAY) * gradients[name].square() for name, value in squares.items()}
        correction = 1 - DECAY ** (step + 1)
        moved = {
            name: value - self.rate * gradients[name] / ((squares[name] / correction).sqrt() + TINY)
            for name, value in weights.items()
        }
        return moved, squares
