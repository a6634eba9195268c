"""How fast training and evaluation are on this machine, and beside what: prints tables and keeps them in RESULTS.md.

    python benchmarks/speed.py [--dataset mini-imagenet --root PATH] [--only SECTION ...] [--out benchmarks/RESULTS.md]

Sections, each written as soon as it is measured, so that a machine lent for minutes can do them one by one:
    steps        the training step by backbone, shots and precision, beside the bare backbone and the bandwidth of memory
    peer         training and evaluation beside a loop as few-shot libraries have it
    evaluation   600 and 10,000 test episodes beside loops over them
    classes      the head alone as the number of seen classes grows, for dense and sparse operators
    train        time to a trained model by the recipes `paper` and `fast`; needs a dataset's files
    precision    the same weights measured in float32 and bfloat16
    seeds        trained in float32 and in bfloat16 by the recipe `fast`, three seeds each; needs a dataset's files

Without --root the images are made up. With --quick everything shrinks to a test of this script, and nothing is written unless
--out says where. Times are medians after a warm-up; whatever is compared is measured in turns.
"""

import argparse
import copy
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

import peer
from protograph._internal.errors import InputError
from protograph._internal.files import write_json
from protograph._internal.memory import keep_freed_memory
from protograph.data import DATASETS, Augmentation, Dataset, FeatureStore, ImageStore, Normalisation, Pool, open_dataset
from protograph.data.store import MEMORY_SHARE
from protograph.device import PRECISIONS, WARM_UP, RepeatedStep, best_device, best_precision
from protograph.episodes import Episodes, EpisodeSpec, fixed_episodes, seeded
from protograph.evaluation.metrics import (
    EVALUATION_SEED,
    PAPER_MEASURES,
    EvaluationSizes,
    episode_measures,
    evaluate,
    evaluation_spec,
    extract,
    measure,
    run_episodes,
)
from protograph.nn.backbones import Conv4, build_backbone
from protograph.nn.model import GraphPrototypeNetwork
from protograph.relations import MatrixRelation
from protograph.training.optimiser import make_optimiser
from protograph.training.recipes import PAPER, RECIPES, Recipe
from protograph.training.run_config import RunConfig, configure
from protograph.training.run_folder import Run
from protograph.training.setup import make_model, trained_model, training_spec
from protograph.training.step import TrainingStep
from protograph.variants import build, find_variant
from report import Section, measure_sections, options

HEAD = """# Speed

Written by `benchmarks/speed.py`, section by section as each is measured, and never typed. Below every section stand the
machine, the versions, the day and the command.
"""
VARIANT = "gcgpn-aux"
BACKBONES = ("conv4-64-128", "conv4-128", "conv4-64", "resnet12")
# Bytes an image of 84 px moves through conv4-64-128, forward and backward: of each block its inputs three times, and what its
# convolution writes and what is pooled of that seven times; in bfloat16 of the first block its squares four times instead, and
# what is pooled four times
TRAFFIC = {"float32": 24e6, "bfloat16": 6.1e6}
SEEDS = (0, 1, 2)
NEIGHBOURS, FEATURES = 32, 128  # of the section `classes`


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    size, images: of made-up images: pixels of a side; images of a class for training, for test of seen and novel classes
    shots: of the training steps
    rounds, least: how often each thing is timed, and for how many seconds at least
    batches: changes to recipes where single steps are measured
    peer_steps, peer_episodes, looped: steps and test episodes of the peer-style loop, and of other loops over episodes
    evaluations: test episodes
    classes: seen classes of the section `classes`
    changes: to the recipes that are trained to the end
    """

    size: int = 84
    images: tuple[int, int, int] = (500, 75, 600)
    shots: tuple[int, ...] = (1, 5)
    rounds: int = 5
    least: float = 0.3
    batches: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    peer_steps: int = 60
    peer_episodes: int = 120
    looped: int = 60
    evaluations: tuple[int, ...] = (600, 10_000)
    classes: tuple[int, ...] = (64, 512, 4096, 32_768)
    changes: Mapping[str, Any] = field(default_factory=dict)


QUICK = Scale(
    size=32,
    images=(20, 5, 20),
    shots=(1,),
    rounds=1,
    least=0.0,
    batches={"paper": {"episodes": 1}, "fast": {"episodes": 2}},
    peer_steps=2,
    peer_episodes=4,
    looped=4,
    evaluations=(20, 60),
    classes=(64, 512),
    changes={"epochs": 1, "steps": 2, "episodes": 1, "validation_episodes": 5},
)


@dataclass(frozen=True)
class Bench:
    """What the command asks for, and where it runs."""

    name: str
    root: Path | None
    scale: Scale
    device: torch.device
    backbones: Sequence[str]
    recipes: Sequence[str]
    measured_runs: Sequence[Path]
    runs: Path

    @property
    def precision(self) -> str:
        """What training would choose here."""
        return best_precision(self.device)

    @property
    def precisions(self) -> tuple[str, ...]:
        """What is worth choosing here."""
        return tuple(PRECISIONS) if self.precision == "bfloat16" else ("float32",)

    @property
    def has_files(self) -> bool:
        """Whether the dataset can be opened."""
        return self.root is not None or DATASETS[self.name].built_in

    @property
    def trained(self) -> str | None:
        """The dataset to train on; made-up images are not worth it."""
        return self.name if self.has_files else "letters" if self.scale is QUICK else None

    @cached_property
    def dataset(self) -> Dataset:
        """The dataset, its images on the device, or a made-up one of the same kind."""
        if not self.has_files:
            return made_up(self.scale, self.device)
        opened = open_dataset(self.name, self.root)
        return replace(opened, store=opened.store.to(self.device))

    @property
    def images(self) -> str:
        """Which images these are."""
        side = self.dataset.store.image_shape[-1]
        return f"{self.dataset.name}, {side} px" if self.has_files else f"made-up images of {side} px"

    def config(self, backbone: str = "conv4-64-128", shots: int = 1, recipe: str = "paper", precision: str = "") -> RunConfig:
        """A configuration whose steps are measured."""
        changes, precision = self.scale.batches.get(recipe, {}), precision or self.precision
        return configure(self.dataset, VARIANT, shots, 0, recipe, backbone, changes=changes, precision=precision)

    def model(self, config: RunConfig) -> GraphPrototypeNetwork:
        """A fresh model as training has it."""
        model = make_model(config, self.dataset).to(self.device)
        model.backbone.to(memory_format=torch.channels_last)
        model.precision = PRECISIONS[config.precision]
        return model


def made_up(scale: Scale, device: torch.device) -> Dataset:
    """64 seen and 36 novel classes of soft coloured clouds, which are no harder to decode than photographs."""
    train, seen_test, novel = scale.images
    generator = seeded(0, "clouds", device=device)
    parts: list[Tensor] = []

    def pool(classes: range, count: int) -> Pool:
        first, total = sum(map(len, parts)), len(classes) * count
        coarse = torch.randint(0, 256, (total, 3, 12, 12), generator=generator, device=device)
        for part in torch.split(coarse, 4096):
            soft = interpolate(part.float(), (scale.size, scale.size), mode="bilinear")
            parts.append(soft.to(torch.uint8))
        rows = first + torch.arange(total).view(len(classes), count)
        return Pool(torch.tensor(classes), rows, torch.full((len(classes),), count))

    names = tuple(f"class-{class_id}" for class_id in range(100))
    pools = {
        "train": pool(range(64), train),
        "seen_validation": pool(range(64), seen_test),
        "seen_test": pool(range(64), seen_test),
        "novel_validation": pool(range(64, 80), 20),
        "novel_test": pool(range(80, 100), novel),
    }
    similarities = torch.rand(100, 100, generator=seeded(0, "similarities"))
    return Dataset(
        name="made-up",
        classes=names,
        store=ImageStore(torch.cat(parts), Normalisation((0.5,) * 3, (0.25,) * 3)),
        **pools,
        augmentation=Augmentation(pad=8, flip=True),
        relations={"kinship": MatrixRelation(similarities, names, "kinship")},
        fingerprint="made-up",
    )


# Measuring


def seconds(work: Callable[[], object]) -> float:
    """Time of one call, until the device has done what it asked for."""
    wait()
    began = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - began


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def medians(scale: Scale, *works: Callable[[], object]) -> list[float]:
    """Median seconds of one call of each, after a warm-up, in turns, so that all meet the same state of the machine."""
    counts = [max(1, math.ceil(scale.least / seconds(work))) for work in works]

    def one_round() -> list[float]:
        return [
            seconds(lambda work=work, count=count: [work() for _ in range(count)]) / count
            for work, count in zip(works, counts, strict=True)
        ]

    rounds = [one_round() for _ in range(scale.rounds)]
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


def warm_up(step: RepeatedStep) -> Callable[[], None]:
    """The step with a seed of its own for every call, after enough calls that the next costs what all others will."""
    seeds = iter(range(10**9))

    def work() -> None:
        step(next(seeds))

    for _ in range(WARM_UP + 2 if step.capture else 1):
        work()
    wait()
    return work


def clear() -> None:
    """Forget what was measured before."""
    gc.collect()
    torch.compiler.reset()  # otherwise it takes the next model for one more shape of the last, and gives up after a few
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class Memory:
    """The most that was allocated on a GPU since this was made, in MB, beyond what was there before."""

    def __init__(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()

    def peak(self) -> float | None:
        return (torch.cuda.max_memory_allocated() - self.before) / 1e6 if torch.cuda.is_available() else None


def free_memory(device: torch.device) -> float:
    """Bytes that may be allocated."""
    if device.type == "cuda":
        return MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]
    return MEMORY_SHARE * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def bandwidth(bench: Bench) -> float:
    """Bytes per second, read and written, of a large copy."""
    size = 2**32 if bench.device.type == "cuda" else 2**27
    source = torch.ones(size, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * size / medians(bench.scale, lambda: target.copy_(source))[0]


def images_of(recipe: Recipe, shots: int) -> int:
    """Images of a training step."""
    return recipe.episodes * (recipe.ways * (shots + recipe.novel_queries) + recipe.seen_queries)


def own_step(bench: Bench, config: RunConfig) -> RepeatedStep:
    """The step of `training.train`."""
    keep_freed_memory()  # as it does
    model = bench.model(config)
    dataset, recipe = bench.dataset, config.recipe
    spec = training_spec(dataset, recipe, config.shots).to(bench.device)
    optimiser, loss_sum = make_optimiser(model, recipe), torch.zeros((), dtype=torch.float64, device=bench.device)
    variant = find_variant(VARIANT)
    return TrainingStep(model, optimiser, dataset.store, dataset.augmentation, spec, recipe.episodes, variant).repeated(
        loss_sum
    )


def bare_step(bench: Bench, config: RunConfig) -> RepeatedStep:
    """Forward, backward and optimiser of the backbone's plain layers alone, on one batch of images that is ready.

    On a GPU they are compiled, and the step is recorded.
    """
    device, store, dtype = bench.device, bench.dataset.store, PRECISIONS[config.precision]
    net = plain(build_backbone(config.backbone, store.image_shape[0], last_relu=False)).train()
    net.to(device, memory_format=torch.channels_last)
    optimiser = make_optimiser(net, config.recipe)
    rows = torch.arange(images_of(config.recipe, config.shots), device=device) % len(store)
    batch = store.gather(rows).to(dtype)
    forward = torch.compile(net, dynamic=False) if device.type == "cuda" else net

    def step(generator: torch.Generator) -> None:
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            features = forward(batch)
        optimiser.zero_grad(set_to_none=True)
        features.float().square().mean().backward()
        optimiser.step()

    return RepeatedStep(step, device)


def both_steps(bench: Bench, config: RunConfig) -> tuple[float, float, float | None]:
    """Seconds of our step and of the bare backbone's, and what ours takes of memory."""
    clear()
    memory = Memory()
    ours = warm_up(own_step(bench, config))
    peak = memory.peak()
    step, bare = medians(bench.scale, ours, warm_up(bare_step(bench, config)))
    return step, bare, peak


def plain(backbone: nn.Module) -> nn.Module:
    """A backbone as the torch layers it is made of, none of them fused."""
    return nn.Sequential(backbone.blocks, nn.Flatten()) if isinstance(backbone, Conv4) else backbone


# Sections


def steps(bench: Bench) -> Iterator[Section]:
    speed = bandwidth(bench)
    for backbone in bench.backbones:
        rows = []
        wanted = [("paper", shots, precision) for shots in bench.scale.shots for precision in bench.precisions]
        if backbone == "conv4-64-128":
            wanted += [("fast", 1, precision) for precision in bench.precisions]
        for recipe, shots, precision in wanted:
            config = bench.config(backbone, shots, recipe, precision)
            images = images_of(config.recipe, shots)
            step, bare, peak = both_steps(bench, config)
            area = (bench.dataset.store.image_shape[-1] / 84) ** 2
            traffic = images * TRAFFIC[precision] * area
            rows.append(
                {
                    "recipe": recipe,
                    "shots": shots,
                    "precision": precision,
                    "images": images,
                    "step, ms": 1e3 * step,
                    "images/s": images / step,
                    "bare, images/s": images / bare,
                    "ratio to bare": bare / step,
                    "share of floor": traffic / speed / step if backbone == "conv4-64-128" else None,
                    "peak, MB": peak,
                }
            )
        alone = "compiled and recorded as a CUDA graph" if bench.device.type == "cuda" else "as they are"
        notes = [
            f"bare: the backbone's plain torch layers, {alone}: forward, backward and SGD step on as many images, ready in "
            "memory as normalised tensors of that precision.",
            "peak: the most memory in use beyond the images, which stay on the device as uint8.",
        ]
        if backbone == "conv4-64-128":
            notes.insert(
                1,
                f"floor: {TRAFFIC['bfloat16'] / 1e6} MB of activations an image at 84 px in bfloat16, whose first convolution "
                f"is never written, and {TRAFFIC['float32'] / 1e6:.0f} in float32, moved at the {speed / 1e9:,.0f} GB/s, read "
                "and written, of a large copy here.",
            )
        about = (
            "The whole training step: episodes drawn, images gathered, cropped, flipped and normalised, backbone, graph "
            f"block, loss, backward, optimiser. {VARIANT} on {bench.images}, with each recipe's own batch."
        )
        yield Section(f"steps: {backbone}", about, rows, notes)


def against_peer(bench: Bench) -> Iterator[Section]:
    scale, dataset, device = bench.scale, bench.dataset, bench.device
    config = bench.config()
    recipe, queries = config.recipe, config.recipe.test_queries
    assert isinstance(dataset.store, ImageStore)
    clear()
    images = images_of(recipe, 1)
    (step,) = medians(scale, warm_up(own_step(bench, config)))
    tests = fixed_episodes(evaluation_spec(dataset, "test", recipe.ways, 1, queries), EVALUATION_SEED, scale.evaluations[0])
    model = bench.model(config)
    measure(model, dataset.store, tests)
    (evaluation,) = medians(replace(scale, least=0.0), lambda: measure(model, dataset.store, tests))

    model = make_model(bench.config(precision="float32"), dataset)
    model.backbone = plain(model.backbone)
    model.to(device)
    training = fixed_episodes(training_spec(dataset, recipe, 1), 0, scale.peer_steps * recipe.episodes)
    tests = tests.slice(0, scale.peer_episodes)
    rows = torch.unique(torch.cat([training.images(), tests.images()]))
    workers = min(14, os.cpu_count() or 1)
    with TemporaryDirectory() as folder:
        files = peer.own_files(dataset, rows.tolist(), bench.root) if bench.root else None
        source = "the dataset's own files" if files else "JPEG files of the same images"
        files = files or peer.written_files(dataset.store, rows, Path(folder))

        def prepared(episodes: Episodes, augmentation: Augmentation | None) -> tuple[Any, Episodes]:
            placed = episodes.among(rows)
            shown = peer.ImageFiles(files, dataset.store.image_shape[-1], dataset.store.normalisation, augmentation)
            return peer.loader(shown, placed, workers), placed

        optimiser = make_optimiser(model, recipe)
        batches, placed = prepared(training.slice(0, 2 * recipe.episodes), dataset.augmentation)
        peer.train(model, optimiser, batches, placed, recipe.episodes, device)  # warm-up
        batches, placed = prepared(training, dataset.augmentation)
        peer_step = recipe.episodes * peer.train(model, optimiser, batches, placed, recipe.episodes, device)
        batches, placed = prepared(tests, None)
        peer_evaluation = scale.evaluations[0] * peer.evaluate(model, batches, placed, device)
    what = f"evaluation, {scale.evaluations[0]} episodes, s"
    table = [
        {"": f"training, images/s ({bench.precision})", "ours": images / step, "peer-style": images / peer_step,
         "ratio": peer_step / step},
        {"": what, "ours": evaluation, "peer-style": peer_evaluation, "ratio": peer_evaluation / evaluation},
    ]  # fmt: skip
    about = (
        f"Beside a peer-style loop (benchmarks/peer.py) in the same run, one shot, conv4-64-128, {bench.images}, "
        f"{recipe.episodes} episodes a step: {source} decoded with PIL and transformed by {workers} DataLoader workers, an "
        "episode to a batch; eager float32 layers, the same head, an episode at a time, in training and in evaluation."
    )
    notes = [
        f"The peer's training is measured over {scale.peer_steps} steps, its evaluation over {scale.peer_episodes} episodes "
        "and scaled; the start of its workers and the drawing of its episodes are not counted.",
        "Our evaluation includes the extraction of features; images were decoded once, before.",
    ]
    yield Section("peer", about, table, notes)


def evaluation(bench: Bench) -> Iterator[Section]:
    config = bench.config()
    model = bench.model(config).eval()
    spec = evaluation_spec(bench.dataset, "test", config.recipe.ways, config.shots, config.recipe.test_queries)
    every_time = backbone_in_every_episode(bench, model, spec)
    rows = [evaluation_row(bench, model, spec, count, every_time) for count in bench.scale.evaluations]
    about = (
        f"{len(bench.dataset.seen_test) + config.recipe.ways}-way test episodes, one shot, conv4-64-128 in {bench.precision}, "
        f"{bench.images}: the features of every image once, then all episodes on these."
    )
    notes = [
        f"The two loops over episodes, with the same weights, are measured over {bench.scale.looped} episodes and scaled. The "
        "one with the backbone has it as plain torch layers, and comes before anything that changes how memory is treated.",
        "Drawing is counted nowhere else: the same episodes serve every model, and training draws its validation once.",
    ]
    yield Section("evaluation" if bench.device.type == "cuda" else "evaluation: CPU", about, rows, notes)


@torch.inference_mode()
def backbone_in_every_episode(bench: Bench, model: GraphPrototypeNetwork, spec: EpisodeSpec) -> float:
    """Seconds of an episode in a loop over some that runs the backbone, as plain torch layers, in each of them."""
    usual, store = copy.deepcopy(model), bench.dataset.store
    usual.backbone = plain(usual.backbone)
    some = fixed_episodes(spec, EVALUATION_SEED, bench.scale.looped).to(bench.device)
    (taken,) = medians(
        evaluation_scale(bench), lambda: loop(some, lambda indices: usual.embed(store.gather(indices.flatten())), usual)
    )
    return taken / bench.scale.looped


def evaluation_scale(bench: Bench) -> Scale:
    """How often evaluation is timed: on a CPU it takes long enough to be timed once."""
    return replace(bench.scale, least=0.0, rounds=bench.scale.rounds if bench.device.type == "cuda" else 1)


@torch.inference_mode()
def evaluation_row(
    bench: Bench, model: GraphPrototypeNetwork, spec: EpisodeSpec, count: int, every_time: float
) -> dict[str, object]:
    """So many test episodes at once, beside loops over some of them; one with the backbone takes `every_time` an episode."""
    store, looped = bench.dataset.store, bench.scale.looped
    began = time.perf_counter()
    drawn = fixed_episodes(spec, EVALUATION_SEED, count)
    drawing = time.perf_counter() - began
    images, placed = drawn.compact
    images = images.to(bench.device)
    cached = placed.slice(0, looped).to(bench.device)
    features = extract(model, store, images)
    extraction, ours, one_by_one = medians(
        evaluation_scale(bench),
        lambda: extract(model, store, images),
        lambda: run_episodes(model, features, placed),
        lambda: loop(cached, lambda indices: features[indices.flatten()], model),
    )
    with_backbone, on_features = every_time * count, one_by_one * count / looped
    return {
        "episodes": count,
        "drawing, s": drawing,
        "images": len(images),
        "features, s": extraction,
        "episodes, s": ours,
        "together, s": extraction + ours,
        "backbone in every episode, s": with_backbone,
        "ratio to together": with_backbone / (extraction + ours),
        "loop on features, s": on_features,
        "ratio to episodes": on_features / ours,
    }


def loop(episodes: Episodes, features: Callable[[Tensor], Tensor], model: GraphPrototypeNetwork) -> None:
    """Measure a model episode by episode."""
    for index in range(len(episodes)):
        one = episodes.slice(index, index + 1)
        support, queries = (features(indices).view(*indices.shape, -1) for indices in (one.support, one.queries))
        episode_measures(model(support, one.mask, queries, one.classes, one.seen), one.targets, one.seen)


def classes(bench: Bench) -> Iterator[Section]:
    rows, notes = [], []
    episodes = bench.config().recipe.episodes
    for kind in ("dense", "sparse"):
        for count in bench.scale.classes:
            clear()
            edges = episodes * count * (NEIGHBOURS if kind == "sparse" else count)
            # The matrix itself and, for every episode, its entries, their softmax and the gradients of both, at 4 bytes.
            needed = 4 * (count * count + 4 * edges) if kind == "dense" else 0
            row: dict[str, object] = {"operator": kind, "seen classes": count, "edges": edges}
            if needed > free_memory(bench.device):
                step = peak = None
                notes.append(f"dense, {count:,} classes: left out, since it needs about {needed / 1e9:,.0f} GB.")
            else:
                step, peak = head_step(bench, kind, count, episodes)
            row |= {
                "step, ms": step and 1e3 * step,
                "ns/edge": step and 1e9 * step / edges,
                "peak, MB": peak,
                "bytes/edge": peak and 1e6 * peak / edges,
            }
            rows.append(row)
    about = (
        f"The step without a backbone, on {FEATURES} features, {episodes} episodes, {VARIANT}, as the number of seen classes "
        f"grows: a dense relation between all of them, and a sparse one with {NEIGHBOURS} neighbours each."
    )
    notes += [
        "edges: of all episodes of a step together; for a dense operator every pair of classes is one.",
        "peak: the most memory in use beyond the features, with the model, its gradients and momentum.",
    ]
    if bench.device.type == "cuda":
        notes.append("Steps with a dense operator are compiled and recorded; those with a sparse one are not.")
    yield Section("classes", about, rows, notes)


def head_step(bench: Bench, kind: str, count: int, episodes: int) -> tuple[float, float | None]:
    """Seconds and peak memory of a step on features with so many seen classes."""
    each, device = 20, bench.device
    store = FeatureStore(torch.randn(count * each, FEATURES, device=device))
    rows = torch.arange(count * each).view(count, each)
    pool = Pool(torch.arange(count), rows, torch.full((count,), each))
    spec = EpisodeSpec(pool, None, ways=5, shots=1, novel_queries=3, seen_queries=15).to(device)
    memory = Memory()
    similarities = ring(count) if kind == "sparse" else torch.rand(count, count)
    model = build(find_variant(VARIANT), "identity", (FEATURES,), count, {kind: similarities}).to(device)
    optimiser, loss_sum = make_optimiser(model, PAPER), torch.zeros((), device=device)
    step = TrainingStep(model, optimiser, store, Augmentation(), spec, episodes, find_variant(VARIANT)).repeated(loss_sum)
    (taken,) = medians(bench.scale, warm_up(step))
    return taken, memory.peak()


def ring(count: int) -> Tensor:
    """A random sparse similarity in which every class has the same number of neighbours: classes shuffled, on a ring."""
    generator = seeded(0, "ring")
    shuffled = torch.randperm(count, generator=generator)
    jumps = torch.randperm(count, generator=generator)[:NEIGHBOURS]
    neighbours = shuffled[(torch.arange(count)[:, None] + jumps) % count]
    index = torch.stack([shuffled[:, None].expand_as(neighbours).flatten(), neighbours.flatten()])
    values = torch.rand(index.shape[1], generator=generator)
    return torch.sparse_coo_tensor(index, values, (count, count), check_invariants=False).coalesce()


def training(bench: Bench) -> Iterator[Section]:
    if bench.trained is None:
        print("train: left out, since it needs a dataset's files: give --root, or --dataset letters")
        return
    rows, found = [], {}
    for name in RECIPES:
        folder = bench.runs / bench.trained / f"{name}-0"
        if name in bench.recipes and not (folder / "measures.json").exists():
            run_command(bench, name, folder)
        if not (folder / "measures.json").exists():
            continue
        run = Run.open(folder)
        measures, recipe = run.measures or {}, run.config.recipe
        noted = folder / "wall.json"
        best = found[name] = measures["measures"]["h_mean"]
        rows.append(
            {
                "recipe": name,
                "network": run.config.backbone,
                "precision": run.config.precision,
                "steps": recipe.steps * measures["last_epoch"]["epoch"],
                "episodes": recipe.episodes,
                "set-up, s": measures["setup_seconds"],
                "training, s": measures["training_seconds"] - measures["setup_seconds"],
                "command, s": json.loads(noted.read_text(encoding="utf-8"))["wall_seconds"] if noted.exists() else None,
                "H-Mean": f"{best['mean']:.2f} ± {best['ci95']:.2f}",
                "best epoch": measures["epoch"],
            }
        )
        notes = [
            "set-up: compiling, choosing kernels and recording, until the first recorded step has run. training: all the rest, "
            "with a validation and a checkpoint after every epoch. command: everything, with opening the dataset, the test "
            "and the images.",
            "H-Mean: over 600 test episodes, with the weights of the best validation.",
        ]
        if {"paper", "fast"} <= found.keys():
            least = found["paper"]["mean"] - found["paper"]["ci95"]
            verdict = "no lower" if found["fast"]["mean"] >= least else "LOWER"
            notes.append(f"`fast` at {found['fast']['mean']:.2f} is {verdict} than `paper` less its interval, {least:.2f}.")
        about = f"Time to a trained model: {VARIANT} on {bench.trained}, one shot, seed 0."
        yield Section(f"train: {bench.trained}", about, rows, notes)


def run_command(bench: Bench, recipe: str, folder: Path) -> None:
    """Train as a user would."""
    began = time.perf_counter()
    train_command(bench, recipe, f"--out={folder}")
    write_json(folder / "wall.json", {"wall_seconds": round(time.perf_counter() - began, 1)})


def train_command(bench: Bench, recipe: str, *more: str) -> dict[str, Any]:
    """What `protograph train` answers."""
    options = {"dataset": bench.trained, "variant": VARIANT, "recipe": recipe}
    if bench.root:
        options["root"] = bench.root
    words = [f"--{name}={value}" for name, value in options.items()]
    words += [f"--set={name}={value}" for name, value in bench.scale.changes.items()]
    command = [sys.executable, "-m", "protograph", "train", *words, *more, "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout)


def precision(bench: Bench) -> Iterator[Section]:
    finished = sorted(path.parent for path in (bench.runs / (bench.trained or "")).glob("*/measures.json"))
    folders = bench.measured_runs or finished
    if not folders:
        print("precision: left out, since it needs a trained run: give --run, or measure `train` before")
    for folder in folders:
        run = Run.open(folder)
        config, episodes = run.config, bench.scale.evaluations[0]
        opened = bench.has_files and config.dataset == bench.name
        dataset = bench.dataset if opened else open_dataset(config.dataset, bench.root)
        if dataset.fingerprint != config.fingerprint:
            raise InputError(f"{folder} was trained on other images than these of {config.dataset}: name another --run")
        model = trained_model(run, dataset).to(bench.device)
        found = {}
        for name, dtype in PRECISIONS.items():
            model.precision = dtype
            recipe = config.recipe
            found[name] = evaluate(model, dataset, EvaluationSizes(config.shots, recipe.ways, recipe.test_queries, episodes))
        rows: list[dict[str, object]] = [
            {
                "measure": title,
                **{name: str(measures[key]) for name, measures in found.items()},
                "difference": f"{found['bfloat16'][key].mean - found['float32'][key].mean:+.2f}",
            }
            for key, title in PAPER_MEASURES.items()
        ]
        title = f"{config.dataset}, {config.shots}-shot, {config.variant}, {config.recipe.name}, seed {config.seed}"
        largest = max(abs(found["bfloat16"][key].mean - found["float32"][key].mean) for key in PAPER_MEASURES)
        notes = [f"Trained in {config.precision}. The largest difference is {largest:.2f} points."]
        about = f"The same weights and {episodes} test episodes, the backbone in float32 and in bfloat16."
        yield Section(f"precision: {title}", about, rows, notes)


def seeds(bench: Bench) -> Iterator[Section]:
    if bench.trained is None:
        print("seeds: left out, since it needs a dataset's files: give --root, or --dataset letters")
        return
    wanted = [f"--seed={seed}" for seed in SEEDS]
    found = {}
    for name in bench.precisions:
        folder = bench.runs / bench.trained / f"fast-{name}"
        answer = train_command(bench, "fast", *wanted, f"--jobs={len(SEEDS)}", f"--precision={name}", f"--out={folder}")
        found[name] = answer["mean"]["measures"]
    rows = []
    for key, title in PAPER_MEASURES.items():
        row = {name: f"{measures[key]['mean']:.2f} ± {measures[key]['std']:.2f}" for name, measures in found.items()}
        if len(found) > 1:
            row["difference"] = f"{found['bfloat16'][key]['mean'] - found['float32'][key]['mean']:+.2f}"
            row["spread"] = f"{math.hypot(*(measures[key]['std'] for measures in found.values())):.2f}"
        rows.append({"measure": title, **row})
    about = (
        f"Trained in each precision: {VARIANT} on {bench.trained}, one shot, `fast`, mean ± deviation over {len(SEEDS)} seeds."
    )
    notes = ["spread: both deviations together, the root of the sum of their squares."] if len(found) > 1 else []
    yield Section(f"seeds: {bench.trained}", about, rows, notes)


SECTIONS: dict[str, Callable[[Bench], Iterator[Section]]] = {
    "steps": steps,
    "peer": against_peer,
    "evaluation": evaluation,
    "classes": classes,
    "train": training,
    "precision": precision,
    "seeds": seeds,
}


def make_bench(given: argparse.Namespace, runs: Path) -> Bench:
    return Bench(
        name=given.dataset,
        root=given.root,
        scale=QUICK if given.quick else Scale(),
        device=best_device(),
        backbones=given.backbones,
        recipes=given.recipes,
        measured_runs=given.run,
        runs=runs,
    )


def main() -> None:
    parser = options(__doc__, SECTIONS, "RESULTS.md", "runs/speed")
    parser.add_argument("--backbones", nargs="+", choices=BACKBONES, default=BACKBONES, help="for `steps`")
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=("paper", "fast"), help="for `train`")
    parser.add_argument("--run", nargs="+", type=Path, default=(), help="trained runs for `precision`")
    measure_sections(parser, SECTIONS, make_bench, HEAD)


if __name__ == "__main__":
    main()
