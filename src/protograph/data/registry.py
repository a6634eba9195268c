"""The datasets that can be opened by name, and how others become known."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from protograph._internal.errors import InputError, unknown_name
from protograph._internal.progress import Progress, Silent
from protograph.data.dataset import Dataset
from protograph.data.datasets import cub, mini_imagenet
from protograph.data.datasets.features import open_features
from protograph.data.datasets.folder import open_folder


@dataclass(frozen=True)
class DatasetSource:
    """How a dataset is opened, and what suits it by default.

    Attributes:
        open: Returns the dataset for (root, progress, skip_bad); None for a dataset that exists only in Python.
        backbone: Name of the default backbone.
        summary: One line for `protograph datasets`.
        built_in: Whether the dataset needs no files, and so no root.
        verdict: Returns one sentence on whether an opened dataset is the one the paper used.

    """

    open: Callable[[Path, Progress, bool], Dataset] | None
    backbone: str = "conv4-64-128"
    summary: str = ""
    built_in: bool = False
    verdict: Callable[[Dataset], str] | None = None


def _open_letters(root: Path, progress: Progress, skip_bad: bool) -> Dataset:
    from protograph.data.datasets import letters  # matplotlib, which ships the typefaces, takes a third of a second to import

    return letters.open_letters(progress=progress)


IN_MEMORY = DatasetSource(None, summary="images handed over from Python")
DATASETS = {
    "letters": DatasetSource(
        _open_letters, "conv4-32", "Latin, Greek and Cyrillic letters in sixteen typefaces; built in", built_in=True,
    ),
    "mini-imagenet": DatasetSource(
        mini_imagenet.open_mini_imagenet, "conv4-64-128", "100 classes of ImageNet, 600 images each, with WordNet",
        verdict=mini_imagenet.mini_imagenet_verdict,
    ),
    "cub": DatasetSource(
        cub.open_cub, "conv4-64-128", "200 species of birds with 312 attributes, the paper's cited split",
        verdict=cub.cub_verdict,
    ),
    "cub-stratified": DatasetSource(
        cub.open_cub_stratified, "conv4-64-128", "the same birds, a quarter of every seen class held out for test",
        verdict=cub.cub_verdict,
    ),
    "folder": DatasetSource(open_folder, "conv4-64-128", "your images: a folder of class folders, or a table"),
    "features": DatasetSource(
        open_features, "identity", "your vectors with labels: a .npz, .safetensors or .parquet file, or what `embed` made"
    ),
}  # fmt: skip


def register_dataset(name: str, source: DatasetSource) -> None:
    """Make a dataset known by name, to `open_dataset` and to the command line.

    Args:
        name: How the dataset is called. A name that is already known is replaced.
        source: How it is opened. The opened dataset is given this name.

    """
    DATASETS[name] = source


def find_source(name: str) -> DatasetSource:
    """Return the source of the dataset `name`."""
    if name not in DATASETS:
        raise unknown_name("dataset", name, DATASETS)
    return DATASETS[name]


def find_root(root: Path | str | None) -> Path | None:
    """Return where dataset files are: `root`, or else the variable PROTOGRAPH_DATA, or else None."""
    path = os.environ.get("PROTOGRAPH_DATA") if root is None else root
    return Path(path).expanduser() if path else None


def open_dataset(
    name: str, root: Path | str | None = None, progress: Progress | None = None, skip_bad: bool = False
) -> Dataset:
    """Open a dataset by name.

    Args:
        name: One of `protograph datasets`, or a name given to `register_dataset`.
        root: Where its files are; by default the variable PROTOGRAPH_DATA.
        progress: Shows how far reading is.
        skip_bad: Leave out images that cannot be read, and count them, instead of stopping at the first.

    Raises:
        InputError: The name is unknown, or the files are missing or damaged.

    """
    source = find_source(name)
    assert source.open is not None
    if source.built_in and root is not None:
        raise InputError(f"dataset '{name}' is built in and reads no files: leave out --root")
    folder = Path() if source.built_in else find_root(root)
    if folder is None:
        raise InputError(f"dataset '{name}' needs its files: give their folder by --root or the variable PROTOGRAPH_DATA")
    dataset = source.open(folder, progress or Silent(), skip_bad)
    return dataset if dataset.name == name else replace(dataset, name=name)
