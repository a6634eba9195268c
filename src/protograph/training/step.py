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
from protograph.training.optimiser import move_average
from protograph.training.recipes import Recipe
from protograph.variants import Variant

TURNS = 4  # quarters of a turn that the rotation task tells apart
PLAIN_STEP = Recipe("plain step")  # without any of the settings that change a step
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
        recipe: The recipe, whose settings of a step apply.
        averaged: A copy of the model, which becomes the moving average of its weights, if the recipe averages them.
        head: Computes joint logits; None: the model's `forward`.
        embedder: Computes features; None: the model's `embed`.
        progress: The share of the training that is done, a number on the device.

    """

    model: GraphPrototypeNetwork
    optimiser: torch.optim.Optimizer
    store: Store
    augmentation: Augmentation
    spec: EpisodeSpec | Pool
    count: int
    variant: Variant
    recipe: Recipe = PLAIN_STEP
    averaged: GraphPrototypeNetwork | None = None
    head: Head | None = None
    embedder: Callable[..., Tensor] | None = None

    def __post_init__(self) -> None:
        self.progress = torch.zeros((), device=self.store.device)

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

        loss = LOSSES[self.variant.objective](self, drawn, embed)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        if self.averaged is not None:
            move_average(self.averaged, self.model, self.recipe.ema)
        return loss.detach()

    def embed(self, groups: tuple[Tensor, ...], generator: torch.Generator) -> list[Tensor]:
        """Return the features [..., D] of groups of image indices [...], embedded together."""
        sizes = [indices.numel() for indices in groups]
        images = self.store.gather(torch.cat([indices.flatten() for indices in groups]), self.augmentation, generator)
        if self.recipe.rotation:
            images = rotated(images)
        trained, masks = self.model.backbone.training, []
        if self.recipe.drop_block and trained:
            masks = self.model.backbone.drop_masks(images, self.recipe.drop_block * self.progress, generator)  # type: ignore[operator]
        features = (self.embedder or self.model.embed)(images, sizes, masks)
        if self.recipe.dropout and trained:
            features = drop_features(features, self.recipe.dropout, generator)
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
            if getattr(self.model.backbone, "compiles", False):
                self.embedder = torch.compile(self.model.embed, dynamic=False)

        def add_loss(generator: torch.Generator) -> None:
            loss_sum.add_(self(generator))

        return RepeatedStep(add_loss, device, record)


def turn_counts(count: int) -> list[int]:
    """Return how many of a step's images are turned by 0, 1, 2 and 3 quarters."""
    turned = count // 6
    return [count - 3 * turned, turned, turned, turned]


def rotated(images: Tensor) -> Tensor:
    """Return images [n, C, H, H], the first ones upright, the others turned by one, two and three quarters.

    The images of a step are drawn independently, so that it does not matter which of them are turned.
    """
    parts = torch.split(images, turn_counts(len(images)))
    turned = torch.cat([torch.rot90(part, turns, (2, 3)) for turns, part in enumerate(parts)])
    return turned.contiguous(memory_format=torch.channels_last)


def drop_features(features: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Return features [n, D] with a random share set to zero and the rest scaled up, so that their mean stays.

    It draws from the step's generator, unlike PyTorch's dropout, so that a resumed run draws the same numbers.
    """
    kept = torch.rand(features.shape, generator=generator, device=features.device) >= share
    return features * kept / (1 - share)


def joint_loss(step: TrainingStep, episodes: Episodes, embed: Embed) -> Tensor:
    """Return the cross-entropy in the joint label space."""
    return cross_entropy(episode_logits(step, episodes, embed).flatten(0, 1), episodes.targets.flatten())


def few_shot_loss(step: TrainingStep, episodes: Episodes, embed: Embed) -> Tensor:
    """Return the cross-entropy among the episodes' novel classes, to which all queries belong."""
    logits = episode_logits(step, episodes, embed)[..., episodes.seen :]
    return cross_entropy(logits.flatten(0, 1), (episodes.targets - episodes.seen).flatten())


def classification_loss(step: TrainingStep, batch: Batch, embed: Embed) -> Tensor:
    """Return the cross-entropy of single images among all seen classes, and that of the rotation task with its weight."""
    features, heads = embed(batch.images)[0], step.model.heads
    logits = heads["classes"](features) if "classes" in heads else step.model.seen_logits(features)
    loss = cross_entropy(logits, batch.targets)
    if step.recipe.rotation:
        counts = turn_counts(len(features))
        turns = torch.cat([torch.full((count,), turn, device=features.device) for turn, count in enumerate(counts)])
        loss = loss + step.recipe.rotation * cross_entropy(heads["rotation"](features), turns)
    return loss


LOSSES: dict[str, Callable[[TrainingStep, Any, Embed], Tensor]] = {
    "joint": joint_loss,
    "few-shot": few_shot_loss,
    "classify": classification_loss,
}


def episode_logits(step: TrainingStep, episodes: Episodes, embed: Embed) -> Tensor:
    """Return joint logits [E, Q, V]. Support and queries pass the backbone together, but batch norm normalises each alone."""
    support, queries = embed(episodes.support, episodes.queries)
    return (step.head or step.model.forward)(support, episodes.mask, queries, episodes.classes, episodes.seen)


def can_be_recorded(model: GraphPrototypeNetwork, store: Store, spec: EpisodeSpec | Pool) -> bool:
    """Return whether a step on a GPU may be recorded: it never waits for the host, images are resident, sizes are fixed."""
    capturable = all(component.capturable for component in model.components())
    resident = not isinstance(store, ImageStore) or store.pixels.is_cuda
    return not PLAIN and resident and capturable and not (isinstance(spec, EpisodeSpec) and spec.scarce)
