"""Sources of side information: how alike classes are, according to something other than their images."""

from protograph.relations.attributes import AttributeRelation
from protograph.relations.base import Relation, check_similarities
from protograph.relations.edges import EdgeRelation
from protograph.relations.embeddings import EmbeddingRelation, SentenceRelation
from protograph.relations.kept import KeptRelation, keep_relations
from protograph.relations.matrix import MatrixRelation
from protograph.relations.mini_imagenet import mini_imagenet_classes, mini_imagenet_names, mini_imagenet_relation
from protograph.relations.registry import KINDS, RelationSpec, canonical_name, open_relations, relation_label
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
    "canonical_name",
    "check_similarities",
    "keep_relations",
    "mini_imagenet_classes",
    "mini_imagenet_names",
    "mini_imagenet_relation",
    "open_relations",
    "relation_label",
]
