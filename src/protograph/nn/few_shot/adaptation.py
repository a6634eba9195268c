"""Networks that are adapted to an episode by gradients, vectorised over episodes.

Shapes: E episodes, N classes, K shots, n images, Q queries; M features of the adapted network.
"""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from protograph.nn.few_shot.base import OF_QUERIES, OF_SUPPORT, FewShotMethod, outside_inference
from protograph.nn.few_shot.episodic_norm import replace_norms, set_reference

NetworkWeights = dict[str, Tensor]  # the weights of a network by name


class AdaptedNetwork(nn.Module):
    """A backbone and a linear layer: flattened images [n, C * H * W] -> logits [n, N].

    Args:
        backbone: The backbone, whose batch norm is replaced by that of episodes.
        features: M.
        ways: N.
        image_shape: C, H, W.

    """

    def __init__(self, backbone: nn.Module, features: int, ways: int, image_shape: Sequence[int]) -> None:
        super().__init__()
        self.backbone = replace_norms(backbone)
        self.head = nn.Linear(features, ways)
        self.image_shape = tuple(image_shape)

    def forward(self, images: Tensor, reference: int | None = None) -> Tensor:
        """Return logits; batch norm takes its statistics from the first `reference` images, or from all."""
        set_reference(self, reference)
        logits: Tensor = self.head(self.backbone(images.view(-1, *self.image_shape)))
        return logits


class AdaptingMethod(FewShotMethod):
    """A method that adapts its network to the support of an episode and applies it to the queries.

    It has no place for seen classes: its last layer has one row for each of N classes, which the few steps on the support
    turn to that episode's classes.

    Args:
        network: The network.
        statistics: What batch norm of queries uses in training and, usually, in evaluation, as published.

    """

    takes_images = True
    joint = False

    def __init__(self, network: AdaptedNetwork, statistics: str = OF_QUERIES) -> None:
        super().__init__()
        self.network = network
        self.statistics = (statistics, OF_SUPPORT if statistics == OF_QUERIES else OF_QUERIES)
        self.used = statistics
        self.ways = network.head.out_features

    @abstractmethod
    def adapt(self, support: Tensor, labels: Tensor, shares: Tensor) -> NetworkWeights:
        """Return the weights adapted to one episode.

        Args:
            support: Its examples [n, C * H * W].
            labels: Their classes [n].
            shares: The share of each in the loss [n], with sum 1.

        """

    def forward(self, support: Tensor, mask: Tensor, queries: Tensor) -> Tensor:
        """Return logits [E, Q, N], computed for all episodes at once."""
        with torch.inference_mode(False), torch.set_grad_enabled(self.training and torch.is_grad_enabled()):
            inputs = outside_inference(*support_examples(support, mask), queries)
            labels = class_labels(support)

            def logits(images: Tensor, shares: Tensor, asked: Tensor) -> Tensor:
                return self.predict(self.adapt(images, labels, shares), images, asked)

            return vmap(logits)(*inputs)

    def predict(self, weights: NetworkWeights, support: Tensor, queries: Tensor) -> Tensor:
        """Return logits [Q, N] of one episode by adapted weights."""
        return self.apply_network(weights, support, queries)

    def apply_network(self, weights: NetworkWeights, support: Tensor, queries: Tensor) -> Tensor:
        """Return logits [Q, N], with the batch norm statistics that are in use."""
        if self.used == OF_QUERIES:
            logits: Tensor = functional_call(self.network, weights, (queries,))
            return logits
        images = torch.cat([support, queries])
        of_all: Tensor = functional_call(self.network, weights, (images, len(support)))
        return of_all[len(support) :]

    def use_statistics(self, statistics: str) -> None:
        """Let batch norm of queries use other statistics."""
        self.used = statistics

    def initial(self) -> NetworkWeights:
        """Return the weights from which each episode starts."""
        return dict(self.network.named_parameters())

    def support_loss(self, weights: NetworkWeights, support: Tensor, labels: Tensor, shares: Tensor) -> Tensor:
        """Return the loss on the support of one episode; the arguments are those of `adapt`."""
        logits = functional_call(self.network, weights, (support,))
        return (cross_entropy(logits, labels, reduction="none") * shares).sum()

    def gradients(self, weights: NetworkWeights, support: Tensor, labels: Tensor, shares: Tensor) -> NetworkWeights:
        """Return the gradients of `support_loss` by the weights."""
        gradients: NetworkWeights = grad(self.support_loss)(weights, support, labels, shares)
        return gradients


def support_examples(support: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the support [E, N, K, D] as [E, N * K, D], with the share of each example in the mean over those that exist."""
    present = mask.flatten(1).to(support.dtype)
    return support.flatten(1, 2), present / present.sum(1, keepdim=True)


def class_labels(support: Tensor) -> Tensor:
    """Return the classes [N * K] of a support [E, N, K, D]."""
    return torch.arange(support.shape[1], device=support.device).repeat_interleave(support.shape[2])
