"""Relation Network."""

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, mse_loss, one_hot

from protograph.nn.few_shot.base import OF_QUERIES, RUNNING, FewShotMethod
from protograph.nn.operators import mean_over_shots

WIDTH, HIDDEN = 64, 8  # channels of the relation module, and units of its last hidden layer
OUTPUTS_AT_ONCE = 30_000_000  # of the first layer's outputs, in evaluation


class RelationNetwork(FewShotMethod):
    r"""Relation Network: a learned network g scores how well a query's feature maps go with those of a class,

    .. math:: r_n(z) = \sigma\Big(g\Big(\Big[\frac 1 K \sum_i z_{n,i}, \; z\Big]\Big)\Big),

    trained as a regression to 1 for the right class and to 0 for the others. Logits are the scores before the sigmoid.

    Sung, Yang, Zhang, Xiang, Torr, Hospedales, "Learning to Compare: Relation Network for Few-Shot Learning", CVPR 2018. On
    miniImageNet: 64 channels, maps of 19 x 19 pixels, since only two blocks pool, a module of two blocks of 64 channels and a
    hidden layer of 8, Adam at 0.001 that halves every 100,000 episodes, one episode a step, 500,000 in all, 15 queries a
    class at one shot and 10 at five. Their public code never leaves the mode of training, so batch norm has the statistics of
    the test batch. Here maps are those of the backbone, pooled four times, with kernels of one pixel where maps have one;
    examples are averaged, not added, so that a seen class compares with a novel one at any K; gradients are not clipped.

    Args:
        channels: Channels of the backbone's maps.
        size: Height and width of these maps.

    """

    statistics = (RUNNING, OF_QUERIES)

    def __init__(self, channels: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.channels, self.size = channels, size
        self.compare = convolution(2 * channels, size)
        self.first = nn.Sequential(nn.BatchNorm2d(WIDTH), nn.ReLU(), halving(size))
        size = halved(size)
        self.second = nn.Sequential(convolution(WIDTH, size), nn.BatchNorm2d(WIDTH), nn.ReLU(), halving(size))
        size = halved(size)
        self.score = nn.Sequential(nn.Flatten(), nn.Linear(WIDTH * size[0] * size[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

    def forward(self, support: Tensor, mask: Tensor, queries: Tensor) -> Tensor:
        """Return logits [E, Q, N]."""
        # A convolution of two maps side by side is the sum of one of each, so no pair of maps is ever joined.
        of_class, of_query = torch.split(self.compare.weight, self.channels, 1)
        left = self._convolved(mean_over_shots(support, mask), of_class)
        right = self._convolved(queries, of_query)
        if self.training:
            return self._scores(left, right)
        step = max(1, OUTPUTS_AT_ONCE // (left[0].numel() * len(left)))
        return torch.cat([self._scores(left, part) for part in torch.split(right, step, 1)], 1)

    def _convolved(self, features: Tensor, weight: Tensor) -> Tensor:
        maps = conv2d(features.reshape(-1, self.channels, *self.size), weight, padding="same")
        return maps.view(*features.shape[:2], *maps.shape[1:])

    def _scores(self, left: Tensor, right: Tensor) -> Tensor:
        pairs = left[:, None, :] + right[:, :, None]  # [E, Q, N, WIDTH, h, w]
        scores: Tensor = self.score(self.second(self.first(pairs.flatten(0, 2))))
        return scores.view(pairs.shape[:3])

    def loss(self, support: Tensor, mask: Tensor, queries: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
        """Return the mean squared error of the scores."""
        scores = torch.sigmoid(self(support, mask, queries))
        return mse_loss(scores, one_hot(targets, support.shape[1]).to(scores.dtype))


def convolution(channels: int, size: tuple[int, int]) -> nn.Conv2d:
    """Return a convolution to the module's channels that keeps the size of maps."""
    return nn.Conv2d(channels, WIDTH, 3 if max(size) > 1 else 1, padding="same", bias=False)


def halving(size: tuple[int, int]) -> nn.Module:
    """Return the pooling that halves maps, or the identity where they are a pixel wide."""
    return nn.MaxPool2d(2) if min(size) > 1 else nn.Identity()


def halved(size: tuple[int, int]) -> tuple[int, int]:
    """Return the size of maps behind `halving`."""
    return (size[0] // 2, size[1] // 2) if min(size) > 1 else size
