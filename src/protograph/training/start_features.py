"""Features by the backbone of a start, computed once for a second stage that leaves the backbone as it is.

They are kept in the cache folder, so that all runs that begin from a start share them, and a run that continues finds its own.

Shapes: P images, n of them computed, m training images, R views, T training classes, D features.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from protograph._internal.files import cache_folder, write_atomically
from protograph._internal.progress import Progress
from protograph._internal.sealed import seal, tensors_digest, unseal
from protograph.data import Augmentation, Dataset, FeatureStore, Pool
from protograph.data.folds import fold_of
from protograph.device import PRECISIONS
from protograph.episodes import EpisodeSpec, seeded
from protograph.evaluation.metrics import extract
from protograph.nn.model import EpisodeModel, GraphPrototypeNetwork
from protograph.nn.whitened_space import FeatureSpread, WhitenedSpace
from protograph.training.out_of_fold import OutOfFold, by_position, class_ids
from protograph.training.recipes import Recipe, keeps_backbone
from protograph.training.run_config import RunConfig
from protograph.training.run_folder import Run
from protograph.training.setup import fold_folder, set_parameters, trained_model
from protograph.variants import find_variant

CACHE_FORMAT = 1  # of what is cached
VIEWS_AT_ONCE = 256  # images of a batch of changed views


@dataclass(frozen=True)
class StartFeatures:
    """What the backbone of a start makes of images.

    Attributes:
        images: Image indices [n], ascending.
        features: Their features [n, D].
        views: Features [m, R - 1, D] of changed views of each training image, in ascending order of their indices.
        spread: How the features of training images spread, before any is left out.

    """

    images: Tensor
    features: Tensor
    views: Tensor
    spread: FeatureSpread

    @classmethod
    def of(
        cls, model: EpisodeModel, dataset: Dataset, images: Tensor, augmentation: Augmentation, views: int, seed: int,
        progress: Progress,
    ) -> "StartFeatures":  # fmt: skip
        """Compute them with a model whose device is that of the dataset's images.

        Args:
            model: The model of the start.
            dataset: The dataset that the start was trained on.
            images: The image indices [n], ascending; the spread takes those of all training images beside them.
            augmentation: How the views are changed.
            views: R, 1 or more.
            seed: Seed of the changes.
            progress: Shows how far the extraction is.

        """
        training = dataset.train.all_images()
        needed: Tensor = torch.unique(torch.cat([images, training]))
        features = extract(model, dataset.store, needed.to(dataset.store.device), progress).clone()
        spread = FeatureSpread.of([features[torch.searchsorted(needed, rows)] for rows in dataset.train.by_class()])
        changed = changed_views(model, dataset, training, augmentation, views - 1, seed)
        return cls(images, features[torch.searchsorted(needed, images)], changed, spread)

    def tensors(self) -> dict[str, Tensor]:
        """Return all of it as tensors by name."""
        return {"images": self.images, "features": self.features, "views": self.views, **vars(self.spread)}

    @classmethod
    def restore(cls, tensors: dict[str, Tensor], device: torch.device) -> "StartFeatures":
        """Return what `tensors` gave, on a device."""
        spread = FeatureSpread(*(tensors[name].to(device) for name in ("centre", "means", "covariance")))
        return cls(tensors["images"], tensors["features"].to(device), tensors["views"].to(device), spread)


@torch.inference_mode()
def changed_views(
    model: EpisodeModel, dataset: Dataset, images: Tensor, augmentation: Augmentation, count: int, seed: int
) -> Tensor:
    """Return features [m, count, D] of images [m], each changed at random `count` times."""
    model.eval()
    device, views = dataset.store.device, []
    for view in range(count):
        generator = seeded(seed, "view", view, device=device)
        parts = torch.split(images.to(device), VIEWS_AT_ONCE)
        views.append(torch.cat([model.embed(dataset.store.gather(part, augmentation, generator)) for part in parts]))
    if not views:
        return torch.zeros(len(images), 0, model.features, device=device)
    return torch.stack(views, 1)


def start_features(
    run: Run, selection: str, dataset: Dataset, images: Tensor, recipe: Recipe, precision: str, seed: int, progress: Progress
) -> StartFeatures:
    """Return features by a start's backbone from the cache, or compute and cache them.

    Args:
        run: The run of the start.
        selection: Which of its weights, "best" or "last".
        dataset: The dataset it was trained on, on the device that computes.
        images: The images.
        recipe: The recipe of the second stage, which says how many views and how they are changed.
        precision: Precision of the backbone.
        seed: Seed of the changes.
        progress: Shows how far the extraction is, and whether the cache can be written.

    """
    views, device = max(1, recipe.views), dataset.store.device
    augmentation = replace(dataset.augmentation, **recipe.image_changes)
    changes = [views, seed, augmentation.to_dict()] if views > 1 else []
    key = json.dumps([CACHE_FORMAT, dataset.fingerprint, changes, precision, device.type])
    digest = tensors_digest(key, {"images": images, **run.weights(selection)})
    path = cache_folder() / "start-features" / f"{digest}.safetensors"
    try:
        return StartFeatures.restore(unseal(path.read_bytes(), "key")[1], device)
    except (OSError, ValueError, KeyError):
        pass  # not there yet, or damaged: it is computed, and written anew
    model = trained_model(run, dataset, selection).to(device)
    model.precision = PRECISIONS[precision]
    computed = StartFeatures.of(model, dataset, images, augmentation, views, seed, progress)
    try:
        write_atomically(path, seal(computed.tensors(), "key", key))
    except OSError as error:  # the cache only saves time
        progress.say(f"features are not cached ({error.strerror}): set PROTOGRAPH_CACHE to a folder that can be written")
    return StartFeatures.restore(computed.tensors(), device)


def prepare_second_stage(
    model: EpisodeModel, dataset: Dataset, spec: "EpisodeSpec | Pool | OutOfFold", config: RunConfig,
    start: Path | None, progress: Progress,
) -> tuple[Dataset, "EpisodeSpec | Pool | OutOfFold"]:  # fmt: skip
    """Give a model its space, and a training that leaves the backbone as it is the features in the place of images.

    Args:
        model: The model, with the weights of the start, on the device of the dataset's images; it gets its space.
        dataset: The dataset.
        spec: What it is trained on.
        config: Its configuration.
        start: The run folder of the start.
        progress: Shows how far the extraction is.

    Returns:
        The dataset and what is trained on, both by features where these are computed once.

    """
    recipe, frozen = config.recipe, keeps_backbone(find_variant(config.variant), config.recipe)
    if start is None or not (recipe.whiten or (frozen and (recipe.views or recipe.folds))):
        return dataset, spec
    assert isinstance(model, GraphPrototypeNetwork), "few-shot methods have no use for these settings"
    images = used_images(dataset)
    known = start_features(Run.open(start), "best", dataset, images, recipe, config.precision, config.seed, progress)
    parts = [FoldFeatures.of(config, dataset, start, fold, progress) for fold in range(recipe.folds)]
    return place_features(model, dataset, spec, recipe, frozen, known, parts)


@dataclass(frozen=True)
class FoldFeatures:
    """What a fold's start makes of the images that it was not fitted to.

    Attributes:
        known: Its features, and the spread of those that it was fitted to.
        ids: Ids in the dataset of the classes [t] that it was fitted to.
        prototypes: Its own prototypes [t, D] of these classes.

    """

    known: StartFeatures
    ids: Tensor
    prototypes: Tensor

    @classmethod
    def of(cls, config: RunConfig, dataset: Dataset, start: Path, fold: int, progress: Progress) -> "FoldFeatures":
        """Compute them for fold number `fold` of a configuration whose start is in a folder."""
        part = fold_of(dataset, fold, config.recipe.folds)
        run = Run.open(fold_folder(start, fold, config.recipe.folds))
        images = torch.unique(torch.cat([part.seen_validation.all_images(), part.novel_validation.all_images()]))
        known = start_features(run, "last", part, images, config.recipe, config.precision, config.seed, progress)
        prototypes = run.weights("last")["prototypes"].to(known.features.device)
        return cls(known, class_ids(dataset, part)[: part.seen], prototypes)


def used_images(dataset: Dataset) -> Tensor:
    """Return the indices of all images that training, validation or test may look at, ascending."""
    pools = (dataset.train, *dataset.held_out("validation"), *dataset.held_out("test"))
    used: Tensor = torch.unique(torch.cat([pool.all_images() for pool in pools]))
    return used


def place_features(
    model: GraphPrototypeNetwork, dataset: Dataset, spec: "EpisodeSpec | Pool | OutOfFold", recipe: Recipe, frozen: bool,
    known: StartFeatures, parts: list[FoldFeatures],
) -> tuple[Dataset, "EpisodeSpec | Pool | OutOfFold"]:  # fmt: skip
    """Return dataset and training episodes by features, and put model and prototypes into the space of these.

    Features stand at the index of their image; those of the folds, of which there is one per episode spec, behind all images.
    """
    if recipe.whiten:
        assert isinstance(model.space, WhitenedSpace)
        set_parameters(model, {"prototypes": model.space.fit(known.spread, recipe.shrinkage)})
    if not (frozen and (recipe.views or recipe.folds)):
        return dataset, spec
    model.takes_features = True
    features, views = (value if model.space is None else model.space(value) for value in (known.features, known.views))
    rows = features.new_zeros(len(dataset.store), features.shape[1])
    rows[known.images] = features
    copies = None
    if views.shape[1]:
        copies = rows[:, None].repeat(1, 1 + views.shape[1], 1)
        copies[dataset.train.all_images(), 1:] = views
    tables, specs, stored = [], [], [rows]
    for part, episodes in zip(parts, spec.specs if isinstance(spec, OutOfFold) else (), strict=True):
        embedded, prototypes = part.known.features, part.prototypes
        if recipe.whiten:
            space = WhitenedSpace(rows.shape[1]).to(rows)
            prototypes = space.fit(part.known.spread, recipe.shrinkage)
            embedded = space(embedded)
        table = torch.zeros_like(model.prototypes)
        table[part.ids] = prototypes.to(table)
        first = sum(map(len, stored))
        assert episodes.novel is not None, "a fold has classes of its own that act as novel"
        seen, novel = (by_position(pool, part.known.images, first) for pool in (episodes.seen, episodes.novel))
        tables.append(table)
        specs.append(replace(episodes, seen=seen, novel=novel))
        stored.append(embedded)
    if parts:
        spec = OutOfFold(tuple(specs), tuple(tables))
    return replace(dataset, store=FeatureStore(torch.cat(stored), copies)), spec
