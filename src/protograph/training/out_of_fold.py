"""Out-of-fold episodes: training episodes whose classes acting as novel are new to the network that made their features.

A network that has learned its training images by heart makes simulated episodes too easy. So several starts are trained, each
without a part of the seen classes, a fold. What is learned in a second stage is then learned on episodes in which just those
classes act as novel, on the features of their fold's start, and applied to the start of all classes.

What is exact: the start of a fold has seen no image of the classes that act as novel, nor the queries of the others (a tenth of
their training images). Its last epoch is used, so these images did not choose it either. Whitening, centre and prototypes of an
episode come from the images that its fold's start was fitted to, as those of the result come from all training images.

What is not exact: an episode has fewer seen classes than the result (48 instead of 64 with four folds of miniImageNet), which
moves the balance a little; the starts of folds see fewer classes, and possibly fewer epochs. Features of different networks do
not correspond, so only numbers that belong to no feature can be learned: scales, temperatures, the balance, what an operator
learns of relations. Transforms of the graph block stay the identity, and the prototypes are those of the starts.

Shapes: T training classes, D features.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph.data import Dataset, Pool
from protograph.data.folds import fold_of
from protograph.episodes import Episodes, EpisodeSpec, draw
from protograph.nn.model import GraphPrototypeNetwork
from protograph.training.recipes import Recipe


@dataclass(frozen=True)
class OutOfFold:
    """Episodes of several folds.

    Attributes:
        specs: The episodes of each fold, by the class ids of the dataset.
        prototypes: The prototypes [T, D] of each fold's start by class id, zero for the classes of the fold; empty before the
            starts are known.

    """

    specs: tuple[EpisodeSpec, ...]
    prototypes: tuple[Tensor, ...] = ()

    @property
    def scarce(self) -> bool:
        """Whether a class of some fold has too few images to answer all seen queries."""
        return any(spec.scarce for spec in self.specs)

    def to(self, device: torch.device) -> "OutOfFold":
        """Return the same episodes with their tensors on a device."""
        return OutOfFold(tuple(spec.to(device) for spec in self.specs), tuple(rows.to(device) for rows in self.prototypes))

    def draw(self, count: int, generator: torch.Generator) -> list[Episodes]:
        """Return `count` episodes, as many of each fold; what is left over by the division goes to the first folds."""
        folds = len(self.specs)
        return [draw(spec, (count + folds - 1 - fold) // folds, generator) for fold, spec in enumerate(self.specs)]


def out_of_fold(dataset: Dataset, recipe: Recipe, shots: int) -> OutOfFold:
    """Return the out-of-fold episodes of a recipe, whose image indices are those of the dataset."""
    specs = []
    for fold in range(recipe.folds):
        part = fold_of(dataset, fold, recipe.folds)
        ids = class_ids(dataset, part)
        seen, novel = (replace(pool, classes=ids[pool.classes]) for pool in (part.seen_validation, part.novel_validation))
        ways, queries = recipe.training_ways or recipe.ways, (recipe.novel_queries, recipe.seen_queries)
        specs.append(EpisodeSpec(seen, novel, ways, shots, *queries, recipe.query_scheme, names=dataset.classes))
    return OutOfFold(tuple(specs))


def class_ids(dataset: Dataset, part: Dataset) -> Tensor:
    """Return the ids in a dataset of the classes [T] of its fold."""
    ids = {name: class_id for class_id, name in enumerate(dataset.classes)}
    return torch.tensor([ids[name] for name in part.classes])


def by_position(pool: Pool, images: Tensor, first: int) -> Pool:
    """Return a pool whose images are named by `first` and their position among `images` (ascending), padding as it is."""
    positions = torch.searchsorted(images, pool.images.clamp(min=0)) + first
    return replace(pool, images=torch.where(pool.images < 0, pool.images, positions))


def fix_features(model: GraphPrototypeNetwork, name: str) -> None:
    """Leave what a model of this variant learns of single features as it starts.

    Raises:
        InputError: An operator learns of single features, so it would stay random.

    """
    features = model.prototypes.shape[1]
    model.prototypes.requires_grad_(False)
    for layer in model.graph.layers:
        layer.thetas.requires_grad_(False)
    if learned := [key for key, parameter in model.operators.named_parameters() if features in parameter.shape]:
        raise InputError(
            f"variant '{name}' cannot be trained on out-of-fold episodes: its operators learn of single features "
            f"({learned[0]}), and those of different networks do not correspond; leave out folds"
        )
