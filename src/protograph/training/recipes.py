"""How models are trained: each recipe by name, complete for every variant and dataset.

`resolve_recipe` is the one place that decides on a recipe. `paper_recipe` and its neighbours say, from top to
bottom, what each one is for a variant and a dataset.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from protograph._internal.errors import InputError, unknown_name
from protograph._internal.old_names import RECIPE_SETTINGS
from protograph.data.registry import DATASETS, IN_MEMORY
from protograph.episodes import QueryScheme
from protograph.training.parsing import typed
from protograph.variants import FEATURE_KINDS, Variant, find_variant

_AT_LEAST_0 = (
    "training_ways", "warmup_steps", "patience", "momentum", "weight_decay", "scalar_learning_rate_factor", "rotation",
    "image_size", "backbone_learning_rate_factor", "prototype_learning_rate_factor", "views", "fold_epochs",
)  # fmt: skip
OPTIMISERS = ("sgd", "adam")


@dataclass(frozen=True)
class Recipe:
    """How a model is trained and how its epoch is selected.

    Attributes:
        name: The recipe's name.
        epochs: Number of epochs.
        steps: Steps of an epoch.
        episodes: Episodes of a step.
        batch_size: Images of a step, for variants that are trained on single images.
        ways: Novel classes of an episode, in training and evaluation.
        training_ways: Classes that act as novel in a training episode; 0: as many as `ways`.
        novel_queries: Training queries of each novel class.
        seen_queries: Training queries of all seen classes together ("total") or of each of them ("per-class").
        query_scheme: How `seen_queries` counts, "total" or "per-class".
        learning_rate: The learning rate, before it is changed by the settings below.
        learning_rate_drops: Pairs (epoch, learning rate): from that epoch on, that learning rate applies.
        anneal: Follow a half cosine from `learning_rate` to zero; excludes `learning_rate_drops`.
        warmup_steps: Steps over which the learning rate rises from zero.
        optimiser: "sgd", or "adam" with its usual decay rates.
        momentum: Momentum of SGD.
        nesterov: Use Nesterov's momentum.
        weight_decay: Weight decay, added to the gradient.
        decay_scalars: Apply weight decay also to scalars and vectors (temperatures, scales, diagonal thetas, biases, norms).
        scalar_learning_rate_factor: Factor on the learning rate of scales and temperatures of operators; 0: they stay fixed.
        backbone_learning_rate_factor: Factor on the learning rate of the backbone; 0: it stays as its start has it, in
            evaluation mode.
        prototype_learning_rate_factor: Factor on the learning rate of the learned prototypes; 0: they stay as they are.
        views: With a backbone that stays as it is: of how many views of each training image features are computed, once, before
            the first step. The first view is the image itself, the others are changed at random. 0: features are computed in
            every step, of a new view.
        whiten: Whiten features by the covariance within the seen classes, as the backbone of the start gives them. Seen
            prototypes then begin as class means. See `WhitenedSpace`.
        shrinkage: Share of a multiple of the identity in that covariance; 1: features are centred and not whitened.
        folds: Train on out-of-fold episodes, by so many parts of the seen classes; 0: on episodes of training images. See
            `OutOfFold`.
        fold_epochs: Epochs of the start of each fold; 0: as many as the start of all classes has.
        learn_balance: Learn a bias on the logits of novel classes.
        dropout: Share of the backbone's features set to zero in training, if the backbone is trained.
        drop_block: Share of activations that DropBlock sets to zero at the end of training; it rises from 0. For residual nets.
        rotation: Weight of a second task of a first stage: telling by how many quarter turns an image is rotated. Half of the
            images of a step are upright, and a sixth each is turned by one, two and three quarters.
        mixup: Manifold mixup: a first stage mixes each upright image with another one, at a random depth of the network, and
            their classes count by the same shares.
        teacher: Run folder of a trained classifier of the same seen classes, such as `linear` with a larger backbone. A first
            stage then also learns the teacher's probabilities of each image; "": no teacher.
        teacher_weight: Weight of that task beside the labels.
        teacher_temperature: By what the logits of both are divided in it.
        ema: Decay of a moving average of the weights, which is what is validated, kept and tested; 0: no average.
        zoom: Scale training images by a factor from 1 / zoom to zoom, see `Augmentation`.
        stretch: Change the ratio of width to height by a factor from 1 / stretch to stretch.
        crop: Show a random part of each training image, of at least this share of its area; 1: the whole image.
        image_size: Side in pixels of training images, which become square; 0: as large as they are.
        colour: Change saturation, contrast and brightness by up to this share.
        erase: Largest side of an erased square, as a share of the image's shorter side.
        temperature: Initial temperature of the cosine classifier.
        relation_temperature: Initial temperatures of relations.
        pretrain: The variant whose trained run training starts from; "": the one that the variant itself names, or random
            weights.
        patience: Stop after this many epochs without a better validation; 0: never.
        select_balanced: Select the epoch by measures with the bias on novel logits that has the best validation H-Mean,
            chosen anew for each epoch.
        validation_episodes: Fixed episodes that select the epoch.
        test_queries: Queries of each novel class in validation and test episodes.

    """

    name: str
    epochs: int = 75
    steps: int = 1000
    episodes: int = 8
    batch_size: int = 256
    ways: int = 5
    training_ways: int = 0
    novel_queries: int = 3
    seen_queries: int = 15
    query_scheme: QueryScheme = "total"
    learning_rate: float = 0.1
    learning_rate_drops: tuple[tuple[int, float], ...] = ()
    anneal: bool = False
    warmup_steps: int = 0
    optimiser: str = "sgd"
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    decay_scalars: bool = True
    scalar_learning_rate_factor: float = 1.0
    backbone_learning_rate_factor: float = 1.0
    prototype_learning_rate_factor: float = 1.0
    views: int = 0
    whiten: bool = False
    shrinkage: float = 0.6
    folds: int = 0
    fold_epochs: int = 0
    learn_balance: bool = False
    dropout: float = 0.0
    drop_block: float = 0.0
    rotation: float = 0.0
    mixup: bool = False
    teacher: str = ""
    teacher_weight: float = 1.0
    teacher_temperature: float = 4.0
    ema: float = 0.0
    zoom: float = 1.0
    stretch: float = 1.0
    crop: float = 1.0
    image_size: int = 0
    colour: float = 0.0
    erase: float = 0.0
    temperature: float = 10.0
    relation_temperature: float = 1.0
    pretrain: str = ""
    patience: int = 0
    select_balanced: bool = False
    validation_episodes: int = 2000
    test_queries: int = 15

    def __post_init__(self) -> None:
        for name in ("epochs", "steps", "episodes", "batch_size", "ways", "validation_episodes"):
            if getattr(self, name) < 1:
                raise InputError(f"recipe '{self.name}': {name} must be at least 1, not {getattr(self, name)}")
        for name in ("learning_rate", "teacher_weight", "teacher_temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"recipe '{self.name}': {name} must be above 0, not {getattr(self, name)}")
        for name in _AT_LEAST_0:
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"recipe '{self.name}': {name} must be at least 0, not {getattr(self, name)}")
        for name in ("dropout", "drop_block", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"recipe '{self.name}': {name} is a share below 1, not {getattr(self, name)}")
        if not 0 < self.crop <= 1:
            raise InputError(f"recipe '{self.name}': crop is a share above 0, up to 1, not {self.crop}")
        if self.mixup and self.teacher:
            raise InputError(f"recipe '{self.name}': a teacher sees images that are not mixed: use one of mixup and teacher")
        if self.crop < 1 and self.zoom > 1:
            raise InputError(f"recipe '{self.name}': zoom would be ignored with crop: use one of them")
        for name in ("temperature", "relation_temperature"):
            if not math.isfinite(getattr(self, name)):
                raise InputError(f"recipe '{self.name}': {name} must be a number, not {getattr(self, name)}")
        for name in ("zoom", "stretch"):
            if not 1 <= getattr(self, name) < math.inf:
                raise InputError(f"recipe '{self.name}': {name} is a factor of at least 1, not {getattr(self, name)}")
        for name in ("colour", "erase", "shrinkage"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"recipe '{self.name}': {name} is a share from 0 to 1, not {getattr(self, name)}")
        if self.folds < 0 or self.folds == 1:
            raise InputError(f"recipe '{self.name}': folds are two or more parts of the seen classes, or 0, not {self.folds}")
        if self.folds > self.episodes:
            raise InputError(
                f"recipe '{self.name}': a step of {self.episodes} episodes has none for some of {self.folds} folds: set more "
                "episodes, or fewer folds"
            )
        if self.nesterov and not self.momentum:
            raise InputError(f"recipe '{self.name}': nesterov needs momentum: set nesterov=false too")
        for drop in self.learning_rate_drops:
            if not (isinstance(drop, tuple) and [type(part) for part in drop] in ([int, float], [int, int])):
                raise InputError(f"recipe '{self.name}': learning_rate_drops are (epoch, learning rate) pairs, not {drop!r}")
        if self.optimiser not in OPTIMISERS:
            raise unknown_name("optimiser", self.optimiser, OPTIMISERS)
        if self.query_scheme not in ("total", "per-class"):
            raise unknown_name("query scheme", self.query_scheme, ("total", "per-class"))
        if self.anneal and self.learning_rate_drops:
            raise InputError(f"recipe '{self.name}': 'learning_rate_drops' would be ignored with 'anneal': use one of them")

    @property
    def image_changes(self) -> dict[str, Any]:
        """The settings of an `Augmentation` that it changes, by name."""
        return {name: value for name in _IMAGES if (value := getattr(self, name)) != getattr(Recipe, name)}


SETTINGS = tuple(field.name for field in fields(Recipe) if field.name != "name")  # all that may be changed
_IMAGES = ("zoom", "stretch", "crop", "image_size", "colour", "erase")
PAPER = Recipe("paper", learning_rate_drops=((20, 0.006), (40, 0.0012), (50, 0.00024), (60, 0.000048)))
DEMO = replace(
    PAPER,
    name="demo",
    epochs=10,
    steps=55,
    seen_queries=45,
    learning_rate=0.2,
    learning_rate_drops=(),
    anneal=True,
    warmup_steps=20,
    validation_episodes=100,
)
FAST = replace(
    PAPER,
    name="fast",
    epochs=12,
    steps=260,
    episodes=32,
    learning_rate=0.4,
    learning_rate_drops=(),
    anneal=True,
    warmup_steps=100,
    weight_decay=1e-3,
    validation_episodes=600,
)
# Changed images are overfitted later, so that longer training helps.
STRONG = replace(FAST, name="strong", steps=2 * FAST.steps, zoom=1.25, stretch=1.15, colour=0.3, erase=0.43)
# For prototypes and graph block on the features of a frozen encoder: prototypes start at their class means, and relations
# sharp, since relations that start at a temperature of 1 take thousands of steps to become useful.
FROZEN = replace(DEMO, name="frozen", epochs=1, steps=300, relation_temperature=8.0)


# Recipes by name


@dataclass(frozen=True)
class RecipeSource:
    """A recipe that is known by name.

    Attributes:
        make: Returns the recipe for (variant, dataset name, pretrain). `pretrain` is the variant that the user lets training
            start from ("" for none); None leaves the choice to the recipe.
        summary: One line for `protograph recipes`.

    """

    make: Callable[[Variant, str, str | None], Recipe]
    summary: str = ""


BENCHMARKS = ("mini-imagenet", "cub", "cub-stratified")
CUB = ("cub", "cub-stratified")
DEFAULT_RECIPES = dict.fromkeys(BENCHMARKS, "paper")  # by dataset; the others' default is "demo"
RECIPES: dict[str, RecipeSource] = {}


def paper_recipe(variant: Variant, dataset: str, pretrain: str | None = None) -> Recipe:
    """Return the paper's training; the baselines are trained as their authors did."""
    recipe = replace(PAPER, pretrain=pretrain or "")
    if dataset in CUB:
        recipe = replace(recipe, epochs=45, test_queries=10)
    if stage_kind(variant) in ("few-shot", "classify", "second stage"):
        recipe = replace(recipe, epochs=60)
    if stage_kind(variant) == "few-shot":
        recipe = replace(recipe, novel_queries=6, seen_queries=0)
    return with_method(recipe, variant)


def fast_recipe(variant: Variant, dataset: str, pretrain: str | None = None) -> Recipe:
    """Return a training of minutes on a GPU: many episodes a step, and a large learning rate that decays to nothing."""
    recipe = replace(FAST, pretrain=pretrain or "")
    if dataset in CUB:  # a fifth of miniImageNet's training images: they are learned sooner, and overfitted sooner
        recipe = replace(recipe, steps=130, learning_rate=0.8, test_queries=10)
    if stage_kind(variant) == "few-shot":
        recipe = replace(recipe, novel_queries=6, seen_queries=0)
    if stage_kind(variant) == "classify":
        recipe = replace(recipe, batch_size=1024)
    return with_method(recipe, variant)


def strong_recipe(variant: Variant, dataset: str, pretrain: str | None = None) -> Recipe:
    """Return `fast` with changed images and longer training."""
    if pretrain is None:
        # From random weights gcgpn-aux-split settles at one shot on harmful relations, before it has features to judge them by.
        pretrain = "cosine" if dataset == "mini-imagenet" and stage_kind(variant) == "joint" else ""
    recipe = fast_recipe(variant, dataset, pretrain)
    recipe = replace(recipe, name="strong", steps=2 * recipe.steps, **STRONG.image_changes)
    if variant.method is not None:
        return with_method(recipe, variant)
    if stage_kind(variant) == "few-shot":
        # Prototypical Networks gain by the paper's learning rate, decay and small steps, and by harder episodes.
        recipe = replace(recipe, epochs=24, steps=1040, episodes=2, training_ways=20)
        return replace(recipe, learning_rate=PAPER.learning_rate, weight_decay=PAPER.weight_decay)
    if stage_kind(variant) == "classify":  # the first stage is trained once for all variants that start from it
        return replace(recipe, epochs=24)
    if stage_kind(variant) == "second stage":  # it adds little, which is learned soon
        return replace(recipe, epochs=4)
    return replace(recipe, epochs=8) if recipe.pretrain else recipe


def best_recipe(variant: Variant, dataset: str, pretrain: str | None = None) -> Recipe:
    """Return a first stage that transfers, and behind it heads on its features, which stay as they are.

    A first stage is a plain classifier of random parts of images with the rotation task. Behind it, features are whitened, seen
    prototypes are class means, and what can be learned without knowing single features is learned on out-of-fold episodes. What
    is trained on images from random weights follows `strong`.
    """
    benchmark, kind = dataset in BENCHMARKS, stage_kind(variant)
    pretrain = "linear" if pretrain is None and kind in ("joint", "second stage") else pretrain
    if variant.method is not None or kind == "few-shot" or (kind == "joint" and not pretrain):
        return replace(strong_recipe(variant, dataset, ""), name="best")
    if kind == "classify":
        return best_first_stage(dataset) if benchmark else replace(demo_recipe(variant, dataset), name="best", ema=0.98)
    recipe = fast_recipe(variant, dataset, pretrain) if benchmark else demo_recipe(variant, dataset, pretrain)
    recipe = replace(
        recipe,
        name="best",
        epochs=4,
        steps=130 if benchmark else 40,
        episodes=32,
        learning_rate=0.1,
        warmup_steps=20,
        decay_scalars=False,
        relation_temperature=8.0,
        backbone_learning_rate_factor=0.0,
        prototype_learning_rate_factor=0.0,
        views=1,
        whiten=True,
        learn_balance=variant.objective == "joint",
        select_balanced=True,
    )
    if variant.objective == "none" or learns_of_features(variant):
        return recipe
    return replace(recipe, folds=4, fold_epochs=6 if benchmark else 0)


def best_first_stage(dataset: str) -> Recipe:
    """Return the first stage of a residual net, which ends after 6 million images of miniImageNet."""
    recipe = replace(
        FAST,
        name="best",
        steps=400 if dataset in CUB else 1000,
        batch_size=512,
        learning_rate=0.3,
        warmup_steps=500,
        weight_decay=5e-4,
        crop=0.25,
        stretch=4 / 3,
        colour=0.4,
        image_size=72,
        rotation=1.0,
        drop_block=0.1,
        ema=0.999,
    )
    return replace(recipe, test_queries=10) if dataset in CUB else recipe


def learns_of_features(variant: Variant) -> bool:
    """Return whether a variant learns of single features beside prototypes and a diagonal transform."""
    return variant.theta == "full" or any(op.kind in FEATURE_KINDS for op in variant.operators)


def demo_recipe(variant: Variant, dataset: str, pretrain: str | None = None) -> Recipe:
    """Return a training of a minute or two on a laptop, for the built-in letters and small datasets."""
    recipe = replace(DEMO, pretrain=pretrain or "")
    if dataset in CUB:
        recipe = replace(recipe, test_queries=10)
    if stage_kind(variant) == "few-shot":
        recipe = replace(recipe, novel_queries=6, seen_queries=0)
    return with_method(recipe, variant)


def with_method(recipe: Recipe, variant: Variant) -> Recipe:
    """Return a recipe with what the variant's few-shot method, if it is one, needs of training."""
    if variant.method is None:
        return recipe
    return replace(recipe, **{**variant.method.training, **variant.method.sizes.get(recipe.name, {})})


def register_recipe(name: str, recipe: Recipe | Callable[[Variant, str, str | None], Recipe], summary: str = "") -> None:
    """Make a recipe known by name, to `configure` and to the command line.

    Args:
        name: How the recipe is called. A name that is already known is replaced.
        recipe: The recipe of all variants and datasets, or a function that returns it for (variant, dataset name, pretrain).
            `pretrain` is the variant that the user lets training start from; None leaves the choice to the function.
        summary: One line for `protograph recipes`.

    """
    if not (isinstance(recipe, Recipe) or callable(recipe)):
        raise InputError(f"recipe '{name}' is a {type(recipe).__name__}: give a Recipe, or a function that returns one")

    def make(variant: Variant, dataset: str, pretrain: str | None) -> Recipe:
        if not isinstance(recipe, Recipe):
            return replace(recipe(variant, dataset, pretrain), name=name)
        return replace(recipe, name=name, pretrain=recipe.pretrain if pretrain is None else pretrain)

    RECIPES[name] = RecipeSource(make, summary)


register_recipe("paper", paper_recipe, "as in the paper: up to 75 epochs of 1000 steps of 8 episodes")
register_recipe("fast", fast_recipe, "minutes on a GPU: larger steps, a large learning rate that decays to nothing")
register_recipe("strong", strong_recipe, "fast with changed images and longer training; the best accuracies")
register_recipe("best", best_recipe, "a plain classifier that transfers; behind it, whitened features and out-of-fold episodes")
register_recipe("demo", demo_recipe, "a minute or two on a laptop, for the letters and small datasets")


def find_recipe(name: str) -> RecipeSource:
    """Return the recipe source of the name `name`."""
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    return RECIPES[name]


def default_recipe_name(dataset: str) -> str:
    """Return the name of the recipe that a dataset's runs follow by default."""
    return DEFAULT_RECIPES.get(dataset, "demo")


def default_backbone(dataset: str, recipe: str) -> str:
    """Return the name of the backbone that a dataset's runs have by default with a recipe."""
    if recipe == "strong" and dataset in BENCHMARKS:
        return "conv4-128-mirror"  # the wide reading of the paper's network; mirror images help as much as the width
    if recipe == "best" and dataset in BENCHMARKS:
        return "resnet12-mirror"
    return DATASETS.get(dataset, IN_MEMORY).backbone


def resolve_recipe(variant: Variant, dataset: str, name: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Return the complete recipe by which a variant is trained on a dataset.

    Args:
        variant: The variant to train.
        dataset: Name of the dataset.
        name: Name of the recipe, one of `RECIPES`.
        changes: Settings that the user changes. Those that training this variant does not use are left out.

    Raises:
        InputError: The recipe or a setting is unknown, a value is impossible, or `pretrain` names an unfit variant.

    """
    changes = changes or {}
    for setting in changes:
        check_setting(setting)
    pretrain = None
    if can_be_pretrained(variant) and "pretrain" in changes:
        pretrain = typed(PAPER, {"pretrain": changes["pretrain"]}, "recipe").pretrain
    recipe = find_recipe(name).make(variant, dataset, pretrain)
    if not can_be_pretrained(variant):
        recipe = replace(recipe, pretrain="")
    if variant.objective == "none":  # each epoch tries one candidate
        recipe = replace(recipe, epochs=len(variant.candidates), steps=1, patience=0)
    deciding = typed(recipe, {setting: value for setting, value in changes.items() if setting in _DECIDING}, "recipe")
    unused = unused_settings(variant, deciding)
    return typed(recipe, {setting: value for setting, value in changes.items() if setting not in unused}, "recipe")


def check_setting(name: str) -> None:
    """Refuse what is no setting of a recipe.

    Raises:
        InputError: The name is unknown, with the nearest ones; or it is an old one, with today's.

    """
    if name in RECIPE_SETTINGS:
        raise InputError(f"recipe setting '{name}' is now '{RECIPE_SETTINGS[name]}'")
    if name not in SETTINGS:
        raise unknown_name("recipe setting", name, SETTINGS)


# Stages, and which settings they use

_OPTIMISER = {
    "learning_rate", "learning_rate_drops", "anneal", "warmup_steps", "optimiser", "momentum", "nesterov", "weight_decay",
    "decay_scalars", "ema",
}  # fmt: skip
# What only a run that starts from another one uses.
SECOND_STAGE = (
    "backbone_learning_rate_factor", "prototype_learning_rate_factor", "views", "whiten", "shrinkage", "folds", "fold_epochs",
    "learn_balance", "select_balanced",
)  # fmt: skip
# What decides whether other settings are of use.
_DECIDING = ("backbone_learning_rate_factor", "views", "whiten", "folds", "episodes", "teacher")
_EPISODES = {"episodes", "training_ways", "novel_queries", "seen_queries", "query_scheme"}
_UNUSED = {
    "joint": {"batch_size"},
    "few-shot": {"batch_size", "seen_queries", "query_scheme"},
    "classify": _EPISODES,
    "none": {
        "epochs", "steps", "batch_size", "patience", "temperature", "dropout", "drop_block", *_EPISODES, *_OPTIMISER, *_IMAGES,
    },
}  # fmt: skip


def stage_kind(variant: Variant) -> str:
    """Return "second stage" for a variant that starts from another one by itself, and otherwise its objective."""
    return "second stage" if variant.after else variant.objective


def can_be_pretrained(variant: Variant) -> bool:
    """Return whether a recipe may name the variant that this one starts from."""
    return stage_kind(variant) in ("joint", "second stage")


def keeps_backbone(variant: Variant, recipe: Recipe) -> bool:
    """Return whether training leaves the backbone as it is."""
    if "backbone" in variant.frozen or variant.objective == "none":
        return True
    return variant.objective == "joint" and not recipe.backbone_learning_rate_factor


def stage_before(variant: Variant, recipe: Recipe) -> Variant | None:
    """Return the variant whose trained run this one starts from, or None.

    The recipe names it, or else the variant itself. One that the recipe names is trained before all variants and for every K,
    so it must fit them.

    Raises:
        InputError: The variant that the recipe names is unknown or does not fit.

    """
    if not can_be_pretrained(variant) or not (recipe.pretrain or variant.after):
        return None
    before = find_variant(recipe.pretrain or variant.after or "")
    for name, value, needed in (
        ("objective", before.objective, "classify"),
        ("after", before.after, None),
        ("classifier", before.classifier, variant.classifier),
        ("last_relu", before.last_relu, variant.last_relu),
    ):
        if value != needed and not (variant.method and name == "classifier"):  # a few-shot method brings its own
            raise InputError(
                f"variant '{variant.name}' cannot start from '{before.name}', whose {name} is {value!r}, not {needed!r}: "
                f"name {'another by --set pretrain=cosine, or ' if before.name != 'cosine' else ''}none by --set pretrain="
            )
    return before


def unused_settings(variant: Variant, recipe: Recipe) -> set[str]:
    """Return the settings of a recipe that training this variant by it does not use."""
    frozen, joint, started = (
        keeps_backbone(variant, recipe),
        variant.objective == "joint" and variant.method is None,
        stage_before(variant, recipe) is not None,
    )
    graph = variant.method is None
    adapts = variant.method is not None and not variant.method.joint  # its images pass no backbone before the method
    uses = {
        "momentum": recipe.optimiser == "sgd",
        "nesterov": recipe.optimiser == "sgd",
        "pretrain": can_be_pretrained(variant),
        "temperature": not started and variant.classifier == "cosine",
        "dropout": not frozen and not adapts,
        "drop_block": not frozen and not adapts,
        "backbone_learning_rate_factor": joint and "backbone" not in variant.frozen,
        "prototype_learning_rate_factor": joint and not recipe.folds,
        "views": graph and frozen and not recipe.folds,
        "whiten": graph and started,
        "shrinkage": graph and started and recipe.whiten,
        "folds": joint and started and frozen,
        "fold_epochs": bool(recipe.folds),
        "learn_balance": joint,
        "select_balanced": joint or variant.objective == "none",
        "rotation": variant.objective == "classify",
        "mixup": variant.objective == "classify",
        "teacher": variant.objective == "classify",
        "teacher_weight": variant.objective == "classify" and bool(recipe.teacher),
        "teacher_temperature": variant.objective == "classify" and bool(recipe.teacher),
        "scalar_learning_rate_factor": variant.scales,
        "relation_temperature": variant.needs_relation,
    }
    images = {*_IMAGES} if frozen and (recipe.views == 1 or recipe.folds) else set()
    return _UNUSED[variant.objective] | images | {name for name, used in uses.items() if not used}


def uses_setting(variant: Variant, recipe: Recipe, setting: str) -> bool:
    """Return whether training this variant by a recipe, or the variant it starts from, uses a setting."""
    before = stage_before(variant, recipe)
    return any(setting not in unused_settings(trained, recipe) for trained in (variant, before) if trained)
