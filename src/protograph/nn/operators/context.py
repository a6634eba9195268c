"""What operators look at."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Context:
    """What an operator may look at.

    Attributes:
        prototypes: the initial joint prototypes [E, V, D], the seen ones first
        support: the support features [E, N, K, D], padding where `mask` is False
        mask: which shots exist [E, N, K]
        classes: the class id of every row [E, V]. In training the novel rows have ids of training classes too: an operator
            with state per class reads it for the seen rows alone
        seen: S

    """

    prototypes: Tensor
    support: Tensor
    mask: Tensor
    classes: Tensor
    seen: int
