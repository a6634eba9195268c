"""One training step: draw, embed, take the loss of the variant's objective, and descend its gradient."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from protograph.data import Augmentation, ImageStore, Pool, Store
from protograph.data.augmentation import Portion
from protograph.device import PLAIN, TRITON, RepeatedStep
from protograph.episodes import Batch, Episodes, EpisodeSpec, draw, draw_batch
from protograph.nn.few_shot.base import FewShotModel
from protograph.nn.model import EpisodeModel, GraphPrototypeNetwork
from protograph.training.optimiser import move_average
from protograph.training.out_of_fold import OutOfFold
from protograph.training.processes import Processes
from protograph.training.recipes import Recipe, keeps_backbone
from protograph.variants import Variant

TURNS = 4  # quarters of a turn that the rotation task tells apart
PLAIN_STEP = Recipe("plain step")  # without any of the settings that change a step
ClassLogits = Callable[[Tensor], Tensor]  # images [n, C, H, W] -> logits [n, T] of the training classes
Head = Callable[..., Tensor]  # support, mask, queries, classes, seen -> joint logits [E, Q, V]


@dataclass
class TrainingStep:
    """A step of training, called with the generator it draws from.

    Attributes:
        model: The model to train.
        optimiser: Its optimiser.
        store: The images or features.
        augmentation: How training images are changed.
        spec: The episodes to draw, of one dataset or of folds, or the pool to draw single images from.
        count: Episodes, or single images, of a step.
        variant: The variant, whose objective is minimised and whose frozen parts stay in evaluation mode.
        recipe: The recipe, whose settings of a step apply.
        averaged: A copy of the model, which becomes the moving average of its weights, if the recipe averages them.
        head: Computes joint logits; None: the model's `forward`.
        embedder: Computes features; None: the model's `embed`.
        teacher: Computes the logits of the teacher, if the recipe names one.
        processes: The processes that share each step.
        progress: The share of the training that is done, a number on the device.

    """

    model: EpisodeModel
    optimiser: torch.optim.Optimizer
    store: Store
    augmentation: Augmentation
    spec: EpisodeSpec | Pool | OutOfFold
    count: int
    variant: Variant
    recipe: Recipe = PLAIN_STEP
    averaged: EpisodeModel | None = None
    head: Head | None = None
    embedder: Callable[..., Tensor] | None = None
    teacher: ClassLogits | None = None
    processes: Processes = field(default_factory=Processes.current)

    def __post_init__(self) -> None:
        self.progress = torch.zeros((), device=self.store.device)
        self.fixed = {*self.variant.frozen, *(["backbone"] if keeps_backbone(self.variant, self.recipe) else [])}

    def __call__(self, generator: torch.Generator) -> Tensor:
        """Take one step down the gradient and return the loss, both means over all processes."""
        self.model.train()
        for part, module in self.model.named_children():
            if part in self.fixed:
                module.eval()
        loss = LOSSES[self.variant.objective](self, self.draw(generator), generator)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        loss = loss.detach()
        if not self.processes.alone:
            self.processes.average([loss, *(each.grad for each in self.model.parameters() if each.grad is not None)])
        self.optimiser.step()
        if self.averaged is not None:
            move_average(self.averaged, self.model, self.recipe.ema)
        return loss

    def draw(self, generator: torch.Generator) -> Episodes | list[Episodes] | Batch:
        """Return this process's episodes of the step, those of folds as a list, or its single images."""
        if isinstance(self.spec, OutOfFold):
            return self.spec.draw(self.count, generator)
        drawn: Episodes | Batch
        if isinstance(self.spec, EpisodeSpec):
            drawn = draw(self.spec, self.count, generator)
        else:
            drawn = draw_batch(self.spec, self.count, generator)
        return drawn if self.processes.alone else drawn.slice(*self.processes.part(self.count))

    def images(self, indices: Tensor, generator: torch.Generator, portion: Portion | None = None) -> Tensor:
        """Return the training images [n, C, H, W] of indices [n], changed at random."""
        images = self.store.gather(indices, self.augmentation, generator, portion)
        return rotated(images, self.turns(len(images))) if self.recipe.rotation else images

    def turns(self, count: int) -> list[int]:
        """Return how many of this process's images of a step are turned by 0, 1, 2 and 3 quarters."""
        return turn_counts(count * self.processes.count, *self.processes.part(count * self.processes.count))

    def features(
        self,
        images: Tensor,
        sizes: Sequence[int],
        generator: torch.Generator,
        portion: Portion | None = None,
        mixes: Sequence[Tensor] = (),
    ) -> Tensor:
        """Return the features [n, D] of images, of which batch norm sees parts of these sizes alone, mixed by `mixes`."""
        trained, masks = self.model.backbone.training, []
        if self.recipe.drop_block and trained:
            whole = images if portion is None else images[:1].expand(portion.whole, *images.shape[1:])
            masks = self.model.backbone.drop_masks(whole, self.recipe.drop_block * self.progress, generator)  # type: ignore[operator]
            masks = masks if portion is None else [mask[portion.rows] for mask in masks]
        features = (self.embedder or self.model.embed)(images, sizes, masks, mixes)
        if self.recipe.dropout and trained:
            features = drop_features(features, self.recipe.dropout, generator, portion)
        return features

    def embed(self, groups: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
        """Return the features [..., D] of groups of image indices [...], embedded together."""
        sizes = [indices.numel() for indices in groups]
        portion = self.processes.portion(sizes, self.store.device)
        images = self.images(torch.cat([indices.flatten() for indices in groups]), generator, portion)
        parts = torch.split(self.features(images, sizes, generator, portion), sizes)
        return [part.view(*indices.shape, -1) for part, indices in zip(parts, groups, strict=True)]

    def repeated(self, loss_sum: Tensor) -> RepeatedStep:
        """Return the step as training repeats it, called with a seed; losses are added to `loss_sum`.

        On a GPU the head is compiled and the whole step recorded, where possible; not if several processes share it.
        """
        device = self.store.device
        torch.backends.cudnn.benchmark = device.type == "cuda"  # shapes are fixed: let it find the fastest convolutions
        record = device.type == "cuda" and self.processes.alone and can_be_recorded(self.model, self.store, self.spec)
        if record and TRITON:
            self.head = torch.compile(self.model.forward, dynamic=False)
            if getattr(self.model.backbone, "compiles", False):
                self.embedder = torch.compile(self.model.embed, dynamic=False)
            if self.teacher is not None:
                self.teacher = torch.compile(self.teacher, dynamic=False)

        def add_loss(generator: torch.Generator) -> None:
            loss_sum.add_(self(generator))

        return RepeatedStep(add_loss, device, record)


def turn_counts(count: int, start: int, stop: int) -> list[int]:
    """Return how many of a step's images from `start` to `stop` - 1 are turned by 0, 1, 2 and 3 quarters."""
    turned = count // 6
    ends = accumulate([0, count - 3 * turned, turned, turned, turned])
    positions = [min(max(end, start), stop) for end in ends]
    return [end - begin for begin, end in pairwise(positions)]


def rotated(images: Tensor, turns: Sequence[int]) -> Tensor:
    """Return images [n, C, H, H], the first ones upright, the others turned by one, two and three quarters: so many of each.

    The images of a step are drawn independently, so that it does not matter which of them are turned.
    """
    parts = torch.split(images, list(turns))
    turned = torch.cat([torch.rot90(part, turns, (2, 3)) for turns, part in enumerate(parts)])
    return turned.contiguous(memory_format=torch.channels_last)


def draw_mixes(count: int, depths: int, generator: torch.Generator) -> tuple[Tensor, list[Tensor]]:
    """Return by which shares [count] images are mixed in a step, and these for each depth: 0 at all but one, drawn at random.

    Shares follow the distribution Beta(2, 2): that of the middle one of three uniform numbers.
    """
    device = generator.device
    shares = torch.rand(3, count, generator=generator, device=device).sort(0).values[1]
    chosen = torch.randint(depths, (), generator=generator, device=device)
    return shares, [torch.where(chosen == depth, shares, 0.0) for depth in range(depths)]


def mixed_loss(logits: Tensor, targets: Tensor, shares: Tensor) -> Tensor:
    """Return the cross-entropy of logits [n, T], of which the first [m] are of images mixed by `shares`, as `mixed` does."""
    losses, count = cross_entropy(logits, targets, reduction="none"), len(shares)
    partners = cross_entropy(logits[:count], targets[:count].flip(0), reduction="none")
    return torch.cat([torch.lerp(losses[:count], partners, shares), losses[count:]]).mean()


def drop_features(features: Tensor, share: float, generator: torch.Generator, portion: Portion | None = None) -> Tensor:
    """Return features [n, D] with a random share set to zero and the rest scaled up, so that their mean stays.

    It draws from the step's generator, unlike PyTorch's dropout, so that a resumed run draws the same numbers.
    """
    count = len(features) if portion is None else portion.whole
    kept = torch.rand(count, *features.shape[1:], generator=generator, device=features.device) >= share
    kept = kept if portion is None else kept[portion.rows]
    return features * kept / (1 - share)


def joint_loss(step: TrainingStep, drawn: Episodes | list[Episodes], generator: torch.Generator) -> Tensor:
    """Return the cross-entropy in the joint label space, a mean over folds if there are some."""
    if isinstance(drawn, Episodes):
        return cross_entropy(episode_logits(step, drawn, generator).flatten(0, 1), drawn.targets.flatten())
    assert isinstance(step.spec, OutOfFold)
    losses = []
    for episodes, prototypes in zip(drawn, step.spec.prototypes, strict=True):
        logits = episode_logits(step, episodes, generator, prototypes)
        losses.append(cross_entropy(logits.flatten(0, 1), episodes.targets.flatten()))
    return torch.stack(losses).mean()


def few_shot_loss(step: TrainingStep, episodes: Episodes, generator: torch.Generator) -> Tensor:
    """Return the loss among the episodes' novel classes, to which all queries belong: a few-shot method's, or cross-entropy."""
    if isinstance(step.model, FewShotModel):
        support, queries = step.embed((episodes.support, episodes.queries), generator)
        return step.model.loss(support, episodes.mask, queries, episodes.targets - episodes.seen, generator)
    logits = episode_logits(step, episodes, generator)[..., episodes.seen :]
    return cross_entropy(logits.flatten(0, 1), (episodes.targets - episodes.seen).flatten())


def classification_loss(step: TrainingStep, batch: Batch, generator: torch.Generator) -> Tensor:
    """Return the cross-entropy of single images among all seen classes, and the losses of other tasks with their weights."""
    portion, recipe = step.processes.portion([len(batch)], step.store.device), step.recipe
    images = step.images(batch.images, generator, portion)
    shares, mixes = images.new_zeros(0), list[Tensor]()
    if recipe.mixup:
        upright = step.turns(len(images))[0] if recipe.rotation else len(images)
        shares, mixes = draw_mixes(upright, step.model.backbone.depths, generator)  # type: ignore[arg-type]
    features = step.features(images, [len(images)], generator, portion, mixes)
    logits = class_logits(step.model, features)
    loss = mixed_loss(logits, batch.targets, shares) if mixes else cross_entropy(logits, batch.targets)
    if recipe.rotation:
        counts = step.turns(len(features))
        turns = torch.cat([torch.full((count,), turn, device=features.device) for turn, count in enumerate(counts)])
        loss = loss + recipe.rotation * cross_entropy(step.model.heads["rotation"](features), turns)
    if step.teacher is not None:
        with torch.no_grad():
            taught = step.teacher(images)
        loss = loss + recipe.teacher_weight * teacher_loss(logits, taught, recipe.teacher_temperature)
    return loss


def class_logits(model: EpisodeModel, features: Tensor) -> Tensor:
    """Return the logits [n, T] of features [n, D] among the training classes, by what single images are trained with."""
    if "classes" in model.heads:
        logits: Tensor = model.heads["classes"](features)
        return logits
    assert isinstance(model, GraphPrototypeNetwork), "few-shot methods are not trained on single images"
    return model.seen_logits(features)


def teacher_logits(teacher: EpisodeModel, device: torch.device) -> ClassLogits:
    """Return what computes the logits of a teacher, on a device."""
    teacher.to(device)
    teacher.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return lambda images: class_logits(teacher, teacher.embed(images))


def teacher_loss(logits: Tensor, taught: Tensor, temperature: float) -> Tensor:
    r"""Return how far the probabilities of logits [n, T] are from those that a teacher gives by its own [n, T],

    .. math:: T^2 \, \mathrm{KL}\big(\mathrm{softmax}(\ell' / T) \,\|\, \mathrm{softmax}(\ell / T)\big),

    a mean over images. The factor :math:`T^2` keeps the size of its gradient as the temperature T grows.
    """
    probabilities = (logits / temperature).log_softmax(1)
    return temperature**2 * kl_div(probabilities, (taught / temperature).log_softmax(1), reduction="batchmean", log_target=True)


LOSSES: dict[str, Callable[[TrainingStep, Any, torch.Generator], Tensor]] = {
    "joint": joint_loss,
    "few-shot": few_shot_loss,
    "classify": classification_loss,
}


def episode_logits(
    step: TrainingStep, episodes: Episodes, generator: torch.Generator, prototypes: Tensor | None = None
) -> Tensor:
    """Return joint logits [E, Q, V]. Support and queries pass the backbone together, but batch norm normalises each alone.

    `prototypes` [T, D] stand in the place of the model's own.
    """
    support, queries = step.embed((episodes.support, episodes.queries), generator)
    head = step.head or step.model.forward
    return head(support, episodes.mask, queries, episodes.classes, episodes.seen, prototypes)


def can_be_recorded(model: EpisodeModel, store: Store, spec: EpisodeSpec | Pool | OutOfFold) -> bool:
    """Return whether a step on a GPU may be recorded: it never waits for the host, images are resident, sizes are fixed."""
    resident = not isinstance(store, ImageStore) or store.pixels.is_cuda
    return not PLAIN and resident and model.capturable and not (isinstance(spec, EpisodeSpec | OutOfFold) and spec.scarce)
