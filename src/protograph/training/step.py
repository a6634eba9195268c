"""One training step: draw, embed, take the loss of the variant's objective, and descend its gradient."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from protograph.data import Augmentation, ImageStore, Pool, Store
from protograph.device import PLAIN, TRITON, RepeatedStep
from protograph.episodes import Batch, Episodes, EpisodeSpec, draw, draw_batch
from protograph.nn.model import GraphPrototypeNetwork
from protograph.variants import Variant

Embed = Callable[..., list[Tensor]]  # groups of image indices [...] -> features [..., D] of each
Head = Callable[..., Tensor]  # support, mask, queries, classes, seen -> joint logits [E, Q, V]


@dataclass
class TrainingStep:
    """A step of training, called with the generator it draws from.

    Attributes:
        model: The model to train.
        optimiser: Its optimiser.
        store: The images or features.
        augmentation: How training images are changed.
        spec: The episodes to draw, or the pool to draw single images from.
        count: Episodes, or single images, of a step.
        variant: The variant, whose objective is minimised and whose frozen parts stay in evaluation mode.
        dropout: Share of the features set to zero, in support and queries alike, if the backbone is trained.
        head: Computes joint logits; None: the model's `forward`.

    """

    model: GraphPrototypeNetwork
    optimiser: torch.optim.Optimizer
    store: Store
    augmentation: Augmentation
    spec: EpisodeSpec | Pool
    count: int
    variant: Variant
    dropout: float = 0.0
    head: Head | None = None

    def __call__(self, generator: torch.Generator) -> Tensor:
        """Take one step down the gradient and return the loss."""
        self.model.train()
        for part, module in self.model.named_children():
            if part in self.variant.frozen:
                module.eval()
        spec, count = self.spec, self.count
        drawn = draw(spec, count, generator) if isinstance(spec, EpisodeSpec) else draw_batch(spec, count, generator)

        def embed(*groups: Tensor) -> list[Tensor]:
            return self.embed(groups, generator)

        loss = LOSSES[self.variant.objective](self.model, drawn, embed, self.head or self.model.forward)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        return loss.detach()

    def embed(self, groups: tuple[Tensor, ...], generator: torch.Generator) -> list[Tensor]:
        """Return the features [..., D] of groups of image indices [...], embedded together."""
        sizes = [indices.numel() for indices in groups]
        images = self.store.gather(torch.cat([indices.flatten() for indices in groups]), self.augmentation, generator)
        features = self.model.embed(images, sizes)
        if self.dropout and self.model.backbone.training:
            features = drop_features(features, self.dropout, generator)
        parts = torch.split(features, sizes)
        return [part.view(*indices.shape, -1) for part, indices in zip(parts, groups, strict=True)]

    def repeated(self, loss_sum: Tensor) -> RepeatedStep:
        """Return the step as training repeats it, called with a seed; losses are added to `loss_sum`.

        On a GPU the head is compiled and the whole step recorded, where possible.
        """
        device = self.store.device
        torch.backends.cudnn.benchmark = device.type == "cuda"  # shapes are fixed: let it find the fastest convolutions
        record = device.type == "cuda" and can_be_recorded(self.model, self.store, self.spec)
        if record and TRITON:
            self.head = torch.compile(self.model.forward, dynamic=False)

        def add_loss(generator: torch.Generator) -> None:
            loss_sum.add_(self(generator))

        return RepeatedStep(add_loss, device, record)


def drop_features(features: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Return features [n, D] with a random share set to zero and the rest scaled up, so that their mean stays.

    It draws from the step's generator, unlike PyTorch's dropout, so that a resumed run draws the same numbers.
    """
    kept = torch.rand(features.shape, generator=generator, device=features.device) >= share
    return features * kept / (1 - share)


def joint_loss(model: GraphPrototypeNetwork, episodes: Episodes, embed: Embed, head: Head) -> Tensor:
    """Return the cross-entropy in the joint label space."""
    return cross_entropy(episode_logits(episodes, embed, head).flatten(0, 1), episodes.targets.flatten())


def few_shot_loss(model: GraphPrototypeNetwork, episodes: Episodes, embed: Embed, head: Head) -> Tensor:
    """Return the cross-entropy among the episodes' novel classes, to which all queries belong."""
    logits = episode_logits(episodes, embed, head)[..., episodes.seen :]
    return cross_entropy(logits.flatten(0, 1), (episodes.targets - episodes.seen).flatten())


def classification_loss(model: GraphPrototypeNetwork, batch: Batch, embed: Embed, head: Head) -> Tensor:
    """Return the cross-entropy of single images among all seen classes."""
    return cross_entropy(model.seen_logits(embed(batch.images)[0]), batch.targets)


LOSSES: dict[str, Callable[[GraphPrototypeNetwork, Any, Embed, Head], Tensor]] = {
    "joint": joint_loss,
    "few-shot": few_shot_loss,
    "classify": classification_loss,
}


def episode_logits(episodes: Episodes, embed: Embed, head: Head) -> Tensor:
    """Return joint logits [E, Q, V]. Support and queries pass the backbone together, but batch norm normalises each alone."""
    support, queries = embed(episodes.support, episodes.queries)
    return head(support, episodes.mask, queries, episodes.classes, episodes.seen)


def can_be_recorded(model: GraphPrototypeNetwork, store: Store, spec: EpisodeSpec | Pool) -> bool:
    """Return whether a step on a GPU may be recorded: it never waits for the host, images are resident, sizes are fixed."""
    capturable = all(component.capturable for component in model.components())
    resident = not isinstance(store, ImageStore) or store.pixels.is_cuda
    return not PLAIN and resident and capturable and not (isinstance(spec, EpisodeSpec) and spec.scarce)
