"""Few-shot methods: each from the support and the queries of an episode to logits among its novel classes, one per file.

Shapes: E episodes, N novel, K shots, Q queries, D features.

A method gets features of the backbone, or, if it adapts the network to each episode, the images themselves. `base.py` has the
contract and the model around a method, `methods.py` all of them by name with what each needs of training.
"""

from protograph.nn.few_shot.base import OF_QUERIES, OF_SUPPORT, RUNNING, FewShotMethod, FewShotModel
from protograph.nn.few_shot.methods import FEW_SHOT_METHODS, Method, MethodParts, build_method

__all__ = [
    "FEW_SHOT_METHODS",
    "OF_QUERIES",
    "OF_SUPPORT",
    "RUNNING",
    "FewShotMethod",
    "FewShotModel",
    "Method",
    "MethodParts",
    "build_method",
]
