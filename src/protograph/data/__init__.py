"""Datasets by name: pictures, class splits, and the relation that comes with each."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from protograph.data.dataset import Dataset, Pool
from protograph.data.letters import open_letters
from protograph.data.store import Augmentation, ImageStore, Normalisation
from protograph.errors import unknown
from protograph.progress import Progress

__all__ = [
    "DATASETS",
    "Augmentation",
    "Dataset",
    "ImageStore",
    "Normalisation",
    "Pool",
    "Source",
    "find_source",
    "open_dataset",
]


@dataclass(frozen=True)
class Source:
    """How a dataset is opened, what suits it by default, and one line on what it is."""

    open: Callable[[Path | None, Progress | None], Dataset]
    backbone: str
    recipe: str
    summary: str


DATASETS = {
    "letters": Source(open_letters, "conv4-32", "demo", "Latin, Greek and Cyrillic letters in sixteen typefaces; built in"),
}


def find_source(name: str) -> Source:
    """The dataset source of that name."""
    if name not in DATASETS:
        raise unknown("dataset", name, DATASETS)
    return DATASETS[name]


def open_dataset(name: str, root: Path | None = None, progress: Progress | None = None) -> Dataset:
    """The dataset of that name; `root` is where its files are, or where built ones are kept."""
    return find_source(name).open(root, progress)
