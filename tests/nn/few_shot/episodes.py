"""Small networks and episodes of random numbers, on which methods are compared with naive loops."""

import copy
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from protograph.nn.backbones import Conv4
from protograph.nn.few_shot import FEW_SHOT_METHODS, FewShotModel
from protograph.variants import build_few_shot, find_variant

SHAPE, WAYS, SEEN = (1, 16, 16), 3, 4
Episode = tuple[Tensor, Tensor, Tensor, Tensor]  # support [E, N, K, D], mask [E, N, K], queries [E, Q, D], targets [E, Q]


def small_model(name: str, **options: object) -> FewShotModel:
    """A method with four channels in float64; its biases and norms are random, so that none can be left out."""
    variant = find_variant(name)
    assert variant.method is not None
    variant = replace(variant, method=replace(variant.method, options={**variant.method.options, **options}))
    model = build_few_shot(variant, Conv4((4, 4, 4, 4), 1, last_relu=True), SHAPE, SEEN, seed=3, ways=WAYS).double()
    generator = torch.Generator().manual_seed(5)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 and not name.startswith(("method.forget", "method.learn")):
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def random_episodes(model: FewShotModel, count: int = 3, shots: int = 2, queries: int = 2) -> Episode:
    """Episodes of random images or features, whose classes differ a little."""
    generator = torch.Generator().manual_seed(7)
    classes = torch.randn(count, WAYS, 1, model.features, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, WAYS, shots + queries, model.features, generator=generator, dtype=torch.float64)
    images = classes + noise
    support, asked = images[:, :, :shots], images[:, :, shots:].flatten(1, 2)
    targets = torch.arange(WAYS).repeat_interleave(queries).expand(count, -1)
    return support, torch.ones(support.shape[:3], dtype=torch.bool), asked, targets


def labels_of(support: Tensor) -> Tensor:
    """The class of each example of one episode's support [N, K, D]."""
    return torch.tensor([row for row in range(support.shape[0]) for _ in range(support.shape[1])])


def episode_by_episode(model: FewShotModel, episodes: Episode, naive: Callable[..., Tensor]) -> Tensor:
    """Logits [E, Q, N] by a function of one episode's support [N, K, D] and queries [Q, D]."""
    support, _, queries, _ = episodes
    return torch.stack([naive(model, of_episode, asked) for of_episode, asked in zip(support, queries, strict=True)])


def forward_of(network: nn.Module, images: Tensor, statistics_of: Tensor | None = None) -> Tensor:
    """The forward pass of an adapted network's copy, with batch norm computed by hand from images (by default its own)."""
    maps = images.view(-1, *SHAPE)
    source = maps if statistics_of is None else statistics_of.view(-1, *SHAPE)
    for conv, norm, relu, pool in network.backbone.blocks:
        maps, source = conv(maps), conv(source)
        mean, variance = source.mean((0, 2, 3)), source.var((0, 2, 3), correction=0)
        normed = []
        for values in (maps, source):
            centred = values - mean[:, None, None]
            normed.append(norm.weight[:, None, None] * centred / (variance + norm.eps).sqrt()[:, None, None])
        maps, source = (pool(relu(values + norm.bias[:, None, None])) for values in normed)
    logits: Tensor = network.head(maps.flatten(1))
    return logits


def adapted(model: FewShotModel, support: Tensor, rates: list[Tensor | float], steps: int) -> nn.Module:
    """A copy of the network after some steps of gradient descent on the support [N, K, D] of one episode, by autograd."""
    network = copy.deepcopy(model.method.network)
    for _ in range(steps):
        loss = cross_entropy(forward_of(network, support.flatten(0, 1)), labels_of(support))
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        with torch.no_grad():
            for parameter, gradient, rate in zip(network.parameters(), gradients, rates, strict=True):
                parameter -= rate * gradient
    return network


def check_outer_gradients(model: FewShotModel, loss: Callable[[], Tensor], step: float = 1e-5, entries: int = 2) -> None:
    """Compare the gradient of a loss with its finite differences, at some entries of every trained parameter."""
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    gradients = dict(zip(parameters, torch.autograd.grad(loss(), list(parameters.values()), allow_unused=True), strict=True))
    for name, parameter in parameters.items():
        flat, gradient = parameter.data.view(-1), gradients[name]
        for entry in torch.linspace(0, len(flat) - 1, min(entries, len(flat))).long().tolist():
            before = flat[entry].item()
            values = []
            for moved in (before + step, before - step):
                flat[entry] = moved
                values.append(loss().item())
            flat[entry] = before
            expected = (values[0] - values[1]) / (2 * step)
            found = 0.0 if gradient is None else gradient.reshape(-1)[entry].item()
            assert abs(found - expected) < 1e-6 + 1e-4 * abs(expected), f"{name}[{entry}]: {found} instead of {expected}"


METHODS = [method.name for method in FEW_SHOT_METHODS]
