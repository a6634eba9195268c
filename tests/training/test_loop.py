import copy
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

from nn.naive import LargestTensor
from protograph._internal.errors import InputError
from protograph._internal.progress import Advance, Silent
from protograph.data import Augmentation, Dataset, FeatureStore, ImageStore, Pool
from protograph.episodes import EpisodeSpec, draw, draw_batch, seeded
from protograph.evaluation.metrics import MEASURES, Measure, evaluate, measures_as_json
from protograph.nn.model import GraphPrototypeNetwork
from protograph.training import loop as training
from protograph.training.config import RunConfig
from protograph.training.recipes import Recipe
from protograph.training.run import Run
from protograph.training.setup import make_model, plan_training, training_spec
from protograph.training.stages import train
from protograph.training.step import TrainingStep, can_be_recorded, drop_features, make_optimiser, set_learning_rate
from protograph.variants import VARIANTS, build

Make = Callable[..., RunConfig]


@pytest.fixture(autouse=True)
def _short_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six hundred test episodes after every training would be most of the time of these tests."""
    monkeypatch.setattr(training, "EvaluationSizes", functools.partial(training.EvaluationSizes, episodes=20))


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
        "progress": (checkpoint.step, checkpoint.best_epoch, checkpoint.best_score, checkpoint.history),
        "measures": {name: value for name, value in measures.items() if not name.endswith("_seconds")},
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
    restored = training.restore_checkpoint(run, model, optimiser)
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


def test_dropout_leaves_a_share_of_the_features_at_zero_and_their_mean_as_it_is() -> None:
    features = torch.ones(50, 400)
    dropped = drop_features(features, 0.25, seeded(1))
    kept = torch.rand(50, 400, generator=seeded(1)) >= 0.25
    assert torch.equal(dropped, torch.where(kept, features / 0.75, 0))
    assert 0.73 < kept.double().mean() < 0.77


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"dropout": 0.5}, {"zoom": 1.3, "stretch": 1.2, "colour": 0.3, "erase": 0.4}])
def test_a_run_that_draws_more_ends_alike_when_it_was_killed(
    toy: Dataset, toy_config: Make, tmp_path: Path, changes: dict[str, float]
) -> None:
    config = toy_config(**changes)
    train(config, toy, tmp_path / "whole")
    with pytest.raises(Killed):
        train(config, toy, tmp_path / "run", progress=Stopping((3,)))
    train(config, toy, tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
    train(toy_config(), toy, tmp_path / "without")
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

    def stop(model: object, optimiser: object, store: object, augmentation: Augmentation, *_: object) -> TrainingStep:
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


@pytest.fixture(scope="module")
def start(toy: Dataset, toy_config: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished first stage, to be read and not changed."""
    folder = tmp_path_factory.mktemp("start") / "cosine"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "EvaluationSizes", functools.partial(training.EvaluationSizes, episodes=20))
        train(toy_config("cosine"), toy, folder)
    return folder


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
@pytest.mark.parametrize("variant", list(VARIANTS))
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


def stepping(variant: str, toy: Dataset, config: RunConfig) -> tuple[GraphPrototypeNetwork, float, Any]:
    """A model before a step without augmentation, the loss of that step, and what was drawn for it."""
    chosen, plain = VARIANTS[variant], Augmentation()
    model, spec, _ = plan_training(config, toy)
    before = copy.deepcopy(model)
    count = config.recipe.batch_size if chosen.objective == "classify" else config.recipe.episodes
    loss = TrainingStep(model, make_optimiser(model, config.recipe), toy.store, plain, spec, count, chosen)(seeded(0))
    drawn = draw(spec, count, seeded(0)) if isinstance(spec, EpisodeSpec) else draw_batch(spec, count, seeded(0))
    return before.train(), loss.item(), drawn


def test_classification_is_cross_entropy_of_cosines_with_every_seen_class(toy: Dataset, toy_config: Make) -> None:
    model, loss, batch = stepping("cosine", toy, toy_config("cosine"))
    features, prototypes = model.embed(toy.store.gather(batch.images)).tolist(), model.prototypes.tolist()
    expected = 0.0
    for feature, target in zip(features, batch.targets.tolist(), strict=True):
        scores = [10 * cosine(feature, prototype) for prototype in prototypes]
        expected += math.log(sum(map(math.exp, scores))) - scores[target]
    assert loss == pytest.approx(expected / len(features), abs=1e-5)


@pytest.mark.parametrize(("variant", "frozen"), [("dfslwof-att", True), ("aux-only", False)])
def test_a_network_that_mirrors_looks_from_both_sides_in_training_where_it_stays_as_it_is(
    toy: Dataset, toy_config: Make, variant: str, frozen: bool
) -> None:
    config = replace(toy_config(variant), backbone="conv4-128-mirror", relations=())
    assert isinstance(toy.store, ImageStore)
    mirrored = replace(toy, store=ImageStore(toy.store.pixels.flip(-1), toy.store.normalisation))
    losses = [stepping(variant, dataset, config)[1] for dataset in (toy, mirrored)]
    assert (losses[0] == pytest.approx(losses[1], abs=1e-5)) is frozen


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


@pytest.mark.parametrize("variant", ["pn+", "pn+cos"])
def test_few_shot_is_cross_entropy_among_the_novel_classes_of_an_episode(toy: Dataset, toy_config: Make, variant: str) -> None:
    model, loss, episodes = stepping(variant, toy, toy_config(variant))
    ways, queries = 3, 3 * 2
    assert episodes.queries.shape == (2, queries)
    support, asked = (
        model.embed(toy.store.gather(each.flatten())).view(*each.shape, -1) for each in (episodes.support, episodes.queries)
    )
    expected = 0.0
    for e in range(2):
        for q in range(queries):
            query = asked[e, q].tolist()
            scores = []
            for n in range(ways):
                prototype = support[e, n, 0].tolist()
                distance = -(math.dist(query, prototype) ** 2) / len(query)
                scores.append(distance if variant == "pn+" else 10 * cosine(query, prototype))
            target = int(episodes.classes[e, episodes.seen :].tolist().index(class_of(toy, int(episodes.queries[e, q]))))
            expected += math.log(sum(map(math.exp, scores))) - scores[target]
    assert loss == pytest.approx(expected / (2 * queries), abs=1e-5)


def class_of(toy: Dataset, image: int) -> int:
    return int(toy.train.classes[(toy.train.images == image).any(1)])


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


def test_batches_take_every_class_alike_and_every_image_of_it() -> None:
    pool = Pool.from_members({0: [3], 1: [0, 1, 2], 2: [7, 4, 5, 6]})
    batch = draw_batch(pool, 24_000, seeded(0))
    assert torch.equal(draw_batch(pool, 24_000, seeded(0)).images, batch.images)
    for row in range(3):
        drawn = batch.images[batch.targets == row]
        members = [image for image in pool.images[row].tolist() if image >= 0]
        assert len(drawn) == pytest.approx(8000, rel=0.05)
        counts = [int((drawn == image).sum()) for image in members]
        assert sum(counts) == len(drawn)
        assert counts == pytest.approx([len(drawn) / len(members)] * len(members), rel=0.1)


# Many classes


@pytest.mark.parametrize("variant", ["gcgpn-aux", "gcgpn-aux-split"])
def test_a_step_with_a_sparse_relation_makes_nothing_of_the_size_of_all_pairs_of_classes(variant: str) -> None:
    classes, neighbours, each, features = 4096, 32, 4, 8
    row = torch.arange(classes).repeat_interleave(neighbours)
    column = (row + torch.randint(1, classes, (neighbours,), generator=seeded(0)).repeat(classes)) % classes
    values = torch.rand(len(row), generator=seeded(1))
    graph = torch.sparse_coo_tensor(torch.stack([row, column]), values, (classes, classes), check_invariants=True)
    images = torch.arange(classes * each).view(classes, each)
    pool = Pool(torch.arange(classes), images, torch.full((classes,), each))
    store = FeatureStore(torch.randn(classes * each, features, generator=seeded(2)))
    spec = EpisodeSpec(pool, None, ways=5, shots=1, novel_queries=3, seen_queries=4)
    model = build(VARIANTS[variant], "identity", (features,), classes, {"graph": graph})
    optimiser = make_optimiser(model, Recipe("short"))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with LargestTensor() as largest:
        loss = TrainingStep(model, optimiser, store, Augmentation(), spec, 2, VARIANTS[variant])(seeded(3))
    assert loss.isfinite()
    assert all((new != old).any() for new, old in zip(model.parameters(), before, strict=True))
    assert neighbours * classes < largest.numbers < classes * classes / 8


def test_a_step_with_a_sparse_relation_is_not_captured(toy: Dataset, toy_config: Make) -> None:
    """It asks the host how many edges an episode has."""
    spec = training_spec(toy, toy_config().recipe, 1)
    for similarities, captured in ((torch.eye(25), True), (torch.eye(25).to_sparse_coo(), False)):
        model = build(VARIANTS["gcgpn-aux"], "identity", (4,), 12, {"kinship": similarities})
        assert can_be_recorded(model, FeatureStore(torch.zeros(9, 4)), spec) is captured


# Two stages


def parts(weights: dict[str, torch.Tensor], *names: str) -> dict[str, torch.Tensor]:
    return {name: value for name, value in weights.items() if name.split(".")[0] in names}


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


def test_a_second_stage_starts_with_the_best_weights_of_the_first(
    toy: Dataset, toy_config: Make, start: Path, tmp_path: Path
) -> None:
    train(toy_config("dfslwof-att", epochs=1, steps=1, learning_rate=1e-30), toy, tmp_path / "run", start=start)
    second = Run.open(tmp_path / "run").weights("last")
    for name, value in parts(Run.open(start).weights("best"), "backbone", "prototypes", "classifier").items():
        torch.testing.assert_close(second[name], value, rtol=0, atol=0)


def test_a_pretrained_model_starts_with_the_weights_of_the_first_stage_and_trains_all_of_them(
    toy: Dataset, toy_config: Make, start: Path, tmp_path: Path
) -> None:
    first = parts(Run.open(start).weights("best"), "backbone", "prototypes", "classifier")
    train(toy_config(pretrain="cosine", epochs=1, steps=1, learning_rate=1e-30), toy, tmp_path / "begun", start=start)
    begun = Run.open(tmp_path / "begun")
    assert begun.config.start == Run.open(start).fingerprint
    for name, value in first.items():
        if "running" not in name and "tracked" not in name:
            assert torch.equal(begun.weights("last")[name], value)
    train(toy_config(pretrain="cosine"), toy, tmp_path / "run", start=start)
    learned = Run.open(tmp_path / "run").weights("last")
    assert not any(torch.equal(learned[name], value) for name, value in first.items())


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


def test_one_first_stage_serves_every_number_of_shots(toy: Dataset, toy_config: Make, start: Path, tmp_path: Path) -> None:
    before = {file.name: file.read_bytes() for file in start.iterdir()}
    starts = set()
    for shots in (1, 3):
        config = replace(toy_config("dfslwof-att", epochs=1), shots=shots)
        assert train(config, toy, tmp_path / str(shots), start=start)["shots"] == shots
        starts.add(Run.open(tmp_path / str(shots)).config.start)
    assert starts == {Run.open(start).fingerprint}
    assert {file.name: file.read_bytes() for file in start.iterdir()} == before


def test_a_run_begun_from_another_start_is_refused(toy: Dataset, toy_config: Make, start: Path, tmp_path: Path) -> None:
    config = toy_config("dfslwof-att", epochs=1)
    with pytest.raises(Killed):
        train(config, toy, tmp_path / "run", progress=Stopping((2,)), start=start)
    train(toy_config("cosine", seed=1, epochs=1), toy, tmp_path / "other")
    with pytest.raises(InputError, match=r"another configuration \(start is '\w+' there, not '\w+'\)"):
        train(config, toy, tmp_path / "run", start=tmp_path / "other")
    train(config, toy, tmp_path / "run", start=start)


@pytest.mark.slow
def test_a_missing_first_stage_is_trained_into_a_folder_beside_the_run(
    toy: Dataset, toy_config: Make, start: Path, tmp_path: Path
) -> None:
    train(toy_config("dfslwof-att", epochs=2), toy, tmp_path / "run")
    first = Run.open(tmp_path / "run-cosine")
    assert (first.config.variant, first.config.recipe.epochs, first.measures is not None) == ("cosine", 2, True)
    assert Run.open(tmp_path / "run").config.start == first.fingerprint
    train(toy_config("dfslwof-avg"), toy, tmp_path / "other", start=tmp_path / "named")
    assert outcome(tmp_path / "named") == outcome(start)


def test_a_finished_first_stage_is_used_as_it_is(toy: Dataset, toy_config: Make, start: Path, tmp_path: Path) -> None:
    before = {file.name: file.read_bytes() for file in start.iterdir()}
    train(toy_config("dfslwof-att", epochs=1), toy, tmp_path / "run", start=start)
    assert Run.open(tmp_path / "run").config.start == Run.open(start).fingerprint
    assert {file.name: file.read_bytes() for file in start.iterdir()} == before
    assert not (tmp_path / "run-cosine").exists()


def test_an_unfinished_first_stage_is_finished_first(toy: Dataset, toy_config: Make, start: Path, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        train(replace(toy_config("cosine"), relations=()), toy, tmp_path / "half", progress=Stopping((9,)))
    train(toy_config("dfslwof-att"), toy, tmp_path / "run", start=tmp_path / "half")
    assert outcome(tmp_path / "half") == outcome(start)


def test_what_cannot_be_started_from_is_refused_before_the_folder_is_touched(
    toy: Dataset, toy_config: Make, start: Path, tmp_path: Path
) -> None:
    config, out = toy_config("dfslwof-att"), tmp_path / "run"
    with pytest.raises(InputError, match=r"'dfslwof-att' starts from a trained 'cosine'"):
        training.train_stage(config, toy, out, torch.device("cpu"), Silent(), None)
    with pytest.raises(InputError, match=r"'gcgpn-aux' starts from no other run.*--set pretrain=cosine"):
        train(toy_config(), toy, out, start=start)
    with pytest.raises(InputError, match=r"'pn\+' starts from no other run: leave out the start \S+$"):
        train(toy_config("pn+"), toy, out, start=start)
    with pytest.raises(InputError, match=r"'gcgpn-aux' starts from a trained 'cosine'"):
        training.train_stage(toy_config(pretrain="cosine"), toy, out, torch.device("cpu"), Silent(), None)
    with pytest.raises(InputError, match="not a run folder"):
        training.train_stage(config, toy, out, torch.device("cpu"), Silent(), tmp_path / "absent")
    with pytest.raises(InputError, match=r"its backbone is 'conv4-32', not 'conv4-64'.*--start"):
        train(replace(config, backbone="conv4-64"), toy, out, start=start)
    with pytest.raises(Killed):
        train(toy_config("cosine"), toy, tmp_path / "half", progress=Stopping((9,)))
    with pytest.raises(InputError, match="before its training is finished"):
        training.train_stage(config, toy, out, torch.device("cpu"), Silent(), tmp_path / "half")
    train(toy_config("pn+", epochs=1, steps=1), toy, tmp_path / "pn")
    with pytest.raises(InputError, match=r"its variant is 'pn\+', not 'cosine'"):
        train(config, toy, out, start=tmp_path / "pn")
    assert not out.exists()


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


@pytest.mark.parametrize("variant", ["pn+", "gcgpn-cos"])
def test_training_may_take_more_or_fewer_classes_as_novel_than_evaluation_asks_of(
    toy: Dataset, toy_config: Make, variant: str, tmp_path: Path
) -> None:
    for ways in (2, 4):
        config = toy_config(variant, training_ways=ways)
        assert config.recipe.ways == 3
        _, _, episodes = stepping(variant, toy, config)
        assert episodes.support.shape[1] == ways
        assert episodes.classes.shape[1] - episodes.seen == ways
        assert plan_training(config, toy)[2].ways == 3, "which is what validation asks of"
    too_many = f"{toy.seen} ways asked of {toy.seen} seen classes: use fewer ways .--set training_ways=N.$"
    with pytest.raises(InputError, match=too_many):
        train(toy_config(variant, training_ways=toy.seen), toy, tmp_path / "run")


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
from conftest import make_toy
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
