"""Register a custom measure: how often the right class is among the three most likely ones.

protograph train --dataset letters --variant aux-only --plugin examples/custom_measure.py
"""

from torch import Tensor

import protograph as pg


def joint_top_3(logits: Tensor, targets: Tensor, seen: int) -> Tensor:
    """Return the share of queries [E] whose class is among the three largest of the joint logits [E, Q, V]."""
    largest = logits.topk(3, dim=-1).indices
    return (largest == targets[..., None]).any(-1).float().mean(-1)


pg.register_measure("joint_top_3", "Joint top 3", joint_top_3)
