"""Powers of another operator."""

from protograph.nn.operators.base import Operator
from protograph.nn.operators.context import Context
from protograph.nn.operators.weights import Weights


class Power(Operator):
    """An operator applied `order` times, as paths of that many steps."""

    sees_support = False

    def __init__(self, operator: Operator, order: int) -> None:
        super().__init__()
        if order < 1:
            raise ValueError(f"the order of a power must be at least 1, not {order}")
        self.operator, self.order = operator, order
        self.labels = tuple(f"{label}^{order}" for label in operator.labels)

    def forward(self, context: Context) -> tuple[Weights, ...]:
        """Return each of the operator's `Weights` to that power."""
        return tuple(weights.power(self.order) for weights in self.operator.weights(context))
