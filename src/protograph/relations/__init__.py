"""Sources of side information: how similar classes are, by something other than their images."""

from protograph.relations.attributes import AttributeRelation
from protograph.relations.base import (
    HasSimilarities,
    MissingClassesError,
    Relation,
    Sense,
    as_relation,
    check_similarities,
    missing_classes,
)
from protograph.relations.edges import EdgeRelation
from protograph.relations.embeddings import EmbeddingRelation
from protograph.relations.kept import ClassHint, KeptRelation
from protograph.relations.matrix import MatrixRelation
from protograph.relations.mini_imagenet import mini_imagenet_classes, mini_imagenet_names, mini_imagenet_relation
from protograph.relations.parsing import keep_relations, parse_hints
from protograph.relations.registry import (
    RELATION_KINDS,
    RelationSpec,
    canonical_name,
    named_kinds,
    open_relations,
    register_relation,
    relation_label,
)
from protograph.relations.sentences import SentenceRelation
from protograph.relations.unicode import UnicodeRelation
from protograph.relations.wordnet import WordNetRelation, has_wordnet

__all__ = [
    "RELATION_KINDS",
    "AttributeRelation",
    "ClassHint",
    "EdgeRelation",
    "EmbeddingRelation",
    "HasSimilarities",
    "KeptRelation",
    "MatrixRelation",
    "MissingClassesError",
    "Relation",
    "RelationSpec",
    "Sense",
    "SentenceRelation",
    "UnicodeRelation",
    "WordNetRelation",
    "as_relation",
    "canonical_name",
    "check_similarities",
    "has_wordnet",
    "keep_relations",
    "mini_imagenet_classes",
    "mini_imagenet_names",
    "mini_imagenet_relation",
    "missing_classes",
    "named_kinds",
    "open_relations",
    "parse_hints",
    "register_relation",
    "relation_label",
]
