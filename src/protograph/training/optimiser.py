"""The optimiser, and the learning rate of each step."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from protograph.training.recipes import Recipe

KEPT = {"sgd": ("momentum_buffer",), "adam": ("exp_avg", "exp_avg_sq", "step")}  # what an optimiser has to remember


def make_optimiser(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Return an optimiser over all trained parameters, in groups of equal weight decay and factor on the learning rate.

    On a GPU learning rates are tensors on it, so that a recorded step follows them.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decay = recipe.weight_decay if parameter.ndim > 1 or recipe.decay_scalars else 0.0
            groups.setdefault((decay, learning_rate_factor(name, recipe)), []).append(parameter)
    device = next(model.parameters()).device
    on_gpu = device.type == "cuda"
    described: list[dict[str, Any]] = [
        {
            "params": parameters,
            "weight_decay": decay,
            "factor": factor,
            "lr": torch.tensor(factor * recipe.learning_rate, device=device) if on_gpu else factor * recipe.learning_rate,
        }
        for (decay, factor), parameters in groups.items()
    ]
    if recipe.optimiser == "adam":
        return torch.optim.Adam(described, fused=on_gpu, capturable=on_gpu)
    return torch.optim.SGD(described, momentum=recipe.momentum, nesterov=recipe.nesterov, fused=on_gpu)


def learning_rate_factor(name: str, recipe: Recipe) -> float:
    """Return the factor on the learning rate of a parameter, by its name."""
    if is_operator_scalar(name):
        return recipe.scalar_learning_rate_factor
    if name.startswith("backbone."):
        return recipe.backbone_learning_rate_factor
    return recipe.prototype_learning_rate_factor if name == "prototypes" else 1.0


def is_operator_scalar(name: str) -> bool:
    """Return whether a parameter, by its name, is a scale or a temperature of operators."""
    return name.startswith(("operators.", "graph.")) and name.endswith((".scales", ".temperature"))


def set_learning_rate(optimiser: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of all groups, each with its factor."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(group["factor"] * learning_rate)
        else:
            group["lr"] = group["factor"] * learning_rate


def learning_rate_at(recipe: Recipe, step: int) -> float:
    """Return the learning rate of a step, counted from 0."""
    rate = recipe.learning_rate
    if recipe.anneal:
        rate *= 0.5 * (1 + math.cos(math.pi * step / (recipe.epochs * recipe.steps)))
    for epoch, lower in recipe.learning_rate_drops:
        if step // recipe.steps >= epoch:
            rate = lower
    return rate * min(1.0, (step + 1) / recipe.warmup_steps) if recipe.warmup_steps else rate


def momentum_of(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return all that an optimiser has to remember: SGD's momentum by parameter, or Adam's moments and steps by `NAME/KIND`."""
    return {
        state_name(name, kind): optimiser.state[parameter][kind]
        for name, parameter in model.named_parameters()
        for kind in optimiser.state.get(parameter, {})
        if optimiser.state[parameter][kind] is not None
    }


def restore_momentum(model: nn.Module, optimiser: torch.optim.Optimizer, momentum: Mapping[str, Tensor]) -> None:
    """Give an optimiser what `momentum_of` returned."""
    kinds = KEPT["adam" if isinstance(optimiser, torch.optim.Adam) else "sgd"]
    for name, parameter in model.named_parameters():
        for kind in kinds:
            stored = momentum.get(state_name(name, kind))
            if stored is not None:
                # The fused optimiser needs the parameter's memory layout, and a checkpoint does not keep channels-last.
                like = parameter if kind != "step" else stored.to(parameter.device)
                optimiser.state[parameter][kind] = torch.empty_like(like).copy_(stored)


def state_name(parameter: str, kind: str) -> str:
    """Return the name in a checkpoint of one kind of what an optimiser remembers of a parameter."""
    return parameter if kind == "momentum_buffer" else f"{parameter}/{kind}"


@torch.no_grad()
def move_average(averaged: nn.Module, model: nn.Module, decay: float) -> None:
    """Move the weights of `averaged` towards those of a model alike; counts are copied."""
    old, new = averaged.state_dict(), model.state_dict()
    moving = [name for name, value in old.items() if value.is_floating_point()]
    torch._foreach_lerp_([old[name] for name in moving], [new[name] for name in moving], 1 - decay)
    for name in old.keys() - set(moving):
        old[name].copy_(new[name])
