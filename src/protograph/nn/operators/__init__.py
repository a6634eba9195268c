r"""Operators: what the graph block multiplies the joint prototypes by.

Shapes: E episodes, S seen, N novel, V = S + N, K shots, D features; T training classes, whose ids are 0 .. T-1.

An operator gets an episode's `Context` and returns one or several `Weights`, each of which can multiply [E, V, D]. The four
strategies of the paper are kinds of `Similarity` inside a `Softmax` operator: similarity of prototypes, learned similarity,
learned keys, and side information. `Blocks` restricts any operator, and `Power` raises it to higher orders. `Identity`, split
into its two blocks that are not empty, is the auxiliary pair.
"""

from protograph.nn.operators.base import Component, Operator, Similarity, components, mean_over_shots, without_row
from protograph.nn.operators.blocks import Blocks
from protograph.nn.operators.context import Context
from protograph.nn.operators.dictionary_attention import DictionaryAttention
from protograph.nn.operators.difference_similarity import DifferenceSimilarity
from protograph.nn.operators.edges import Edges
from protograph.nn.operators.identity import Identity
from protograph.nn.operators.key_similarity import KeySimilarity
from protograph.nn.operators.mapped import Mapped, mapped_weights
from protograph.nn.operators.mapped_together import MappedTogether
from protograph.nn.operators.power import Power
from protograph.nn.operators.prototype_similarity import PrototypeSimilarity, SimilarityMeasure, pairwise
from protograph.nn.operators.shot_attention import ShotAttention
from protograph.nn.operators.side_information import SideInformation
from protograph.nn.operators.softmax import Softmax, sparsify, threshold_mask
from protograph.nn.operators.transformed_similarity import TransformedSimilarity
from protograph.nn.operators.weights import BLOCKS, Weights, block_region, region

__all__ = [
    "BLOCKS",
    "Blocks",
    "Component",
    "Context",
    "DictionaryAttention",
    "DifferenceSimilarity",
    "Edges",
    "Identity",
    "KeySimilarity",
    "Mapped",
    "MappedTogether",
    "Operator",
    "Power",
    "PrototypeSimilarity",
    "ShotAttention",
    "SideInformation",
    "Similarity",
    "SimilarityMeasure",
    "Softmax",
    "TransformedSimilarity",
    "Weights",
    "block_region",
    "components",
    "mapped_weights",
    "mean_over_shots",
    "pairwise",
    "region",
    "sparsify",
    "threshold_mask",
    "without_row",
]
