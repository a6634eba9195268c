import copy

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from nn.few_shot.episodes import (
    episode_by_episode,
    forward_of,
    labels_of,
    random_episodes,
    small_model,
)
from protograph.nn.few_shot import FewShotModel


def trained(model: FewShotModel, images: Tensor, labels: Tensor, batches: list[list[int]]) -> nn.Module:
    """A copy of the network after PyTorch's Adam without momentum on these batches."""
    network = copy.deepcopy(model.method.network)
    optimiser = torch.optim.Adam(network.parameters(), lr=model.method.rate, betas=(0.0, 0.999))
    for rows in batches:
        optimiser.zero_grad()
        cross_entropy(forward_of(network, images[rows]), labels[rows]).backward()
        optimiser.step()
    return network


def test_logits_equal_a_loop_over_episodes() -> None:
    model = small_model("reptile", test_steps=3, rate=0.02).eval()
    episodes = random_episodes(model)

    def naive(model: FewShotModel, support: Tensor, queries: Tensor) -> Tensor:
        images, labels = support.flatten(0, 1), labels_of(support)
        return forward_of(trained(model, images, labels, [list(range(len(images)))] * 3), queries)

    torch.testing.assert_close(model.method(*episodes[:3]), episode_by_episode(model, episodes, naive), rtol=1e-5, atol=1e-6)


def test_the_outer_gradient_leads_towards_the_adapted_weights() -> None:
    model = small_model("reptile", steps=4, batch=5, rate=0.02).train()
    support, mask, queries, targets = random_episodes(model)
    loss = model.loss(support, mask, queries, targets, torch.Generator().manual_seed(11))
    loss.backward()
    images = torch.cat([support.flatten(1, 2), queries], 1)
    labels = torch.cat([torch.stack([labels_of(one) for one in support]), targets], 1)
    rounds = -(-4 * 5 // images.shape[1])
    keys = torch.rand(len(images), rounds, images.shape[1], generator=torch.Generator().manual_seed(11), dtype=torch.float32)
    networks = []
    for episode in range(len(images)):
        order = [index for row in keys[episode] for index in row.argsort().tolist()]
        networks.append(trained(model, images[episode], labels[episode], [order[5 * k : 5 * k + 5] for k in range(4)]))
    ends = zip(*(network.parameters() for network in networks), strict=True)
    for parameter, ended in zip(model.method.network.parameters(), ends, strict=True):
        expected = parameter.detach() - sum(end.detach() for end in ended) / len(networks)
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-5, atol=1e-7)
    losses = [cross_entropy(forward_of(networks[e], images[e]), labels[e]) for e in range(len(images))]
    torch.testing.assert_close(loss, torch.stack(losses).mean(), rtol=1e-5, atol=1e-7)


def test_a_step_at_rate_1_ends_at_the_mean_of_the_adapted_weights() -> None:
    model = small_model("reptile", steps=2, batch=6, rate=0.02).train()
    support, mask, queries, targets = random_episodes(model, count=1)
    model.loss(support, mask, queries, targets, torch.Generator().manual_seed(1)).backward()
    moved = [parameter.detach() - parameter.grad for parameter in model.method.network.parameters()]
    assert all((after - before).abs().max() > 0 for after, before in zip(moved, model.method.network.parameters(), strict=True))
    assert (
        max((after - before).abs().max() for after, before in zip(moved, model.method.network.parameters(), strict=True)) < 0.1
    )
