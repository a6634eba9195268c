"""Datasets by name: images, class splits, and the relations that come with each."""

from protograph.data.augmentation import Augmentation
from protograph.data.dataset import Dataset, Pool
from protograph.data.datasets.items import from_items
from protograph.data.registry import (
    DATASETS,
    IN_MEMORY,
    DatasetSource,
    find_root,
    find_source,
    open_dataset,
    register_dataset,
)
from protograph.data.store import FeatureStore, ImageStore, Normalisation, Store

__all__ = [
    "DATASETS",
    "IN_MEMORY",
    "Augmentation",
    "Dataset",
    "DatasetSource",
    "FeatureStore",
    "ImageStore",
    "Normalisation",
    "Pool",
    "Store",
    "find_root",
    "find_source",
    "from_items",
    "open_dataset",
    "register_dataset",
]
