"""What a trained model answers in test episodes: what it takes for what, and from which classes its prototypes took.

Shapes: E episodes, S seen, N novel, V = S + N, Q queries, D features; C classes of the dataset.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from protograph._internal.progress import Progress, Silent
from protograph.data import Dataset
from protograph.episodes import EpisodeSpec, fixed_episodes
from protograph.evaluation.metrics import EVALUATION_SEED, cached
from protograph.nn.contributions import contribution_lengths
from protograph.nn.graph import GraphLayer
from protograph.nn.model import GraphPrototypeNetwork
from protograph.nn.operators import Context

Pair = tuple[int, int]  # class ids: what a query was, and what it was answered as


@dataclass
class Answers:
    """The answers to all queries of some episodes.

    classes: C
    sides:   how many queries of seen (True) and novel (False) classes were answered as a seen and as a novel class
    right:   how many of these were right
    pairs:   how often queries of one class were answered as another
    taken:   of novel queries, by class and answer, what the winning prototypes took from each class, summed [C]; see `shares`
    missed:  the same of the prototypes that should have won, where they did not
    """

    classes: int
    episodes: int = 0
    sides: Counter[tuple[bool, bool]] = field(default_factory=Counter)
    right: Counter[bool] = field(default_factory=Counter)
    pairs: Counter[Pair] = field(default_factory=Counter)
    taken: dict[Pair, Tensor] = field(default_factory=dict)
    missed: dict[Pair, Tensor] = field(default_factory=dict)

    def confused(self, count: int) -> list[tuple[Pair, int]]:
        """The pairs of different classes that were confused most often."""
        return [(pair, times) for pair, times in self.pairs.most_common() if pair[0] != pair[1]][:count]

    def commonest(self, right: bool, count: int) -> list[Pair]:
        """The commonest right or wrong answers to novel queries."""
        return [pair for pair, _ in self.pairs.most_common() if pair in self.taken and (pair[0] == pair[1]) == right][:count]

    def winner(self, pair: Pair) -> Tensor:
        """What the prototypes of an answer took from each class, as mean shares [C]."""
        return self.taken[pair] / self.pairs[pair]

    def loser(self, pair: Pair) -> Tensor:
        """What the prototypes of the true class took where another one won, as mean shares [C]."""
        return self.missed[pair] / self.pairs[pair]


def strongest(shares: Tensor, own: int, count: int) -> list[tuple[int, float]]:
    """The classes a prototype took most from.

    A class takes most from itself as a rule, which says nothing about relations: its `own` share is left out.
    """
    others = [int(place) for place in shares.argsort(descending=True) if int(place) != own]
    return [(place, float(shares[place])) for place in others[:count] if shares[place] > 0]


@torch.inference_mode()
def collect(
    model: GraphPrototypeNetwork, dataset: Dataset, spec: EpisodeSpec, episodes: int = 600, progress: Progress | None = None
) -> Answers:
    """The answers in the first of the test episodes that the measures are taken on, computed where the model is."""
    progress = progress or Silent()
    store = dataset.store.to(next(model.parameters()).device)
    features, placed = cached(model, store, fixed_episodes(spec, EVALUATION_SEED, episodes), progress)
    answers = Answers(len(dataset.classes), episodes)
    with progress.task("read answers", episodes, "episodes") as advance:
        for index in range(episodes):
            one = placed.slice(index, index + 1).to(features.device)
            context = model.context(features[one.support], one.mask, one.classes, one.seen)
            logits = model.classifier(features[one.queries], model.joint_prototypes(context))
            add(
                answers,
                one.classes[0].cpu(),
                one.targets[0].cpu(),
                logits[0].argmax(-1).cpu(),
                one.seen,
                shares(model, context),
            )
            advance(1)
    return answers


def add(answers: Answers, classes: Tensor, targets: Tensor, given: Tensor, seen: int, took: Tensor) -> None:
    """Count the answers of one episode: classes [V], true and given rows [Q], and what each prototype took [V, V]."""
    for target, answer in zip(targets.tolist(), given.tolist(), strict=True):
        pair = int(classes[target]), int(classes[answer])
        answers.sides[target < seen, answer < seen] += 1
        answers.right[target < seen] += target == answer
        answers.pairs[pair] += 1
        if target >= seen:
            answers.taken.setdefault(pair, torch.zeros(answers.classes))[classes] += took[answer]
            if target != answer:
                answers.missed.setdefault(pair, torch.zeros(answers.classes))[classes] += took[target]


def shares(model: GraphPrototypeNetwork, context: Context) -> Tensor:
    r"""Return what each class's prototype takes from each class in the first layer, as shares [V, V] of summed lengths,

    .. math:: \frac{\ell_{nm}}{\sum_m \ell_{nm}}, \quad \ell_{nm} \text{ as in `contribution_lengths`}.

    The context is that of one episode. A row that nothing reaches is zero.
    """
    classes = context.classes.shape[1]
    layer = model.graph.layers[0]
    assert isinstance(layer, GraphLayer)
    inputs = layer.rows(context.prototypes[0]).double()
    matrices = [weights.dense(classes).reshape(-1, classes, classes)[0].to(inputs) for weights in model.weights(context)]
    lengths = contribution_lengths(layer, inputs, matrices)
    return (lengths / lengths.sum(1, keepdim=True).clamp_min(1e-12)).float().cpu()


def related_labels(model: GraphPrototypeNetwork) -> Sequence[str]:
    """The operators that relate a class to others, by label: all but the identity."""
    layer = model.graph.layers[0]
    assert isinstance(layer, GraphLayer)
    return [label for label in layer.labels if not label.startswith("identity")]
