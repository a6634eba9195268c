"""Training of prototypes and graph block on the features of a frozen encoder.

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
from protograph._internal.progress import Advance, Progress
from protograph._internal.rows import Rows, distinct
from protograph.classifier.members import Members
from protograph.data import Augmentation, Dataset, FeatureStore, ImageStore, Pool
from protograph.encoders import Encoder, backbone_encoder
from protograph.episodes import EpisodeSpec, seeded, step_seed
from protograph.nn import neighbours as search
from protograph.nn.backbones import Centred
from protograph.nn.classify import normalise
from protograph.nn.model import GraphPrototypeNetwork
from protograph.nn.neighbours import NEIGHBOURS, nearest
from protograph.nn.operators import Component, Softmax
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
MOST_TRAINED = 4096  # classes that are trained together; of more, a sample at a time
SAMPLED = 1024  # classes of a sample
STEPS_OF_ROUND = 25  # steps that a sample is trained for
COMPARING = ("cos", "l2", "transformed", "difference")  # kinds of operators that compare all classes with all
GAUSSIAN_COPIES, VARIANT_COPIES = 4, 6  # of all prototypes that are held at a time, about
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
            similarities = self.similarities
            train_model(model, store, members, self.variant, similarities, self.recipe, self.shots, self.seed, progress)
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
    listed = members if isinstance(members, Members) else Members.listed(list(members.values()))
    centred, starts = _centred(features, listed), (recipe.temperature, recipe.relation_temperature)
    model = build(variant, centred, features.shape[1:], len(listed), similarities, seed, *starts)
    sums = features.new_zeros(len(listed), features.shape[1])
    for images, classes in listed.portions(features.shape[1]):
        sums.index_add_(0, classes, normalise(model.embed(features[images])))
    set_parameters(model, {"prototypes": normalise(listed.means(sums))})
    return model


def _centred(features: Tensor, members: Members) -> Centred:
    """Return what centres features [n, D] at the mean of all class means; those of a single class are not centred."""
    if len(members) < 2:
        return Centred(torch.zeros_like(features[0]))
    sums, distances = features.new_zeros(len(members), features.shape[1]), features.new_zeros(len(members), 1)
    for images, classes in members.portions(features.shape[1]):
        sums.index_add_(0, classes, features[images])
    centre = members.means(sums).mean(0)
    for images, classes in members.portions(features.shape[1]):
        distances.index_add_(0, classes, (features[images] - centre).norm(dim=1, keepdim=True))
    return Centred(centre, members.means(distances).mean().item())


def train_model(
    model: GraphPrototypeNetwork,
    store: FeatureStore,
    members: Mapping[int, Sequence[int]],
    variant: Variant,
    similarities: Mapping[str, Tensor],
    recipe: Recipe,
    shots: tuple[int, int],
    seed: int,
    progress: Progress,
) -> None:
    """Train a model on episodes of the stored features by class, if they allow any.

    Of many classes, each round trains on a sample, as if there were no others.
    """
    keep_freed_memory()
    if len(members) <= MOST_TRAINED:
        spec = episode_spec(members, recipe, shots)
        if spec is not None:
            with progress.task(f"fit {variant.name}", recipe.steps, "steps") as advance:
                _train(model, store, spec, variant, recipe, range(recipe.steps), seed, advance)
        return
    names = per_class_parameters(model)
    with progress.task(f"fit {variant.name}", recipe.steps, "steps") as advance:
        for number, first in enumerate(range(0, recipe.steps, STEPS_OF_ROUND)):
            steps = range(first, min(first + STEPS_OF_ROUND, recipe.steps))
            chosen = sample_classes(model, similarities, seeded(seed, "classes of a round", number))
            sampled = {row: list(members[class_id]) for row, class_id in enumerate(chosen.tolist())}
            spec = episode_spec(sampled, recipe, shots)
            if spec is None:
                advance(len(steps))
                continue
            part = _part_of(model, variant, similarities, chosen, names, seed)
            _train(part, store, spec, variant, recipe, steps, seed, advance)
            _take_back(model, part, chosen, names)


def _train(
    model: GraphPrototypeNetwork,
    store: FeatureStore,
    spec: EpisodeSpec,
    variant: Variant,
    recipe: Recipe,
    steps: range,
    seed: int,
    advance: Advance,
) -> None:
    """Take some of the steps of a training."""
    episodes = max(1, min(recipe.episodes, JOINT_NUMBERS // model.prototypes.numel()))
    optimiser = make_optimiser(model, recipe)
    loss_sum = torch.zeros((), dtype=torch.float64)
    one_step = TrainingStep(model, optimiser, store, Augmentation(), spec, episodes, variant).repeated(loss_sum)
    for step in steps:
        set_learning_rate(optimiser, learning_rate_at(recipe, step))
        one_step(step_seed(seed, step))
        advance(1)
    if not math.isfinite(loss_sum.item()):
        raise InputError(f"training diverged: lower the learning rate, now {recipe.learning_rate}")


def per_class_parameters(model: GraphPrototypeNetwork) -> set[str]:
    """Return the names of a model's parameters with a row for each class."""
    names = {"prototypes"}
    for name, module in model.named_modules():
        if isinstance(module, Component):
            if type(module).forget is not Component.forget and not module.per_class:
                raise InputError(
                    f"operator {type(module).__name__} keeps something of each class, and many classes are trained in parts: "
                    "name its parameters with a row for each class (per_class)"
                )
            names |= {f"{name}.{parameter}" for parameter in module.per_class}
    return names


def sample_classes(model: GraphPrototypeNetwork, similarities: Mapping[str, Tensor], generator: torch.Generator) -> Tensor:
    """Return the classes [M] of a round, ascending: some drawn at random, those nearest to each, and further random ones.

    The nearest are those with an edge in a relation; without one, those with the nearest prototypes. They are what a class is
    mistaken for, and what its prototype is updated with.
    """
    prototypes = model.learned().detach()
    order = torch.randperm(len(prototypes), generator=generator)
    drawn = order[: SAMPLED // (1 + NEIGHBOURS)]
    near = [drawn]
    for matrix in similarities.values():
        if matrix.layout != torch.strided:
            row, column = matrix.coalesce().indices()
            near.append(column[torch.isin(row, drawn)])
    if len(near) == 1:
        blocks = ((start, normalise(block)) for start, block in Rows.of(prototypes))
        near.append(nearest(normalise(prototypes[drawn]), blocks, 1 + NEIGHBOURS, "cosine")[1].flatten())
    chosen = distinct(*near)[:SAMPLED]
    rest = order[~torch.isin(order, chosen)][: SAMPLED - len(chosen)]
    return distinct(chosen, rest)


def _part_of(
    model: GraphPrototypeNetwork,
    variant: Variant,
    similarities: Mapping[str, Tensor],
    chosen: Tensor,
    names: Collection[str],
    seed: int,
) -> GraphPrototypeNetwork:
    """Return a model of some classes [M] that knows what the whole one does, and looks at as many neighbours."""
    related = {label: matrix.index_select(0, chosen).index_select(1, chosen) for label, matrix in similarities.items()}
    related = {label: part if part.layout == torch.strided else part.coalesce() for label, part in related.items()}
    part = build(variant, model.backbone, (model.features,), len(chosen), related, seed)
    state = {name: value[chosen] if name in names else value for name, value in model.state_dict().items()}
    part.load_state_dict(state)
    for operator in part.operators.modules():
        if isinstance(operator, Softmax) and operator.top is None and not operator.similarity.uses_relation:
            operator.top = operator.similarity.neighbours = NEIGHBOURS
    return part


@torch.no_grad()
def _take_back(model: GraphPrototypeNetwork, part: GraphPrototypeNetwork, chosen: Tensor, names: Collection[str]) -> None:
    """Give a model what a part of it with some classes [M] has learned."""
    trained = dict(part.named_parameters())
    for name, parameter in model.named_parameters():
        if name in names:
            parameter[chosen] = trained[name]
        else:
            parameter.copy_(trained[name])


def check_index(variant: Variant, classes: int) -> None:
    """Raise an `InputError` if a variant finds neighbours among so many classes by an index that is not installed."""
    if classes > search.MOST_EXACT and any(op.kind in COMPARING and "block" not in op.options for op in variant.operators):
        search.load_usearch(classes)


def fitting_bytes(classes: int, features: int, variant: str | Variant | None) -> int:
    """Return how many bytes of memory it takes to fit so many classes, beside their features."""
    return 4 * classes * features * (GAUSSIAN_COPIES if variant is None else VARIANT_COPIES)


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
