"""VERSA: amortised probabilistic inference."""

import math

import torch
from torch import Tensor, nn

from protograph.nn.few_shot.base import OF_QUERIES, RUNNING, FewShotMethod
from protograph.nn.operators import mean_over_shots


class Versa(FewShotMethod):
    r"""VERSA: a network infers, from a class's mean feature, a Gaussian distribution of the weights that classify it,

    .. math:: w_n \sim \mathcal N(\mu(\bar z_n), \operatorname{diag} \sigma^2(\bar z_n)), \quad \ell_n(z) = w_n^\top z + b_n,

    and training maximises the likelihood of the queries, averaged over samples of these logits. In evaluation the weights are
    their means, so that an answer is not random.

    Gordon, Bronskill, Bauer, Nowozin, Turner, "Meta-Learning Probabilistic Inference for Prediction", ICLR 2019. On
    miniImageNet: five blocks of 64 channels that end in 256 features, inference networks of three layers of 256 units with ELU,
    10 samples of each logit by local reparameterisation, Adam at 0.00025 at one shot (0.0001 at five) for 50,000 steps of
    8 episodes (100,000 of 4), dropout of a half, 15 queries a class. Here a linear layer makes 256 features of the
    backbone's, and the dropout is the recipe's.

    Args:
        features: D.
        width: Features that are classified, and units of the inference networks.
        samples: Samples of each logit.

    """

    statistics = (RUNNING, OF_QUERIES)

    def __init__(self, features: int, width: int = 256, samples: int = 10) -> None:
        super().__init__()
        self.project = nn.Linear(features, width)
        self.weight_mean, self.weight_variance = inference_network(width, width), inference_network(width, width)
        self.bias_mean, self.bias_variance = inference_network(width, 1), inference_network(width, 1)
        self.samples = samples

    def forward(self, support: Tensor, mask: Tensor, queries: Tensor) -> Tensor:
        """Return logits [E, Q, N] by the mean weights."""
        means, asked = self.projected(support, mask, queries)
        return self.mean_logits(means, asked)

    def projected(self, support: Tensor, mask: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Return the classes' mean features [E, N, W] and the queries' features [E, Q, W]."""
        return mean_over_shots(self.project(support), mask), self.project(queries)

    def mean_logits(self, means: Tensor, asked: Tensor) -> Tensor:
        """Return the mean of the distribution of logits [E, Q, N]."""
        logits: Tensor = asked @ self.weight_mean(means).mT + self.bias_mean(means).mT
        return logits

    def loss(self, support: Tensor, mask: Tensor, queries: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
        """Return the negative logarithm of the mean likelihood over samples."""
        means, asked = self.projected(support, mask, queries)
        logits = self.mean_logits(means, asked)
        variances = asked.square() @ self.weight_variance(means).exp().mT + self.bias_variance(means).exp().mT
        shape = (self.samples, *logits.shape)
        noise = torch.randn(shape, generator=generator, device=logits.device, dtype=logits.dtype)
        samples = logits + variances.sqrt() * noise
        chosen = targets.expand(self.samples, *targets.shape)[..., None]
        likelihoods = samples.log_softmax(-1).gather(-1, chosen)[..., 0]
        return (math.log(self.samples) - torch.logsumexp(likelihoods, 0)).mean()


def inference_network(width: int, outputs: int) -> nn.Sequential:
    """Return a network of three layers with ELU between them."""
    return nn.Sequential(nn.Linear(width, width), nn.ELU(), nn.Linear(width, width), nn.ELU(), nn.Linear(width, outputs))
