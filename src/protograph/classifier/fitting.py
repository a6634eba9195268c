"""Prototypes and graph block, trained on the features of a frozen encoder.

Shapes: S seen, D features, n images, R augmented copies of each.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph._internal.memory import keep_freed_memory
from protograph._internal.progress import Progress
from protograph.data import Augmentation, Dataset, FeatureStore, ImageStore, Pool
from protograph.encoders import Encoder, backbone_encoder
from protograph.episodes import EpisodeSpec, fixed_episodes, seeded, step_seed
from protograph.evaluation.metrics import best_bias
from protograph.nn.backbones import Centred
from protograph.nn.classify import normalise
from protograph.nn.model import GraphPrototypeNetwork
from protograph.relations import KeptRelation, open_relations
from protograph.training.config import DEMO, FROZEN, Recipe
from protograph.training.loop import (
    learning_rate,
    make_optimiser,
    repeated_step,
    set_parameters,
    set_rate,
    trained_model,
)
from protograph.training.run import Run
from protograph.variants import Variant, build, find_variant

FEWEST_STEPS = 50
FEWEST_CLASSES = 3  # that episodes take: one acts as novel among two others
HELD_OUT = 0.2  # of the images of a class, or of the classes, where something is calibrated
FEWEST_AWAY = 2  # classes that are held out to choose a bias
FEWEST_BALANCED = 8  # classes from which on a bias does more good than harm
NUMBERS = 1_000_000  # that the joint prototypes of one step's episodes hold at the most, where there are several
EPISODES = 200  # that choose a bias


@dataclass(frozen=True)
class Fit:
    """How a model of features is fitted.

    similarities: [S, S] of all classes, by relation
    trained: whether by the recipe, or not at all
    shots: fewest and most examples of a class acting as new
    """

    variant: Variant
    similarities: Mapping[str, Tensor]
    recipe: Recipe
    trained: bool
    shots: tuple[int, int]
    seed: int

    def model(
        self, store: FeatureStore, members: Mapping[int, Sequence[int]], progress: Progress, away: Collection[int] = ()
    ) -> GraphPrototypeNetwork:
        """Fitted to the stored features by class, as if those of the classes `away` were not there."""
        model = start_model(store.features, members, self.variant, self.similarities, self.recipe, self.seed, away)
        if self.trained:
            there = {class_id: rows for class_id, rows in members.items() if class_id not in away}
            train_model(model, store, there, self.variant, self.recipe, self.shots, self.seed, progress)
        return model

    def bias(self, store: FeatureStore, members: Mapping[int, Sequence[int]], progress: Progress) -> float:
        """The bias on novel logits of the best H-Mean when a fifth of the classes are new to a model fitted without them."""
        able = [class_id for class_id, rows in members.items() if len(rows) > 1]  # to be shown one and asked for another
        order = torch.randperm(len(able), generator=seeded(self.seed, "classes held out")).tolist()
        away = {able[place] for place in order[: max(FEWEST_AWAY, round(HELD_OUT * len(members)))]}
        kept, held = hold_out_images({class_id: rows for class_id, rows in members.items() if class_id not in away}, self.seed)
        asked = Pool.from_members({class_id: rows for class_id, rows in held.items() if rows})
        spec = self._test_spec(asked, {class_id: list(members[class_id]) for class_id in away})
        if len(members) < FEWEST_BALANCED or spec is None:
            raise InputError(
                f"too few images to balance seen and novel classes: give at least {FEWEST_BALANCED} classes with three "
                "or more each, or no balance"
            )
        model = self.model(store, {class_id: kept.get(class_id, rows) for class_id, rows in members.items()}, progress, away)
        with torch.no_grad():
            features = model.embed(store.features)
            return best_bias(model, features, fixed_episodes(spec, self.seed, EPISODES))

    def _test_spec(self, asked: Pool, away: Mapping[int, list[int]]) -> EpisodeSpec | None:
        """Episodes of as many queries of seen classes as of new ones, with K as large as half of these allow."""
        for most in range(self.shots[1], 0, -1):
            able = {class_id: rows for class_id, rows in away.items() if len(rows) > most}
            if len(asked) and 2 * len(able) >= len(away):
                new = Pool.from_members(able)
                ways = min(self.recipe.ways, len(able))
                queries = min(self.recipe.novel_queries, int(new.counts.min()) - most)
                seen_queries = min(ways * queries, int(asked.counts.sum()))
                return EpisodeSpec(asked, new, ways, most, queries, seen_queries, fewest_shots=min(self.shots[0], most))
        return None


def choose_variant(named: str | Variant | None, related: bool) -> Variant:
    """The variant that a user names, if a classifier can be fitted with it; by default one that uses relations, or none."""
    named = named or ("gcgpn-aux" if related else "gcgpn-cos-aux")
    variant = find_variant(named) if isinstance(named, str) else named
    if variant.classifier != "cosine" or variant.objective != "joint" or variant.after is not None:
        raise InputError(
            f"variant '{variant.name}' is not one that is trained for the joint label space, in one stage, with the cosine "
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
    """How prototypes and graph block of so many classes are trained; the steps, where none are given, by their number.

    The fewer classes act as new in training, the sooner is learned by heart what new ones look like: on features of CUB, more
    than 50 steps on 12 classes already cost classes added from one example half of their accuracy.
    """
    wanted = min(FROZEN.steps, max(FEWEST_STEPS, 2 * classes)) if steps is None else steps
    return replace(FROZEN, steps=max(1, wanted), learning_rate=learning_rate)  # a recipe has at least one step


def hold_out_images(members: Mapping[int, Sequence[int]], seed: int) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Images by class, for training and held out: a fifth of each, at least one, but two of each stay for training."""
    train, held = {}, {}
    for class_id, images in members.items():
        order = [images[place] for place in torch.randperm(len(images), generator=seeded(seed, "held out", class_id)).tolist()]
        count = min(max(1, round(HELD_OUT * len(images))), max(0, len(images) - 2))
        held[class_id], train[class_id] = sorted(order[:count]), sorted(order[count:])
    return train, held


def episode_spec(members: Mapping[int, Sequence[int]], recipe: Recipe, shots: tuple[int, int]) -> EpisodeSpec | None:
    """Training episodes that these images by class allow; None where they allow none.

    K is the largest, up to what `shots` says, for which at least half of the classes have enough images. Classes with fewer
    take no part: they keep the means they start from.
    """
    fewest = max(FEWEST_CLASSES, math.ceil(len(members) / 2))
    for most in range(shots[1], 0, -1):
        queries = recipe.novel_queries if most > 1 else 1
        able = {class_id: list(rows) for class_id, rows in members.items() if len(rows) >= most + queries}
        if len(able) >= fewest:
            pool = Pool.from_members(able)
            ways = min(recipe.ways, len(able) // 2)
            supply = int(pool.counts.sort().values[: len(able) - ways].sum())
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
    away: Collection[int] = (),
) -> GraphPrototypeNetwork:
    """A model of features [n, D] as it starts: prototypes are the means of normalised features, relations are sharp.

    Features are centred at the mean of all classes but those `away`, where there are several.
    """
    known = [features[list(rows)] for rows in members.values()]
    there = [images for class_id, images in zip(members, known, strict=True) if class_id not in away]
    starts = recipe.temperature, recipe.relation_temperature
    model = build(variant, Centred.of(there), features.shape[1:], len(members), similarities, seed, *starts)
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
    """Train on episodes of the stored features by class, if they allow any."""
    spec = episode_spec(members, recipe, shots)
    if spec is None:
        return
    keep_freed_memory()
    episodes = max(1, min(recipe.episodes, NUMBERS // model.prototypes.numel()))
    optimiser = make_optimiser(model, recipe)
    loss_sum = torch.zeros((), dtype=torch.float64)
    one_step = repeated_step(model, optimiser, store, Augmentation(), spec, episodes, variant, loss_sum)
    with progress.task(f"fit {variant.name}", recipe.steps, "steps") as advance:
        for step in range(recipe.steps):
            set_rate(optimiser, learning_rate(recipe, step))
            one_step(step_seed(seed, step))
            advance(1)
    if not math.isfinite(loss_sum.item()):
        raise InputError(f"training diverged: lower the learning rate, now {recipe.learning_rate}")


def open_run(run: Run, dataset: Dataset) -> tuple[GraphPrototypeNetwork, Encoder | None]:
    """The best model of a run on its dataset, and its backbone as an encoder; None where the dataset holds features."""
    config, variant = run.config, find_variant(run.config.variant)
    if variant.classifier != "cosine":
        raise InputError(f"{run.folder} is of variant '{variant.name}', which has no cosine classifier: train another")
    model = trained_model(run, dataset)
    if not isinstance(dataset.store, ImageStore):
        return model, None
    weights = {name: value.clone() for name, value in model.backbone.state_dict().items()}
    store, images = dataset.store, replace(dataset.augmentation, **config.recipe.image_changes)
    shape = store.image_shape
    return model, backbone_encoder(config.backbone, weights, shape, store.normalisation, images, variant.last_relu)


def run_relations(run: Run, dataset: Dataset) -> dict[str, KeptRelation]:
    """What a run knows of how its dataset's seen classes relate."""
    config, names = run.config, dataset.classes[: dataset.seen]
    if not find_variant(config.variant).needs_relation:
        return {}
    found = open_relations(config.relations, dataset.relations, dataset.titles)
    specs = [None if name in dataset.relations else name for name in config.relations]
    return {
        label: KeptRelation.of(label, source.similarities(names), names, source, spec)
        for (label, source), spec in zip(found.items(), specs, strict=True)
    }
