import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from protograph.data import Dataset
from protograph.training.optimiser import learning_rate_at, make_optimiser, set_learning_rate
from protograph.training.recipes import (
    PAPER,
    Recipe,
)
from protograph.training.run_config import RunConfig
from protograph.training.setup import make_model

Make = Callable[..., RunConfig]


def test_the_paper_recipe_drops_its_rate_after_epochs_20_40_50_60() -> None:
    rates = {epoch: learning_rate_at(PAPER, epoch * PAPER.steps) for epoch in range(PAPER.epochs)}
    expected = {
        0: 0.1,
        19: 0.1,
        20: 0.006,
        39: 0.006,
        40: 0.0012,
        49: 0.0012,
        50: 0.00024,
        59: 0.00024,
        60: 0.000048,
        74: 0.000048,
    }
    assert {epoch: rates[epoch] for epoch in expected} == expected
    assert learning_rate_at(PAPER, 20 * PAPER.steps - 1) == 0.1


def test_annealing_follows_half_a_cosine_to_zero() -> None:
    recipe = Recipe("own", epochs=4, steps=25, learning_rate=0.4, anneal=True)
    rates = [learning_rate_at(recipe, step) for step in range(100)]
    assert rates[0] == 0.4
    assert rates[50] == pytest.approx(0.2)
    assert rates[25] == pytest.approx(0.2 + 0.2 * math.sqrt(0.5))
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[-1] < 0.001


def test_warm_up_rises_evenly_to_the_rate_it_then_leaves_alone() -> None:
    recipe = Recipe("own", epochs=4, steps=25, learning_rate=0.4, warmup_steps=8)
    rates = [learning_rate_at(recipe, step) for step in range(100)]
    assert rates[:8] == pytest.approx([0.4 * (step + 1) / 8 for step in range(8)])
    assert set(rates[8:]) == {0.4}
    annealed = replace(recipe, anneal=True)
    assert learning_rate_at(annealed, 3) == pytest.approx(0.5 * learning_rate_at(replace(annealed, warmup_steps=0), 3))


def test_weight_decay_spares_scalars_and_vectors_only_where_the_recipe_says_so(toy: Dataset, toy_config: Make) -> None:
    for spared in (False, True):
        config = toy_config(decay_scalars=not spared, weight_decay=0.5)
        model = make_model(config, toy)
        groups = make_optimiser(model, config.recipe).param_groups
        decay = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
        for parameter in model.parameters():
            assert decay[id(parameter)] == (0.0 if spared and parameter.ndim <= 1 else 0.5)


def test_scales_and_temperatures_of_operators_learn_at_their_share_of_the_rate(toy: Dataset, toy_config: Make) -> None:
    config = toy_config(scalar_learning_rate_factor=0.25, learning_rate=0.2)
    model = make_model(config, toy)
    slow = {
        "graph.layers.0.scales",
        *(f"operators.{n}.temperature" for n, own in enumerate(model.operators) if own.state_dict()),
    }
    assert len(slow) > 1
    optimiser = make_optimiser(model, config.recipe)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for rate in (0.2, 0.05):
        set_learning_rate(optimiser, rate)
        for group in optimiser.param_groups:
            for parameter in group["params"]:
                assert group["lr"] == (0.25 * rate if names[id(parameter)] in slow else rate)
    assert {name for group in optimiser.param_groups for name in map(names.get, map(id, group["params"]))} == set(
        names.values()
    )
