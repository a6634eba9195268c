"""Datasets by name: images, class splits, and the relation that comes with each."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protograph._internal.errors import InputError, unknown_name
from protograph._internal.progress import Progress, Silent
from protograph.data.augmentation import Augmentation
from protograph.data.dataset import Dataset, Pool
from protograph.data.datasets import cub, mini_imagenet
from protograph.data.datasets.features import open_features
from protograph.data.datasets.folder import open_folder
from protograph.data.datasets.items import from_items
from protograph.data.store import FeatureStore, ImageStore, Normalisation, Store

__all__ = [
    "DATASETS",
    "OWN",
    "Augmentation",
    "Dataset",
    "FeatureStore",
    "ImageStore",
    "Normalisation",
    "Pool",
    "Source",
    "Store",
    "find_root",
    "find_source",
    "from_items",
    "open_dataset",
]


@dataclass(frozen=True)
class Source:
    """How a dataset is opened, what suits it by default, and one line on what it is.

    open:      (root, progress, skip_bad) -> dataset; None for one that is only made from Python
    backbone:  the network; `backbone_for` also knows of recipes that it does not suit
    built_in:  it needs no files, so no root
    changes:   what differs for it in a recipe, by the recipe's name; "*" for every recipe
    backbones: other networks, by the name of the recipe they suit
    verdict:   one sentence whether an opened dataset is the one the paper used
    """

    open: Callable[[Path, Progress, bool], Dataset] | None
    backbone: str
    recipe: str
    summary: str
    built_in: bool = False
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    backbones: Mapping[str, str] = field(default_factory=dict)
    verdict: Callable[[Dataset], str] | None = None

    def backbone_for(self, recipe: str) -> str:
        """The network that suits the recipe of that name."""
        return self.backbones.get(recipe, self.backbone)


def _open_letters(root: Path, progress: Progress, skip_bad: bool) -> Dataset:
    """The letters, which need no root and have no bad images."""
    from protograph.data.datasets import letters  # matplotlib, which has the typefaces, takes a third of a second to import

    return letters.open_letters(progress=progress)


# A fifth of miniImageNet's training images: they are learned sooner, and learned by heart sooner.
CUB_FAST: Mapping[str, Any] = {"steps": 130, "rate": 0.8}
CUB_CHANGES: Mapping[str, Mapping[str, Any]] = {
    "*": {"test_queries": 10},
    "paper": {"epochs": 45},
    "fast": CUB_FAST,
    "strong": {**CUB_FAST, "steps": 2 * CUB_FAST["steps"]},  # as `strong` has of `fast`
}
# From random weights gcgpn-aux-split settles at one shot on relations that do harm, before there are features to judge them by.
MINI_CHANGES: Mapping[str, Mapping[str, Any]] = {"strong": {"pretrain": "cosine"}}
# 128 channels in every block are the other way to read the paper's network; a mirror image helps as much as they do.
WIDE = {"strong": "conv4-128-mirror"}
OWN = Source(None, "conv4-64-128", "demo", "images handed over from Python")
DATASETS = {
    "letters": Source(
        _open_letters, "conv4-32", "demo", "Latin, Greek and Cyrillic letters in sixteen typefaces; built in", built_in=True,
    ),
    "mini-imagenet": Source(
        mini_imagenet.open_mini_imagenet, "conv4-64-128", "paper", "100 classes of ImageNet, 600 images each, with WordNet",
        changes=MINI_CHANGES, backbones=WIDE, verdict=mini_imagenet.verdict,
    ),
    "cub": Source(
        cub.open_cub, "conv4-64-128", "paper", "200 species of birds with 312 attributes, the paper's cited split",
        changes=CUB_CHANGES, backbones=WIDE, verdict=cub.verdict,
    ),
    "cub-stratified": Source(
        cub.open_cub_stratified, "conv4-64-128", "paper", "the same birds, a quarter of every seen class held out for test",
        changes=CUB_CHANGES, backbones=WIDE, verdict=cub.verdict,
    ),
    "folder": Source(open_folder, "conv4-64-128", "demo", "own images: a folder of class folders"),
    "features": Source(open_features, "identity", "demo", "own vectors with labels: a .npz, .safetensors or .parquet file"),
}  # fmt: skip


def find_source(name: str) -> Source:
    """The dataset source of that name."""
    if name not in DATASETS:
        raise unknown_name("dataset", name, DATASETS)
    return DATASETS[name]


def find_root(root: Path | str | None) -> Path | None:
    """Where datasets' files are: what was named or, by default, what PROTOGRAPH_DATA says; None where neither does."""
    place = os.environ.get("PROTOGRAPH_DATA") if root is None else root
    return Path(place).expanduser() if place else None


def open_dataset(
    name: str, root: Path | str | None = None, progress: Progress | None = None, skip_bad: bool = False
) -> Dataset:
    """The dataset of that name; `root` is where its files are, by default what PROTOGRAPH_DATA says.

    With `skip_bad` images that cannot be read are left out and counted, where going on is safe.
    """
    source = find_source(name)
    assert source.open is not None
    if source.built_in and root is not None:
        raise InputError(f"{name} are built in: leave out --root (PROTOGRAPH_CACHE says where drawn ones are kept)")
    place = Path() if source.built_in else find_root(root)
    if place is None:
        raise InputError(f"dataset '{name}' needs its files: name their place by --root or the variable PROTOGRAPH_DATA")
    return source.open(place, progress or Silent(), skip_bad)
