"""Run folders of format 1, as the code before the renaming of settings left them: one finished, one killed in epoch 3."""

import functools
import json
import shutil
from pathlib import Path

import pytest
import torch

from protograph._internal.errors import InputError
from protograph._internal.old_names import RECIPE_SETTINGS
from protograph.data import Augmentation, Dataset, FeatureStore, Pool
from protograph.relations import MatrixRelation
from protograph.training import loop
from protograph.training.recipes import SETTINGS
from protograph.training.run_config import FORMAT, configure
from protograph.training.run_folder import Run
from protograph.training.stages import train

OLD_RUNS = Path(__file__).parent / "data_files" / "old_runs"
SEEN, NOVEL_VALIDATION, NOVEL_TEST, VECTORS, FEATURES = 10, 4, 5, 6, 4


def tiny_features() -> Dataset:
    """The dataset of the two runs."""
    generator = torch.Generator().manual_seed(0)
    classes = SEEN + NOVEL_VALIDATION + NOVEL_TEST
    centres = torch.randint(-4, 5, (classes, 1, FEATURES), generator=generator)
    vectors: list[torch.Tensor] = []

    def pool(first: int, stop: int) -> Pool:
        members = {}
        for class_id in range(first, stop):
            members[class_id] = list(range(VECTORS * len(vectors), VECTORS * (len(vectors) + 1)))
            vectors.append(centres[class_id] + torch.randint(-2, 3, (VECTORS, FEATURES), generator=generator))
        return Pool.from_members(members)

    train, seen_validation, seen_test = (pool(0, SEEN) for _ in range(3))
    novel_validation, novel_test = pool(SEEN, SEEN + NOVEL_VALIDATION), pool(SEEN + NOVEL_VALIDATION, classes)
    names = tuple(f"class-{class_id:02d}" for class_id in range(classes))
    similarities = torch.randint(0, 9, (classes, classes), generator=generator).float().div(8).fill_diagonal_(1)
    return Dataset(
        name="tiny",
        classes=names,
        store=FeatureStore(torch.cat(vectors).float()),
        train=train,
        seen_validation=seen_validation,
        novel_validation=novel_validation,
        seen_test=seen_test,
        novel_test=novel_test,
        augmentation=Augmentation(),
        relations={"kinship": MatrixRelation(similarities, names, "kinship")},
        fingerprint="tiny-1",
    )


def test_the_settings_of_an_old_run_have_the_names_of_today() -> None:
    recipe = Run.open(OLD_RUNS / "finished").config.recipe
    assert (recipe.learning_rate, recipe.learning_rate_drops, recipe.warmup_steps) == (0.2, ((3, 0.05),), 2)
    assert (recipe.batch_size, recipe.query_scheme) == (8, "per-class")
    assert (recipe.scalar_learning_rate_factor, recipe.relation_temperature) == (0.5, 2.0)


def test_the_epochs_of_an_old_run_have_the_names_of_today() -> None:
    history = Run.open(OLD_RUNS / "finished").history
    assert [line["learning_rate"] for line in history] == [0.2, 0.2, 0.2, 0.05]
    assert all("rate" not in line for line in history)


def test_an_old_run_that_was_killed_goes_on_and_ends_as_it_would_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(OLD_RUNS / "killed", tmp_path / "run")
    monkeypatch.setattr(loop, "EvaluationSizes", functools.partial(loop.EvaluationSizes, episodes=20))
    run = Run.open(tmp_path / "run")
    assert len(run.history) == 1
    train(run.config, tiny_features(), tmp_path / "run")
    undisturbed = Run.open(OLD_RUNS / "finished").history
    assert [line.keys() for line in run.history] == [line.keys() for line in undisturbed]
    for ours, theirs in zip(run.history, undisturbed, strict=True):
        assert ours["learning_rate"] == theirs["learning_rate"]
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert ours["learned"] == pytest.approx(theirs["learned"], abs=1e-3)


def test_a_configuration_of_a_later_format_is_refused(tmp_path: Path) -> None:
    config = Run.open(OLD_RUNS / "killed").config.to_dict()
    assert config["format"] == FORMAT
    (tmp_path / "config.json").write_text(json.dumps({**config, "format": FORMAT + 1}))
    with pytest.raises(InputError, match=rf"config\.json .*format {FORMAT + 1}.*install a newer one"):
        Run.open(tmp_path)


@pytest.mark.parametrize(("old", "new"), RECIPE_SETTINGS.items())
def test_an_old_name_from_a_user_is_refused_and_the_new_one_named(old: str, new: str) -> None:
    assert new in SETTINGS
    assert old not in SETTINGS
    with pytest.raises(InputError, match=f"recipe setting '{old}' is now '{new}'"):
        configure(tiny_features(), "gcgpn-aux", backbone="identity", changes={old: 1})
