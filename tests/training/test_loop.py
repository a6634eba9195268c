import functools
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from protograph._internal.errors import InputError
from protograph.data import Augmentation, Dataset, FeatureStore, ImageStore
from protograph.episodes import seeded
from protograph.evaluation.metrics import MEASURES, Measure, choose_bias, evaluate, measures_as_json
from protograph.nn.backbones import ResNet12
from protograph.training import loop as training
from protograph.training.optimiser import make_optimiser
from protograph.training.run_config import RunConfig
from protograph.training.run_folder import Run, lock_run
from protograph.training.setup import make_model, plan_training, trained_model
from protograph.training.stages import train
from protograph.training.step import TrainingStep
from protograph.variants import VARIANTS
from training.interrupted import Killed, Stopping, outcome, parts

Make = Callable[..., RunConfig]
pytestmark = pytest.mark.usefixtures("short_tests")


# How often checkpoints are written: SAVE_EVERY and SAVING
SAVES = {"each step": (-1.0, 0.0), "each epoch": (60.0, math.inf), "first epoch and end": (60.0, 0.0)}


def save_as(monkeypatch: pytest.MonkeyPatch, saves: str) -> None:
    """Let training write checkpoints that often."""
    for name, value in zip(("SAVE_EVERY", "SAVING"), SAVES[saves], strict=True):
        monkeypatch.setattr(training, name, value)


@pytest.fixture(scope="module")
def whole(toy: Dataset, toy_config: Make, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a training that nobody disturbed came to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "EvaluationSizes", functools.partial(training.EvaluationSizes, episodes=20))
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


@pytest.mark.slow
@pytest.mark.parametrize("saves", SAVES, ids=SAVES)
@pytest.mark.parametrize("steps", [(1,), (4,), (2, 7, 9), (3, 5, 8, 12), tuple(range(2, 13))], ids=str)
def test_an_interrupted_run_ends_like_one_that_was_not(
    whole: dict[str, Any],
    toy: Dataset,
    toy_config: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: tuple[int, ...],
    saves: str,
) -> None:
    save_as(monkeypatch, saves)
    for step in steps:
        with pytest.raises(Killed):
            train(toy_config(), toy, tmp_path / "run", progress=Stopping((step,)))
        assert not (tmp_path / "run" / "measures.json").exists()
    train(toy_config(), toy, tmp_path / "run")
    assert outcome(tmp_path / "run") == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("saves", "steps"), [("each step", list(range(1, 13))), ("each epoch", [4, 8, 12]), ("first epoch and end", [4, 12])]
)
def test_checkpoints_that_take_long_are_written_rarely(
    toy: Dataset, toy_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saves: str, steps: list[int]
) -> None:
    written: list[int] = []
    save_as(monkeypatch, saves)
    save = Run.save
    monkeypatch.setattr(Run, "save", lambda run, state: (written.append(state.step), save(run, state)))
    train(toy_config(), toy, tmp_path / "run")
    assert written == steps


@pytest.mark.slow
@pytest.mark.parametrize("at", ["epoch   1", "epoch   2", "extract features"])
def test_a_run_interrupted_between_its_steps_ends_like_one_that_was_not(
    whole: dict[str, Any], toy: Dataset, toy_config: Make, tmp_path: Path, at: str
) -> None:
    with pytest.raises(Killed):
        train(toy_config(), toy, tmp_path / "run", progress=Stopping(at=at))
    train(toy_config(), toy, tmp_path / "run")
    assert outcome(tmp_path / "run") == whole


def test_restored_momentum_lies_in_memory_as_its_parameter_does(toy: Dataset, toy_config: Make, tmp_path: Path) -> None:
    """The fused optimiser of a GPU refuses any other, and a checkpoint keeps no memory format."""
    config = toy_config()
    train(config, toy, tmp_path / "run")
    model = make_model(config, toy)
    model.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser, run = make_optimiser(model, config.recipe), Run.open(tmp_path / "run")
    restored = training.restore_checkpoint(run, model, model, optimiser)
    assert restored is not None
    momentum = restored.part("momentum.")
    convolutions = 0
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            buffer = optimiser.state[parameter]["momentum_buffer"]
            assert torch.equal(buffer, momentum[name])
            assert buffer.stride() == parameter.stride()
            convolutions += not parameter.is_contiguous()
    assert convolutions


def test_a_folder_that_another_process_trains_into_is_refused(toy: Dataset, toy_config: Make, tmp_path: Path) -> None:
    with lock_run(tmp_path / "run"), pytest.raises(InputError, match=f"in use by process {os.getpid()} .*wait for it"):
        train(toy_config(), toy, tmp_path / "run")
    train(toy_config(epochs=1, steps=1), toy, tmp_path / "run")
    with lock_run(tmp_path / "run"):  # nobody trains what is finished
        assert train(toy_config(epochs=1, steps=1), toy, tmp_path / "run")["epoch"] == 1


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # of the compiler's, which knows faster and less exact ways
def test_an_interrupted_run_goes_on_on_a_gpu(toy: Dataset, toy_config: Make, tmp_path: Path) -> None:
    device = torch.device("cuda")
    with pytest.raises(Killed):
        train(toy_config(), toy, tmp_path / "run", device, Stopping(at="epoch   2"))
    assert train(toy_config(), toy, tmp_path / "run", device)["last_epoch"]["epoch"] == 3


def test_setting_up_is_a_part_of_the_training_time(toy: Dataset, toy_config: Make, tmp_path: Path) -> None:
    result = train(toy_config(), toy, tmp_path / "run")
    assert 0 <= result["setup_seconds"] <= result["training_seconds"]


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


@pytest.mark.slow
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
        assert measures == measures_as_json(evaluate(model, toy, training.EvaluationSizes(1, 3, 6)))
    assert result["measures"] != result["last_epoch"]["measures"]


def test_the_result_has_the_measures_with_the_bias_that_is_best_on_validation_classes(
    toy: Dataset, toy_config: Make, tmp_path: Path
) -> None:
    result = train(toy_config("pn+"), toy, tmp_path / "run")
    model, sizes = trained_model(Run.open(tmp_path / "run"), toy), training.EvaluationSizes(1, 3, 6)
    bias = choose_bias(model, toy, replace(sizes, episodes=toy_config("pn+").recipe.validation_episodes))
    assert result["balanced"]["bias"] == round(bias, 4) != 0
    assert result["balanced"]["measures"] == measures_as_json(evaluate(model, toy, sizes, bias=bias))
    assert result["measures"] == measures_as_json(evaluate(model, toy, sizes))


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


@pytest.mark.slow
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


def test_what_does_not_learn_stays_where_it_started(toy: Dataset, toy_config: Make, tmp_path: Path) -> None:
    train(toy_config(epochs=1, scalar_learning_rate_factor=0.0, relation_temperature=3.0), toy, tmp_path / "run")
    weights = Run.open(tmp_path / "run").weights("last")
    assert weights["operators.0.temperature"].item() == 3.0
    assert weights["graph.layers.0.scales"].tolist() == [1.0] * 3
    assert weights["classifier.temperature"].item() != 10.0


def test_decay_scalars_reaches_the_training(toy: Dataset, toy_config: Make, tmp_path: Path) -> None:
    ends = []
    for decay_scalars in (True, False):
        config = toy_config(epochs=1, weight_decay=0.5, decay_scalars=decay_scalars)
        train(config, toy, tmp_path / str(decay_scalars))
        ends.append(Run.open(tmp_path / str(decay_scalars)).weights("last")["classifier.temperature"].item())
    assert ends[0] < ends[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "changes"),
    [
        ("gcgpn-aux", {"dropout": 0.5}),
        ("gcgpn-aux", {"zoom": 1.3, "stretch": 1.2, "colour": 0.3, "erase": 0.4}),
        ("gcgpn-aux", {"ema": 0.5}),
        ("linear", {"rotation": 0.5, "ema": 0.5, "crop": 0.3, "drop_block": 0.4, "mixup": True}),
    ],
)
def test_a_run_that_draws_more_ends_alike_when_it_was_killed(
    toy: Dataset, toy_config: Make, small_resnet: str, tmp_path: Path, variant: str, changes: dict[str, float]
) -> None:
    backbone = small_resnet if variant == "linear" else "conv4-32"
    config, plain = (replace(toy_config(variant, **more), backbone=backbone) for more in (changes, {}))
    train(config, toy, tmp_path / "whole")
    with pytest.raises(Killed):
        train(config, toy, tmp_path / "run", progress=Stopping((3,)))
    train(config, toy, tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
    train(plain, toy, tmp_path / "without")
    assert outcome(tmp_path / "without") != outcome(tmp_path / "whole")


@pytest.mark.slow
def test_features_of_a_frozen_backbone_are_not_dropped(toy: Dataset, toy_config: Make, start: Path, tmp_path: Path) -> None:
    for share in (0.0, 0.5):
        train(toy_config("dfslwof-att", dropout=share), toy, tmp_path / str(share), start=start)
    assert outcome(tmp_path / "0.0") == outcome(tmp_path / "0.5")


def test_the_recipe_s_changes_of_images_are_added_to_the_dataset_s_own(
    toy: Dataset, toy_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def stop(
        model: object, optimiser: object, store: object, augmentation: Augmentation, *_: object, **__: object
    ) -> TrainingStep:
        asked.append(augmentation)
        raise Killed

    monkeypatch.setattr(training, "TrainingStep", stop)
    changes = {"zoom": 1.3, "stretch": 1.2, "colour": 0.3, "erase": 0.4}
    own = replace(toy, augmentation=Augmentation(3, flip=True, colour=0.1))  # which a recipe that says nothing leaves alone
    for place, (dataset, changed) in enumerate(((toy, changes), (toy, {}), (own, {}), (own, {"zoom": 1.3}))):
        with pytest.raises(Killed):
            train(toy_config(**changed), dataset, tmp_path / str(place))
    everything = Augmentation(2, flip=False, zoom=1.3, stretch=1.2, colour=0.3, erase=0.4)
    assert asked == [everything, toy.augmentation, own.augmentation, Augmentation(3, flip=True, zoom=1.3, colour=0.1)]


@pytest.mark.parametrize("setting", [{"zoom": 1.1}, {"stretch": 1.1}, {"colour": 0.1}, {"erase": 0.1}])
def test_changes_of_images_are_refused_where_there_are_only_features(
    toy: Dataset, toy_config: Make, tmp_path: Path, setting: dict[str, float]
) -> None:
    dataset = replace(toy, store=FeatureStore(torch.randn(len(toy.store), 8, generator=seeded(0))))
    (name,) = setting
    with pytest.raises(InputError, match=rf"'short' changes images \({name}\), and dataset 'toy' has features in their place"):
        train(replace(toy_config(**setting), backbone="identity"), dataset, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    plan_training(replace(toy_config(), backbone="identity"), dataset)  # as it is, it can be trained


def test_divergence_is_reported_with_the_rate_to_lower(toy: Dataset, toy_config: Make, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"diverged in epoch 1 .*lower the learning rate, now 1e\+38"):
        train(toy_config(learning_rate=1e38), toy, tmp_path / "run")
    assert not (tmp_path / "run" / "measures.json").exists()


def measured_again(folder: Path, toy: Dataset) -> dict[str, Any]:
    """What a run's best weights measure in a fresh model, as `protograph evaluate` does."""
    run = Run.open(folder)
    model = make_model(run.config, toy)
    model.load_state_dict(run.weights("best"))
    return measures_as_json(evaluate(model, toy, training.EvaluationSizes(1, 3, 6)))


def checkpoint_measures(folder: Path) -> dict[str, Any]:
    measures = Run.open(folder).measures
    assert measures is not None
    found: dict[str, Any] = measures["measures"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("variant", [name for name in VARIANTS if VARIANTS[name].method is None])
def test_every_variant_trains_and_its_weights_measure_as_recorded(
    toy: Dataset, toy_config: Make, start: Path, tmp_path: Path, variant: str
) -> None:
    config = toy_config(variant) if VARIANTS[variant].candidates else toy_config(variant, epochs=1, steps=1)
    before = make_model(config, toy).state_dict()
    train(config, toy, tmp_path / "run", start=start if VARIANTS[variant].after else None)
    checkpoint = Run.open(tmp_path / "run").load()
    assert checkpoint is not None
    assert math.isfinite(checkpoint.history[0]["loss"])
    after = checkpoint.part("last.")
    assert all(value.isfinite().all() for value in after.values())
    assert not torch.equal(before["prototypes"], after["prototypes"])
    assert measured_again(tmp_path / "run", toy) == checkpoint_measures(tmp_path / "run")


# Objectives


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["pn+", "pn+cos"])
def test_seen_prototypes_of_pn_are_the_mean_features_of_all_training_images(
    toy: Dataset, toy_config: Make, tmp_path: Path, variant: str
) -> None:
    train(toy_config(variant), toy, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    for which in ("best", "last"):
        model = make_model(run.config, toy)
        model.load_state_dict(run.weights(which))
        with torch.no_grad():
            for class_id, images in enumerate(toy.train.images):
                alone = [model.eval().embed(toy.store.gather(image[None]))[0] for image in images]
                torch.testing.assert_close(model.prototypes[class_id], torch.stack(alone).mean(0), rtol=1e-5, atol=1e-6)


# Many classes


# Two stages


@pytest.mark.parametrize("variant", ["dfslwof-avg", "dfslwof-att"])
def test_a_frozen_backbone_stays_as_it_is_while_the_rest_learns(
    toy: Dataset, toy_config: Make, start: Path, tmp_path: Path, variant: str
) -> None:
    train(toy_config(variant), toy, tmp_path / "run", start=start)
    first, second = Run.open(start).weights("best"), Run.open(tmp_path / "run").weights("last")
    frozen = parts(first, "backbone")
    assert any("running_mean" in name for name in frozen)
    assert all(torch.equal(second[name], value) for name, value in frozen.items())
    for name in ("prototypes", "classifier.temperature", "graph.layers.0.thetas.theta-identity-nn"):
        assert name not in first or not torch.equal(second[name], first[name])
    assert not (second["graph.layers.0.thetas.theta-identity-nn"] == 1).all()


def test_teen_tries_all_its_candidates_and_keeps_the_one_validation_likes_best(
    toy: Dataset, toy_config: Make, start: Path, tmp_path: Path, scripted: Callable[[list[float]], None]
) -> None:
    candidates = VARIANTS["teen"].candidates
    scripted([1.0, 3.0, 2.0, 5.0, 5.0] + [4.0] * 8)
    result = train(toy_config("teen"), toy, tmp_path / "run", start=start)
    assert (result["epoch"], result["last_epoch"]["epoch"]) == (4, len(candidates))
    best, first = Run.open(tmp_path / "run").weights("best"), Run.open(start).weights("best")
    for name, value in candidates[3].items():
        assert torch.equal(best[name], torch.tensor(value))
    assert all(torch.equal(best[name], value) for name, value in parts(first, "backbone", "prototypes", "classifier").items())


def test_teen_is_on_validation_never_worse_than_the_cosine_it_starts_from(
    toy: Dataset, toy_config: Make, start: Path, tmp_path: Path
) -> None:
    train(toy_config("teen"), toy, tmp_path / "run", start=start)
    first, (plain, *others) = Run.open(start), Run.open(tmp_path / "run").history
    assert first.measures is not None
    assert plain["validation"] == first.history[first.measures["epoch"] - 1]["validation"]
    assert len({other["validation"]["joint_joint"]["mean"] for other in others}) > 1


@pytest.mark.slow
@pytest.mark.parametrize("saves", SAVES, ids=SAVES)
@pytest.mark.parametrize(("variant", "steps"), [("cosine", (2, 7)), ("pn+", (3, 9)), ("dfslwof-att", (1, 6)), ("teen", (1, 8))])
def test_an_interrupted_baseline_ends_like_one_that_was_not(
    toy: Dataset,
    toy_config: Make,
    start: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variant: str,
    steps: tuple[int, ...],
    saves: str,
) -> None:
    begun = start if VARIANTS[variant].after else None
    train(toy_config(variant), toy, tmp_path / "whole", start=begun)
    save_as(monkeypatch, saves)
    for step in steps:
        with pytest.raises(Killed):
            train(toy_config(variant), toy, tmp_path / "run", progress=Stopping((step,)), start=begun)
    train(toy_config(variant), toy, tmp_path / "run", start=begun)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_candidates_and_epochs_must_agree(toy: Dataset, toy_config: Make, start: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="13 candidates"):
        train(toy_config("teen", epochs=14), toy, tmp_path / "run", start=start)


def test_what_cannot_be_trained_is_refused_before_the_folder_is_touched(toy: Dataset, toy_config: Make, tmp_path: Path) -> None:
    for changes in ({"ways": 7}, {"test_queries": 12}, {"novel_queries": 12}, {"seen_queries": 10_000}):
        with pytest.raises(InputError):
            train(toy_config(**changes), toy, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
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
                while not epochs and not (tmp_path / "run" / "config.json").exists() and process.poll() is None:
                    time.sleep(0.01)  # the first one after it began, but before an epoch ended
                time.sleep(moments.uniform(0, 0.1))
                process.kill()
            if process.returncode == -signal.SIGKILL and 0 < epochs_done(tmp_path / "run") < sizes["epochs"]:
                killed_in_training += 1
        with start("run") as last:
            pass
    assert killed_in_training, "no kill landed while it trained: nothing was shown"
    assert (last.returncode, undisturbed.returncode) == (0, 0)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
    assert {file.name for file in (tmp_path / "run").iterdir()} == {file.name for file in (tmp_path / "whole").iterdir()}


TOY_COMMAND = """
import functools, sys
sys.path.insert(0, sys.argv.pop(1))
from toy import make_toy
from protograph.report import figures
from protograph.training import loop as training
from protograph.cli import app
from protograph.data import DATASETS, DatasetSource
# Images and tests would take longer than the training.
figures.draw_run = lambda *_: None
training.EvaluationSizes = functools.partial(training.EvaluationSizes, episodes=20)
DATASETS["toy"] = DatasetSource(
    lambda root, progress, skip_bad: make_toy(), "conv4-32", "noisy patterns", built_in=True
)
app()
"""


@pytest.mark.slow
def test_two_stages_killed_in_each_end_like_two_that_were_not(tmp_path: Path) -> None:
    """With real signals, through the command that trains both."""
    sizes = {"epochs": 4, "steps": 12, "episodes": 2, "ways": 3, "novel_queries": 2, "seen_queries": 6, "batch_size": 16}
    changes = [f"--set={name}={value}" for name, value in {**sizes, "validation_episodes": 5, "test_queries": 6}.items()]
    train_toy = ["train", "--dataset=toy", "--variant=dfslwof-att", "--json", *changes]
    command = [sys.executable, "-c", TOY_COMMAND, str(Path(__file__).parents[1]), *train_toy]

    def launch(name: str) -> subprocess.Popen[bytes]:
        folders = [f"--out={tmp_path / name / 'att'}", f"--start={tmp_path / name / 'cosine'}"]
        return subprocess.Popen([*command, *folders], stdout=subprocess.DEVNULL)

    killed = []
    with launch("whole") as undisturbed:
        for stage in ("cosine", "att"):
            with launch("run") as process:
                while epochs_done(tmp_path / "run" / stage) < 1 and process.poll() is None:
                    time.sleep(0.005)
                process.kill()
            killed.append(process.returncode == -signal.SIGKILL and epochs_done(tmp_path / "run" / stage) < sizes["epochs"])
        with launch("run") as last:
            pass
    assert any(killed), "no kill landed while it trained: nothing was shown"
    assert (last.returncode, undisturbed.returncode) == (0, 0)
    for stage in ("cosine", "att"):
        assert outcome(tmp_path / "run" / stage) == outcome(tmp_path / "whole" / stage)


def epochs_done(folder: Path) -> int:
    path = folder / "epochs.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_the_average_of_weights_follows_the_trained_ones_and_is_what_counts(
    toy: Dataset, toy_config: Make, small_resnet: str, tmp_path: Path
) -> None:
    followed = {}

    class Following(TrainingStep):
        def __call__(self, generator: torch.Generator) -> torch.Tensor:
            assert self.averaged is not None
            if not followed:
                followed.update({name: value.double() for name, value in self.averaged.state_dict().items()})
            loss = super().__call__(generator)
            for name, value in self.model.state_dict().items():
                old = followed[name]
                followed[name] = 0.75 * old + 0.25 * value.double() if value.is_floating_point() else value.double()
            return loss

    config = toy_config(epochs=1, ema=0.75)
    with patch.object(training, "TrainingStep", Following):
        train(config, toy, tmp_path / "run")
    run = Run.open(tmp_path / "run")
    last = run.weights("last")
    for name, value in followed.items():
        torch.testing.assert_close(last[name].double(), value, rtol=1e-5, atol=1e-6)
    checkpoint = run.load()
    assert checkpoint is not None
    assert not torch.equal(checkpoint.part("trained.")["backbone.blocks.0.0.weight"], last["backbone.blocks.0.0.weight"])
    assert measured_again(tmp_path / "run", toy) == checkpoint_measures(tmp_path / "run")


def test_the_share_that_drop_block_drops_rises_with_the_training(
    toy: Dataset, toy_config: Make, small_resnet: str, tmp_path: Path
) -> None:
    shares: list[float] = []
    draw_masks = ResNet12.drop_masks

    def noting(net: ResNet12, images: torch.Tensor, share: torch.Tensor, generator: torch.Generator) -> list[torch.Tensor]:
        shares.append(share.item())
        return draw_masks(net, images, share, generator)

    config = replace(toy_config("linear", epochs=2, drop_block=0.4), backbone=small_resnet)
    with patch.object(ResNet12, "drop_masks", noting):
        train(config, toy, tmp_path / "run")
    assert shares == pytest.approx([0.4 * step / 8 for step in range(8)])


def test_a_first_stage_keeps_the_epoch_with_the_best_mean_of_seen_seen_and_novel_novel(
    toy: Dataset, toy_config: Make, small_resnet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coming = iter([(40.0, 30.0), (50.0, 25.0), (30.0, 44.0)])

    def scripted(*_: object) -> dict[str, Measure]:
        seen, novel = next(coming)
        zeros = dict.fromkeys(MEASURES, Measure(0.0, 0.0))
        return {**zeros, "seen_seen": Measure(seen, 1.0), "novel_novel": Measure(novel, 1.0)}

    monkeypatch.setattr(training, "measure", scripted)
    config = replace(toy_config("linear"), backbone=small_resnet)
    assert train(config, toy, tmp_path / "run")["epoch"] == 2


def test_settings_that_a_backbone_or_the_images_cannot_serve_are_refused(
    toy: Dataset, toy_config: Make, small_resnet: str
) -> None:
    with pytest.raises(InputError, match=r"drop_block needs a backbone that drops activations, .* and conv4-32 does not"):
        plan_training(toy_config("linear", drop_block=0.1), toy)
    with pytest.raises(InputError, match=r"mixup needs a backbone that mixes images, .* and conv4-32 does not"):
        plan_training(toy_config("linear", mixup=True), toy)
    with pytest.raises(InputError, match="use one of mixup and teacher"):
        toy_config("linear", mixup=True, teacher="runs/teacher")
    with pytest.raises(InputError, match=r"gives 128 features of images of image_size 32, and 32 of those"):
        plan_training(toy_config("linear", image_size=32), toy)
    wide = replace(toy, store=ImageStore(torch.cat([toy.store.pixels] * 2, 3), toy.store.normalisation))
    with pytest.raises(InputError, match=r"rotation task needs square images, not \(1, 16, 32\)"):
        plan_training(replace(toy_config("linear", rotation=1.0), backbone=small_resnet), wide)
