"""The model: features and learned seen prototypes -> joint logits.

Shapes: E episodes, S seen, N novel, V = S + N, K shots, Q queries, D features; T training classes.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from protograph.nn.backbones import embed_parts
from protograph.nn.classify import CosineClassifier, normalise
from protograph.nn.graph import GraphBlock
from protograph.nn.operators import Component, Context, Operator, Weights, components, mean_over_shots, without_row
from protograph.nn.operators.nearest_pairs import is_many


class EpisodeModel(nn.Module, ABC):
    """What training and evaluation need of a model: features of images, and the logits of episodes of such features.

    Args:
        backbone: images [n, C, H, W] -> features [n, D]

    Attributes:
        prototypes: the learned or mean feature [T, D] of each training class; only if the model is joint
        heads: networks for tasks of training alone: features [n, D] -> logits [n, X]
        space: features as the backbone gives them [n, D] -> features [n, D]
        takes_features: whether images come as what a backbone that stays as it is, and the space, make of them
        precision: of the backbone; everything behind it is at least float32

    """

    prototypes: nn.Parameter

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.heads = nn.ModuleDict()
        self.space: nn.Module | None = None
        self.takes_features = False
        self.precision = torch.float32

    @property
    @abstractmethod
    def features(self) -> int:
        """D of what `embed` returns."""

    @property
    def joint(self) -> bool:
        """Whether it classifies among seen and novel classes together; otherwise among novel classes alone."""
        return True

    @property
    def capturable(self) -> bool:
        """Whether its training step can be recorded as a CUDA graph."""
        return True

    @property
    def ways(self) -> int:
        """The number of novel classes that it was built for; 0: any number."""
        return 0

    @property
    def statistics(self) -> str:
        """What batch norm uses in evaluation."""
        return "running"

    @property
    def other_statistics(self) -> tuple[str, ...]:
        """What batch norm may use in evaluation beside its usual statistics, as `using` takes it."""
        return ()

    def embed(
        self,
        images: Tensor,
        parts: Sequence[int] | None = None,
        masks: Sequence[Tensor] = (),
        mixes: Sequence[Tensor] = (),
    ) -> Tensor:
        """Return features [n, D] of images [n, C, H, W], in float32 or wider whatever the backbone's precision.

        In training, batch norm sees each of the `parts` of the n images alone; `masks` and `mixes` are those of
        `Backbone.forward`.
        """
        if self.takes_features:
            return images
        half = self.precision != torch.float32
        with torch.autocast(images.device.type, self.precision, enabled=half):
            features = embed_parts(self.backbone, images, parts, masks, mixes)
        features = features.float() if half else features
        return features if self.space is None else self.space(features)

    @abstractmethod
    def forward(
        self, support: Tensor, mask: Tensor, queries: Tensor, classes: Tensor, seen: int, prototypes: Tensor | None = None
    ) -> Tensor:
        """Return joint logits [E, Q, V] of queries [E, Q, D] for support [E, N, K, D] with `mask` and `classes` [E, V].

        `prototypes` [T, D] stand in the place of the model's own.
        """

    def scales(self) -> Mapping[str, float]:
        """Return the learned scales by their names; most models have none."""
        return {}

    @contextmanager
    def using(self, statistics: str) -> Iterator[None]:
        """Let batch norm use one of the `other_statistics` in evaluation."""
        raise NotImplementedError(f"{type(self).__name__} has no other statistics, such as {statistics}")
        yield


class GraphPrototypeNetwork(EpisodeModel):
    r"""Graph convolution over class prototypes and one joint classifier.

    Seen prototypes are learned; a novel one starts as the mean of its normalised support features,
    :math:`c_n = \frac 1 K \sum_i \bar z_{n,i}`; the graph block updates all of them jointly.

    Args:
        backbone: images [n, C, H, W] -> features [n, D]
        seen: T, the number of training classes
        features: D
        operators: the set :math:`\mathcal A`
        graph: the block that applies them, built for the operators' labels
        classifier: queries [E, Q, D] and prototypes [E, V, D] -> logits [E, Q, V]
        normalise_support: whether support features are normalised before they are averaged
        normalise_seen: whether learned prototypes are normalised before they join the averages

    """

    def __init__(
        self,
        backbone: nn.Module,
        seen: int,
        features: int,
        operators: Sequence[Operator],
        graph: GraphBlock,
        classifier: nn.Module | None = None,
        normalise_support: bool = True,
        normalise_seen: bool = False,
    ) -> None:
        super().__init__(backbone)
        self.prototypes = nn.Parameter(torch.randn(seen, features) * math.sqrt(2 / features))
        self.operators = nn.ModuleList(operators)
        self.graph = graph
        self.classifier = classifier or CosineClassifier()
        self.normalise_support, self.normalise_seen = normalise_support, normalise_seen
        self.balance: nn.Parameter | None = None  # a learned bias on the logits of novel classes

    @property
    def features(self) -> int:
        """D."""
        return self.prototypes.shape[1]

    @property
    def capturable(self) -> bool:
        """Whether all operators are such that a training step can be recorded as a CUDA graph."""
        return not is_many(len(self.prototypes)) and all(component.capturable for component in self.components())

    def scales(self) -> Mapping[str, float]:
        """Return the learned scale s_B of each operator, by its label."""
        return {
            label: scale
            for layer in self.graph.layers
            for label, scale in zip(layer.labels, layer.scales.tolist(), strict=True)  # type: ignore[arg-type, operator]
        }

    def context(self, support: Tensor, mask: Tensor, classes: Tensor, seen: int, prototypes: Tensor | None = None) -> Context:
        """Return the initial joint prototypes of episodes, and what they were computed from.

        Args:
            support: the support features [E, N, K, D]
            mask: which shots exist [E, N, K]
            classes: the class ids [E, V], those of the seen classes first
            seen: S
            prototypes: prototypes [T, D] of the training classes in the place of the learned ones

        """
        # `embedding`, since the gradient of plain indexing is summed by threads in any order.
        joint = torch.cat([embedding(classes[:, :seen], self.learned(prototypes)), self.initial(support, mask)], 1)
        return Context(joint, support, mask, classes, seen)

    def learned(self, prototypes: Tensor | None = None) -> Tensor:
        """Return the initial prototypes [T, D] of the training classes, by the learned ones or those given."""
        rows = self.prototypes if prototypes is None else prototypes
        return normalise(rows) if self.normalise_seen else rows

    def initial(self, support: Tensor, mask: Tensor) -> Tensor:
        """Return the initial prototypes [E, N, D] of novel classes from their support [E, N, K, D] with mask [E, N, K]."""
        return mean_over_shots(normalise(support) if self.normalise_support else support, mask)

    def components(self) -> Iterator[Component]:
        """Yield the operators and all similarities and operators inside them."""
        return components(self.operators)

    def forget(self, row: int) -> None:
        """Drop one training class: its learned prototype, and what operators learned of it."""
        self.prototypes = without_row(self.prototypes, row)
        for component in self.components():
            component.forget(row)

    def weights(self, context: Context) -> list[Weights]:
        """Return the weights of all operators, in the order of the graph block's labels."""
        weights: list[Weights] = []
        for operator in self.operators:
            assert isinstance(operator, Operator)
            weights += operator.weights(context)
        return weights

    def joint_prototypes(self, context: Context) -> Tensor:
        """Return the updated prototypes [E, V, D]."""
        updated: Tensor = self.graph(context.prototypes, self.weights(context))
        return updated

    def seen_logits(self, features: Tensor) -> Tensor:
        """Return logits [n, T] of features [n, D] among the training classes alone."""
        logits: Tensor = self.classifier(features[None], self.prototypes[None])
        return logits[0]

    def forward(
        self,
        support: Tensor,
        mask: Tensor,
        queries: Tensor,
        classes: Tensor,
        seen: int,
        prototypes: Tensor | None = None,
    ) -> Tensor:
        """Return joint logits [E, Q, V] from the features of support [E, N, K, D] and queries [E, Q, D].

        The other arguments are those of `context`.
        """
        context = self.context(support, mask, classes, seen, prototypes)
        logits: Tensor = self.classifier(queries, self.joint_prototypes(context))
        if self.balance is None:
            return logits
        return torch.cat([logits[..., :seen], logits[..., seen:] + self.balance], -1)
