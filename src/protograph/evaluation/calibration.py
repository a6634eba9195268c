"""When to answer "unknown", and how to weigh novel classes against seen ones.

Shapes: E episodes, S seen, V = S + N, Q queries, n images.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from protograph._internal.errors import InputError

BIASES = 400  # candidates that are tried for a bias


def false_alarm_threshold(scores: Tensor, rate: float) -> float:
    """The score below which images count as unknown, so that of known ones like `scores` [n] at most `rate` do."""
    check_rate(rate)
    lost = int(rate * (len(scores) + 1))
    if not lost:
        raise InputError(
            f"{len(scores)} images can be held out to calibrate 'unknown', of which not even one may be lost at the rate "
            f"{rate:g}: give classes more images until {math.ceil(1 / rate) - 1} can be (a fifth of each, where it has three "
            "or more), or choose a higher rate"
        )
    return scores.sort().values[lost - 1].item()


def check_rate(rate: float) -> None:
    """Refuse what is no rate of false alarms."""
    if not 0 < rate < 1:
        raise InputError(
            f"the false-alarm rate must lie between 0 and 1, not {rate}: 0.05 takes 1 known image in 20 as unknown"
        )


def auroc(known: Tensor, unknown: Tensor) -> Tensor:
    """The chance [...] that a known score [..., n] is higher than an unknown one [..., m]; ties count half."""
    ordered = unknown.sort(-1).values.contiguous()
    below, at_most = (torch.searchsorted(ordered, known.contiguous(), right=right) for right in (False, True))
    return (below + at_most).double().sum(-1) / (2 * known.shape[-1] * unknown.shape[-1])


def harmonic_mean(one: Tensor, other: Tensor) -> Tensor:
    """Of two shares [...]; 0 where both are."""
    both = one + other
    return 2 * one * other / both.masked_fill(both == 0, 1)


@dataclass(frozen=True)
class Margins:
    """All that decides how a bias on the novel logits changes the answers to queries.

    margin: [E, Q] best seen logit minus best novel one; a bias above it makes the answer a novel class
    right:  [E, Q] whether the best class of the query's own kind is its class
    seen:   [E, Q] whether it is a query of a seen class
    """

    margin: Tensor
    right: Tensor
    seen: Tensor

    @classmethod
    def of(cls, logits: Tensor, targets: Tensor, seen: int) -> "Margins":
        """Of joint logits [E, Q, V] and the queries' rows [E, Q]."""
        best_seen, best_novel = logits[..., :seen].max(-1), logits[..., seen:].max(-1)
        is_seen = targets < seen
        answer = torch.where(is_seen, best_seen.indices, best_novel.indices + seen)
        return cls(best_seen.values - best_novel.values, answer == targets, is_seen)

    def h_mean(self, bias: float) -> float:
        """The mean over episodes of the harmonic mean of Seen-Joint and Novel-Joint, with a bias on the novel logits."""
        right = self.right & (self.seen == (self.margin >= bias))
        seen_joint, novel_joint = ((right & kind).sum(-1) / kind.sum(-1) for kind in (self.seen, ~self.seen))
        return harmonic_mean(seen_joint, novel_joint).mean().item()

    def best_bias(self) -> float:
        """The bias of the best H-Mean: no bias at all, or one of many between the margins; of equals, the nearest to none."""
        quantiles = torch.quantile(self.margin.flatten()[:10_000_000].double(), torch.linspace(0, 1, BIASES).double())
        candidates: list[float] = sorted([0.0, *quantiles.tolist()], key=abs)
        return max(candidates, key=self.h_mean)  # the first of equals


def join(margins: list[Margins]) -> Margins:
    """The margins of all episodes."""
    return Margins(*(torch.cat([getattr(one, name) for one in margins]) for name in ("margin", "right", "seen")))
