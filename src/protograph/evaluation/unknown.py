"""How well images of unknown classes are told from those of known ones."""

from dataclasses import replace

import torch

from protograph._internal.errors import InputError
from protograph._internal.progress import Progress
from protograph.data.dataset import Dataset, Pool
from protograph.episodes import Episodes, seeded
from protograph.evaluation.calibration import auroc
from protograph.evaluation.metrics import EvaluationSizes, Measure, cached, episode_batches
from protograph.nn.model import GraphPrototypeNetwork


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
    model: GraphPrototypeNetwork,
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
