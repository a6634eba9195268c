"""What a prototype is made of: the terms of the sum by which a graph layer updates it.

Shapes: V classes, D features; R rows, which is one or several prototypes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from protograph.nn.graph import GraphLayer


def class_factors(layer: GraphLayer, inputs: Tensor, rows: Sequence[Tensor]) -> dict[str, Tensor]:
    r"""Return the factor of each class in the sums that make prototypes, by operator,

    .. math:: B_{nm} \frac{s_B}{\|p_{B,n}\|} \quad\text{with}\quad p_{B,n} = \sum_m B_{nm} \bar c_m \theta_B,

    undivided where the layer does not normalise its operators' outputs. A row that nothing reaches is zero.

    Args:
        layer: The graph layer that makes the prototypes.
        inputs: The rows [V, D] that operators see, in float64.
        rows: For each operator, the rows B [V] or [R, V] that make the prototypes.

    """
    factors = {}
    for label, row, scale in zip(layer.labels, rows, layer.scales.double(), strict=True):
        weights, size = row.double(), inputs.new_ones(())
        if layer.normalise_outputs:
            size = layer.transformed(label, weights @ inputs).norm(dim=-1, keepdim=True)
        factors[label] = weights * torch.where(size > 0, scale / size, 0.0)
    return factors


def contribution_lengths(layer: GraphLayer, inputs: Tensor, rows: Sequence[Tensor]) -> Tensor:
    r"""Return the lengths of what each class adds to prototypes, summed over the operators, as [V] or [R, V],

    .. math:: \ell_{nm} = \sum_B \Big|B_{nm} \frac{s_B}{\|p_{B,n}\|}\Big| \, \|\bar c_m \theta_B\|.

    The arguments are those of `class_factors`.
    """
    factors = class_factors(layer, inputs, rows)
    terms = [factor.abs() * layer.transformed(label, inputs).norm(dim=1) for label, factor in factors.items()]
    return torch.stack(terms).sum(0)
