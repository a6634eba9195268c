"""How fast few-shot methods train beside a loop over episodes: prints a table and keeps it in FEW_SHOT.md.

    python benchmarks/few_shot.py [--dataset mini-imagenet --root PATH] [--method NAME ...] [--shots K] [--out FILE]

Ours is the whole training step of the recipe `fast`: episodes drawn, images gathered and changed, all episodes of the step at
once, the optimiser. The loop is the same method as few-shot libraries have it: plain layers, one episode after the other, inner
steps by `torch.autograd.grad`, in the same precision, on images that are ready on the device. Where both see the same
statistics of batch norm, their losses on the same episodes are compared first.

Without --root the images are made up. With --quick everything shrinks to a test of this script, and nothing is written unless
--out says where. Times are medians after a warm-up, measured in turns.
"""

import argparse
import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from protograph._internal.errors import InputError
from protograph._internal.memory import keep_freed_memory
from protograph.device import RepeatedStep, best_device
from protograph.episodes import Episodes, EpisodeSpec, draw, seeded
from protograph.nn.backbones import Conv4
from protograph.nn.few_shot import FEW_SHOT_METHODS, FewShotModel, meta_lstm
from protograph.nn.few_shot.adaptation import AdaptingMethod
from protograph.nn.few_shot.episodic_norm import EpisodicNorm
from protograph.nn.few_shot.meta_lstm import MetaLstm
from protograph.nn.few_shot.reptile import DECAY, Reptile
from protograph.training.optimiser import make_optimiser
from protograph.training.run_config import RunConfig, configure
from protograph.training.setup import training_spec
from protograph.training.step import TrainingStep
from protograph.variants import find_variant
from report import Section, measure_sections, options
from speed import QUICK, Bench, Memory, Scale, clear, medians, plain, warm_up

HEAD = """# Speed of few-shot methods

Written by `benchmarks/few_shot.py`, and never typed. Below the table stand the machine, the versions, the day and the command.
"""
METHODS = tuple(method.name for method in FEW_SHOT_METHODS)
Weights = dict[str, Tensor]
EpisodeLoss = Callable[[FewShotModel, Tensor, Tensor, Tensor], Tensor]  # model, support [N, K, D], queries [Q, D], targets [Q]


@dataclass(frozen=True)
class Subject:
    """What is measured, and where.

    bench: images, device and precision
    methods: names of methods
    shots: K
    changes: to the recipe `fast`
    """

    bench: Bench
    methods: tuple[str, ...]
    shots: int
    changes: dict[str, int]

    def config(self, name: str) -> RunConfig:
        """The configuration of a method."""
        bench = self.bench
        backbone = "conv4-64-128"
        config = configure(bench.dataset, name, self.shots, 0, "fast", backbone, changes={}, precision=bench.precision)
        return replace(config, recipe=replace(config.recipe, **self.changes))


# The loop


def labels_of(support: Tensor) -> Tensor:
    """The class of each example of a support [N, K, D]."""
    return torch.arange(len(support), device=support.device).repeat_interleave(support.shape[1])


def gradients_of(network: nn.Module, weights: Weights, support: Tensor, create: bool) -> tuple[Tensor, Weights]:
    """The loss of a network with these weights on a support [N, K, D], and its gradients."""
    loss = cross_entropy(functional_call(network, weights, (support.flatten(0, 1),)), labels_of(support))
    gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=create)
    return loss, dict(zip(weights, gradients, strict=True))


def maml_loss(model: FewShotModel, support: Tensor, queries: Tensor, targets: Tensor) -> Tensor:
    """MAML, and with rates by weight Meta-SGD."""
    method = model.method
    weights = dict(method.network.named_parameters())
    rates = getattr(method, "rates", None) or [method.rate] * len(weights)
    for _ in range(getattr(method, "steps", 1)):
        _, gradients = gradients_of(method.network, weights, support, create=not getattr(method, "first_order", False))
        moved = zip(weights.items(), rates, strict=True)
        weights = {name: value - rate * gradients[name] for (name, value), rate in moved}
    return cross_entropy(functional_call(method.network, weights, (queries,)), targets)


def meta_lstm_loss(model: FewShotModel, support: Tensor, queries: Tensor, targets: Tensor) -> Tensor:
    """Meta-LSTM, with the layers of ours."""
    method = model.method
    assert isinstance(method, MetaLstm)
    weights = dict(method.network.named_parameters())
    flat = torch.cat([value.flatten() for value in weights.values()])
    state = cell = flat.new_zeros(len(flat), method.hidden)
    forget = learn = flat.new_zeros(len(flat), 1)
    for _ in range(method.steps or (12 if support.shape[1] == 1 else 5)):
        parts = torch.split(flat, [value.numel() for value in weights.values()])
        current = {name: part.view_as(weights[name]) for name, part in zip(weights, parts, strict=True)}
        loss, gradients = gradients_of(method.network, current, support, create=False)
        gradient = torch.cat([value.flatten() for value in gradients.values()])
        repeated = loss.detach().expand(len(flat))
        seen = torch.cat([meta_lstm.compressed(gradient), meta_lstm.compressed(repeated)], 1)
        state, cell = method.recur(seen, state, cell)
        forget = torch.sigmoid(method.forget(torch.cat([state, flat[:, None], forget], 1)))
        learn = torch.sigmoid(method.learn(torch.cat([state, flat[:, None], learn], 1)))
        flat = forget[:, 0] * flat - learn[:, 0] * gradient
    parts = torch.split(flat, [value.numel() for value in weights.values()])
    adapted = {name: part.view_as(weights[name]) for name, part in zip(weights, parts, strict=True)}
    inputs = torch.cat([support.flatten(0, 1), queries])  # batch norm of queries has the statistics of the support
    shots = support.shape[0] * support.shape[1]
    return cross_entropy(functional_call(method.network, adapted, (inputs, shots))[shots:], targets)


def cavia_loss(model: FewShotModel, support: Tensor, queries: Tensor, targets: Tensor) -> Tensor:
    """CAVIA."""
    method = model.method
    context = support.new_zeros(method.context, requires_grad=True)
    for _ in range(method.steps):
        loss = cross_entropy(method.network.modulated(support.flatten(0, 1), context), labels_of(support))
        context = context - method.rate * torch.autograd.grad(loss, context, create_graph=True)[0]
    return cross_entropy(method.network.modulated(queries, context), targets)


def reptile_loss(model: FewShotModel, support: Tensor, queries: Tensor, targets: Tensor) -> Tensor:
    """Reptile: a number whose gradient leads away from the weights that PyTorch's Adam ends at."""
    method = model.method
    assert isinstance(method, Reptile)
    network = copy.deepcopy(method.network)
    inner = torch.optim.Adam(network.parameters(), lr=method.rate, betas=(0.0, DECAY))
    images, labels = torch.cat([support.flatten(0, 1), queries]), torch.cat([labels_of(support), targets])
    for _ in range(method.steps):
        rows = torch.randperm(len(images), device=images.device)[: method.batch]
        inner.zero_grad()
        cross_entropy(network(images[rows]), labels[rows]).backward()
        inner.step()
    pairs = zip(method.network.parameters(), network.parameters(), strict=True)
    return torch.stack([(start * (start - end).detach()).sum() for start, end in pairs]).sum()


def feature_loss(model: FewShotModel, support: Tensor, queries: Tensor, targets: Tensor) -> Tensor:
    """A method on features of the backbone, of one episode."""
    shots = support.flatten(0, 1)
    images = torch.cat([shots, queries]).view(-1, *model.image_shape)
    features = model.embed(images, [len(shots), len(queries)])
    of_support = features[: len(shots)].view(1, *support.shape[:2], -1)
    mask = torch.ones(of_support.shape[:3], dtype=torch.bool, device=images.device)
    generator = torch.Generator(images.device).manual_seed(0)
    return model.loss(of_support, mask, features[None, len(shots) :], targets[None], generator)


LOOPS: dict[str, EpisodeLoss] = {
    "maml": maml_loss,
    "maml-first-order": maml_loss,
    "meta-sgd": maml_loss,
    "meta-lstm": meta_lstm_loss,
    "cavia": cavia_loss,
    "reptile": reptile_loss,
}
USUAL = ("maml", "maml-first-order", "meta-sgd", "reptile")  # the others' norms have a reference, or blocks a context
ALIKE = ("maml", "maml-first-order", "meta-sgd", "meta-lstm", "cavia")  # neither batch norm nor random numbers differ


def joint_loss(model: FewShotModel, episodes: Episodes, index: int, images: Tensor) -> Tensor:
    """The loss in the joint label space of one episode, whose images [n, D] are its support and its queries."""
    one = episodes.slice(index, index + 1)
    count = one.support.numel()
    features = model.embed(images.view(-1, *model.image_shape))
    support, queries = features[:count].view(*one.support.shape, -1), features[count:].view(*one.queries.shape, -1)
    return cross_entropy(model(support, one.mask, queries, one.classes, one.seen)[0], one.targets[0])


def use_usual_norms(network: nn.Module) -> None:
    """Replace the batch norm of episodes by PyTorch's, which is faster where nothing is vectorised."""
    for name, module in network.named_children():
        if isinstance(module, EpisodicNorm):
            norm = nn.BatchNorm2d(len(module.weight), eps=module.eps, track_running_stats=False)
            norm.weight, norm.bias = module.weight, module.bias
            setattr(network, name, norm)
        else:
            use_usual_norms(module)


class Loop:
    """The training of a method as a loop over the episodes of a step, which stay the same."""

    def __init__(self, subject: Subject, config: RunConfig, model: FewShotModel, spec: EpisodeSpec) -> None:
        self.model, self.recipe, self.name = model, config.recipe, config.variant
        self.ours = copy.deepcopy(model)
        if isinstance(model.backbone, Conv4):
            model.backbone = plain(model.backbone)
        if config.variant in USUAL:
            model.method.network.backbone = plain(model.method.network.backbone)
            use_usual_norms(model.method)
        self.optimiser = make_optimiser(model, config.recipe)
        device, store = subject.bench.device, subject.bench.dataset.store
        self.episodes = draw(spec, self.recipe.episodes, seeded(0, "loop", device=device))
        rows = [self.episodes.support.flatten(1), self.episodes.queries]
        self.images = (
            store.gather(torch.cat(rows, 1).flatten()).flatten(1).view(self.recipe.episodes, -1, math.prod(store.image_shape))
        )

    def losses(self) -> Iterator[Tensor]:
        """The loss of each episode."""
        self.model.train()
        if "backbone" in find_variant(self.name).frozen:
            self.model.backbone.eval()
        episodes, support_shape = self.episodes, (*self.episodes.support.shape[1:], -1)
        count = episodes.support[0].numel()
        for index in range(len(episodes)):
            images = self.images[index]
            with self.model.autocast(images):
                if find_variant(self.name).objective == "joint":
                    yield joint_loss(self.model, episodes, index, images)
                    continue
                targets = episodes.targets[index] - episodes.seen
                loss = LOOPS.get(self.name, feature_loss)
                yield loss(self.model, images[:count].view(support_shape), images[count:], targets)

    def together(self) -> Tensor:
        """The loss of our method on the same episodes at once."""
        episodes, count = self.episodes, self.episodes.support[0].numel()
        support = self.images[:, :count].view(*episodes.support.shape, -1)
        targets = episodes.targets - episodes.seen
        generator = torch.Generator(self.images.device)
        return self.ours.loss(support, episodes.mask, self.images[:, count:], targets, generator)

    def __call__(self) -> None:
        """Take one step."""
        self.optimiser.zero_grad(set_to_none=True)
        for loss in self.losses():
            (loss / len(self.episodes)).backward()
        self.optimiser.step()


# The table


def our_step(subject: Subject, config: RunConfig, spec: EpisodeSpec) -> RepeatedStep:
    """The step of `training.train`."""
    bench, recipe = subject.bench, config.recipe
    model, store, variant = bench.model(config), bench.dataset.store, find_variant(config.variant)
    loss_sum = torch.zeros((), dtype=torch.float64, device=bench.device)
    optimiser = make_optimiser(model, recipe)
    return TrainingStep(model, optimiser, store, bench.dataset.augmentation, spec, recipe.episodes, variant, recipe).repeated(
        loss_sum
    )


def inner_steps(method: nn.Module, shots: int) -> int | None:
    """How often a method adapts its network in training; None: it does not."""
    if not isinstance(method, AdaptingMethod):
        return None
    return int(getattr(method, "steps", 1)) or (12 if shots == 1 else 5)  # Meta-LSTM's by the shots


def row_of(subject: Subject, name: str) -> dict[str, object]:
    """The row of one method."""
    clear()
    bench, config = subject.bench, subject.config(name)
    recipe = config.recipe
    spec = training_spec(bench.dataset, recipe, config.shots, find_variant(name).objective)
    assert isinstance(spec, EpisodeSpec)
    spec = spec.to(bench.device)
    loop = Loop(subject, config, bench.model(config), spec)
    difference = None
    if name in ALIKE:
        ours, theirs = loop.together().item(), torch.stack([loss.detach() for loss in loop.losses()]).mean().item()
        difference = abs(ours - theirs)
        if difference > (1e-4 if config.precision == "float32" else 0.05):
            raise InputError(f"{name}: the loop has a loss of {theirs}, and ours is {ours}: they are not the same method")
    memory = Memory()
    ours_at_once = warm_up(our_step(subject, config, spec))
    peak = memory.peak()
    loop()
    step, looped = medians(bench.scale, ours_at_once, loop)
    ways = recipe.training_ways or recipe.ways
    return {
        "method": name,
        "episodes": recipe.episodes,
        "images": loop.images.shape[0] * loop.images.shape[1],
        "inner steps": inner_steps(loop.model.method, config.shots),
        "ways": ways,
        "step, ms": 1e3 * step,
        "steps/s": 1 / step,
        "loop, ms": 1e3 * looped,
        "ratio": looped / step,
        "difference of losses": difference,
        "peak, MB": peak,
    }


def methods(subject: Subject) -> Iterator[Section]:
    bench = subject.bench
    keep_freed_memory()  # as training does
    rows = []
    recorded = "recorded as a CUDA graph" if bench.device.type == "cuda" else "not recorded, as on every CPU"
    about = (
        f"The training step of `fast`, {recorded}, beside a loop over its episodes: conv4-64-128 in {bench.precision}, "
        f"{subject.shots}-shot, {bench.images}."
    )
    notes = [
        "loop: plain layers, one episode after the other, inner steps by `torch.autograd.grad`, images ready on the device.",
        "difference of losses: on the same episodes, where batch norm and random numbers are the same in both.",
        "peak: the most memory in use beyond the images.",
    ]
    for name in subject.methods:  # written one by one, so that a machine lent for minutes loses none
        rows.append(row_of(subject, name))
        yield Section(f"methods: {bench.device.type}, {subject.shots}-shot", about, rows, notes)


SECTIONS: dict[str, Callable[[Subject], Iterator[Section]]] = {"methods": methods}


def make_subject(given: argparse.Namespace, runs: Path) -> Subject:
    device = best_device()
    scale = (
        QUICK if given.quick else Scale(rounds=3) if device.type == "cuda" else Scale(images=(40, 5, 30), rounds=1, least=0.0)
    )
    bench = Bench(given.dataset, given.root, scale, device, (), (), (), runs)
    changes = {"episodes": given.episodes} if given.episodes else {"episodes": 2} if given.quick else {}
    return Subject(bench, tuple(given.method), given.shots, changes)


def main() -> None:
    parser = options(__doc__, SECTIONS, "FEW_SHOT.md", "runs/speed")
    parser.add_argument("--method", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--shots", type=int, default=1)
    parser.add_argument("--episodes", type=int, help="of a step (default: those of the recipe)")
    measure_sections(parser, SECTIONS, make_subject, HEAD)


if __name__ == "__main__":
    main()
