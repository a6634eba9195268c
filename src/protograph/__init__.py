"""Relational generalized few-shot learning: new classes from a few images, placed by how they relate to the known ones."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from protograph._version import __version__

if TYPE_CHECKING:  # with `as`, type checkers take a name as public
    from protograph._internal.errors import InputError as InputError
    from protograph.classifier.estimator import Classifier as Classifier
    from protograph.data import Dataset as Dataset
    from protograph.data import DatasetSource as DatasetSource
    from protograph.data import FeatureStore as FeatureStore
    from protograph.data import ImageStore as ImageStore
    from protograph.data import Normalisation as Normalisation
    from protograph.data import Pool as Pool
    from protograph.data import from_items as from_items
    from protograph.data import open_dataset as open_dataset
    from protograph.data import register_dataset as register_dataset
    from protograph.episodes import Episodes as Episodes
    from protograph.episodes import EpisodeSpec as EpisodeSpec
    from protograph.episodes import fixed_episodes as fixed_episodes
    from protograph.episodes import sample as sample
    from protograph.evaluation.metrics import EvaluationSizes as EvaluationSizes
    from protograph.evaluation.metrics import Measure as Measure
    from protograph.evaluation.metrics import evaluate as evaluate
    from protograph.evaluation.metrics import register_measure as register_measure
    from protograph.nn.backbones import Backbone as Backbone
    from protograph.nn.backbones import Conv4 as Conv4
    from protograph.nn.backbones import ResNet12 as ResNet12
    from protograph.nn.backbones import batch_norm_parts as batch_norm_parts
    from protograph.nn.backbones import register_backbone as register_backbone
    from protograph.nn.classify import CosineClassifier as CosineClassifier
    from protograph.nn.classify import SquaredDistance as SquaredDistance
    from protograph.nn.graph import GraphBlock as GraphBlock
    from protograph.nn.graph import GraphLayer as GraphLayer
    from protograph.nn.model import GraphPrototypeNetwork as GraphPrototypeNetwork
    from protograph.nn.operators import Context as Context
    from protograph.nn.operators import Operator as Operator
    from protograph.nn.operators import Similarity as Similarity
    from protograph.nn.operators import Softmax as Softmax
    from protograph.nn.operators import Weights as Weights
    from protograph.relations import AttributeRelation as AttributeRelation
    from protograph.relations import EdgeRelation as EdgeRelation
    from protograph.relations import EmbeddingRelation as EmbeddingRelation
    from protograph.relations import MatrixRelation as MatrixRelation
    from protograph.relations import MissingClassesError as MissingClassesError
    from protograph.relations import Relation as Relation
    from protograph.relations import SentenceRelation as SentenceRelation
    from protograph.relations import UnicodeRelation as UnicodeRelation
    from protograph.relations import WordNetRelation as WordNetRelation
    from protograph.relations import register_relation as register_relation
    from protograph.training.config import RunConfig as RunConfig
    from protograph.training.config import configure as configure
    from protograph.training.recipes import RECIPES as RECIPES
    from protograph.training.recipes import Recipe as Recipe
    from protograph.training.recipes import register_recipe as register_recipe
    from protograph.training.recipes import resolve_recipe as resolve_recipe
    from protograph.training.stages import train as train
    from protograph.variants import AUX as AUX
    from protograph.variants import VARIANTS as VARIANTS
    from protograph.variants import Op as Op
    from protograph.variants import Variant as Variant
    from protograph.variants import build as build
    from protograph.variants import find_variant as find_variant
    from protograph.variants import register_operator as register_operator
    from protograph.variants import register_variant as register_variant

# The module of each public name. It is imported when the name is first used, since PyTorch takes a second to import.
_MODULES = {
    "_internal.errors": ("InputError",),
    "classifier.estimator": ("Classifier",),
    "data": (
        "Dataset",
        "DatasetSource",
        "FeatureStore",
        "ImageStore",
        "Normalisation",
        "Pool",
        "from_items",
        "open_dataset",
        "register_dataset",
    ),
    "episodes": ("EpisodeSpec", "Episodes", "fixed_episodes", "sample"),
    "evaluation.metrics": ("EvaluationSizes", "Measure", "evaluate", "register_measure"),
    "nn.backbones": ("Backbone", "Conv4", "ResNet12", "batch_norm_parts", "register_backbone"),
    "nn.classify": ("CosineClassifier", "SquaredDistance"),
    "nn.graph": ("GraphBlock", "GraphLayer"),
    "nn.model": ("GraphPrototypeNetwork",),
    "nn.operators": ("Context", "Operator", "Similarity", "Softmax", "Weights"),
    "relations": (
        "AttributeRelation",
        "EdgeRelation",
        "EmbeddingRelation",
        "MatrixRelation",
        "MissingClassesError",
        "Relation",
        "SentenceRelation",
        "UnicodeRelation",
        "WordNetRelation",
        "register_relation",
    ),
    "training.config": ("RunConfig", "configure"),
    "training.recipes": ("RECIPES", "Recipe", "register_recipe", "resolve_recipe"),
    "training.stages": ("train",),
    "variants": ("AUX", "VARIANTS", "Op", "Variant", "build", "find_variant", "register_operator", "register_variant"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = ["__version__", *sorted(_MODULE_OF)]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'protograph' has no attribute '{name}'")
    globals()[name] = getattr(import_module(f"protograph.{_MODULE_OF[name]}"), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
