"""What a training needs before its first step: the model, the episodes, and checks of both."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from protograph._internal.errors import InputError, unknown_name
from protograph._internal.sealed import tensors_digest
from protograph.data import Dataset, FeatureStore, Pool
from protograph.device import PRECISIONS
from protograph.episodes import EpisodeSpec
from protograph.evaluation.metrics import MEASURES, evaluation_spec
from protograph.nn.backbones import Centred, Conv4, ResNet12, can_drop, feature_count
from protograph.nn.model import EpisodeModel, GraphPrototypeNetwork
from protograph.nn.whitened_space import WhitenedSpace
from protograph.relations import check_similarities, open_relations
from protograph.training.out_of_fold import OutOfFold, fix_features, out_of_fold
from protograph.training.processes import Processes
from protograph.training.recipes import Recipe, can_be_pretrained, keeps_backbone, stage_before
from protograph.training.run_config import RunConfig
from protograph.training.run_folder import Run
from protograph.training.step import TURNS
from protograph.variants import Variant, build, build_few_shot, find_variant


def plan_training(config: RunConfig, dataset: Dataset) -> tuple[EpisodeModel, EpisodeSpec | Pool | OutOfFold, EpisodeSpec]:
    """Return a fresh model, what it is trained on, and its validation episodes.

    Raises:
        InputError: The configuration cannot be trained on this dataset.

    """
    recipe, variant = config.recipe, find_variant(config.variant)
    check_processes(variant, recipe, Processes.current().count)
    for name in variant.chosen_by:
        if name not in MEASURES:
            raise unknown_name("measure", name, MEASURES)
    if variant.objective == "none" and recipe.epochs * recipe.steps != len(variant.candidates):
        raise InputError(f"variant '{variant.name}' has {len(variant.candidates)} candidates: give it as many epochs of 1 step")
    if isinstance(dataset.store, FeatureStore) and (changed := recipe.image_changes):
        raise InputError(
            f"recipe '{recipe.name}' changes images ({', '.join(changed)}), and dataset '{dataset.name}' has features in "
            "their place: leave that out, or choose another recipe"
        )
    model = make_model(config, dataset)
    if model.ways not in (0, recipe.ways):
        raise InputError(
            f"variant '{variant.name}' has a last layer for the {model.ways} novel classes of training, so it cannot be tested "
            f"with {recipe.ways}: set training_ways to 0"
        )
    check_images(recipe, dataset.store.image_shape, model)
    if recipe.drop_block and not can_drop(model.backbone):
        raise InputError(
            f"recipe '{recipe.name}': drop_block needs a backbone that drops activations, such as resnet12-mirror, and "
            f"{config.backbone} does not: choose another --backbone, or --set drop_block=0"
        )
    if recipe.mixup and not getattr(model.backbone, "depths", 0):
        raise InputError(
            f"recipe '{recipe.name}': mixup needs a backbone that mixes images, such as resnet12-mirror, and "
            f"{config.backbone} does not: choose another --backbone, or --set mixup=false"
        )
    check_kept_backbone(variant, recipe, model)
    spec = training_spec(dataset, recipe, config.shots, variant.objective)
    validation, _ = (
        evaluation_spec(dataset, split, recipe.ways, config.shots, recipe.test_queries) for split in ("validation", "test")
    )
    return model, spec, validation


def check_processes(variant: Variant, recipe: Recipe, count: int) -> None:
    """Refuse what several processes cannot share."""
    if count == 1:
        return
    kind = ""
    if variant.method is not None:
        kind = "is a few-shot method"
    elif variant.objective == "none":
        kind = "takes no steps"
    elif recipe.folds and variant.objective == "joint":
        kind = "is trained on out-of-fold episodes"
    elif recipe.mixup:
        kind = "is trained on mixed images"
    if kind:
        raise InputError(f"variant '{variant.name}' {kind}, which several processes cannot share: train it without torchrun")
    setting = "batch_size" if variant.objective == "classify" else "episodes"
    shared = getattr(recipe, setting)
    if shared % count:
        raise InputError(
            f"recipe '{recipe.name}': {setting} {shared} cannot be divided evenly among {count} processes: start as many as "
            f"divide it, or --set {setting}={max(1, round(shared / count)) * count}"
        )


def check_kept_backbone(variant: Variant, recipe: Recipe, model: EpisodeModel) -> None:
    """Refuse a backbone that would stay random, and a training that would learn nothing."""
    if not keeps_backbone(variant, recipe) or variant.objective == "none":
        return
    if stage_before(variant, recipe) is None and any(True for _ in model.backbone.parameters()):
        raise InputError(
            f"recipe '{recipe.name}': backbone_learning_rate_factor 0 leaves random weights as they are: name a start too, "
            "such as --set pretrain=linear"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(
            f"variant '{variant.name}' has nothing to learn by recipe '{recipe.name}': leave out what keeps it fixed"
        )


def training_spec(dataset: Dataset, recipe: Recipe, shots: int, objective: str = "joint") -> EpisodeSpec | Pool | OutOfFold:
    """Return training episodes, in which some seen classes act as novel; or, for "classify" and "none", the training images."""
    if recipe.folds and objective == "joint":
        return out_of_fold(dataset, recipe, shots)
    if objective in ("joint", "few-shot"):
        seen_queries = recipe.seen_queries if objective == "joint" else 0
        queries = recipe.novel_queries, seen_queries
        ways = recipe.training_ways or recipe.ways
        return EpisodeSpec(dataset.train, None, ways, shots, *queries, recipe.query_scheme, names=dataset.classes)
    if int(dataset.train.counts.min()) < 1:
        name = dataset.classes[int(dataset.train.classes[dataset.train.counts.argmin()])]
        raise InputError(f"class '{name}' has no training image: give it one, or leave it out")
    return dataset.train


def make_model(config: RunConfig, dataset: Dataset) -> EpisodeModel:
    """Return a fresh model of a configuration for a dataset."""
    variant = find_variant(config.variant)
    similarities = find_similarities(variant, dataset, config.relations)
    store = dataset.store
    backbone: str | nn.Module = config.backbone
    if (
        isinstance(store, FeatureStore) and backbone == "identity"
    ):  # an offset that all features share would make all classes alike
        backbone = Centred.of([store.features[rows] for rows in dataset.train.by_class()])
    model: EpisodeModel
    if variant.method is not None:
        ways = config.recipe.training_ways or config.recipe.ways
        model = build_few_shot(variant, backbone, store.image_shape, dataset.seen, config.seed, ways)
    else:
        starts = config.recipe.temperature, config.recipe.relation_temperature
        model = build(variant, backbone, store.image_shape, dataset.seen, similarities, config.seed, *starts)
        add_space(model, variant, config.recipe)
    add_heads(model, variant, config)
    return model


def add_space(model: GraphPrototypeNetwork, variant: Variant, recipe: Recipe) -> None:
    """Give a model the space, the balance and the fixed parts that its recipe asks for."""
    if recipe.whiten and stage_before(variant, recipe) is not None:
        model.space = WhitenedSpace(model.prototypes.shape[1])
    if variant.objective != "joint":
        return
    if recipe.learn_balance:
        model.balance = nn.Parameter(torch.zeros(()))
    if recipe.folds:
        fix_features(model, variant.name)
    if not recipe.prototype_learning_rate_factor:
        model.prototypes.requires_grad_(False)
    if not recipe.backbone_learning_rate_factor:
        model.backbone.requires_grad_(False)


def add_heads(model: EpisodeModel, variant: Variant, config: RunConfig) -> None:
    """Give a model the heads of the tasks that it is trained with, their weights drawn by the seed of the run."""
    sizes = {}
    if variant.objective == "classify" and variant.seen_means:
        sizes["classes"] = len(model.prototypes)
    if config.recipe.rotation:
        sizes["rotation"] = TURNS
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)
        for name, outputs in sizes.items():
            model.heads[name] = nn.Linear(model.features, outputs)


def check_images(recipe: Recipe, image_shape: tuple[int, ...], model: EpisodeModel) -> None:
    """Refuse training images that the rotation task cannot turn, or of a size that gives other features than evaluation."""
    features = model.features
    if recipe.image_size:
        trained = feature_count(model.backbone, (image_shape[0], recipe.image_size, recipe.image_size))
        if trained != features:
            raise InputError(
                f"recipe '{recipe.name}': this backbone gives {trained} features of images of image_size {recipe.image_size}, "
                f"and {features} of those it is tested on: choose a backbone that averages over positions, such as "
                "resnet12-mirror, or leave out image_size"
            )
    if recipe.rotation and not recipe.image_size and (len(image_shape) != 3 or image_shape[1] != image_shape[2]):
        raise InputError(
            f"recipe '{recipe.name}': the rotation task needs square images, not {tuple(image_shape)}: set image_size too, or "
            "leave out rotation"
        )


def find_similarities(variant: Variant, dataset: Dataset, names: Sequence[str]) -> dict[str, Tensor]:
    """Return the similarities [C, C], by class id, of each named relation: one of the dataset, or what its name specifies."""
    if not variant.needs_relation:
        return {}
    relations = open_relations(names, dataset.relations, dataset.titles)
    return {
        label: check_similarities(relation.similarities(dataset.classes), dataset.classes, label)
        for label, relation in relations.items()
    }


def trained_model(run: Run, dataset: Dataset, selection: str = "best") -> EpisodeModel:
    """Return a run's model with its `best` or `last` weights, on the CPU.

    Raises:
        InputError: The dataset is not the one the run was trained on, or the run has no such weights.

    """
    if dataset.fingerprint != run.config.fingerprint:
        raise InputError(
            f"{run.folder} was trained on another version of {run.config.dataset} "
            f"({run.config.fingerprint}, here {dataset.fingerprint}): train again"
        )
    model = make_model(run.config, dataset)
    load_weights(model, run.weights(selection), run)
    return model


def load_weights(model: nn.Module, weights: dict[str, Tensor], run: Run) -> None:
    """Set all of a model's weights to those of a run.

    Raises:
        InputError: They are not the weights of such a model.

    """
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(f"the checkpoint in {run.folder} does not fit its configuration: remove the folder") from error


def set_parameters(model: EpisodeModel, values: Mapping[str, Any]) -> None:
    """Set parameters, by name, to numbers or tensors."""
    with torch.no_grad():
        for name, value in values.items():
            parameter = model.get_parameter(name)
            parameter.copy_(torch.as_tensor(value, dtype=parameter.dtype))


def load_first_stage(model: EpisodeModel, config: RunConfig, start: Path | None) -> RunConfig:
    """Load the run that a variant starts from, if it does, and return the configuration with that run's fingerprint.

    Args:
        model: The model, whose backbone, prototypes and classifier are set.
        config: Its configuration.
        start: The finished run of the stage before; None if there is none.

    Raises:
        InputError: The run is missing, unfinished or of another kind, or the variant starts from no other.

    """
    before = stage_before(find_variant(config.variant), config.recipe)
    if before is None:
        check_no_start(config, start)
        return config
    if start is None:
        raise InputError(
            f"variant '{config.variant}' starts from a trained '{before.name}': train that first and name its run folder"
        )
    run, needed = Run.open(start), replace(config, variant=before.name)
    for name in ("variant", "dataset", "fingerprint", "backbone"):
        if getattr(run.config, name) != getattr(needed, name):
            raise InputError(
                f"{start} cannot be the start: its {name} is '{getattr(run.config, name)}', not '{getattr(needed, name)}'; "
                "name another --start"
            )
    if run.measures is None:
        raise InputError(f"{start} cannot be the start before its training is finished: run its command again")
    parts = {"backbone", "prototypes", "classifier"} & {name.split(".")[0] for name in model.state_dict()}
    weights = {name: value for name, value in run.weights("best").items() if name.split(".")[0] in parts}
    load_weights(model, {**model.state_dict(), **weights}, run)
    return replace(config, start="-".join([run.fingerprint, *fold_digests(run, config.recipe.folds)]))


def fold_folder(start: Path, fold: int, folds: int) -> Path:
    """Return the run folder of a fold's start, beside that of the start of all classes."""
    return start.with_name(f"{start.name}-fold-{fold}-of-{folds}")


def fold_digests(start: Run, folds: int) -> list[str]:
    """Return a digest of the last weights of the starts of all folds, if there are folds.

    Raises:
        InputError: One of them is missing or unfinished, or is a start of another kind.

    """
    digests = []
    for fold in range(folds):
        run = Run.open(fold_folder(start.folder, fold, folds))
        if run.measures is None:
            raise InputError(f"{run.folder} cannot be a fold's start before its training is finished: run its command again")
        for name in ("variant", "backbone"):
            if getattr(run.config, name) != getattr(start.config, name):
                raise InputError(
                    f"{run.folder} cannot be a fold's start: its {name} is '{getattr(run.config, name)}', not "
                    f"'{getattr(start.config, name)}'; remove the folder"
                )
        digests.append(tensors_digest("", run.weights("last"))[:8])
    return digests


def load_teacher(config: RunConfig, dataset: Dataset) -> tuple[EpisodeModel | None, RunConfig]:
    """Return the teacher that a recipe names, if any, and the configuration with its fingerprint.

    Raises:
        InputError: There is no such run, it is unfinished, or it does not classify the same seen classes.

    """
    if not config.recipe.teacher:
        return None, config
    run = Run.open(Path(config.recipe.teacher))
    if find_variant(run.config.variant).objective != "classify":
        raise InputError(
            f"{run.folder} cannot be the teacher: its variant '{run.config.variant}' is trained on episodes; name a run of a "
            "first stage, such as linear"
        )
    if run.measures is None:
        raise InputError(f"{run.folder} cannot be the teacher before its training is finished: run its command again")
    teacher = trained_model(run, dataset)
    teacher.precision = PRECISIONS[config.precision]
    if isinstance(teacher.backbone, Conv4 | ResNet12):
        teacher.backbone.mirror = False  # it sees an image as the student does, once
    return teacher.eval().requires_grad_(False), replace(config, teacher=run.fingerprint)


def check_no_start(config: RunConfig, start: Path | None) -> None:
    """Refuse a start for a variant that starts from no other run."""
    if start is not None:
        hint = " or, to train it further, add --set pretrain=cosine" if can_be_pretrained(find_variant(config.variant)) else ""
        raise InputError(f"variant '{config.variant}' starts from no other run: leave out the start {start}{hint}")
