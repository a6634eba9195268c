"""Sources of side information: how alike classes are, according to something other than their pictures."""

from protograph.relations.base import Relation, checked
from protograph.relations.matrix import MatrixRelation
from protograph.relations.unicode import UnicodeRelation

__all__ = ["MatrixRelation", "Relation", "UnicodeRelation", "checked"]
