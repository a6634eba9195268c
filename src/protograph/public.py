"""What users import from `protograph`."""

from typing import TYPE_CHECKING, Any

from protograph.config import RECIPES, Recipe, RunConfig
from protograph.data import Dataset, FeatureStore, ImageStore, Pool, from_items, open_dataset
from protograph.episodes import Episodes, EpisodeSpec, fixed_episodes, sample
from protograph.errors import InputError
from protograph.evaluation import Measure, evaluate
from protograph.nn.backbones import Conv4, ResNet12
from protograph.nn.classify import CosineClassifier, SquaredDistance
from protograph.nn.graph import GraphBlock, GraphLayer
from protograph.nn.model import GraphPrototypeNetwork
from protograph.nn.operators import Context, Operator, Similarity, Softmax, Weights
from protograph.relations import (
    AttributeRelation,
    EdgeRelation,
    EmbeddingRelation,
    MatrixRelation,
    Relation,
    SentenceRelation,
    UnicodeRelation,
    WordNetRelation,
)
from protograph.training import configure, train
from protograph.variants import AUX, VARIANTS, Op, Variant, build, find_variant, register_operator, register_variant

if TYPE_CHECKING:
    from protograph.classifier import Classifier

__all__ = [
    "AUX",
    "RECIPES",
    "VARIANTS",
    "AttributeRelation",
    "Classifier",
    "Context",
    "Conv4",
    "CosineClassifier",
    "Dataset",
    "EdgeRelation",
    "EmbeddingRelation",
    "EpisodeSpec",
    "Episodes",
    "FeatureStore",
    "GraphBlock",
    "GraphLayer",
    "GraphPrototypeNetwork",
    "ImageStore",
    "InputError",
    "MatrixRelation",
    "Measure",
    "Op",
    "Operator",
    "Pool",
    "Recipe",
    "Relation",
    "ResNet12",
    "RunConfig",
    "SentenceRelation",
    "Similarity",
    "Softmax",
    "SquaredDistance",
    "UnicodeRelation",
    "Variant",
    "Weights",
    "WordNetRelation",
    "build",
    "configure",
    "evaluate",
    "find_variant",
    "fixed_episodes",
    "from_items",
    "open_dataset",
    "register_operator",
    "register_variant",
    "sample",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "Classifier":  # scikit-learn takes a second to import, and training does without
        from protograph.classifier import Classifier

        return Classifier
    raise AttributeError(f"module 'protograph.public' has no attribute '{name}'")
