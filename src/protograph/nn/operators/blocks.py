"""Blocks of another operator."""

from protograph.nn.operators.base import Operator
from protograph.nn.operators.context import Context
from protograph.nn.operators.weights import BLOCKS, Weights


class Blocks(Operator):
    r"""Single blocks of an operator, each with weights of its own that are zero outside the block.

    All four blocks make the paper's `-split`, and `sn` alone its `-sn`. `ss` and `nn` of the identity are its auxiliary pair

    .. math:: \hat B_1 = \begin{pmatrix} I & 0 \\ 0 & 0 \end{pmatrix}, \quad
              \hat B_2 = \begin{pmatrix} 0 & 0 \\ 0 & I \end{pmatrix}.

    Args:
        operator: an operator with one label
        blocks: the blocks to take, of ss, sn, ns and nn

    """

    sees_support = False

    def __init__(self, operator: Operator, blocks: tuple[str, ...] = BLOCKS) -> None:
        super().__init__()
        if len(operator.labels) != 1:
            raise ValueError(f"split one operator at a time, not {operator.labels}")
        self.operator = operator
        self.blocks = tuple(blocks)
        self.labels = tuple(f"{operator.labels[0]}-{block}" for block in blocks)

    def forward(self, context: Context) -> tuple[Weights, ...]:
        """Return one `Weights` per block."""
        (weights,) = self.operator.weights(context)
        return tuple(weights.restricted(block, context.seen, context.classes.shape[1]) for block in self.blocks)
