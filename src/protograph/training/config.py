"""How a run is configured: frozen, complete, and the same words everywhere."""

import json
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from protograph._internal.errors import InputError, unknown_name
from protograph._internal.old_names import RECIPE_SETTINGS, renamed
from protograph.episodes import QueryScheme
from protograph.variants import Variant, find_variant


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
        momentum: Momentum of SGD.
        nesterov: Use Nesterov's momentum.
        weight_decay: Weight decay of SGD.
        decay_scalars: Apply weight decay also to scalars and vectors (temperatures, scales, diagonal thetas, biases, norms).
        scalar_learning_rate_factor: Factor on the learning rate of scales and temperatures of operators; 0: they stay fixed.
        dropout: Share of the backbone's features set to zero in training, if the backbone is trained.
        zoom: Scale training images by a factor from 1 / zoom to zoom, see `Augmentation`.
        stretch: Change the ratio of width to height by a factor from 1 / stretch to stretch.
        colour: Change saturation, contrast and brightness by up to this share.
        erase: Largest side of an erased square, as a share of the image's shorter side.
        temperature: Initial temperature of the cosine classifier.
        relation_temperature: Initial temperatures of relations.
        pretrain: The variant whose trained run joint training starts from, unless the variant itself names one; "": random
            weights.
        patience: Stop after this many epochs without a better validation; 0: never.
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
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    decay_scalars: bool = True
    scalar_learning_rate_factor: float = 1.0
    dropout: float = 0.0
    zoom: float = 1.0
    stretch: float = 1.0
    colour: float = 0.0
    erase: float = 0.0
    temperature: float = 10.0
    relation_temperature: float = 1.0
    pretrain: str = ""
    patience: int = 0
    validation_episodes: int = 2000
    test_queries: int = 15

    def __post_init__(self) -> None:
        for name in ("epochs", "steps", "episodes", "batch_size", "ways", "validation_episodes"):
            if getattr(self, name) < 1:
                raise InputError(f"recipe '{self.name}': {name} must be at least 1, not {getattr(self, name)}")
        if not 0 < self.learning_rate < math.inf:
            raise InputError(f"recipe '{self.name}': learning_rate must be above 0, not {self.learning_rate}")
        for name in ("training_ways", "warmup_steps", "patience", "momentum", "weight_decay", "scalar_learning_rate_factor"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"recipe '{self.name}': {name} must be at least 0, not {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise InputError(f"recipe '{self.name}': dropout is a share below 1, not {self.dropout}")
        for name in ("temperature", "relation_temperature"):
            if not math.isfinite(getattr(self, name)):
                raise InputError(f"recipe '{self.name}': {name} must be a number, not {getattr(self, name)}")
        for name in ("zoom", "stretch"):
            if not 1 <= getattr(self, name) < math.inf:
                raise InputError(f"recipe '{self.name}': {name} is a factor of at least 1, not {getattr(self, name)}")
        for name in ("colour", "erase"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"recipe '{self.name}': {name} is a share from 0 to 1, not {getattr(self, name)}")
        if self.nesterov and not self.momentum:
            raise InputError(f"recipe '{self.name}': nesterov needs momentum: set nesterov=false too")
        for drop in self.learning_rate_drops:
            if not (isinstance(drop, tuple) and [type(part) for part in drop] in ([int, float], [int, int])):
                raise InputError(f"recipe '{self.name}': learning_rate_drops are (epoch, learning rate) pairs, not {drop!r}")
        if self.query_scheme not in ("total", "per-class"):
            raise unknown_name("query scheme", self.query_scheme, ("total", "per-class"))
        if self.anneal and self.learning_rate_drops:
            raise InputError(f"recipe '{self.name}': 'learning_rate_drops' would be ignored with 'anneal': use one of them")

    @property
    def image_changes(self) -> dict[str, Any]:
        """What it changes of images, as settings of an `Augmentation`; those that change nothing are not among them."""
        return {name: value for name in _IMAGES if (value := getattr(self, name)) != getattr(Recipe, name)}


FORMAT = 2  # of a stored configuration; one without a number has format 1, and the old names of settings
SETTINGS = tuple(field.name for field in fields(Recipe) if field.name != "name")  # all that may be changed
_IMAGES = ("zoom", "stretch", "colour", "erase")
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
# Changed images are learned by heart later, so that longer training is of use.
STRONG = replace(FAST, name="strong", steps=2 * FAST.steps, zoom=1.25, stretch=1.15, colour=0.3, erase=0.43)
# For prototypes and graph block on the features of a frozen encoder: prototypes start where their classes are, and relations
# sharp, since from a temperature of 1 they take thousands of steps to be of use.
FROZEN = replace(DEMO, name="frozen", epochs=1, steps=300, relation_temperature=8.0)
RECIPES = {recipe.name: recipe for recipe in (PAPER, FAST, STRONG, DEMO)}
# What the baselines change of each recipe: queries, and in the paper's the length, as their authors had them. A variant that
# names one it starts from is a second stage, whatever its objective; one for which the recipe names it is pretrained.
CHANGES: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {
        "few-shot": {"novel_queries": 6, "seen_queries": 0, "epochs": 60},
        "classify": {"epochs": 60},
        "second stage": {"epochs": 60},
    },
    "fast": {"few-shot": {"novel_queries": 6, "seen_queries": 0}, "classify": {"batch_size": 1024}},
    "demo": {"few-shot": {"novel_queries": 6, "seen_queries": 0}},
}
CHANGES["strong"] = {
    # Prototypical Networks gain by the paper's rate and decay, in steps as small as the paper's; and have harder episodes.
    "few-shot": {
        **CHANGES["fast"]["few-shot"],
        "training_ways": 20,
        "episodes": 2,
        "steps": 1040,
        "epochs": 24,
        "learning_rate": PAPER.learning_rate,
        "weight_decay": PAPER.weight_decay,
    },
    # What comes first is trained once for all that start from it; what these add is soon learned.
    "classify": {**CHANGES["fast"]["classify"], "epochs": 24},
    "second stage": {"epochs": 4},
    "pretrained": {"epochs": 8},
}
_OPTIMISER = {
    "learning_rate",
    "learning_rate_drops",
    "anneal",
    "warmup_steps",
    "momentum",
    "nesterov",
    "weight_decay",
    "decay_scalars",
}
_EPISODES = {"episodes", "training_ways", "novel_queries", "seen_queries", "query_scheme"}
_UNUSED = {
    "joint": {"batch_size"},
    "few-shot": {"batch_size", "seen_queries", "query_scheme"},
    "classify": _EPISODES,
    "none": {"epochs", "steps", "batch_size", "patience", "temperature", "dropout", *_EPISODES, *_OPTIMISER, *_IMAGES},
}


def reject_old_setting(name: str) -> None:
    """Refuse the name that a recipe's setting had in an earlier version, and give the new one."""
    if name in RECIPE_SETTINGS:
        raise InputError(f"recipe setting '{name}' is now '{RECIPE_SETTINGS[name]}'")


def find_recipe(name: str) -> Recipe:
    """The recipe of that name."""
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    return RECIPES[name]


def can_be_pretrained(variant: Variant) -> bool:
    """Whether a recipe may name the variant that this one starts from."""
    return variant.after is None and variant.objective == "joint"


def stage_before(variant: Variant, recipe: Recipe) -> Variant | None:
    """The variant whose trained run this one starts from: its own or, in joint training, the recipe's; or none.

    What a recipe names is trained before all of them, for every K, and has to fit them: anything else is refused.
    """
    if variant.after is not None:
        return find_variant(variant.after)
    if not can_be_pretrained(variant) or not recipe.pretrain:
        return None
    before = find_variant(recipe.pretrain)
    for what, own, wanted in (
        ("objective", before.objective, "classify"),
        ("after", before.after, None),
        ("classifier", before.classifier, variant.classifier),
        ("last_relu", before.last_relu, variant.last_relu),
    ):
        if own != wanted:
            raise InputError(
                f"variant '{variant.name}' cannot start from '{before.name}', whose {what} is {own!r}, not {wanted!r}: "
                f"name {'another by --set pretrain=cosine, or ' if before.name != 'cosine' else ''}none by --set pretrain="
            )
    return before


def unused(variant: Variant, recipe: Recipe) -> set[str]:
    """Settings of a recipe that training this variant by it never looks at."""
    found = set(_UNUSED[variant.objective])
    for name, used in (
        ("pretrain", can_be_pretrained(variant)),
        ("temperature", stage_before(variant, recipe) is None and variant.classifier == "cosine"),
        ("dropout", "backbone" not in variant.frozen),
        ("scalar_learning_rate_factor", variant.scales),
        ("relation_temperature", variant.needs_relation),
    ):
        if not used:
            found.add(name)
    return found


def has_use(variant: Variant, recipe: Recipe, setting: str) -> bool:
    """Whether training this variant by a recipe, or the one it starts from, looks at a setting of it."""
    before = stage_before(variant, recipe)
    return any(setting not in unused(stage, recipe) for stage in (variant, before) if stage)


def recipe_for(
    variant: Variant, name: str, changes: Mapping[str, Any], dataset: Mapping[str, Mapping[str, Any]] | None = None
) -> Recipe:
    """The recipe of that name as a variant follows it, with a dataset's changes by recipe ("*": to all) and a user's."""
    for setting in changes:
        reject_old_setting(setting)
        if setting not in SETTINGS:
            raise unknown_name("recipe setting", setting, SETTINGS)
    own = dataset or {}
    recipe = replace(find_recipe(name), **{**own.get("*", {}), **own.get(name, {})})
    if not can_be_pretrained(variant):
        recipe = replace(recipe, pretrain="")
    elif "pretrain" in changes:  # on which it depends what else there is, and is looked at
        recipe = typed(recipe, {"pretrain": changes["pretrain"]}, "recipe")
    kind = "second stage" if variant.after else "pretrained" if recipe.pretrain else variant.objective
    recipe = replace(recipe, **CHANGES.get(name, {}).get(kind, {}))
    if variant.objective == "none":  # each epoch tries one candidate
        recipe = replace(recipe, epochs=len(variant.candidates), steps=1, patience=0)
    spared = unused(variant, recipe)  # which finds a start that does not fit
    return typed(recipe, {key: value for key, value in changes.items() if key not in spared}, "recipe")


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run's numbers: two runs with the same configuration end alike.

    fingerprint, relation_digests: what the dataset and each relation contained
    precision: of the backbone in training and selection, float32 or bfloat16
    start: of the run it started from, where its variant or recipe names one; not known before that run is trained
    """

    dataset: str
    variant: str
    shots: int
    seed: int
    backbone: str
    relations: tuple[str, ...]
    recipe: Recipe
    fingerprint: str = ""
    plugins: tuple[str, ...] = ()
    relation_digests: tuple[str, ...] = ()
    start: str = ""
    precision: str = "float32"

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        values: dict[str, Any] = _plain(asdict(self))
        return {"format": FORMAT, **values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "RunConfig":
        """Return the configuration that `to_dict` of this or an earlier version gave.

        Raises:
            InputError: If a later version wrote it, or a setting is unknown or has the wrong type.

        """
        if values.get("format", 1) > FORMAT:
            raise InputError(f"it has format {values['format']}, and this version reads up to {FORMAT}: install a newer one")
        recipe = typed(Recipe("unnamed"), renamed(values["recipe"], RECIPE_SETTINGS), "recipe")
        rest = {name: value for name, value in values.items() if name not in ("recipe", "format")}
        return typed(cls("", "", 1, 0, "", (), recipe), rest, "configuration")


Config = TypeVar("Config", Recipe, RunConfig)


def typed(base: Config, changes: Mapping[str, Any], where: str) -> Config:
    """A copy of `base` with `changes` (from JSON, TOML or the command line), each checked for name and type."""
    hints = get_type_hints(type(base))
    checked = {}
    for name, value in changes.items():
        if isinstance(base, Recipe):
            reject_old_setting(name)
        if name not in hints:
            raise unknown_name(f"{where} setting", name, hints)
        checked[name] = _coerced(value, type(getattr(base, name)), f"{where} setting '{name}'")
    return replace(base, **checked)


def read_toml(path: Path) -> dict[str, Any]:
    """A user's configuration file: the options of `train` at the top, changes to the recipe under [recipe]."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError) as error:
        raise InputError(f"no configuration file at {path}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}") from error


def differences(one: RunConfig, other: RunConfig) -> list[str]:
    """Settings in which two configurations differ, as 'name: this, not that'."""
    found = []
    for prefix, left, right in (("", one, other), ("recipe.", one.recipe, other.recipe)):
        for field in fields(left):
            ours, theirs = getattr(left, field.name), getattr(right, field.name)
            if ours != theirs and field.name != "recipe":
                found.append(f"{prefix}{field.name} is {theirs!r} there, not {ours!r}")
    return found


# What a value must be, in words
_KINDS = {
    int: "a whole number", float: "a number", bool: "true or false", str: "a text",
    tuple: "a list, of drops such as [[20, 0.006], [40, 0.001]]",
}  # fmt: skip
# and how the command line says it
_READ: dict[type, Callable[[str], Any]] = {
    int: int, float: float, bool: lambda text: {"true": True, "false": False}[text.lower()], tuple: json.loads,
}  # fmt: skip


def _coerced(value: Any, kind: type, what: str) -> Any:
    wrong = InputError(f"{what} must be {_KINDS.get(kind, kind.__name__)}, not {value!r}")
    if isinstance(value, str) and kind in _READ:  # from the command line
        try:
            value = _READ[kind](value)
        except (KeyError, ValueError):
            raise wrong from None
    if kind is tuple and isinstance(value, list | tuple):
        return tuple(tuple(item) if isinstance(item, list) else item for item in value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise wrong
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
