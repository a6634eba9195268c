"""The few-shot methods by name, each with what it needs of training."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from protograph.nn.backbones import Conv4
from protograph.nn.few_shot.adaptation import AdaptedNetwork
from protograph.nn.few_shot.base import OF_QUERIES, OF_SUPPORT, RUNNING, FewShotMethod
from protograph.nn.few_shot.cavia import Cavia, ModulatedNetwork
from protograph.nn.few_shot.maml import Maml
from protograph.nn.few_shot.matching_networks import MatchingNetworks
from protograph.nn.few_shot.meta_lstm import MetaLstm
from protograph.nn.few_shot.meta_sgd import MetaSgd
from protograph.nn.few_shot.parameter_prediction import ParameterPrediction
from protograph.nn.few_shot.prototypical_networks import PrototypicalNetworks
from protograph.nn.few_shot.relation_network import RelationNetwork
from protograph.nn.few_shot.reptile import Reptile
from protograph.nn.few_shot.versa import Versa


@dataclass(frozen=True)
class MethodParts:
    """What a method is built from.

    Attributes:
        backbone: The backbone, for methods that adapt it or need the size of its maps.
        features: D, the features of the backbone.
        image_shape: C, H, W.
        ways: The novel classes of an episode.

    """

    backbone: nn.Module
    features: int
    image_shape: Sequence[int]
    ways: int

    def network(self) -> AdaptedNetwork:
        """Return the backbone with a linear layer, as a network to adapt."""
        return AdaptedNetwork(self.backbone, self.features, self.ways, self.image_shape)

    def map_shape(self) -> tuple[int, int, int]:
        """Return channels, height and width of the backbone's maps; features without positions are maps of one pixel."""
        if not isinstance(self.backbone, Conv4):
            return self.features, 1, 1
        with torch.no_grad():
            _, channels, height, width = self.backbone.maps(torch.zeros(1, *self.image_shape)).shape
        return channels, height, width


@dataclass(frozen=True)
class Method:
    """A few-shot method by its name.

    Attributes:
        name: The name of its variant.
        build: Called as `build(parts, **options)`; returns a new method.
        summary: One line on what it is.
        options: What the method takes.
        training: Settings that it changes of every recipe.
        sizes: Settings that it changes of single recipes, by name; those of `paper` are as published.
        after: The variant whose trained run it starts from; its backbone then stays as it is.
        objective: As of `Variant`.
        joint: Whether it can classify seen classes too.
        published_statistics: What batch norm used in the published numbers.

    """

    name: str
    build: Callable[..., FewShotMethod]
    summary: str
    options: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    after: str | None = None
    objective: Literal["few-shot", "joint"] = "few-shot"
    joint: bool = True
    published_statistics: str = RUNNING


def build_method(method: Method, parts: MethodParts) -> FewShotMethod:
    """Return a new method; its random weights are drawn from the global generator."""
    return method.build(parts, **method.options)


def _cavia(parts: MethodParts, context: int = 100, **options: Any) -> Cavia:
    network = ModulatedNetwork(parts.backbone, parts.features, parts.ways, parts.image_shape, context)
    return Cavia(network, context, **options)


def _relation_network(parts: MethodParts) -> RelationNetwork:
    channels, *size = parts.map_shape()
    return RelationNetwork(channels, (size[0], size[1]))


_ADAM: dict[str, Any] = {
    "optimiser": "adam", "learning_rate": 0.001, "learning_rate_drops": (), "weight_decay": 0.0, "warmup_steps": 0,
}  # fmt: skip
_REPTILE: dict[str, Any] = {
    "momentum": 0.0, "nesterov": False, "learning_rate": 1.0, "learning_rate_drops": (), "anneal": True, "weight_decay": 0.0,
    "warmup_steps": 0, "novel_queries": 14,
}  # fmt: skip
# An adapting method takes many passes an episode, so its steps have fewer episodes.
_ADAPTING = {
    "fast": {"steps": 500, "episodes": 8, "novel_queries": 15},
    "strong": {"steps": 1000, "episodes": 8, "novel_queries": 15},
    "demo": {"steps": 25, "episodes": 4, "epochs": 6, "validation_episodes": 40},
}  # fmt: skip
_ANSWER_AT_ONCE = {"fast": {"steps": 500, "episodes": 16}, "strong": {"steps": 1000, "episodes": 16}, "demo": {"epochs": 6}}


def _adapting(episodes: int = 4, steps: int = 1000, **more: Any) -> dict[str, dict[str, Any]]:
    """Return the sizes of an adapting method that was published with so many episodes a step, in 60 epochs of 1,000 steps."""
    return {**_ADAPTING, "paper": {"episodes": episodes, "epochs": 60, "steps": steps, "novel_queries": 15, **more}}


FEW_SHOT_METHODS = (
    Method(
        "matching-networks", lambda parts: MatchingNetworks(), "attention over all examples, by cosine",
        training=_ADAM,
        sizes={**_ANSWER_AT_ONCE, "paper": {"episodes": 1, "epochs": 60, "novel_queries": 15}},
    ),
    Method(
        "prototypical-networks", lambda parts: PrototypicalNetworks(), "distances to mean features, as published",
        training={**_ADAM, "training_ways": 20},
        sizes={
            "fast": {"steps": 500, "episodes": 8}, "strong": {"steps": 1000, "episodes": 8},
            "demo": {"epochs": 6, "episodes": 2},
            "paper": {"episodes": 1, "novel_queries": 15, "learning_rate_drops": ((2, 0.0005), (4, 0.00025), (6, 0.000125))},
        },
    ),
    Method(
        "maml", lambda parts, **options: Maml(parts.network(), **options), "weights a few gradient steps from good ones",
        training=_ADAM, sizes=_adapting(), joint=False, published_statistics=OF_QUERIES,
    ),
    Method(
        "maml-first-order", lambda parts, **options: Maml(parts.network(), **options), "MAML without second derivatives",
        options={"first_order": True}, training=_ADAM, sizes=_adapting(), joint=False, published_statistics=OF_QUERIES,
    ),
    Method(
        "meta-lstm", lambda parts, **options: MetaLstm(parts.network(), **options), "a learned optimiser, as an LSTM",
        training=_ADAM, joint=False, published_statistics=OF_SUPPORT,
        sizes={
            **_adapting(episodes=1), "fast": {"steps": 500, "episodes": 4, "novel_queries": 15},
            "strong": {"steps": 1000, "episodes": 4, "novel_queries": 15},
            "demo": {"steps": 15, "episodes": 2, "epochs": 4, "validation_episodes": 20},
        },
    ),
    Method(
        "meta-sgd", lambda parts: MetaSgd(parts.network()), "one gradient step, with a learned rate for each weight",
        training=_ADAM, sizes=_adapting(), joint=False, published_statistics=OF_QUERIES,
    ),
    Method(
        "reptile", lambda parts, **options: Reptile(parts.network(), **options), "weights near those of all episodes",
        training=_REPTILE, sizes={
            **_ADAPTING, "fast": {"steps": 500, "episodes": 8}, "strong": {"steps": 1000, "episodes": 8},
            "paper": {"episodes": 5, "epochs": 100, "steps": 1000},
        }, joint=False, published_statistics=OF_QUERIES,
    ),
    Method(
        "versa", lambda parts, **options: Versa(parts.features, **options), "an inferred distribution of each class's weights",
        training={**_ADAM, "learning_rate": 0.00025},
        sizes={
            "fast": {"steps": 500, "episodes": 16, "learning_rate": 0.001}, "strong": {"steps": 1000, "episodes": 16},
            "demo": {"epochs": 6, "learning_rate": 0.001},
            "paper": {"episodes": 8, "epochs": 50, "novel_queries": 15, "dropout": 0.5},
        },
        published_statistics=OF_QUERIES,
    ),
    Method(
        "cavia", _cavia, "a small context is adapted, the network is not",
        training=_ADAM, sizes={
            **_adapting(episodes=16, learning_rate_drops=tuple((5 * k, 0.001 * 0.9**k) for k in range(1, 12))),
            "fast": {"steps": 500, "episodes": 16, "novel_queries": 15},
        }, joint=False, published_statistics=OF_QUERIES,
    ),
    Method(
        "relation-network", _relation_network, "a learned score of a query's maps beside a class's",
        training=_ADAM, sizes={
            **_ANSWER_AT_ONCE,
            "paper": {
                "episodes": 1, "epochs": 500, "novel_queries": 15,
                "learning_rate_drops": tuple((100 * k, 0.001 * 0.5**k) for k in range(1, 5)),
            },
        },
        published_statistics=OF_QUERIES,
    ),
    Method(
        "parameter-prediction", lambda parts: ParameterPrediction(parts.features),
        "weights of a class, from its mean activation",
        training=_ADAM, sizes={"fast": {"epochs": 4}, "strong": {"epochs": 4}, "demo": {"epochs": 3}},
        after="linear", objective="joint",
    ),
)  # fmt: skip
