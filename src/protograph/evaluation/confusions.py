"""The answers of a trained model in test episodes: the classes it confuses, and what their prototypes are made of.

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

Pair = tuple[int, int]  # class ids: of a query, and of the answer to it


@dataclass
class Answers:
    """The answers to all queries of some episodes.

    Attributes:
        classes: C
        episodes: the number of episodes
        sides: how many queries of seen (True) and novel (False) classes were answered as a seen and as a novel class
        right: how many of them were right
        pairs: how often queries of one class were answered as another
        answered: for novel queries, by class and answer, the summed shares [C] of the answer's prototypes; see `shares`
        missed: for wrong answers to novel queries, the summed shares [C] of the prototypes of the true class

    """

    classes: int
    episodes: int = 0
    sides: Counter[tuple[bool, bool]] = field(default_factory=Counter)
    right: Counter[bool] = field(default_factory=Counter)
    pairs: Counter[Pair] = field(default_factory=Counter)
    answered: dict[Pair, Tensor] = field(default_factory=dict)
    missed: dict[Pair, Tensor] = field(default_factory=dict)

    def confused(self, count: int) -> list[tuple[Pair, int]]:
        """Return the pairs of different classes that were confused most often, with their counts."""
        return [(pair, times) for pair, times in self.pairs.most_common() if pair[0] != pair[1]][:count]

    def commonest(self, right: bool, count: int) -> list[Pair]:
        """Return the most common right or wrong answers to novel queries."""
        return [pair for pair, _ in self.pairs.most_common() if pair in self.answered and (pair[0] == pair[1]) == right][:count]

    def winner(self, pair: Pair) -> Tensor:
        """Return the mean shares [C] of the classes in the prototypes of an answer."""
        return self.answered[pair] / self.pairs[pair]

    def loser(self, pair: Pair) -> Tensor:
        """Return the mean shares [C] of the classes in the prototypes of the true class, where the answer was another."""
        return self.missed[pair] / self.pairs[pair]


def strongest(shares: Tensor, class_id: int, count: int) -> list[tuple[int, float]]:
    """Return the classes with the largest shares [C] in a prototype of a class, with these shares.

    The class itself is left out. Its share is the largest as a rule, which says nothing about relations.
    """
    order = [index for index in shares.argsort(descending=True).tolist() if index != class_id]
    return [(index, float(shares[index])) for index in order[:count] if shares[index] > 0]


@torch.inference_mode()
def collect(
    model: GraphPrototypeNetwork, dataset: Dataset, spec: EpisodeSpec, episodes: int = 600, progress: Progress | None = None
) -> Answers:
    """Return the answers in the first of the test episodes that models are evaluated on, computed on the model's device."""
    progress = progress or Silent()
    store = dataset.store.to(next(model.parameters()).device)
    features, reindexed = cached(model, store, fixed_episodes(spec, EVALUATION_SEED, episodes), progress)
    answers = Answers(len(dataset.classes), episodes)
    with progress.task("read answers", episodes, "episodes") as advance:
        for index in range(episodes):
            episode = reindexed.slice(index, index + 1).to(features.device)
            context = model.context(features[episode.support], episode.mask, episode.classes, episode.seen)
            logits = model.classifier(features[episode.queries], model.joint_prototypes(context))
            add(
                answers,
                episode.classes[0].cpu(),
                episode.targets[0].cpu(),
                logits[0].argmax(-1).cpu(),
                episode.seen,
                shares(model, context),
            )
            advance(1)
    return answers


def add(answers: Answers, classes: Tensor, targets: Tensor, predictions: Tensor, seen: int, shares: Tensor) -> None:
    """Count the answers of one episode.

    Args:
        answers: what they are added to
        classes: the class ids [V]
        targets: the rows of the classes of the queries [Q]
        predictions: the rows of the answers [Q]
        seen: S
        shares: the shares of all classes in each prototype [V, V]

    """
    for target, answer in zip(targets.tolist(), predictions.tolist(), strict=True):
        pair = int(classes[target]), int(classes[answer])
        answers.sides[target < seen, answer < seen] += 1
        answers.right[target < seen] += target == answer
        answers.pairs[pair] += 1
        if target >= seen:
            answers.answered.setdefault(pair, torch.zeros(answers.classes))[classes] += shares[answer]
            if target != answer:
                answers.missed.setdefault(pair, torch.zeros(answers.classes))[classes] += shares[target]


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
    """Return the labels of the operators that relate a class to other classes: all but the identity."""
    layer = model.graph.layers[0]
    assert isinstance(layer, GraphLayer)
    return [label for label in layer.labels if not label.startswith("identity")]
