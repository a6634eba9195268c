import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph.data import Dataset, FeatureStore
from protograph.device import WARM_UP, RepeatedStep, has_triton, plain_requested
from protograph.training.optimiser import make_optimiser
from protograph.training.run_config import RunConfig
from protograph.training.setup import make_model, training_spec
from protograph.training.step import TrainingStep, can_be_recorded
from protograph.variants import find_variant

Make = Callable[..., RunConfig]
CPU = torch.device("cpu")


def drawing(into: list[Tensor]) -> Callable[[torch.Generator], None]:
    return lambda generator: into.append(torch.rand(4, generator=generator))


def test_every_call_is_seeded_by_itself() -> None:
    drawn: list[Tensor] = []
    step = RepeatedStep(drawing(drawn), CPU)
    for seed in (5, 2, 5):
        step(seed)
    for values, seed in zip(drawn, (5, 2, 5), strict=True):
        assert torch.equal(values, torch.rand(4, generator=torch.Generator().manual_seed(seed)))


def test_the_global_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    RepeatedStep(drawing([]), CPU)(3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("capture", [True, False])
def test_without_a_gpu_nothing_is_captured_and_every_call_is_a_step(capture: bool) -> None:
    drawn: list[Tensor] = []
    step = RepeatedStep(drawing(drawn), CPU, capture)
    for seed in range(WARM_UP + 3):
        step(seed)
    assert not step.capture
    assert step.graph is None
    assert len(drawn) == step.calls == WARM_UP + 3


def test_repeated_training_steps_are_training_steps_and_add_their_losses(toy: Dataset, toy_config: Make) -> None:
    config = toy_config()
    recipe, variant, spec = config.recipe, find_variant(config.variant), training_spec(toy, config.recipe, 1)
    model, loss_sum = make_model(config, toy), torch.zeros((), dtype=torch.float64)
    alone, losses = copy.deepcopy(model), torch.zeros((), dtype=torch.float64)
    settings = (toy.store, toy.augmentation, spec, recipe.episodes)
    step = TrainingStep(model, make_optimiser(model, recipe), *settings, variant).repeated(loss_sum)
    optimiser = make_optimiser(alone, recipe)
    for seed in (3, 1, 3):
        step(seed)
        losses += TrainingStep(alone, optimiser, *settings, variant)(torch.Generator().manual_seed(seed))
    assert torch.equal(loss_sum, losses)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), alone.parameters(), strict=True))


@pytest.mark.gpu
def test_after_a_warm_up_a_recorded_step_is_replayed_with_its_own_seed() -> None:
    device = torch.device("cuda")
    place, calls = torch.zeros(4, device=device), []

    def draw(generator: torch.Generator) -> None:
        calls.append(None)
        place.copy_(torch.rand(4, device=device, generator=generator))

    step = RepeatedStep(draw, device)
    found = []
    for seed in (1, 2, 3, 4, 5, 4, 1):
        step(seed)
        found.append(place.clone())
    assert len(calls) == WARM_UP + 1
    for values, seed in zip(found, (1, 2, 3, 4, 5, 4, 1), strict=True):
        assert torch.equal(values, torch.rand(4, device=device, generator=torch.Generator(device).manual_seed(seed)))


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # of the compiler's, which knows faster and less exact ways
@pytest.mark.parametrize("changes", [{}, {"zoom": 1.3, "stretch": 1.2, "colour": 0.3, "erase": 0.4}], ids=["", "changed"])
def test_captured_training_is_the_same_as_training_that_is_not(
    toy: Dataset, toy_config: Make, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """By the gradients of all steps, as momentum gathers them, of weights that hardly move: otherwise roundings, which differ
    as kernels are chosen by their speed, would grow from step to step. Another draw of episodes would change them altogether.
    """
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    device, config = torch.device("cuda"), toy_config(learning_rate=1e-6, **changes)
    augmentation = replace(toy.augmentation, **config.recipe.image_changes)
    store, recipe, variant = toy.store.to(device), config.recipe, find_variant(config.variant)
    spec = training_spec(toy, recipe, 1).to(device)
    gradients, losses = [], []
    for capture in (True, False):
        model = make_model(config, toy).to(device)
        loss_sum, optimiser = torch.zeros((), dtype=torch.float64, device=device), make_optimiser(model, recipe)
        step = TrainingStep(model, optimiser, store, augmentation, spec, recipe.episodes, variant).repeated(loss_sum)
        assert step.capture
        step.capture = capture
        for seed in range(WARM_UP + 3):
            step(seed)
        assert (step.graph is not None) == capture
        losses.append(loss_sum)
        gradients.append({name: optimiser.state[value]["momentum_buffer"] for name, value in model.named_parameters()})
    torch.testing.assert_close(*losses, rtol=1e-4, atol=0)
    for name, value in gradients[0].items():
        assert (value - gradients[1][name]).norm() <= 0.01 * value.norm() + 1e-5, name


@pytest.mark.parametrize(
    ("installed", "compilers", "usable"), [(True, ("gcc",), True), (True, (), False), (False, ("gcc",), False)]
)
def test_triton_is_used_only_where_there_is_a_c_compiler_for_it(
    monkeypatch: pytest.MonkeyPatch, installed: bool, compilers: tuple[str, ...], usable: bool
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("protograph.device.find_spec", lambda name: object() if installed else None)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}" if name in compilers else None)
    assert has_triton() is usable


@pytest.mark.parametrize(("value", "plain"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_a_variable_asks_for_plain_steps(monkeypatch: pytest.MonkeyPatch, value: str | None, plain: bool) -> None:
    monkeypatch.delenv("PROTOGRAPH_PLAIN", raising=False)
    if value is not None:
        monkeypatch.setenv("PROTOGRAPH_PLAIN", value)
    assert plain_requested() == plain


def test_plain_steps_are_not_recorded(toy: Dataset, toy_config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    config = toy_config()
    model, spec = make_model(config, toy), training_spec(toy, config.recipe, 1)
    store = FeatureStore(torch.zeros(4, 2))  # resident wherever it is
    assert can_be_recorded(model, store, spec)
    monkeypatch.setattr("protograph.training.step.PLAIN", True)
    assert not can_be_recorded(model, store, spec)


@pytest.mark.gpu
def test_a_step_that_asks_the_host_is_named_with_the_way_out() -> None:
    values = torch.ones(3, device="cuda")
    step = RepeatedStep(lambda generator: values.mul_(values.sum().item()), torch.device("cuda"))  # type: ignore[arg-type, return-value]
    for seed in range(WARM_UP):
        step(seed)
    with pytest.raises(InputError, match="PROTOGRAPH_PLAIN=1"):
        step(WARM_UP)
