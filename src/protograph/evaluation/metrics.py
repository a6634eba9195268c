"""Logits -> the six measures: per-episode numbers, means and intervals.

Shapes: E episodes, S seen, V = S + N, Q queries, D features.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph._internal.memory import keep_freed_memory
from protograph._internal.progress import Progress, Silent
from protograph.data.dataset import Dataset, Pool
from protograph.data.store import Store
from protograph.episodes import Episodes, EpisodeSpec, fixed_episodes, seeded
from protograph.evaluation.calibration import Margins, auroc, harmonic_mean, join
from protograph.nn.classify import SquaredDistance
from protograph.nn.model import GraphPrototypeNetwork

MEASURES = {
    "seen_seen": "Seen-Seen",
    "novel_novel": "Novel-Novel",
    "joint_joint": "Joint-Joint",
    "seen_joint": "Seen-Joint",
    "novel_joint": "Novel-Joint",
    "h_mean": "H-Mean",
}
IN_CACHE = 120_000  # pixels of a batch that passes the backbone on a CPU: larger ones leave its caches
EVALUATION_SEED = 20_200_907  # the same test episodes for every model, everywhere


@dataclass(frozen=True)
class Measure:
    """A mean over episodes with its 95 % interval, in per cent."""

    mean: float
    ci95: float

    @classmethod
    def of(cls, values: Tensor) -> "Measure":
        """From one number per episode, 0 to 1: the interval is 1.96 std / sqrt(E)."""
        percent = 100 * values.double()
        spread = percent.std(correction=0).item()
        return cls(percent.mean().item(), 1.96 * spread / len(values) ** 0.5)

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.ci95:.2f}"


Measures = dict[str, Measure]


def measures_as_json(measures: Measures) -> dict[str, dict[str, float]]:
    """Return measures as stored results have them, in per cent."""
    return {name: {"mean": round(value.mean, 4), "ci95": round(value.ci95, 4)} for name, value in measures.items()}


def episode_measures(logits: Tensor, targets: Tensor, seen: int) -> dict[str, Tensor]:
    """The six measures of every episode [E] as fractions, all read off joint logits [E, Q, V].

    Seen-Seen and Novel-Novel look only at the columns of those classes. H-Mean is the episode's own harmonic mean of
    Seen-Joint and Novel-Joint; where both are 0 it is 0.
    """
    is_seen = targets < seen
    joint = logits.argmax(-1) == targets
    within_seen = logits[..., :seen].argmax(-1) == targets
    within_novel = logits[..., seen:].argmax(-1) + seen == targets

    def share(right: Tensor, among: Tensor) -> Tensor:
        return (right & among).sum(-1) / among.sum(-1)

    seen_joint, novel_joint = share(joint, is_seen), share(joint, ~is_seen)
    return {
        "seen_seen": share(within_seen, is_seen),
        "novel_novel": share(within_novel, ~is_seen),
        "joint_joint": joint.float().mean(-1),
        "seen_joint": seen_joint,
        "novel_joint": novel_joint,
        "h_mean": harmonic_mean(seen_joint, novel_joint),
    }


def summarise(per_episode: dict[str, Tensor]) -> Measures:
    """Means and intervals of per-episode measures."""
    return {name: Measure.of(per_episode[name]) for name in MEASURES}


def evaluation_spec(
    dataset: Dataset, split: str, ways: int, shots: int, queries: int, fewest_shots: int | None = None
) -> EpisodeSpec:
    """Episodes of a held-out split: all seen classes and `ways` novel ones, as many seen queries as novel ones."""
    seen, novel = dataset.held_out(split)
    return EpisodeSpec(seen, novel, ways, shots, queries, ways * queries, fewest_shots=fewest_shots, names=dataset.classes)


@torch.inference_mode()
def extract(
    model: GraphPrototypeNetwork, store: Store, images: Tensor, progress: Progress | None = None, batch: int | None = None
) -> Tensor:
    """Features [n, D] of `images` [n], computed once: in evaluation mode they do not depend on the episode.

    They pass in batches, by default of as many as suit the device.
    """
    model.eval()
    if store.device.type == "cpu":
        keep_freed_memory()
        batch = batch or max(1, IN_CACHE // math.prod(store.image_shape[-2:]))
    parts = []
    with (progress or Silent()).task("extract features", len(images), "images") as advance:
        for part in torch.split(images, batch or 512):
            parts.append(model.embed(store.gather(part)))
            advance(len(part))
    return torch.cat(parts)


def class_means(model: GraphPrototypeNetwork, store: Store, pool: Pool) -> Tensor:
    """Mean feature [C, D] of all images of each class of a pool."""
    images = pool.images[pool.images >= 0]  # class by class
    features = extract(model, store, images.to(store.device))
    return torch.stack([of_class.mean(0) for of_class in torch.split(features, pool.counts.tolist())])


@torch.inference_mode()
def episode_batches(
    model: GraphPrototypeNetwork, features: Tensor, episodes: Episodes, memory: float = 64e6
) -> Iterator[tuple[Episodes, Tensor]]:
    """Many episodes at a time with their joint logits [E, Q, V], on cached features [n, D], which the episodes index.

    `memory` bounds the numbers of the largest tensor of a batch of episodes.
    """
    model.eval()
    rows = episodes.classes.shape[1]
    largest = max(rows * rows, (rows + episodes.queries.shape[1]) * features.shape[1])
    step = max(1, int(memory / largest))
    for start in range(0, len(episodes), step):
        part = episodes.slice(start, start + step).to(features.device)
        yield part, model(features[part.support], part.mask, features[part.queries], part.classes, part.seen)


@torch.inference_mode()
def run_episodes(
    model: GraphPrototypeNetwork, features: Tensor, episodes: Episodes, memory: float = 64e6, bias: float = 0.0
) -> dict[str, Tensor]:
    """Per-episode measures on cached features [n, D], with a bias on the novel logits."""
    parts = []
    for part, logits in episode_batches(model, features, episodes, memory):
        if bias:
            logits[..., part.seen :] += bias
        parts.append(episode_measures(logits, part.targets, part.seen))
    return {name: torch.cat([part[name] for part in parts]).cpu() for name in MEASURES}


@torch.inference_mode()
def nearness(model: GraphPrototypeNetwork, dataset: Dataset, shots: int, ways: int, episodes: int = 100) -> dict[str, float]:
    """Where novel queries lie among the prototypes of test episodes, to see why a distance classifier prefers seen classes.

    Means of squared lengths and distances, per feature: `seen_norm`, `novel_norm` of the prototypes, `to_own` from a novel
    query to its class, `to_nearest_seen` to the seen class nearest to it; and `taken_for_seen`, the share of novel queries
    that one of these is nearest to, in per cent. Model and images are on the same device.
    """
    queries = 5
    drawn = fixed_episodes(evaluation_spec(dataset, "test", ways, shots, queries), EVALUATION_SEED, episodes)
    features, placed = cached(model, dataset.store, drawn)
    found = []
    for index in range(episodes):
        one = placed.slice(index, index + 1)
        prototypes = model.joint_prototypes(model.context(features[one.support], one.mask, one.classes, one.seen))
        novel = features[one.queries[:, -ways * queries :]]
        distances = -SquaredDistance()(novel, prototypes)[0]  # [Q, V]
        nearest = distances[:, : one.seen].min(1).values
        norms = prototypes[0].square().mean(1)
        own = distances.gather(1, one.targets[0, -ways * queries :, None])
        taken = 100 * (nearest < distances[:, one.seen :].min(1).values).float()
        found.append([each.mean() for each in (norms[: one.seen], norms[one.seen :], own, nearest, taken)])
    means = torch.tensor(found).mean(0).tolist()
    return dict(zip(("seen_norm", "novel_norm", "to_own", "to_nearest_seen", "taken_for_seen"), means, strict=True))


def measure(
    model: GraphPrototypeNetwork, store: Store, episodes: Episodes, progress: Progress | None = None, bias: float = 0.0
) -> Measures:
    """The six measures of a model on given episodes; the store lies on the model's device."""
    return summarise(run_episodes(model, *cached(model, store, episodes, progress), bias=bias))


def cached(
    model: GraphPrototypeNetwork, store: Store, episodes: Episodes, progress: Progress | None = None
) -> tuple[Tensor, Episodes]:
    """Features [n, D] of all images of some episodes, and the episodes indexing these."""
    images, placed = episodes.compact
    return extract(model, store, images.to(store.device), progress), placed


def evaluate(
    model: GraphPrototypeNetwork,
    dataset: Dataset,
    split: str = "test",
    shots: int = 1,
    ways: int = 5,
    queries: int = 15,
    episodes: int = 600,
    seed: int = EVALUATION_SEED,
    progress: Progress | None = None,
    bias: float = 0.0,
) -> Measures:
    """The six measures of a model on fixed episodes of a held-out split, with a bias on the novel logits."""
    drawn = fixed_episodes(evaluation_spec(dataset, split, ways, shots, queries), seed, episodes)
    store = dataset.store.to(next(model.parameters()).device)
    return measure(model, store, drawn, progress, bias)


def choose_bias(
    model: GraphPrototypeNetwork,
    dataset: Dataset,
    shots: int = 1,
    ways: int = 5,
    queries: int = 15,
    episodes: int = 600,
    progress: Progress | None = None,
) -> float:
    """The bias on novel logits of the best H-Mean on fixed validation episodes."""
    drawn = fixed_episodes(evaluation_spec(dataset, "validation", ways, shots, queries), EVALUATION_SEED, episodes)
    features, placed = cached(model, dataset.store.to(next(model.parameters()).device), drawn, progress)
    return best_bias(model, features, placed)


def best_bias(model: GraphPrototypeNetwork, features: Tensor, episodes: Episodes) -> float:
    """The bias on novel logits of the best H-Mean on episodes of cached features [n, D]."""
    batches = episode_batches(model, features, episodes)
    return join([Margins.of(logits, part.targets, part.seen) for part, logits in batches]).best_bias()


def with_unknown(episodes: Episodes, novel: Pool, seed: int) -> Episodes:
    """Each episode's queries followed by as many images of novel classes that are not in it; these have the target -1.

    The class is drawn uniformly with replacement, then its image.
    """
    drawn = []
    for index, classes in enumerate(episodes.classes.tolist()):
        generator = seeded(seed, "unknown", index)
        others = [row for row, class_id in enumerate(novel.classes.tolist()) if class_id not in set(classes[episodes.seen :])]
        if not others:
            raise InputError(f"all {len(novel)} novel classes are in every episode, none is unknown: use fewer --ways")
        rows = torch.tensor(others)[torch.randint(0, len(others), (episodes.queries.shape[1],), generator=generator)]
        places = (torch.rand(len(rows), generator=generator) * novel.counts[rows]).long().minimum(novel.counts[rows] - 1)
        drawn.append(novel.images[rows, places])
    unknown = torch.stack(drawn)
    nowhere = torch.full_like(unknown, -1)
    return replace(
        episodes, queries=torch.cat([episodes.queries, unknown], 1), targets=torch.cat([episodes.targets, nowhere], 1)
    )


def evaluate_unknown(
    model: GraphPrototypeNetwork,
    dataset: Dataset,
    split: str = "test",
    shots: int = 1,
    ways: int = 5,
    queries: int = 15,
    episodes: int = 600,
    seed: int = EVALUATION_SEED,
    progress: Progress | None = None,
) -> Measure:
    """AUROC, in per cent, of known images (an episode's queries) against those of novel classes that are not in it.

    The score is the largest logit, which is the largest cosine.
    """
    drawn = fixed_episodes(evaluation_spec(dataset, split, ways, shots, queries), seed, episodes)
    asked = with_unknown(drawn, dataset.held_out(split)[1], seed)
    features, placed = cached(model, dataset.store.to(next(model.parameters()).device), asked, progress)
    known = drawn.queries.shape[1]
    scores = [logits.max(-1).values for _, logits in episode_batches(model, features, placed)]
    return Measure.of(torch.cat([auroc(each[:, :known], each[:, known:]) for each in scores]).cpu())
