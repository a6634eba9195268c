from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from protograph._internal.errors import InputError
from protograph._internal.progress import Silent
from protograph.data import Dataset
from protograph.data.folds import fold_classes, fold_of
from protograph.episodes import seeded
from protograph.nn.classify import normalise
from protograph.nn.whitened_space import FeatureSpread, WhitenedSpace
from protograph.training.optimiser import make_optimiser
from protograph.training.out_of_fold import OutOfFold, out_of_fold
from protograph.training.run_config import RunConfig
from protograph.training.run_folder import Run
from protograph.training.setup import fold_folder, load_first_stage, plan_training, trained_model
from protograph.training.stages import train
from protograph.training.start_features import prepare_second_stage
from protograph.training.step import LOSSES, TrainingStep
from protograph.variants import find_variant
from training.interrupted import Killed, Stopping, outcome

Make = Callable[..., RunConfig]
pytestmark = pytest.mark.usefixtures("short_tests")
FOLDS = {
    "pretrain": "cosine", "backbone_learning_rate_factor": 0.0, "folds": 3, "whiten": True, "learn_balance": True,
    "decay_scalars": False, "episodes": 4, "test_queries": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def starts(toy: Dataset, toy_config: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished first stage with those of three folds beside it, to be read and not changed."""
    folder = tmp_path_factory.mktemp("starts") / "cosine"
    train(toy_config("gcgpn-mapped", **{**FOLDS, "epochs": 1, "steps": 1}), toy, folder.parent / "run", start=folder)
    return folder


def prepared(config: RunConfig, toy: Dataset, start: Path) -> tuple[torch.nn.Module, Dataset, OutOfFold]:
    model, spec, _ = plan_training(config, toy)
    load_first_stage(model, config, start)
    dataset, spec = prepare_second_stage(model, toy, spec, config, start, Silent())
    assert isinstance(spec, OutOfFold)
    return model, dataset, spec


def test_classes_acting_as_novel_and_all_queries_are_new_to_the_start_of_their_fold(toy: Dataset, toy_config: Make) -> None:
    episodes = out_of_fold(toy, toy_config(folds=3, episodes=6).recipe, 1)
    drawn = episodes.draw(7, seeded(0))
    assert [len(part) for part in drawn] == [3, 2, 2]
    class_of = {image: row for row, images in enumerate(toy.train.by_class()) for image in images.tolist()}
    for fold, part in enumerate(drawn):
        left_out = set(fold_classes(toy.seen, fold, 3))
        fitted = set(fold_of(toy, fold, 3).train.all_images().tolist())
        used = [*part.support.flatten().tolist(), *part.queries.flatten().tolist()]
        assert not set(used) & fitted
        for episode in range(len(part)):
            ids = part.classes[episode].tolist()
            assert set(ids[: part.seen]) == set(range(toy.seen)) - left_out
            assert set(ids[part.seen :]) <= left_out
            assert [class_of[image] for image in part.support[episode, :, 0].tolist()] == ids[part.seen :]
            targets = [ids[row] for row in part.targets[episode].tolist()]
            assert [class_of[image] for image in part.queries[episode].tolist()] == targets


def test_features_and_prototypes_are_those_of_the_start_of_the_fold(toy: Dataset, toy_config: Make, starts: Path) -> None:
    _, dataset, spec = prepared(toy_config("gcgpn-mapped", **FOLDS), toy, starts)
    for fold, (episodes, prototypes) in enumerate(zip(spec.specs, spec.prototypes, strict=True)):
        part, run = fold_of(toy, fold, 3), Run.open(fold_folder(starts, fold, 3))
        network = trained_model(run, part, "last").eval()
        with torch.no_grad():
            classes = [network.embed(toy.store.gather(images)) for images in part.train.by_class()]
            space = WhitenedSpace(classes[0].shape[1])
            means = space.fit(FeatureSpread.of(classes), 0.6)
            for name, row in zip(part.classes[: part.seen], means, strict=True):
                torch.testing.assert_close(prototypes[toy.classes.index(name)].double(), row, atol=1e-3, rtol=1e-3)
            for class_id in fold_classes(toy.seen, fold, 3):
                assert not prototypes[class_id].any()
            for pool, source in ((episodes.seen, part.seen_validation), (episodes.novel, part.novel_validation)):
                for rows, images in zip(pool.by_class(), source.by_class(), strict=True):
                    expected = space(network.embed(toy.store.gather(images)))
                    torch.testing.assert_close(dataset.store.gather(rows), expected, atol=1e-3, rtol=1e-3)


def test_the_loss_is_the_mean_over_folds_of_the_cross_entropy_with_their_prototypes(
    toy: Dataset, toy_config: Make, starts: Path
) -> None:
    config = toy_config("gcgpn-mapped", **FOLDS)
    model, dataset, spec = prepared(config, toy, starts)
    with torch.no_grad():
        model.balance.fill_(0.7)
    optimiser = make_optimiser(model, config.recipe)
    step = TrainingStep(model, optimiser, dataset.store, toy.augmentation, spec, 4, find_variant("gcgpn-mapped"), config.recipe)
    drawn = step.draw(seeded(1))
    loss = LOSSES["joint"](step, drawn, seeded(2))
    per_fold = []
    for part, prototypes in zip(drawn, spec.prototypes, strict=True):
        losses = []
        for index in range(len(part)):
            episode = part.slice(index, index + 1)
            rows = prototypes[episode.classes[0, : part.seen]][None]
            support = dataset.store.gather(episode.support.flatten()).view(*episode.support.shape, -1)
            joint = torch.cat([rows, normalise(support)[:, :, 0]], 1)
            context = replace(model.context(support, episode.mask, episode.classes, part.seen, prototypes), prototypes=joint)
            updated = normalise(model.joint_prototypes(context))[0]
            for query, target in zip(episode.queries[0], episode.targets[0], strict=True):
                logits = model.classifier.temperature * (normalise(dataset.store.gather(query[None])) @ updated.T)
                logits = logits + 0.7 * (torch.arange(logits.shape[1]) >= part.seen)
                losses.append(cross_entropy(logits, target[None]))
        per_fold.append(torch.stack(losses).mean())
    torch.testing.assert_close(loss, torch.stack(per_fold).mean(), atol=1e-5, rtol=1e-5)


def test_only_numbers_that_belong_to_no_feature_are_learned(
    toy: Dataset, toy_config: Make, starts: Path, tmp_path: Path
) -> None:
    config = toy_config("gcgpn-aux", **{**FOLDS, "learning_rate": 0.1})
    fresh, _, _ = prepared(config, toy, starts)
    train(config, toy, tmp_path / "run", start=starts)
    learned = Run.open(tmp_path / "run").weights("last")
    changed = {name for name, value in fresh.state_dict().items() if not torch.equal(value, learned[name])}
    assert changed == {"balance", "classifier.temperature", "graph.layers.0.scales", "operators.0.temperature"}


def test_a_variant_whose_operators_learn_of_features_is_refused(toy: Dataset, toy_config: Make, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'gcgpn-key' cannot be trained on out-of-fold episodes: .*similarity.keys"):
        train(toy_config("gcgpn-key", **FOLDS), toy, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_killed_run_of_folds_continues_with_the_starts_it_has(
    toy: Dataset, toy_config: Make, starts: Path, tmp_path: Path
) -> None:
    config = toy_config("gcgpn-mapped", **FOLDS)
    with pytest.raises(Killed):  # in the second fold's start
        train(config, toy, tmp_path / "run", progress=Stopping(at="training the start of fold 2"), start=tmp_path / "cosine")
    with pytest.raises(Killed):  # in the second stage
        train(config, toy, tmp_path / "run", progress=Stopping((5,), at="never"), start=starts)
    train(config, toy, tmp_path / "run", start=starts)
    train(config, toy, tmp_path / "whole", start=starts)
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
    done = fold_folder(tmp_path / "cosine", 0, 3)
    before = (done / "measures.json").read_bytes()
    train(toy_config("gcgpn-mapped", **{**FOLDS, "epochs": 1}), toy, tmp_path / "other", start=starts)
    assert (done / "measures.json").read_bytes() == before
    other, first = Run.open(tmp_path / "other").config.start, Run.open(tmp_path / "run").config.start
    assert other == first
    assert first.split("-")[0] == Run.open(starts).fingerprint


def test_a_fold_may_be_trained_for_fewer_epochs(toy: Dataset, toy_config: Make, tmp_path: Path) -> None:
    train(toy_config("gcgpn-mapped", **{**FOLDS, "folds": 2, "fold_epochs": 1, "epochs": 2}), toy, tmp_path / "run")
    first = tmp_path / "run-cosine"
    lengths = [Run.open(folder).config.recipe.epochs for folder in (first, *(fold_folder(first, f, 2) for f in (0, 1)))]
    assert lengths == [2, 1, 1]
