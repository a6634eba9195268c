"""Parameter prediction from activations."""

import torch
from torch import Tensor, nn

from protograph.nn.classify import normalise
from protograph.nn.few_shot.base import FewShotMethod
from protograph.nn.operators import mean_over_shots

START = 10.0  # what the map multiplies a mean activation by at the start


class ParameterPrediction(FewShotMethod):
    r"""Parameter prediction: one map :math:`\Phi` makes a class's row of the last layer from its mean activation,

    .. math:: w_n = \Phi\Big(\frac 1 K \sum_i \bar z_{n,i}\Big), \quad \ell_n(z) = w_n^\top \bar z.

    The backbone is trained to classify the seen classes before, and then stays as it is. The map is trained on all classes
    of an episode together, seen and novel, so that a joint label space is what it is made for.

    Qiao, Liu, Shen, Yuille, "Few-Shot Image Recognition by Predicting Parameters from Activations", CVPR 2018. On
    miniImageNet: a simple convolutional network or a wide residual net. Activations have length 1 before they are averaged; in
    training a class's mean is replaced at random by a single activation, as the novel classes of an episode have few here. What
    the map looks like and how long it is trained is left open in part; here it is linear and starts at ten times the identity.

    Args:
        features: D.

    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.map = nn.Linear(features, features, bias=False)
        with torch.no_grad():
            self.map.weight.copy_(START * torch.eye(features))

    def forward(self, support: Tensor, mask: Tensor, queries: Tensor) -> Tensor:
        """Return logits [E, Q, N]."""
        parameters: Tensor = self.map(mean_over_shots(normalise(support), mask))
        return normalise(queries) @ parameters.mT
