"""The bias that weighs novel classes against seen ones.

Shapes: E episodes, S seen, V = S + N, Q queries.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

BIASES = 400  # candidates of a bias


def harmonic_mean(left: Tensor, right: Tensor) -> Tensor:
    """Return the harmonic mean of two fractions [...], which is 0 where both are 0."""
    total = left + right
    return 2 * left * right / total.masked_fill(total == 0, 1)


@dataclass(frozen=True)
class Margins:
    """What the measures with any bias on the novel logits follow from.

    Attributes:
        margin: the best seen logit minus the best novel one [E, Q]; with a larger bias the answer is a novel class
        right: whether the best class of the query's own kind, seen or novel, is its class [E, Q]
        seen: whether the query is of a seen class [E, Q]

    """

    margin: Tensor
    right: Tensor
    seen: Tensor

    @classmethod
    def of(cls, logits: Tensor, targets: Tensor, seen: int) -> "Margins":
        """Return the margins of joint logits [E, Q, V] and targets [E, Q]."""
        best_seen, best_novel = logits[..., :seen].max(-1), logits[..., seen:].max(-1)
        is_seen = targets < seen
        answer = torch.where(is_seen, best_seen.indices, best_novel.indices + seen)
        return cls(best_seen.values - best_novel.values, answer == targets, is_seen)

    def h_mean(self, bias: float) -> float:
        """Return the mean over episodes of H-Mean, with a bias on the novel logits."""
        right = self.right & (self.seen == (self.margin >= bias))
        seen_joint, novel_joint = ((right & kind).sum(-1) / kind.sum(-1) for kind in (self.seen, ~self.seen))
        return harmonic_mean(seen_joint, novel_joint).mean().item()

    def best_bias(self) -> float:
        """Return the bias with the best H-Mean, among 0 and the quantiles of the margins; of equals, the smallest in size."""
        shares = torch.linspace(0, 1, BIASES).double().to(self.margin.device)
        quantiles = torch.quantile(self.margin.flatten()[:10_000_000].double(), shares)
        candidates: list[float] = sorted([0.0, *quantiles.tolist()], key=abs)
        return max(candidates, key=self.h_mean)  # `max` takes the first of equals


def join(margins: list[Margins]) -> Margins:
    """Return the margins of several batches of episodes as those of one."""
    return Margins(*(torch.cat([getattr(batch, name) for batch in margins]) for name in ("margin", "right", "seen")))
