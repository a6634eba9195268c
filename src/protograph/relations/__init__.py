"""Sources of side information: how alike classes are, according to something other than their images."""

from protograph.relations.attributes import AttributeRelation
from protograph.relations.base import Relation, checked
from protograph.relations.edges import EdgeRelation
from protograph.relations.embeddings import EmbeddingRelation, SentenceRelation
from protograph.relations.kept import KeptRelation, keep_relations
from protograph.relations.matrix import MatrixRelation
from protograph.relations.mini_imagenet import mini_imagenet_classes, mini_imagenet_names, mini_imagenet_relation
from protograph.relations.specs import KINDS, RelationSpec, canonical, label_of, open_relations
from protograph.relations.unicode import UnicodeRelation
from protograph.relations.wordnet import WordNetRelation

__all__ = [
    "KINDS",
    "AttributeRelation",
    "EdgeRelation",
    "EmbeddingRelation",
    "KeptRelation",
    "MatrixRelation",
    "Relation",
    "RelationSpec",
    "SentenceRelation",
    "UnicodeRelation",
    "WordNetRelation",
    "canonical",
    "checked",
    "keep_relations",
    "label_of",
    "mini_imagenet_classes",
    "mini_imagenet_names",
    "mini_imagenet_relation",
    "open_relations",
]
