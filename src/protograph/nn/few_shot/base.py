"""The contract of few-shot methods, and the model around one.

Shapes: E episodes, S seen, N novel, V = S + N, K shots, Q queries, D features; T training classes.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding

from protograph._internal.errors import InputError
from protograph.nn.backbones import Flatten
from protograph.nn.model import EpisodeModel

OF_QUERIES = "queries"  # batch norm sees an episode's queries together, as most of the methods were published
OF_SUPPORT = "support"  # batch norm of queries has the statistics of the support
RUNNING = "running"  # batch norm has the running statistics of training
PIXELS_AT_ONCE = {"cpu": 150_000, "cuda": 30_000_000}  # of the episodes that are evaluated together


class FewShotMethod(nn.Module, ABC):
    """What makes logits of an episode's support and queries.

    A method gets features of the backbone, or the images themselves if it adapts the network to each episode.

    Attributes:
        takes_images: Whether it gets images [..., C * H * W] in place of features, and has a network of its own.
        joint: Whether it can classify among any number of classes, seen ones included, each given by examples.
        capturable: Whether its training step can be recorded as a CUDA graph.
        statistics: What batch norm may use in evaluation, the usual one first.
        ways: The number of classes that its last layer has; 0: any number.

    """

    takes_images = False
    joint = True
    capturable = True
    statistics: tuple[str, ...] = (RUNNING,)
    ways = 0

    @abstractmethod
    def forward(self, support: Tensor, mask: Tensor, queries: Tensor) -> Tensor:
        """Return logits [E, Q, N].

        Args:
            support: The examples [E, N, K, D].
            mask: Which of them exist [E, N, K].
            queries: The queries [E, Q, D].

        """

    def loss(self, support: Tensor, mask: Tensor, queries: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
        """Return what training minimises; unless a method overrides it, the cross-entropy of the queries.

        Args:
            support: The examples [E, N, K, D].
            mask: Which of them exist [E, N, K].
            queries: The queries [E, Q, D].
            targets: Their classes from 0 to N - 1 [E, Q].
            generator: The generator of the step, for methods that draw numbers.

        """
        return cross_entropy(self(support, mask, queries).flatten(0, 1), targets.flatten())

    def use_statistics(self, statistics: str) -> None:
        """Let batch norm of the method's own network use other statistics; methods with such a network override this."""


class FewShotModel(EpisodeModel):
    """A few-shot method with its backbone, in the form in which models are trained and evaluated.

    A seen class enters the joint label space as a class of K equal examples: the mean feature of all its training images.

    Args:
        backbone: Images [n, C, H, W] -> features [n, D]; a method that takes images has it already.
        method: The method.
        seen: T, the number of training classes.
        features: D.
        image_shape: C, H, W.

    """

    def __init__(
        self, backbone: nn.Module, method: FewShotMethod, seen: int, features: int, image_shape: Sequence[int]
    ) -> None:
        super().__init__(Flatten() if method.takes_images else backbone)
        self.method = method
        self.image_shape = tuple(image_shape)
        self._statistics = method.statistics[0]
        self._features = math.prod(image_shape) if method.takes_images else features
        if method.joint:
            self.prototypes = nn.Parameter(torch.zeros(seen, features), requires_grad=False)

    @property
    def features(self) -> int:
        """D of what `embed` returns."""
        return self._features

    @property
    def joint(self) -> bool:
        """Whether it classifies among seen and novel classes together, which needs features that depend on no episode."""
        return self.method.joint and self.statistics == RUNNING

    @property
    def capturable(self) -> bool:
        """Whether its training step can be recorded as a CUDA graph."""
        return self.method.capturable

    @property
    def ways(self) -> int:
        """The number of novel classes that it was built for; 0: any number."""
        return self.method.ways

    @property
    def statistics(self) -> str:
        """What batch norm uses in evaluation, one of the method's."""
        return self._statistics

    @property
    def other_statistics(self) -> tuple[str, ...]:
        """What batch norm may use in evaluation beside its usual statistics."""
        return self.method.statistics[1:]

    @contextmanager
    def using(self, statistics: str) -> Iterator[None]:
        """Let batch norm use other statistics in evaluation."""
        usual, self._statistics = self._statistics, statistics
        self.method.use_statistics(statistics)
        try:
            yield
        finally:
            self._statistics = usual
            self.method.use_statistics(usual)

    @property
    def embeds_episodes(self) -> bool:
        """Whether, in evaluation, features depend on the episode, so that `embed` leaves images as they are."""
        return not self.training and self.statistics == OF_QUERIES and not self.method.takes_images

    def embed(
        self,
        images: Tensor,
        parts: Sequence[int] | None = None,
        masks: Sequence[Tensor] = (),
        mixes: Sequence[Tensor] = (),
    ) -> Tensor:
        """Return features [n, D] of images [n, C, H, W]; where features depend on the episode, the images flattened."""
        return images.flatten(1) if self.embeds_episodes else super().embed(images, parts, masks, mixes)

    def forward(
        self, support: Tensor, mask: Tensor, queries: Tensor, classes: Tensor, seen: int, prototypes: Tensor | None = None
    ) -> Tensor:
        """Return joint logits [E, Q, V] from what `embed` returned for support [E, N, K, D] and queries [E, Q, D].

        `prototypes` [T, D] stand in the place of the model's own.
        """
        if seen and prototypes is None:
            prototypes = self.prototypes
        self._check_ways(support.shape[1])
        chunk = self._chunk(support, queries)
        parts = zip(*(torch.split(rows, chunk) for rows in (support, mask, queries, classes)), strict=True)
        return torch.cat([self._logits(s, m, q, c, prototypes, seen) for s, m, q, c in parts])

    def loss(self, support: Tensor, mask: Tensor, queries: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
        """Return the method's own loss; the arguments are those of `FewShotMethod.loss`."""
        self._check_ways(support.shape[1])
        with self.autocast(queries):
            return self.method.loss(support, mask, queries, targets, generator)

    def _logits(
        self, support: Tensor, mask: Tensor, queries: Tensor, classes: Tensor, prototypes: Tensor | None, seen: int
    ) -> Tensor:
        if self.embeds_episodes:
            support, queries = self._embed_episodes(support), self._embed_episodes(queries)
        if prototypes is not None and seen:
            # `embedding`, since the gradient of plain indexing is summed by threads in any order.
            means = embedding(classes[:, :seen], prototypes)[:, :, None].expand(-1, -1, support.shape[2], -1)
            support = torch.cat([means.to(support), support], 1)
            mask = torch.cat([mask.new_ones(means.shape[:3]), mask], 1)
        with self.autocast(queries):
            logits: Tensor = self.method(support, mask, queries)
        return logits.to(queries.dtype)

    def autocast(self, inputs: Tensor) -> torch.autocast:
        """Return the context in which a network of the method's own runs: in the precision of the backbone."""
        half = self.precision != torch.float32 and self.method.takes_images
        return torch.autocast(inputs.device.type, self.precision if half else torch.bfloat16, enabled=half)

    def _embed_episodes(self, images: Tensor) -> Tensor:
        """Return features of flattened images [E, ..., C * H * W], with batch norm of each episode's images alone."""
        rows = images.reshape(len(images), -1, *self.image_shape)
        with _norms_of_batches(self.backbone):
            features = torch.stack([EpisodeModel.embed(self, episode) for episode in rows])
        return features.view(*images.shape[:-1], -1)

    def _chunk(self, support: Tensor, queries: Tensor) -> int:
        """Return how many episodes are computed together: in training all."""
        if self.training or not (self.method.takes_images or self.embeds_episodes):
            return len(queries)
        pixels = (support[0].numel() + queries[0].numel()) // self.image_shape[0]
        return max(1, PIXELS_AT_ONCE.get(queries.device.type, PIXELS_AT_ONCE["cpu"]) // pixels)

    def _check_ways(self, ways: int) -> None:
        if self.method.ways not in (0, ways):
            raise InputError(
                f"this model was trained with a last layer for {self.method.ways} novel classes, and the episode has {ways}: "
                f"use {self.method.ways} ways"
            )


@contextmanager
def _norms_of_batches(backbone: nn.Module) -> Iterator[None]:
    """Let batch norm use the statistics of the batch, and leave the running ones as they are."""
    norms = [module for module in backbone.modules() if isinstance(module, nn.BatchNorm2d)]
    before = [(norm.training, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.training, norm.momentum = True, 0.0
    try:
        yield
    finally:
        for norm, (training, momentum, count) in zip(norms, before, strict=True):
            norm.training, norm.momentum = training, momentum
            norm.num_batches_tracked = count


def outside_inference(*tensors: Tensor) -> list[Tensor]:
    """Return tensors that gradients can be taken of, even if they were made in inference mode."""
    return [tensor.clone() if tensor.is_inference() else tensor for tensor in tensors]
