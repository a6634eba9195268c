"""Logits -> measures: numbers per episode, means and intervals.

Shapes: E episodes, S seen, V = S + N, Q queries, D features.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from protograph._internal.memory import keep_freed_memory
from protograph._internal.progress import Progress, Silent
from protograph.data.dataset import Dataset, Pool
from protograph.data.store import Store
from protograph.episodes import Episodes, EpisodeSpec, fixed_episodes
from protograph.evaluation.balance import Margins, harmonic_mean, join
from protograph.nn.classify import SquaredDistance
from protograph.nn.model import EpisodeModel, GraphPrototypeNetwork

# The measures of the paper: name -> title. Ledgers, tables and published numbers hold these six, in this order.
PAPER_MEASURES = {
    "seen_seen": "Seen-Seen",
    "novel_novel": "Novel-Novel",
    "joint_joint": "Joint-Joint",
    "seen_joint": "Seen-Joint",
    "novel_joint": "Novel-Joint",
    "h_mean": "H-Mean",
}
ALONE_BECAUSE = "classifies among novel classes alone, since it has no place for the seen ones"
ALONE = ("novel_novel",)  # the measures of a model that classifies among novel classes alone
MEASURES = dict(PAPER_MEASURES)  # all that are computed: those of the paper, then registered ones
IN_CACHE = 120_000  # pixels of a batch that passes the backbone on a CPU; larger batches do not fit its caches
EVALUATION_SEED = 20_200_907  # the same test episodes for every model, everywhere


MeasureFunction = Callable[[Tensor, Tensor, int], Tensor]
_REGISTERED: dict[str, MeasureFunction] = {}


@dataclass(frozen=True)
class Measure:
    """A mean over episodes with its 95 % interval, in per cent.

    Attributes:
        mean: the mean
        ci95: half the width of the interval

    """

    mean: float
    ci95: float

    @classmethod
    def of(cls, values: Tensor) -> "Measure":
        """Return the mean of numbers per episode [E], from 0 to 1, with the interval 1.96 std / sqrt(E)."""
        percent = 100 * values.double()
        spread = percent.std(correction=0).item()
        return cls(percent.mean().item(), 1.96 * spread / len(values) ** 0.5)

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.ci95:.2f}"


Measures = dict[str, Measure]


@dataclass(frozen=True)
class EvaluationSizes:
    """The sizes of a set of episodes that models are evaluated on, and its seed.

    Attributes:
        shots: K, the examples of each novel class
        ways: N, the novel classes of an episode
        queries: the queries of each novel class; seen classes have as many queries together as novel ones
        episodes: the number of episodes
        seed: the seed of all episodes

    """

    shots: int = 1
    ways: int = 5
    queries: int = 15
    episodes: int = 600
    seed: int = EVALUATION_SEED

    def draw(self, dataset: Dataset, split: str) -> Episodes:
        """Return the episodes of a held-out split; they are the same for every model."""
        spec = evaluation_spec(dataset, split, self.ways, self.shots, self.queries)
        return fixed_episodes(spec, self.seed, self.episodes)


def register_measure(name: str, title: str, compute: MeasureFunction) -> None:
    """Let a measure be computed wherever models are evaluated, beside the six of the paper.

    It then appears in the results of training, in the tables of `evaluate` and on the page of a run. Published tables keep the
    measures of the paper.

    Args:
        name: the key of the measure in results
        title: the heading of its column
        compute: called as `compute(logits, targets, seen)` with joint logits [E, Q, V], the row of the class of each query
            [E, Q] and the number of seen classes S, whose rows come first; returns one number from 0 to 1 per episode [E]

    Raises:
        ValueError: the paper has a measure of this name

    """
    if name in PAPER_MEASURES:
        raise ValueError(f"measure '{name}' is one of the paper's, which stay as they are: choose another name")
    MEASURES[name] = title
    _REGISTERED[name] = compute


def measure_titles(results: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the titles by name of the measures that all results have, those of the paper first.

    Results may have been stored with other measures than those registered now.
    """
    results = list(results)
    names = dict.fromkeys([*MEASURES, *(name for result in results for name in result)])
    return {name: MEASURES.get(name, name) for name in names if all(name in result for result in results)}


def episode_measures(logits: Tensor, targets: Tensor, seen: int) -> dict[str, Tensor]:
    """Return all measures of every episode [E] as fractions; of episodes without seen classes there is only Novel-Novel.

    Args:
        logits: joint logits [E, Q, V]
        targets: the row of the class of each query [E, Q]
        seen: S

    """
    if not seen:
        return {"novel_novel": (logits.argmax(-1) == targets).float().mean(-1)}
    measures = paper_measures(logits, targets, seen)
    for name, compute in _REGISTERED.items():
        measures[name] = compute(logits, targets, seen)
        if measures[name].shape != logits.shape[:1]:
            raise ValueError(
                f"measure '{name}' must return one number per episode [{len(logits)}], not {list(measures[name].shape)}"
            )
    return measures


def paper_measures(logits: Tensor, targets: Tensor, seen: int) -> dict[str, Tensor]:
    """Return the six measures of the paper of every episode [E]; the arguments are those of `episode_measures`.

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


def stored_measures(names: Set[str]) -> tuple[str, ...]:
    """Return which of the paper's measures a stored result must have: all of them, or those of novel classes `ALONE`."""
    return ALONE if not names & PAPER_MEASURES.keys() - set(ALONE) else tuple(PAPER_MEASURES)


def summarise(per_episode: dict[str, Tensor]) -> Measures:
    """Return means and intervals of measures per episode [E]."""
    return {name: Measure.of(values) for name, values in per_episode.items()}


def measures_as_json(measures: Measures) -> dict[str, dict[str, float]]:
    """Return measures as result files hold them, in per cent."""
    return {name: {"mean": round(value.mean, 4), "ci95": round(value.ci95, 4)} for name, value in measures.items()}


def evaluation_spec(
    dataset: Dataset, split: str, ways: int, shots: int, queries: int, fewest_shots: int | None = None
) -> EpisodeSpec:
    """Return the episodes of a held-out split: all seen classes and `ways` novel ones, as many seen queries as novel ones."""
    seen, novel = dataset.held_out(split)
    return EpisodeSpec(seen, novel, ways, shots, queries, ways * queries, fewest_shots=fewest_shots, names=dataset.classes)


@torch.inference_mode()
def extract(
    model: EpisodeModel, store: Store, images: Tensor, progress: Progress | None = None, batch: int | None = None
) -> Tensor:
    """Return features [n, D] of images [n], computed in batches; in evaluation mode they do not depend on the episode.

    Args:
        model: the model, on the device of the store
        store: what the images are gathered from
        images: their indices [n]
        progress: shows how far the extraction is
        batch: the images of a batch; by default as many as suit the device

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


def class_means(model: EpisodeModel, store: Store, pool: Pool) -> Tensor:
    """Return the mean feature [C, D] of all images of each class of a pool."""
    images = pool.images[pool.images >= 0]  # class by class
    features = extract(model, store, images.to(store.device))
    return torch.stack([of_class.mean(0) for of_class in torch.split(features, pool.counts.tolist())])


@torch.inference_mode()
def episode_batches(
    model: EpisodeModel, features: Tensor, episodes: Episodes, memory: float = 64e6
) -> Iterator[tuple[Episodes, Tensor]]:
    """Yield batches of episodes with their joint logits [E, Q, V].

    Args:
        model: the model
        features: cached features [n, D]
        episodes: episodes that index these features
        memory: how many numbers the largest tensor of a batch may have

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
    model: EpisodeModel, features: Tensor, episodes: Episodes, memory: float = 64e6, bias: float = 0.0
) -> dict[str, Tensor]:
    """Return measures per episode [E] on cached features [n, D], with a bias on the novel logits."""
    parts = []
    for part, logits in episode_batches(model, features, episodes, memory):
        if bias:
            logits[..., part.seen :] += bias
        parts.append(episode_measures(logits, part.targets, part.seen))
    return {name: torch.cat([part[name] for part in parts]).cpu() for name in parts[0]}


@torch.inference_mode()
def nearness(model: GraphPrototypeNetwork, dataset: Dataset, sizes: EvaluationSizes | None = None) -> dict[str, float]:
    """Return how far novel queries are from the prototypes of test episodes.

    It shows why a distance classifier prefers seen classes. Model and images are on the same device.

    Args:
        model: the model
        dataset: the dataset
        sizes: the episodes; by default 100 of 1 shot, 5 ways and 5 queries

    Returns:
        means of squared lengths and distances, per feature: `seen_norm` and `novel_norm` of the prototypes, `to_own` from a
        novel query to its class, `to_nearest_seen` to the nearest seen class; and `taken_for_seen`, the per cent of novel
        queries whose nearest prototype is that of a seen class

    """
    sizes = sizes or EvaluationSizes(queries=5, episodes=100)
    novel_queries = sizes.ways * sizes.queries
    features, episodes = cached(model, dataset.store, sizes.draw(dataset, "test"))
    rows = []
    for index in range(sizes.episodes):
        episode = episodes.slice(index, index + 1)
        context = model.context(features[episode.support], episode.mask, episode.classes, episode.seen)
        prototypes = model.joint_prototypes(context)
        queries = features[episode.queries[:, -novel_queries:]]
        distances = -SquaredDistance()(queries, prototypes)[0]  # [Q, V]
        nearest = distances[:, : episode.seen].min(1).values
        norms = prototypes[0].square().mean(1)
        to_target = distances.gather(1, episode.targets[0, -novel_queries:, None])
        mistaken = 100 * (nearest < distances[:, episode.seen :].min(1).values).float()
        columns = norms[: episode.seen], norms[episode.seen :], to_target, nearest, mistaken
        rows.append([column.mean() for column in columns])
    means = torch.tensor(rows).mean(0).tolist()
    return dict(zip(("seen_norm", "novel_norm", "to_own", "to_nearest_seen", "taken_for_seen"), means, strict=True))


def measure(
    model: EpisodeModel, store: Store, episodes: Episodes, progress: Progress | None = None, bias: float = 0.0
) -> Measures:
    """Return the measures of a model on given episodes; the store is on the model's device."""
    return summarise(run_episodes(model, *cached(model, store, episodes, progress), bias=bias))


def cached(model: EpisodeModel, store: Store, episodes: Episodes, progress: Progress | None = None) -> tuple[Tensor, Episodes]:
    """Return features [n, D] of all images of some episodes, and the episodes as they index these features.

    The episodes of a model without a joint label space lose their seen classes.
    """
    if not model.joint:
        episodes = episodes.without_seen()
    images, reindexed = episodes.compact
    return extract(model, store, images.to(store.device), progress), reindexed


def evaluate(
    model: EpisodeModel,
    dataset: Dataset,
    sizes: EvaluationSizes | None = None,
    split: str = "test",
    progress: Progress | None = None,
    bias: float = 0.0,
) -> Measures:
    """Return the measures of a model on fixed episodes of a held-out split.

    Args:
        model: the model, on any device
        dataset: the dataset
        sizes: the sizes of the episodes; by default 600 of 1 shot and 5 ways
        split: "test" or "validation"
        progress: shows how far the evaluation is
        bias: added to the logits of novel classes

    """
    drawn = (sizes or EvaluationSizes()).draw(dataset, split)
    store = dataset.store.to(next(model.parameters()).device)
    return measure(model, store, drawn, progress, bias)


def choose_bias(
    model: EpisodeModel, dataset: Dataset, sizes: EvaluationSizes | None = None, progress: Progress | None = None
) -> float:
    """Return the bias on novel logits with the best H-Mean on fixed validation episodes; arguments as of `evaluate`."""
    drawn = (sizes or EvaluationSizes()).draw(dataset, "validation")
    return best_bias(model, *cached(model, dataset.store.to(next(model.parameters()).device), drawn, progress))


def best_bias(model: EpisodeModel, features: Tensor, episodes: Episodes) -> float:
    """Return the bias on novel logits with the best H-Mean on episodes of cached features [n, D]."""
    batches = episode_batches(model, features, episodes)
    return join([Margins.of(logits, part.targets, part.seen) for part, logits in batches]).best_bias()
