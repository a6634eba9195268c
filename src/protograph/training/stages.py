"""Trainings of one or two stages: a missing first stage is trained before the run that starts from it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from protograph._internal.errors import InputError
from protograph._internal.progress import Progress, Silent
from protograph.data import Dataset
from protograph.data.folds import fold_of
from protograph.device import best_device
from protograph.training.loop import train_stage
from protograph.training.recipes import (
    RECIPES,
    SECOND_STAGE,
    SETTINGS,
    Recipe,
    can_be_pretrained,
    resolve_recipe,
    stage_before,
    unused_settings,
)
from protograph.training.run_config import RunConfig, configure
from protograph.training.run_folder import Run
from protograph.training.setup import check_no_start, fold_folder, plan_training
from protograph.variants import find_variant


def train(
    config: RunConfig,
    dataset: Dataset,
    folder: Path | str,
    device: torch.device | None = None,
    progress: Progress | None = None,
    start: Path | str | None = None,
    changes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train a configuration into a run folder, or continue where an earlier attempt stopped.

    A variant of two stages starts from a trained run of another variant. If that run is missing, it is trained first, and so
    are the starts of folds, in folders beside it.

    Args:
        config: What to train, see `configure`.
        dataset: The dataset the configuration was made for.
        folder: The run folder; a finished run is not trained again.
        device: Where to train; by default the GPU if there is one.
        progress: Where progress is shown; by default nowhere.
        start: The first stage's run folder; by default a folder beside `folder`, named after both.
        changes: Settings that a missing first stage changes of its recipe; by default those that `config` changes.

    Returns:
        The final measures, as measures.json has them.

    Raises:
        InputError: The configuration does not fit the dataset, or a folder belongs to another run.

    """
    folder, start = Path(folder), None if start is None else Path(start)
    device, progress = device or best_device(), progress or Silent()
    before = stage_before(find_variant(config.variant), config.recipe)
    if before is None:
        check_no_start(config, start)
    else:
        start = start or folder.with_name(f"{folder.name}-{before.name}")
        train_first_stage(config, dataset, folder, device, progress, start, changes)
    return train_stage(config, dataset, folder, device, progress, start)


def train_first_stage(
    config: RunConfig,
    dataset: Dataset,
    folder: Path,
    device: torch.device,
    progress: Progress,
    start: Path,
    changes: Mapping[str, Any] | None,
) -> None:
    """Train the run that `config` starts from into `start`, unless it is finished there."""
    plan_training(config, dataset)  # mistakes in `config` are reported before the first stage is trained
    Run.find(folder, config)
    first = configure_first_stage(config, dataset, changes)
    for fold in range(config.recipe.folds):
        part = fold_of(dataset, fold, config.recipe.folds)
        plan_training(replace(first, fingerprint=part.fingerprint), part)
    if (start / "measures.json").exists():
        _check_changes(config, first, start, changes or {})
    else:
        if start.resolve() == folder.resolve():
            raise InputError(f"{folder} cannot be both the run and its start: choose another --start")
        Run.find(start, first, "--start")
        progress.say(f"{config.variant} starts from a trained {first.variant}: training it first, in {start}")
        train_stage(first, dataset, start, device, progress, None)
    train_folds(config, dataset, device, progress, start)


def train_folds(config: RunConfig, dataset: Dataset, device: torch.device, progress: Progress, start: Path) -> None:
    """Train the starts of folds as the start of all classes was trained, beside it, unless they are there."""
    folds, whole = config.recipe.folds, Run.open(start).config
    for fold in range(folds):
        folder = fold_folder(start, fold, folds)
        part = fold_of(dataset, fold, folds)
        recipe = replace(whole.recipe, epochs=config.recipe.fold_epochs or whole.recipe.epochs)
        trained = replace(whole, recipe=recipe, fingerprint=part.fingerprint)
        if (run := Run.find(folder, trained, "--start")) is None or run.measures is None:
            progress.say(f"training the start of fold {fold + 1} of {folds}, in {folder}")
            train_stage(trained, part, folder, device, progress, None)


def configure_first_stage(config: RunConfig, dataset: Dataset, changes: Mapping[str, Any] | None = None) -> RunConfig:
    """Return the configuration of the run that `config` starts from, which is the same for every K.

    Args:
        config: The configuration of the second stage.
        dataset: Its dataset.
        changes: Settings changed by the user, of which it takes those it uses; by default those that `config` changes.

    """
    variant = find_variant(config.variant)
    before = stage_before(variant, config.recipe)
    assert before is not None, f"{config.variant} starts from no other run"
    if config.recipe.name not in RECIPES:
        recipe = replace(config.recipe, **{name: getattr(Recipe, name) for name in (*SECOND_STAGE, "pretrain")})
        return replace(config, variant=before.name, shots=1, relations=(), relation_digests=(), recipe=recipe, start="")
    if changes is None:
        usual = resolve_recipe(
            variant,
            config.dataset,
            config.recipe.name,
            {"pretrain": config.recipe.pretrain} if can_be_pretrained(variant) else {},
        )
        values = {name: getattr(config.recipe, name) for name in SETTINGS}
        changes = {name: value for name, value in values.items() if value != getattr(usual, name)}
    unused = unused_settings(before, resolve_recipe(before, config.dataset, config.recipe.name, changes))
    return configure(
        dataset,
        before.name,
        seed=config.seed,
        recipe=config.recipe.name,
        backbone=config.backbone,
        changes={name: value for name, value in changes.items() if name not in unused},
        plugins=config.plugins,
        precision=config.precision,
    )


def _check_changes(config: RunConfig, first: RunConfig, start: Path, changes: Mapping[str, Any]) -> None:
    """Refuse changes that only the first stage would use, if it is trained with other values."""
    stored, unused = Run.open(start).config, unused_settings(find_variant(config.variant), config.recipe)
    if stored.variant != first.variant:
        return
    for name in unused & changes.keys():
        value, trained = getattr(first.recipe, name), getattr(stored.recipe, name)
        if value != trained:
            raise InputError(
                f"{name} {value} would be ignored, since {start} is trained with {trained}: leave it out, "
                "or name another --start"
            )
