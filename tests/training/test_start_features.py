from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph._internal.progress import Silent
from protograph.data import Augmentation, Dataset, FeatureStore
from protograph.nn.whitened_space import FeatureSpread, WhitenedSpace
from protograph.training import start_features as module
from protograph.training import step
from protograph.training.run_config import RunConfig
from protograph.training.run_folder import Run
from protograph.training.setup import load_first_stage, plan_training, trained_model
from protograph.training.stages import train
from protograph.training.start_features import prepare_second_stage, used_images
from training.interrupted import Killed, Stopping, outcome, parts

Make = Callable[..., RunConfig]
pytestmark = pytest.mark.usefixtures("short_tests")
FROZEN = {"pretrain": "cosine", "backbone_learning_rate_factor": 0.0}


def prepared(config: RunConfig, toy: Dataset, start: Path) -> tuple[torch.nn.Module, Dataset]:
    model, spec, _ = plan_training(config, toy)
    load_first_stage(model, config, start)
    dataset, _ = prepare_second_stage(model, toy, spec, config, start, Silent())
    return model, dataset


def features_of(model: torch.nn.Module, toy: Dataset, images: Tensor) -> Tensor:
    """The features of images, one by one."""
    with torch.no_grad():
        return torch.cat([model.eval().embed(toy.store.gather(image[None])) for image in images])


def test_features_are_those_of_the_start_and_changed_views_are_of_training_images(
    toy: Dataset, toy_config: Make, start: Path
) -> None:
    _, dataset = prepared(toy_config(**FROZEN, views=3), toy, start)
    network = trained_model(Run.open(start), toy)
    assert isinstance(dataset.store, FeatureStore)
    images = used_images(toy)
    assert len(dataset.store) == len(toy.store)
    torch.testing.assert_close(dataset.store.features[images], features_of(network, toy, images), atol=1e-5, rtol=1e-5)
    copies = dataset.store.copies
    assert copies is not None
    assert copies.shape[1] == 3
    torch.testing.assert_close(copies[:, 0], dataset.store.features, rtol=0, atol=0)
    training = toy.train.all_images()
    changed = (copies[training, 1:] != copies[training, :1]).any(-1)
    assert changed.float().mean() > 0.9  # a view may by chance be unmoved
    assert not torch.equal(copies[training, 1], copies[training, 2])


def test_a_second_stage_on_computed_features_learns_what_one_on_images_does(
    toy: Dataset, toy_config: Make, start: Path, tmp_path: Path
) -> None:
    still = replace(toy, augmentation=Augmentation())  # so that the images themselves are what both see
    train(toy_config(**FROZEN), still, tmp_path / "images", start=start)
    train(toy_config(**FROZEN, views=1), still, tmp_path / "features", start=start)
    by_images, by_features = (Run.open(tmp_path / name).weights("last") for name in ("images", "features"))
    for name, value in by_images.items():
        torch.testing.assert_close(by_features[name], value, atol=1e-4, rtol=1e-4)
    for name, value in parts(Run.open(start).weights("best"), "backbone").items():
        assert torch.equal(by_features[f"{name}"], value)


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.0])
def test_the_factor_decides_how_far_the_backbone_goes(
    factor: float, toy: Dataset, toy_config: Make, start: Path, tmp_path: Path
) -> None:
    changes = {"backbone_learning_rate_factor": factor, "epochs": 1, "steps": 1, "momentum": 0.0, "nesterov": False}
    train(toy_config(pretrain="cosine", weight_decay=0.0, **changes), toy, tmp_path / "run", start=start)
    before, after = Run.open(start).weights("best"), Run.open(tmp_path / "run").weights("last")
    moved = {name: after[name] - value for name, value in parts(before, "backbone").items() if "running" not in name}
    length = max(float(value.float().abs().max()) for name, value in moved.items() if "tracked" not in name)
    assert (length == 0) == (factor == 0)
    if factor == 0.5:
        train(toy_config(pretrain="cosine", weight_decay=0.0, **{**changes, "backbone_learning_rate_factor": 1.0}), toy,
              tmp_path / "whole", start=start)  # fmt: skip
        whole = Run.open(tmp_path / "whole").weights("last")
        for name, value in moved.items():
            if name.endswith("weight"):
                torch.testing.assert_close(2 * value, whole[name] - before[name], atol=1e-6, rtol=1e-3)


def test_prototypes_stay_without_a_learning_rate(toy: Dataset, toy_config: Make, start: Path, tmp_path: Path) -> None:
    train(toy_config(**FROZEN, views=1, prototype_learning_rate_factor=0.0), toy, tmp_path / "run", start=start)
    before, after = Run.open(start).weights("best"), Run.open(tmp_path / "run").weights("last")
    assert torch.equal(after["prototypes"], before["prototypes"])
    assert not torch.equal(after["classifier.temperature"], before["classifier.temperature"])


def test_whitened_features_begin_with_class_means_and_are_what_a_stored_run_gives(
    toy: Dataset, toy_config: Make, start: Path, tmp_path: Path
) -> None:
    config = toy_config(**FROZEN, views=1, whiten=True, shrinkage=0.3)
    model, dataset = prepared(config, toy, start)
    network = trained_model(Run.open(start), toy)
    classes = [features_of(network, toy, images) for images in toy.train.by_class()]
    space = WhitenedSpace(classes[0].shape[1])
    means = space.fit(FeatureSpread.of(classes), 0.3)
    torch.testing.assert_close(model.prototypes.detach().double(), means, atol=1e-3, rtol=1e-3)
    images = used_images(toy)
    expected = space(features_of(network, toy, images))
    torch.testing.assert_close(dataset.store.gather(images), expected, atol=1e-3, rtol=1e-3)
    train(config, toy, tmp_path / "run", start=start)
    stored = trained_model(Run.open(tmp_path / "run"), toy)
    torch.testing.assert_close(features_of(stored, toy, images), dataset.store.gather(images), atol=1e-4, rtol=1e-4)


def test_a_backbone_is_trained_through_the_whitening(toy: Dataset, toy_config: Make, start: Path, tmp_path: Path) -> None:
    train(toy_config(pretrain="cosine", whiten=True), toy, tmp_path / "run", start=start)
    weights = Run.open(tmp_path / "run").weights("last")
    assert not torch.equal(weights["space.matrix"], torch.eye(len(weights["space.centre"])))
    before = Run.open(start).weights("best")
    assert any(not torch.equal(weights[name], value) for name, value in parts(before, "backbone").items())


def test_features_are_found_again_in_the_cache_and_damaged_ones_are_computed_anew(
    toy: Dataset, toy_config: Make, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROTOGRAPH_CACHE", str(tmp_path / "cache"))
    config = toy_config(**FROZEN, views=2)
    _, first = prepared(config, toy, start)
    (path,) = (tmp_path / "cache" / "start-features").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(module, "extract", None)  # nothing is computed again
        _, again = prepared(config, toy, start)
    for left, right in ((first.store.features, again.store.features), (first.store.copies, again.store.copies)):
        assert torch.equal(left, right)
    path.write_bytes(path.read_bytes()[:-8])
    _, repaired = prepared(config, toy, start)
    assert torch.equal(first.store.features, repaired.store.features)
    prepared(replace(config, seed=1), toy, start)
    assert len(list(path.parent.iterdir())) == 2  # other changed views


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"views": 2}, {"views": 1, "whiten": True, "learn_balance": True, "select_balanced": True}]
)
def test_a_killed_run_on_computed_features_ends_as_an_undisturbed_one(
    changes: dict[str, object], toy: Dataset, toy_config: Make, start: Path, tmp_path: Path
) -> None:
    config = toy_config(**FROZEN, **changes)
    train(config, toy, tmp_path / "whole", start=start)
    with pytest.raises(Killed):
        train(config, toy, tmp_path / "killed", progress=Stopping((5,)), start=start)
    train(config, toy, tmp_path / "killed", start=start)
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


def test_random_weights_are_not_kept_as_they_are(toy: Dataset, toy_config: Make, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leaves random weights as they are: name a start too"):
        train(toy_config(backbone_learning_rate_factor=0.0), toy, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_learned_balance_is_added_to_the_logits_of_novel_classes(toy: Dataset, toy_config: Make, start: Path) -> None:
    model, _ = prepared(toy_config(**FROZEN, learn_balance=True), toy, start)
    plain, _ = prepared(toy_config(**FROZEN), toy, start)
    features = model.prototypes.shape[1]
    generator = torch.Generator().manual_seed(0)
    support, queries = torch.randn(2, 3, 1, features, generator=generator), torch.randn(2, 5, features, generator=generator)
    classes = torch.arange(12).expand(2, -1)
    episode = support, torch.ones(2, 3, 1, dtype=torch.bool), queries, classes, 9
    with torch.no_grad():
        model.balance.fill_(1.5)
        difference = model(*episode) - plain(*episode)
    torch.testing.assert_close(difference[..., :9], torch.zeros(2, 5, 9))
    torch.testing.assert_close(difference[..., 9:], torch.full((2, 5, 3), 1.5))


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # of the compiler's, which knows faster and less exact ways
@pytest.mark.parametrize("folds", [0, 2])
@pytest.mark.parametrize("variant", ["aux-only", "gcgpn-aux", "gcgpn-mapped", "gcgpn-mapped-joint", "castle"])
def test_heads_on_features_train_on_a_gpu_as_in_plain_steps(
    variant: str, folds: int, toy: Dataset, toy_config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if folds and variant == "castle":
        pytest.skip("it learns of single features, which those of several folds do not share")
    head = {"prototype_learning_rate_factor": 0.0, "views": 1, "whiten": True, "learn_balance": True, "select_balanced": True}
    sizes = {"epochs": 1, "steps": 8, "episodes": 4, "test_queries": 2}
    config = toy_config(variant, **FROZEN, **head, **sizes, folds=folds)
    losses = []
    for plain in (False, True):
        monkeypatch.setattr(step, "PLAIN", plain)
        train(config, toy, tmp_path / str(plain), torch.device("cuda"), start=tmp_path / "start")
        losses.append(Run.open(tmp_path / str(plain)).history[0]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
