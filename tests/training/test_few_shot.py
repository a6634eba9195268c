"""All few-shot methods on letters, in a reduced form, through the same training, resume and evaluation as any other variant."""

import functools
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from protograph._internal.errors import InputError
from protograph.data import Dataset
from protograph.evaluation.metrics import MEASURES
from protograph.nn.backbones import BACKBONES, Conv4, register_backbone
from protograph.nn.few_shot import FEW_SHOT_METHODS
from protograph.training import loop as training
from protograph.training import step
from protograph.training.run_config import RunConfig, configure
from protograph.training.run_folder import Run
from protograph.training.setup import trained_model
from protograph.training.stages import train
from protograph.variants import VARIANTS, register_method
from training.interrupted import Killed, Stopping, outcome

METHODS = {method.name: method for method in FEW_SHOT_METHODS}
SHORT = {"epochs": 2, "steps": 2, "episodes": 2, "validation_episodes": 4, "test_queries": 3, "novel_queries": 2}
FEWER_STEPS = {
    "maml": {"steps": 2, "test_steps": 2},
    "maml-first-order": {"steps": 2, "test_steps": 2},
    "meta-lstm": {"steps": 2},
    "reptile": {"steps": 2, "test_steps": 3},
}
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A small backbone, and ten test episodes."""
    monkeypatch.setattr(training, "EvaluationSizes", functools.partial(training.EvaluationSizes, episodes=10))
    with patch.dict(BACKBONES), patch.dict(VARIANTS):
        register_backbone("conv4-4", lambda channels, last_relu: Conv4((4, 4, 4, 4), channels, last_relu))
        for name, options in FEWER_STEPS.items():
            register_method(replace(METHODS[name], options={**METHODS[name].options, **options}))
        yield


def short_config(letters: Dataset, name: str, **changes: object) -> RunConfig:
    stages = {"batch_size": 16} if METHODS[name].after else {}
    ways = {"training_ways": 6} if name == "prototypical-networks" else {}
    return configure(letters, name, backbone="conv4-4", changes={**SHORT, **stages, **ways, **changes})


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_resumes_bit_for_bit_and_has_the_measures_that_make_sense(
    letters: Dataset, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = short_config(letters, name)
    monkeypatch.setattr(training, "SAVE_EVERY", -1.0)
    result = train(config, letters, tmp_path / "whole")
    start = tmp_path / "whole-linear" if METHODS[name].after else None
    with pytest.raises(Killed):
        train(config, letters, tmp_path / "killed", progress=Stopping((3,)), start=start)
    assert not (tmp_path / "killed" / "measures.json").exists()
    assert train(config, letters, tmp_path / "killed", start=start)["measures"] == result["measures"]
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")

    joint = METHODS[name].joint
    assert result["measures"].keys() == ({*MEASURES} if joint else {"novel_novel"})
    assert ("balanced" in result) == joint
    for other in result.get("other_statistics", {}).values():
        assert other["measures"].keys() == {"novel_novel"}
    numbers = json.dumps(result)
    assert "NaN" not in numbers
    assert math.isfinite(Run.open(tmp_path / "whole").history[-1]["loss"])
    if config.recipe.optimiser == "adam":
        assert any(tensor.endswith("/exp_avg_sq") for tensor in outcome(tmp_path / "whole")["tensors"])
    model = trained_model(Run.open(tmp_path / "whole"), letters)
    assert all(
        torch.equal(model.state_dict()[key], value) for key, value in Run.open(tmp_path / "whole").weights("best").items()
    )


def test_published_statistics_are_among_those_that_are_measured(letters: Dataset, tmp_path: Path) -> None:
    for name, method in METHODS.items():
        model = training.plan_training(short_config(letters, name), letters)[0]
        assert method.published_statistics in (model.statistics, *model.other_statistics)
        assert method.joint == model.joint


def test_a_last_layer_for_other_classes_than_those_of_the_test_is_refused_before_training(letters: Dataset) -> None:
    with pytest.raises(InputError, match="last layer for the 3 novel classes of training, so it cannot be tested with 5"):
        training.plan_training(short_config(letters, "maml", training_ways=3), letters)


def test_a_setting_that_adam_ignores_is_refused(letters: Dataset) -> None:
    with pytest.raises(InputError, match="variant 'maml' has no use for the recipe's setting 'momentum'"):
        short_config(letters, "maml", momentum=0.5)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # of the compiler's, which knows faster and less exact ways
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 0.02), ("bfloat16", 0.05)])
def test_recorded_steps_on_a_gpu_have_the_loss_of_plain_ones(
    letters: Dataset, name: str, precision: str, tolerance: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(short_config(letters, name, epochs=1, steps=8), precision=precision)
    losses = []
    for plain in (False, True):
        monkeypatch.setattr(step, "PLAIN", plain)
        train(config, letters, tmp_path / str(plain) / "run", torch.device("cuda"))
        losses.append(Run.open(tmp_path / str(plain) / "run").history[0]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=tolerance)
