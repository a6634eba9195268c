import functools
import json
import math
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from protograph import training
from protograph.config import RunConfig
from protograph.data import Dataset
from protograph.errors import InputError
from protograph.evaluation import MEASURES, Measure
from protograph.progress import Advance, Silent
from protograph.runs import Run
from protograph.training import make_model, make_optimiser, train
from protograph.variants import VARIANTS

Make = Callable[..., RunConfig]


@pytest.fixture(autouse=True)
def _short_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six hundred test episodes after every training would be most of the time of these tests."""
    monkeypatch.setattr(training, "evaluate", functools.partial(training.evaluate, episodes=20))


def outcome(folder: Path) -> dict[str, Any]:
    """All that two runs with the same configuration must share: everything but the time they took."""
    run = Run.open(folder)
    checkpoint, measures = run.load(), run.measures
    assert checkpoint is not None
    assert measures is not None
    lines = (folder / "epochs.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == checkpoint.history
    return {
        "tensors": {name: (value.dtype, value.shape, value.numpy().tobytes()) for name, value in checkpoint.tensors.items()},
        "progress": (checkpoint.step, checkpoint.best_epoch, checkpoint.best_h_mean, checkpoint.history),
        "measures": {name: value for name, value in measures.items() if name != "training_seconds"},
    }


class Killed(BaseException):
    """What a test throws in the place of a signal."""


class Stopping(Silent):
    """Progress that kills the training at given steps, or when a task begins or a line is said that starts with `at`."""

    def __init__(self, steps: tuple[int, ...] = (), at: str = "\0") -> None:
        self.steps, self.at = steps, at

    @contextmanager
    def task(self, title: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        if title.startswith(self.at):
            raise Killed
        count = done

        def advance(by: int) -> None:
            nonlocal count
            count += by
            if unit == "steps" and count in self.steps:
                raise Killed

        yield advance

    def say(self, line: str) -> None:
        if line.startswith(self.at):
            raise Killed


@pytest.fixture(scope="module")
def whole(toy: Dataset, toy_config: Make, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a training that nobody disturbed came to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "evaluate", functools.partial(training.evaluate, episodes=20))
        train(toy_config(), toy, folder)
    return outcome(folder)


def test_the_same_seed_gives_the_same_run_bit_for_bit(
    whole: dict[str, Any], toy: Dataset, toy_config: Make, tmp_path: Path
) -> None:
    torch.rand(7)  # whatever else the process drew must not matter
    train(toy_config(), toy, tmp_path / "run")
    assert outcome(tmp_path / "run") == whole


def test_another_seed_gives_another_run(whole: dict[str, Any], toy: Dataset, toy_config: Make, tmp_path: Path) -> None:
    train(toy_config(seed=1), toy, tmp_path / "run")
    assert outcome(tmp_path / "run")["tensors"] != whole["tensors"]


@pytest.mark.parametrize("save_every", [-1.0, 60.0], ids=["each step", "each epoch"])
@pytest.mark.parametrize("steps", [(1,), (4,), (2, 7, 9), (3, 5, 8, 12), tuple(range(2, 13))], ids=str)
def test_an_interrupted_run_ends_like_one_that_was_not(
    whole: dict[str, Any],
    toy: Dataset,
    toy_config: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: tuple[int, ...],
    save_every: float,
) -> None:
    monkeypatch.setattr(training, "SAVE_EVERY", save_every)
    for step in steps:
        with pytest.raises(Killed):
            train(toy_config(), toy, tmp_path / "run", progress=Stopping((step,)))
        assert not (tmp_path / "run" / "measures.json").exists()
    train(toy_config(), toy, tmp_path / "run")
    assert outcome(tmp_path / "run") == whole


@pytest.mark.parametrize("at", ["epoch   1", "epoch   2", "extract features"])
def test_a_run_interrupted_between_its_steps_ends_like_one_that_was_not(
    whole: dict[str, Any], toy: Dataset, toy_config: Make, tmp_path: Path, at: str
) -> None:
    with pytest.raises(Killed):
        train(toy_config(), toy, tmp_path / "run", progress=Stopping(at=at))
    train(toy_config(), toy, tmp_path / "run")
    assert outcome(tmp_path / "run") == whole


def test_a_finished_run_answers_without_training(toy: Dataset, toy_config: Make, tmp_path: Path) -> None:
    first = train(toy_config(), toy, tmp_path / "run")
    assert train(toy_config(), toy, tmp_path / "run", progress=Stopping(at="")) == first


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[float]], None]:
    """Sets the validation H-Means of the epochs to come."""

    def script(h_means: list[float]) -> None:
        coming = iter(h_means)
        zeros = dict.fromkeys(MEASURES, Measure(0.0, 0.0))
        monkeypatch.setattr(training, "measure", lambda *_: {**zeros, "h_mean": Measure(next(coming), 1.0)})

    return script


def weights_after(epochs: int, toy: Dataset, config: RunConfig, folder: Path) -> dict[str, torch.Tensor]:
    train(replace(config, recipe=replace(config.recipe, epochs=epochs)), toy, folder)
    return Run.open(folder).weights("last")


def test_best_weights_are_those_of_the_first_best_epoch_and_last_ones_of_the_last(
    toy: Dataset, toy_config: Make, tmp_path: Path, scripted: Callable[[list[float]], None]
) -> None:
    scripted([1.0, 5.0, 3.0, 5.0])
    result = train(toy_config(epochs=4), toy, tmp_path / "run")
    assert (result["epoch"], result["last_epoch"]["epoch"]) == (2, 4)
    scripted([1.0] * 6)
    for which, epochs in (("best", 2), ("last", 4)):
        expected = weights_after(epochs, toy, toy_config(), tmp_path / which)
        found = Run.open(tmp_path / "run").weights(which)
        assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_the_result_tests_the_best_epoch_and_the_last_one(
    toy: Dataset, toy_config: Make, tmp_path: Path, scripted: Callable[[list[float]], None]
) -> None:
    scripted([1.0, 5.0, 3.0])
    result = train(toy_config("aux-only", steps=8), toy, tmp_path / "run")
    for which, measures in (("best", result["measures"]), ("last", result["last_epoch"]["measures"])):
        model = make_model(toy_config("aux-only"), toy)
        model.load_state_dict(Run.open(tmp_path / "run").weights(which))
        assert measures == training.as_json(training.evaluate(model, toy, "test", 1, 3, 6))
    assert result["measures"] != result["last_epoch"]["measures"]


def test_training_stops_once_its_patience_is_spent(
    toy: Dataset, toy_config: Make, tmp_path: Path, scripted: Callable[[list[float]], None]
) -> None:
    scripted([1.0, 5.0, 3.0, 4.0, 9.0, 9.0])
    result = train(toy_config(epochs=6, steps=1, patience=2), toy, tmp_path / "run")
    assert (result["epoch"], result["last_epoch"]["epoch"]) == (2, 4)


def test_training_without_patience_goes_to_the_end(
    toy: Dataset, toy_config: Make, tmp_path: Path, scripted: Callable[[list[float]], None]
) -> None:
    scripted([5.0, 4.0, 3.0, 2.0])
    assert train(toy_config(epochs=4, steps=1), toy, tmp_path / "run")["last_epoch"]["epoch"] == 4


@pytest.mark.parametrize("at", ["stopped", "extract features"])
def test_a_run_killed_after_it_stopped_early_stays_stopped(
    toy: Dataset, toy_config: Make, tmp_path: Path, scripted: Callable[[list[float]], None], at: str
) -> None:
    config = toy_config(epochs=6, steps=2, patience=1)
    scripted([5.0, 4.0])
    train(config, toy, tmp_path / "whole")
    scripted([5.0, 4.0])
    with pytest.raises(Killed):
        train(config, toy, tmp_path / "run", progress=Stopping(at=at))
    scripted([9.0] * 6)
    train(config, toy, tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_weight_decay_spares_scalars_and_vectors_only_where_the_recipe_says_so(toy: Dataset, toy_config: Make) -> None:
    for spared in (False, True):
        config = toy_config(decay_scalars=not spared, weight_decay=0.5)
        model = make_model(config, toy)
        groups = make_optimiser(model, config.recipe).param_groups
        decay = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
        for parameter in model.parameters():
            assert decay[id(parameter)] == (0.0 if spared and parameter.ndim <= 1 else 0.5)


def test_decay_scalars_reaches_the_training(toy: Dataset, toy_config: Make, tmp_path: Path) -> None:
    ends = []
    for decay_scalars in (True, False):
        config = toy_config(epochs=1, weight_decay=0.5, decay_scalars=decay_scalars)
        train(config, toy, tmp_path / str(decay_scalars))
        ends.append(Run.open(tmp_path / str(decay_scalars)).weights("last")["classifier.temperature"].item())
    assert ends[0] < ends[1]


def test_divergence_is_reported_with_the_rate_to_lower(toy: Dataset, toy_config: Make, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"diverged in epoch 1 .*lower the rate, now 1e\+38"):
        train(toy_config(rate=1e38), toy, tmp_path / "run")
    assert not (tmp_path / "run" / "measures.json").exists()


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_every_variant_trains_a_step(toy: Dataset, toy_config: Make, tmp_path: Path, variant: str) -> None:
    config = toy_config(variant, epochs=1, steps=1)
    before = make_model(config, toy).state_dict()
    train(config, toy, tmp_path / "run")
    checkpoint = Run.open(tmp_path / "run").load()
    assert checkpoint is not None
    assert math.isfinite(checkpoint.history[0]["loss"])
    after = checkpoint.part("last.")
    assert all(value.isfinite().all() for value in after.values())
    assert not torch.equal(before["prototypes"], after["prototypes"])


def test_what_cannot_be_trained_is_refused_before_the_folder_is_touched(toy: Dataset, toy_config: Make, tmp_path: Path) -> None:
    for changes in ({"ways": 7}, {"test_queries": 12}, {"novel_queries": 12}, {"seen_queries": 10_000}):
        with pytest.raises(InputError):
            train(toy_config(**changes), toy, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_run_killed_again_and_again_ends_like_one_that_was_not(letters: Dataset, tmp_path: Path) -> None:
    """With real signals, at random moments, through the command."""
    sizes = {"epochs": 6, "steps": 4, "episodes": 2, "ways": 2, "validation_episodes": 3, "test_queries": 6}
    changes = [f"--set={name}={value}" for name, value in sizes.items()]
    command = [sys.executable, "-m", "protograph", "train", "--json", *changes, "--out"]

    def start(name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command, str(tmp_path / name)], stdout=subprocess.DEVNULL)

    moments = random.Random(0)
    killed_in_training = 0
    with start("whole") as undisturbed:
        for epochs in (0, 1, 2):
            with start("run") as process:
                while epochs > epochs_done(tmp_path / "run") and process.poll() is None:
                    time.sleep(0.01)
                time.sleep(moments.uniform(0, 0.3 if epochs else 3))
                process.kill()
            if process.returncode == -signal.SIGKILL and 0 < epochs_done(tmp_path / "run") < sizes["epochs"]:
                killed_in_training += 1
        with start("run") as last:
            pass
    assert killed_in_training, "no kill landed while it trained: nothing was shown"
    assert (last.returncode, undisturbed.returncode) == (0, 0)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
    assert {file.name for file in (tmp_path / "run").iterdir()} == {file.name for file in (tmp_path / "whole").iterdir()}


def epochs_done(folder: Path) -> int:
    path = folder / "epochs.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0
