import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from nn.few_shot.episodes import (
    SHAPE,
    check_outer_gradients,
    episode_by_episode,
    labels_of,
    random_episodes,
    small_model,
)
from protograph._internal.errors import InputError
from protograph.nn.backbones import ResNet12
from protograph.nn.few_shot import OF_SUPPORT, FewShotModel
from protograph.variants import build_few_shot, find_variant


def forward_of(model: FewShotModel, images: Tensor, context: Tensor, statistics_of: Tensor | None = None) -> Tensor:
    """The network with a context, with batch norm computed by hand from images (by default its own)."""
    network = model.method.network
    film = network.film.weight @ context + network.film.bias
    maps = images.view(-1, *SHAPE)
    source = maps if statistics_of is None else statistics_of.view(-1, *SHAPE)
    for position, (conv, norm, relu, pool) in enumerate(network.backbone.blocks):
        maps, source = conv(maps), conv(source)
        mean, deviation = source.mean((0, 2, 3)), (source.var((0, 2, 3), correction=0) + norm.eps).sqrt()
        outputs = []
        for values in (maps, source):
            channels = []
            for channel in range(values.shape[1]):
                normed = (values[:, channel] - mean[channel]) / deviation[channel]
                normed = normed * norm.weight[channel] + norm.bias[channel]
                if position == 2:
                    normed = normed * film[channel] + film[values.shape[1] + channel]
                channels.append(normed)
            outputs.append(pool(relu(torch.stack(channels, 1))))
        maps, source = outputs
    logits: Tensor = network.head(maps.flatten(1))
    return logits


def context_of(model: FewShotModel, support: Tensor, steps: int = 2) -> Tensor:
    context = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    for _ in range(steps):
        loss = cross_entropy(forward_of(model, support.flatten(0, 1), context), labels_of(support))
        context = (context - 1.0 * torch.autograd.grad(loss, context)[0]).detach().requires_grad_()
    return context


@pytest.mark.parametrize("statistics", ["queries", OF_SUPPORT])
def test_logits_equal_a_loop_over_episodes(statistics: str) -> None:
    model = small_model("cavia", context=6).eval()
    episodes = random_episodes(model)

    def naive(model: FewShotModel, support: Tensor, queries: Tensor) -> Tensor:
        of = support.flatten(0, 1) if statistics == OF_SUPPORT else None
        return forward_of(model, queries, context_of(model, support), of)

    with model.using(statistics):
        torch.testing.assert_close(model.method(*episodes[:3]), episode_by_episode(model, episodes, naive))


def test_outer_gradients_are_those_of_finite_differences() -> None:
    model = small_model("cavia", context=6).train()
    support, mask, queries, targets = random_episodes(model, count=2)
    check_outer_gradients(model, lambda: model.loss(support, mask, queries, targets, torch.Generator()))


def test_another_backbone_is_refused() -> None:
    with pytest.raises(InputError, match="choose a backbone such as conv4"):
        build_few_shot(find_variant("cavia"), ResNet12(1, widths=(2, 2, 2, 2)), SHAPE, 4)
