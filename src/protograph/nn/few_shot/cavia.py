"""CAVIA: fast context adaptation."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn.functional import cross_entropy

from protograph._internal.errors import InputError
from protograph.nn.backbones import Conv4, conv_block
from protograph.nn.few_shot.adaptation import AdaptedNetwork, AdaptingMethod, NetworkWeights
from protograph.nn.few_shot.episodic_norm import set_reference

MODULATED = 2  # the block, counted from 0, whose channels the context modulates


class ModulatedNetwork(AdaptedNetwork):
    """A `Conv4` in which a context [R] scales and shifts the channels of the third block, and a linear layer.

    Args:
        backbone: The backbone.
        features: M.
        ways: N.
        image_shape: C, H, W.
        context: R.

    """

    def __init__(self, backbone: nn.Module, features: int, ways: int, image_shape: Sequence[int], context: int) -> None:
        super().__init__(backbone, features, ways, image_shape)
        if not isinstance(backbone, Conv4):
            raise InputError("CAVIA modulates a block of Conv4: choose a backbone such as conv4-64-128")
        width: int = backbone.blocks[MODULATED][0].out_channels  # type: ignore[index]
        self.film = nn.Linear(context, 2 * width)
        for layer in (self.head, self.film):
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="linear")
        nn.init.zeros_(self.head.bias)

    def modulated(self, images: Tensor, context: Tensor, reference: int | None = None) -> Tensor:
        """Return logits [n, N] of flattened images by a context [R]; `reference` as of `AdaptedNetwork.forward`."""
        set_reference(self, reference)
        scale, shift = self.film(context)[:, None, None].chunk(2)
        maps = images.view(-1, *self.image_shape)
        for position, block in enumerate(self.backbone.blocks):  # type: ignore[arg-type]
            if position == MODULATED:
                conv, norm, relu, pool = block
                maps = pool(relu(scale * norm(conv(maps)) + shift))
            else:
                maps = conv_block(block, maps, (len(maps),))
        logits: Tensor = self.head(maps.flatten(1))
        return logits


class Cavia(AdaptingMethod):
    r"""CAVIA: only a context :math:`\phi`, an input of the network that starts at 0, is adapted to an episode,

    .. math:: \phi_{t+1} = \phi_t - \alpha \nabla_{\phi_t} L_{\text{support}}(\phi_t, \theta), \quad
              \min_\theta \sum_{\text{episodes}} L_{\text{queries}}(\phi_T, \theta).

    The network is the same for all episodes; the context scales and shifts the channels of its third block.

    Zintgraf, Shiarlis, Kurin, Hofmann, Whiteson, "Fast Context Adaptation via Meta-Learning", ICML 2019. On miniImageNet: 100
    context parameters, 2 inner steps at 1.0, 32, 128 or 512 channels, Adam at 0.001 that falls by a tenth every 5,000 steps,
    60,000 steps of 16 episodes with 15 queries a class, batch norm by the statistics of the batch. The numbers that the paper
    quotes are with 512 channels. Their code pools before it modulates; here the block keeps its order.

    Args:
        network: The network.
        context: The number of context parameters.
        steps: Inner steps.
        rate: The inner learning rate.

    """

    network: ModulatedNetwork

    def __init__(self, network: ModulatedNetwork, context: int = 100, steps: int = 2, rate: float = 1.0) -> None:
        super().__init__(network)
        self.context, self.steps, self.rate = context, steps, rate

    def adapt(self, support: Tensor, labels: Tensor, shares: Tensor) -> NetworkWeights:
        """Return the context adapted to one episode."""

        def loss(context: Tensor) -> Tensor:
            logits = self.network.modulated(support, context)
            return (cross_entropy(logits, labels, reduction="none") * shares).sum()

        context = support.new_zeros(self.context)
        for _ in range(self.steps):
            context = context - self.rate * grad(loss)(context)
        return {"context": context}

    def apply_network(self, weights: NetworkWeights, support: Tensor, queries: Tensor) -> Tensor:
        """Return logits [Q, N] by an adapted context."""
        if self.used == self.statistics[0]:
            return self.network.modulated(queries, weights["context"])
        images = torch.cat([support, queries])
        return self.network.modulated(images, weights["context"], len(support))[len(support) :]
