"""The answer "unknown": its threshold, and how well images of unknown classes are told from those of known ones.

Shapes: n images, m others.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph._internal.progress import Progress
from protograph.data.dataset import Dataset, Pool
from protograph.episodes import Episodes, seeded
from protograph.evaluation.metrics import EvaluationSizes, Measure, cached, episode_batches
from protograph.nn.model import EpisodeModel


def false_alarm_threshold(scores: Tensor, rate: float) -> float:
    """Return the score below which images count as unknown.

    Args:
        scores: the scores [n] of known images that were held out
        rate: at most this share of known images like these counts as unknown

    Raises:
        InputError: the rate is not between 0 and 1, or there are too few images for it

    """
    check_rate(rate)
    rejected = allowed_alarms(len(scores), rate)
    if not rejected:
        raise InputError(
            f"'unknown' at the rate {rate:g} needs {math.ceil(1 / rate) - 1} held-out images, and there are {len(scores)}: "
            "give classes more images, or choose a higher rate"
        )
    return scores.sort().values[rejected - 1].item()


def allowed_alarms(count: int, rate: float) -> int:
    """Return how many of so many known images may be rejected, so that of others like them at most this share is."""
    return int(rate * (count + 1))


def check_rate(rate: float) -> None:
    """Refuse a false-alarm rate that is not between 0 and 1."""
    if not 0 < rate < 1:
        raise InputError(
            f"the false-alarm rate must lie between 0 and 1, not {rate}: with 0.05, 1 known image in 20 is rejected as unknown"
        )


def auroc(known: Tensor, unknown: Tensor) -> Tensor:
    """Return the probability [...] that a known score [..., n] is higher than an unknown one [..., m]; ties count half."""
    ordered = unknown.sort(-1).values.contiguous()
    below, at_most = (torch.searchsorted(ordered, known.contiguous(), right=right) for right in (False, True))
    return (below + at_most).double().sum(-1) / (2 * known.shape[-1] * unknown.shape[-1])


def with_unknown(episodes: Episodes, novel: Pool, seed: int) -> Episodes:
    """Return episodes whose queries are followed by as many images of novel classes that are not in the episode.

    These have the target -1. The class of each is drawn uniformly with replacement, then its image.

    Args:
        episodes: the episodes, on the CPU
        novel: the images of all novel classes
        seed: the seed of the draw

    Raises:
        InputError: an episode has all novel classes

    """
    drawn = []
    for index, classes in enumerate(episodes.classes.tolist()):
        generator = seeded(seed, "unknown", index)
        absent = [row for row, class_id in enumerate(novel.classes.tolist()) if class_id not in set(classes[episodes.seen :])]
        if not absent:
            raise InputError(f"all {len(novel)} novel classes are in every episode, none is unknown: use fewer --ways")
        rows = torch.tensor(absent)[torch.randint(0, len(absent), (episodes.queries.shape[1],), generator=generator)]
        columns = (torch.rand(len(rows), generator=generator) * novel.counts[rows]).long().minimum(novel.counts[rows] - 1)
        drawn.append(novel.images[rows, columns])
    unknown = torch.stack(drawn)
    targets = torch.cat([episodes.targets, torch.full_like(unknown, -1)], 1)
    return replace(episodes, queries=torch.cat([episodes.queries, unknown], 1), targets=targets)


def evaluate_unknown(
    model: EpisodeModel,
    dataset: Dataset,
    sizes: EvaluationSizes | None = None,
    split: str = "test",
    progress: Progress | None = None,
) -> Measure:
    """Return the AUROC, in per cent, of an episode's queries against images of novel classes that are not in the episode.

    The score of an image is its largest logit. The arguments are those of `evaluate`.
    """
    sizes = sizes or EvaluationSizes()
    known = sizes.draw(dataset, split)
    drawn = with_unknown(known, dataset.held_out(split)[1], sizes.seed)
    features, cached_episodes = cached(model, dataset.store.to(next(model.parameters()).device), drawn, progress)
    count = known.queries.shape[1]
    scores = [logits.max(-1).values for _, logits in episode_batches(model, features, cached_episodes)]
    return Measure.of(torch.cat([auroc(batch[:, :count], batch[:, count:]) for batch in scores]).cpu())
