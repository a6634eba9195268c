"""Training of prototypes and graph block on the features of a frozen encoder.

Shapes: S seen, D features, n images, R augmented copies of each.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph._internal.memory import keep_freed_memory
from protograph._internal.progress import Progress
from protograph.data import Augmentation, Dataset, FeatureStore, ImageStore, Pool
from protograph.encoders import Encoder, backbone_encoder
from protograph.episodes import EpisodeSpec, seeded, step_seed
from protograph.nn.backbones import Centred
from protograph.nn.classify import normalise
from protograph.nn.model import GraphPrototypeNetwork
from protograph.relations import KeptRelation, open_relations
from protograph.training.optimiser import learning_rate_at, make_optimiser, set_learning_rate
from protograph.training.recipes import DEMO, FROZEN, Recipe
from protograph.training.run_folder import Run
from protograph.training.setup import set_parameters, trained_model
from protograph.training.step import TrainingStep
from protograph.variants import Variant, build, find_variant

FEWEST_STEPS = 50
FEWEST_IN_EPISODES = 3  # in an episode: one acts as novel beside two others
HELD_OUT = 0.2  # share of a class's images that calibration holds out
JOINT_NUMBERS = 1_000_000  # limit on the numbers in the joint prototypes of one step, if it has several episodes


@dataclass(frozen=True)
class Fit:
    """How a model of features is fitted.

    Attributes:
        variant: The model.
        similarities: The similarities [S, S] of all classes, by relation.
        recipe: How it is trained.
        trained: Whether it is trained at all.
        shots: The fewest and the most examples of a class acting as new.
        seed: The seed of everything that is drawn.

    """

    variant: Variant
    similarities: Mapping[str, Tensor]
    recipe: Recipe
    trained: bool
    shots: tuple[int, int]
    seed: int

    def model(self, store: FeatureStore, members: Mapping[int, Sequence[int]], progress: Progress) -> GraphPrototypeNetwork:
        """Return a model fitted to the stored features, by class."""
        model = start_model(store.features, members, self.variant, self.similarities, self.recipe, self.seed)
        if self.trained:
            train_model(model, store, members, self.variant, self.recipe, self.shots, self.seed, progress)
        return model


def choose_variant(named: str | Variant | None, related: bool) -> Variant:
    """Return the variant that a user names, or the default one.

    Args:
        named: The name of a variant, a variant, or None.
        related: Whether there are relations, which the default variant depends on.

    Raises:
        InputError: A classifier cannot be fitted with the variant, or not with these relations.

    """
    named = named or ("gcgpn-aux" if related else "gcgpn-cos-aux")
    variant = find_variant(named) if isinstance(named, str) else named
    if variant.classifier != "cosine" or variant.objective != "joint" or variant.after is not None:
        raise InputError(
            f"variant '{variant.name}' is not trained for the joint label space in one stage with the cosine "
            "classifier: use gcgpn-aux, gcgpn-cos-aux, gcgpn-key or aux-only"
        )
    if related and not variant.needs_relation:
        raise InputError(f"variant '{variant.name}' uses no side information: leave out the relations, or use gcgpn-aux")
    return variant


def small_recipe(dataset: Dataset) -> dict[str, Any]:
    """Return changes to the recipe by which episodes take no more classes and images than a small dataset has."""
    ways = max(1, min(DEMO.ways, len(dataset.novel_validation), len(dataset.novel_test), dataset.seen // 2))
    spare = int(dataset.train.counts.sort().values[: dataset.seen - ways].sum())
    pools = [dataset.held_out(split) for split in ("validation", "test")]
    queries = min(min(int(seen.counts.sum()) // ways, int(novel.counts.min()) - 1) for seen, novel in pools)
    return {
        "ways": ways,
        "seen_queries": min(DEMO.seen_queries, spare),
        "test_queries": max(1, min(DEMO.test_queries, queries)),
    }


def fitting_recipe(classes: int, steps: int | None, learning_rate: float) -> Recipe:
    """Return the recipe that trains prototypes and graph block of this number of classes.

    By default the number of steps grows with the classes. Training on few classes soon overfits to how these look as new
    ones: on features of CUB, more than 50 steps on 12 classes halve the accuracy of classes added from one example.
    """
    count = min(FROZEN.steps, max(FEWEST_STEPS, 2 * classes)) if steps is None else steps
    return replace(FROZEN, steps=max(1, count), learning_rate=learning_rate)  # a recipe has at least one step


def hold_out_share(members: Mapping[int, Sequence[int]], seed: int) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Return images by class, to train on and held out: a fifth of each class, at least one, but two stay to train on."""
    train, held_out = {}, {}
    for class_id, images in members.items():
        order = [images[index] for index in torch.randperm(len(images), generator=seeded(seed, "held out", class_id)).tolist()]
        count = min(max(1, round(HELD_OUT * len(images))), max(0, len(images) - 2))
        held_out[class_id], train[class_id] = sorted(order[:count]), sorted(order[count:])
    return train, held_out


def episode_spec(members: Mapping[int, Sequence[int]], recipe: Recipe, shots: tuple[int, int]) -> EpisodeSpec | None:
    """Return the training episodes that images by class allow; None where they allow none.

    K is the largest number within `shots` for which at least half of the classes have enough images. Classes with fewer
    images take no part and keep their class means.
    """
    fewest = max(FEWEST_IN_EPISODES, math.ceil(len(members) / 2))
    for most in range(min(shots[1], max(map(len, members.values()), default=0)), 0, -1):
        queries = recipe.novel_queries if most > 1 else 1
        usable = {class_id: list(rows) for class_id, rows in members.items() if len(rows) >= most + queries}
        if len(usable) >= fewest:
            pool = Pool.from_members(usable)
            ways = min(recipe.ways, len(usable) // 2)
            supply = int(pool.counts.sort().values[: len(usable) - ways].sum())
            seen_queries = min(recipe.seen_queries, supply)
            return EpisodeSpec(pool, None, ways, most, queries, seen_queries, fewest_shots=min(shots[0], most))
    return None


def start_model(
    features: Tensor,
    members: Mapping[int, Sequence[int]],
    variant: Variant,
    similarities: Mapping[str, Tensor],
    recipe: Recipe,
    seed: int,
) -> GraphPrototypeNetwork:
    """Return an untrained model of features [n, D], whose prototypes are the means of normalised features.

    Features are centred at the mean of all classes, if there are several.
    """
    known = [features[list(rows)] for rows in members.values()]
    starts = recipe.temperature, recipe.relation_temperature
    model = build(variant, Centred.of(known), features.shape[1:], len(members), similarities, seed, *starts)
    means = [normalise(model.embed(images)).mean(0) for images in known]
    set_parameters(model, {"prototypes": normalise(torch.stack(means))})
    return model


def train_model(
    model: GraphPrototypeNetwork,
    store: FeatureStore,
    members: Mapping[int, Sequence[int]],
    variant: Variant,
    recipe: Recipe,
    shots: tuple[int, int],
    seed: int,
    progress: Progress,
) -> None:
    """Train a model on episodes of the stored features by class, if they allow any."""
    spec = episode_spec(members, recipe, shots)
    if spec is None:
        return
    keep_freed_memory()
    episodes = max(1, min(recipe.episodes, JOINT_NUMBERS // model.prototypes.numel()))
    optimiser = make_optimiser(model, recipe)
    loss_sum = torch.zeros((), dtype=torch.float64)
    one_step = TrainingStep(model, optimiser, store, Augmentation(), spec, episodes, variant).repeated(loss_sum)
    with progress.task(f"fit {variant.name}", recipe.steps, "steps") as advance:
        for step in range(recipe.steps):
            set_learning_rate(optimiser, learning_rate_at(recipe, step))
            one_step(step_seed(seed, step))
            advance(1)
    if not math.isfinite(loss_sum.item()):
        raise InputError(f"training diverged: lower the learning rate, now {recipe.learning_rate}")


def open_run(run: Run, dataset: Dataset) -> tuple[GraphPrototypeNetwork, Encoder | None]:
    """Return the best model of a run on its dataset, and its backbone as an encoder, or None if the dataset holds features."""
    config, variant = run.config, find_variant(run.config.variant)
    if variant.classifier != "cosine":
        raise InputError(f"{run.folder} is of variant '{variant.name}', which has no cosine classifier: train another variant")
    model = trained_model(run, dataset)
    assert isinstance(model, GraphPrototypeNetwork), f"{variant.name} has a cosine classifier"
    if model.space is not None or model.balance is not None:
        raise InputError(
            f"{run.folder} has whitened features or a learned balance, which a classifier does not keep: train with "
            "--set whiten=false --set learn_balance=false"
        )
    if not isinstance(dataset.store, ImageStore):
        return model, None
    weights = {name: value.clone() for name, value in model.backbone.state_dict().items()}
    store, images = dataset.store, replace(dataset.augmentation, **config.recipe.image_changes)
    shape = store.image_shape
    return model, backbone_encoder(config.backbone, weights, shape, store.normalisation, images, variant.last_relu)


def run_relations(run: Run, dataset: Dataset) -> dict[str, KeptRelation]:
    """Return the relations of a run's seen classes, by label."""
    config, names = run.config, dataset.classes[: dataset.seen]
    if not find_variant(config.variant).needs_relation:
        return {}
    sources = open_relations(config.relations, dataset.relations, dataset.titles)
    specs = [None if name in dataset.relations else name for name in config.relations]
    return {
        label: KeptRelation.of(label, source.similarities(names), names, source, spec)
        for (label, source), spec in zip(sources.items(), specs, strict=True)
    }
