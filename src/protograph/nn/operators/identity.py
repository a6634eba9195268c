"""The identity."""

from protograph.nn.operators.base import Operator
from protograph.nn.operators.context import Context
from protograph.nn.operators.weights import Weights


class Identity(Operator):
    """The identity: every class is related to itself alone. It costs no computation."""

    labels = ("identity",)
    sees_support = False

    def forward(self, context: Context) -> Weights:
        """Return the identity [V, V]."""
        return Weights.full(None, context.classes.shape[1])
