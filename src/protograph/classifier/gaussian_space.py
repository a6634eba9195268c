"""The joint label space of a classifier of frozen features: a Gaussian model of all classes in whitened features.

Shapes: S fitted classes, N added, V = S + N, K examples, D features, n images.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph.classifier.naming import check_known, check_new_name, class_index
from protograph.nn.classify import GaussianClassifier, tempering
from protograph.nn.operators import mapped_weights
from protograph.nn.whitening import DIRECTIONS, Whitening, WithinSpread
from protograph.relations import ClassHint, KeptRelation

MOST_IN_DOUBLE = 4096  # classes; with more, products are in float32
NUMBERS_AT_ONCE = 2**24  # logits that are computed together
MOST_ITSELF = 0.9  # share that an example explains of itself
MEASURED_SHARE = 1 / 3  # of added classes, on the mean of the episodes that sharpness is measured on
LARGEST_SHARE = 1 / 2  # of added classes, in any of these episodes
FITTED = 0  # the key of fitted classes in the table of limits, which is by the number of examples


@dataclass(frozen=True)
class RelationUse:
    """How relations enter the prototype of an added class.

    Attributes:
        labels: The relations that predict it; none where relations only place classes without examples.
        ridge: The ridge of the map from relations to prototypes.
        kappa: By how many examples the prediction counts.
        offset: What is added to the logit of a class that relations alone place; less with more examples.
        blended: Whether the prediction also joins the examples, if there are any.

    """

    labels: tuple[str, ...]
    ridge: float = 0.03
    kappa: float = 4.0
    offset: float = 0.0
    blended: bool = False


@dataclass(frozen=True)
class GaussianSettings:
    """What `fit` chose on held-out images and classes of its training data.

    Attributes:
        power: The power of features.
        strength: The strength of the shrinkage of the covariance within classes, in degrees of freedom.
        kappa: By how many examples the expected mean of a class counts.
        temperature: The temperature of logits.
        dimensions: The dimensions in which an uncertain mean costs density.
        widening: By how much an uncertain mean widens the spread of a class.
        relations: How relations are used.
        offsets: What is added to the logit of an added class, by the number of its examples; to that of a fitted one, nothing.
        sharpness: By what logits are multiplied so that probabilities are right, by the number of examples of added classes;
            `FITTED` is where all classes are fitted.
        tempering: By which power of their range logits become milder.
        usual_range: The range of logits that become neither milder nor sharper.
        growth: The power of the degrees of freedom of the whitening by which sharpness grows.
        limits: The likeness that the chosen share of held-out images falls below, by the number of examples of a class;
            `FITTED` is that of fitted classes. Empty where no rate was chosen.
        accuracy: The share of right answers about held-out images, if there were any.

    """

    power: float = 1.0
    strength: float = 0.0
    kappa: float = 1.0
    temperature: float = 20.0
    dimensions: float = 25.0
    widening: float = 1.0
    relations: RelationUse = field(default_factory=lambda: RelationUse(()))
    offsets: Mapping[int, float] = field(default_factory=dict)
    sharpness: Mapping[int, float] = field(default_factory=dict)
    tempering: float = 0.0
    usual_range: float = 1.0
    growth: float = 0.0
    limits: Mapping[int, float] = field(default_factory=dict)
    accuracy: float | None = None

    def limit(self, count: int) -> float:
        """Return the limit on likeness for a class added from so many examples, between those of the table."""
        return between(self.limits, count) if self.limits else 0.0

    def offset(self, count: int) -> float:
        """Return what is added to the logit of a class added from so many examples; with more of them, less."""
        return between(self.offsets, count) if self.offsets else 0.0

    def sharpness_of(self, seen: int, added: Sequence[int], gain: float = 1.0) -> float:
        """Return by what logits are multiplied where classes were added from so many examples to S fitted ones.

        `fit` measured fitted classes alone and a third of added ones; in between, it changes with their share.

        Args:
            seen: The number of fitted classes S.
            added: The number of examples of each added class.
            gain: By what factor the degrees of freedom of the whitening grew.

        """
        if not self.sharpness:
            return 1.0
        alone = math.log(self.sharpness[FITTED])
        if not added:
            return math.exp(alone + self.growth * math.log(gain))
        mixed = sum(math.log(between(self.sharpness, count)) for count in added) / len(added)
        share = min(LARGEST_SHARE, len(added) / (seen + len(added))) / MEASURED_SHARE
        return math.exp((1 - share) * alone + share * mixed + self.growth * math.log(gain))

    def tempered(self, logits: Tensor) -> Tensor:
        """Return logits [n, V] with their sharpness as probabilities need them; the order of an image's classes stays."""
        return logits * tempering(logits, self.usual_range, self.tempering) if self.tempering else logits

    def classifier(self) -> GaussianClassifier:
        """Return the classifier with these values."""
        return GaussianClassifier(self.kappa, self.temperature, self.dimensions, self.widening).requires_grad_(False)


def between(table: Mapping[int, float], count: int) -> float:
    """Return the value for a number of examples from a table by numbers, `FITTED` being infinitely many."""
    points = sorted((0.0 if examples == FITTED else 1 / examples, value) for examples, value in table.items())
    at = 1 / max(count, 1)
    for (left, low), (right, high) in pairwise(points):
        if left <= at <= right:
            return low + (high - low) * (at - left) / (right - left)
    return points[-1][1]


@dataclass(frozen=True)
class ClassStatistics:
    """What is kept of the fitted classes' images.

    Attributes:
        means: The mean [S, D] of each class's aligned features.
        counts: The number of images of each [S].
        centre: The mean [D] of all classes, before features are aligned.
        spread: How images spread around the means of their classes.

    """

    means: Tensor
    counts: tuple[int, ...]
    centre: Tensor
    spread: WithinSpread

    def with_images(self, index: int, aligned: Tensor) -> "ClassStatistics":
        """Return the statistics with one class anew, from aligned features [n, D]; what it taught of the spread stays."""
        means, counts = self.means.clone(), list(self.counts)
        means[index], counts[index] = aligned.mean(0), len(aligned)
        return replace(self, means=means, counts=tuple(counts))

    def without(self, index: int) -> "ClassStatistics":
        """Return the statistics without one class; what it taught of the spread stays."""
        means = torch.cat([self.means[:index], self.means[index + 1 :]])
        return ClassStatistics(means, self.counts[:index] + self.counts[index + 1 :], self.centre, self.spread)


class GaussianSpace:
    r"""Fitted classes by their means, and added ones behind them by their examples, in the order they were added.

    An image's features become a vector u of length 1 (`Whitening`); `GaussianClassifier` gives the logits. Adding a class
    computes its mean and, by default, the whitening anew: the examples of added classes also tell how images spread.

    Args:
        settings: What `fit` chose.
        fitted: What is known of the fitted classes.
        names: The names of all classes.
        relations: The relations of all classes, by label.
        support: For each added class, the aligned features [K, D] of its examples; K may be 0.
        further: The aligned features of examples that fitted classes were given later, by class name.
        related: For each added class, whether any relation knows it.
        state: The whitening, the scale and the prototypes [V, D], if they are already computed.
        directions: How many directions of the spread tell of the whitening.

    """

    def __init__(
        self,
        settings: GaussianSettings,
        fitted: ClassStatistics,
        names: Sequence[str],
        relations: Mapping[str, KeptRelation],
        support: Sequence[Tensor] = (),
        further: Mapping[str, Tensor] | None = None,
        related: Sequence[bool] = (),
        state: tuple[Whitening, float, Tensor] | None = None,
        directions: int = DIRECTIONS,
    ) -> None:
        self.settings, self.fitted, self.directions = settings, fitted, directions
        self.names, self.relations = list(names), dict(relations)
        self.support, self.further, self.related = list(support), dict(further or {}), list(related)
        self.classifier = settings.classifier()
        self._linear: tuple[Tensor, Tensor] | None = None
        if state is None:
            self._update()
        else:
            self.whitening, self.scale, self.prototypes = state

    @property
    def seen(self) -> int:
        """The number of fitted classes S."""
        return len(self.names) - len(self.support)

    @property
    def summary(self) -> str:
        """The model in a word."""
        return "gaussian"

    def index(self, name: str) -> int:
        """Return the index of a class."""
        return class_index(self.names, name)

    def examples(self, row: int) -> int:
        """Return the number of examples of a class, by its index."""
        if row >= self.seen:
            return len(self.support[row - self.seen])
        return self.fitted.counts[row] + len(self.further.get(self.names[row], ()))

    def add(self, name: str, examples: Tensor, hints: Mapping[str, ClassHint], only_new: bool = False) -> None:
        """Add a class from features [K, D] and hints by relation label; `only_new` leaves all other classes as they are."""
        self.add_all({name: examples}, {name: hints}, only_new)

    def add_all(
        self, examples: Mapping[str, Tensor], hints: Mapping[str, Mapping[str, ClassHint]], only_new: bool = False
    ) -> None:
        """Add classes from features [K, D] by name, with one update for all; after an error none is added."""
        relations, names, related = dict(self.relations), list(self.names), list(self.related)
        for name, features in examples.items():
            check_new_name(names, name)
            known = False
            for label, relation in relations.items():
                relations[label], answered = relation.added(name, names, hints.get(name, {}).get(label))
                known |= answered
            check_known(name, len(features), known)
            names.append(name)
            related.append(known)
        self.relations, self.names, self.related = relations, names, related
        self.support += [self.whitening.aligned(features).float() for features in examples.values()]
        if only_new:
            rows = range(len(names) - len(examples), len(names))
            self._change(torch.cat([self.prototypes, self._prototypes(rows, self.prototypes)]))
        else:
            self._update()

    def add_examples(self, name: str, examples: Tensor, only_new: bool = False) -> None:
        """Add features [K, D] to the examples of a class; `only_new` leaves all other classes as they are."""
        row = self.index(name)
        aligned = self.whitening.aligned(examples).float()
        if row >= self.seen:
            self.support[row - self.seen] = torch.cat([self.support[row - self.seen], aligned])
        else:
            self.further[name] = torch.cat([self.further.get(name, aligned[:0]), aligned])
        if only_new:
            self._change_one(row)
        else:
            self._update()

    def remove_examples(self, name: str, rows: Collection[int], images: Tensor | None, only_new: bool = False) -> None:
        """Remove some examples of a class; what fitted ones taught of the spread stays.

        Args:
            name: The class.
            rows: The indices of these examples.
            images: The features [n, D] of all its examples, if they are kept; those of fitted images are needed.
            only_new: Whether all other classes stay as they are.

        Raises:
            InputError: The features of a fitted image are needed, and were not kept.

        """
        row = self.index(name)
        stay = [index for index in range(self.examples(row)) if index not in rows]
        if row >= self.seen:
            self.support[row - self.seen] = self.support[row - self.seen][stay]
        else:
            self._remove_fitted(row, stay, images)
        if only_new:
            self._change_one(row)
        else:
            self._update()

    def _remove_fitted(self, row: int, stay: Sequence[int], images: Tensor | None) -> None:
        """Remove all examples of a fitted class but those that stay."""
        name, before = self.names[row], self.fitted.counts[row]
        further = self.further.pop(name, self.fitted.means[:0])
        later = further[[index - before for index in stay if index >= before]]
        first = [index for index in stay if index < before]
        if len(first) < before:
            if images is None:
                raise InputError(
                    f"the features of the images that '{name}' was fitted on were not kept: fit with keep_features=True "
                    "(`fit --keep-features`)"
                )
            chosen = self.whitening.aligned(images[first]).float() if first else later
            later = later if first else later[:0]  # those given later take the place of the fitted ones
            self.fitted = self.fitted.with_images(row, chosen)
        if len(later):
            self.further[name] = later

    def relate(self, name: str, hints: Mapping[str, ClassHint], only_new: bool = False) -> None:
        """Say anew how a class relates, by hints for some relations; `only_new` leaves all other classes as they are."""
        row, relations, known = self.index(name), dict(self.relations), False
        for label, hint in hints.items():
            relations[label], answered = relations[label].retold(row, self.names, hint)
            known |= answered
        if row >= self.seen:
            known |= self.related[row - self.seen] and hints.keys() != relations.keys()
            check_known(name, self.examples(row), known)
            self.related[row - self.seen] = known
        self.relations = relations
        if only_new:
            self._change_one(row)
        else:
            self._update()

    def relate_by_hand(self) -> None:
        """Begin a relation in which people say how classes relate; there is no other one."""
        relation = KeptRelation.by_hand(self.names)
        self.relations = {relation.label: relation}
        self.settings = replace(self.settings, relations=RelationUse((relation.label,)))

    def remove(self, name: str, only_new: bool = False) -> None:
        """Remove a class, fitted or added; `only_new` leaves all other prototypes as they are."""
        index = self.index(name)
        if index >= self.seen:
            del self.support[index - self.seen], self.related[index - self.seen]
        else:
            self.fitted = self.fitted.without(index)
            self.further.pop(name, None)
        del self.names[index]
        self.relations = {label: relation.removed(index) for label, relation in self.relations.items()}
        if only_new:
            self._change(torch.cat([self.prototypes[:index], self.prototypes[index + 1 :]]))
        else:
            self._update()

    def rename(self, old: str, new: str) -> None:
        """Rename a class. Nothing else changes."""
        index = self.index(old)
        check_new_name(self.names, new)
        self.names[index] = new
        if old in self.further:
            self.further[new] = self.further.pop(old)

    @torch.no_grad()
    def _update(self) -> None:
        """Compute the whitening and all prototypes."""
        spread = self.spread()
        self.whitening = Whitening.of(self.settings.power, self.fitted.centre, spread, self.settings.strength)
        self.scale = self._mean_length(spread)
        fitted = self._prototypes(range(self.seen))
        self._change(torch.cat([fitted, self._prototypes(range(self.seen, len(self.names)), fitted)]))

    def _change_one(self, row: int) -> None:
        """Compute the prototype of one class alone."""
        prototypes = self.prototypes.clone()
        prototypes[row] = self._prototypes([row], self.prototypes)[0]
        self._change(prototypes)

    def _change(self, prototypes: Tensor) -> None:
        self.prototypes, self._linear = prototypes, None

    def spread(self) -> WithinSpread:
        """Return the spread of all examples around the means of their classes."""
        residuals = [examples - examples.mean(0) for examples in self.support if len(examples) > 1]
        freedom = sum(len(examples) - 1 for examples in self.support if len(examples))
        for name, examples in self.further.items():
            index = self.names.index(name)
            before = self.fitted.counts[index]
            share = before * len(examples) / (before + len(examples))
            step = share**0.5 * (examples.mean(0) - self.fitted.means[index])
            residuals += [examples - examples.mean(0), step[None]]
            freedom += len(examples)
        if not residuals:
            return self.fitted.spread
        return self.fitted.spread.with_residuals(torch.cat(residuals), freedom, self.directions)

    def _mean_length(self, spread: WithinSpread) -> float:
        r"""Return the root mean square length of whitened features before they get length 1, for images not counted in W.

        Whitened residuals of the examples themselves are shorter than those of other images, by the share
        :math:`\bar h = \operatorname{tr}(S (S + \lambda \bar s I)^{-1}) / n` that each example explains of itself.
        """
        rows = range(len(self.names))
        if not rows:
            return 1.0
        whitened = self.whitening.whiten(torch.stack([self._mean(row) for row in rows]).double())
        counts = torch.tensor([self.examples(row) for row in rows], dtype=torch.float64)
        total = max(1.0, counts.sum().item())
        between = (whitened.square().sum(1) * counts).sum().item()
        within = self.whitening.whiten(spread.rows.double()).square().sum().item() + self.whitening.base**2 * spread.rest
        itself = min(MOST_ITSELF, spread.explained(self.settings.strength) / total)
        return ((between + within / (1 - itself)) / total) ** 0.5 or 1.0

    def _mean(self, row: int) -> Tensor:
        """Return the mean [D] of a class's aligned examples; without any, zero."""
        if row >= self.seen:
            examples = self.support[row - self.seen]
            return examples.mean(0) if len(examples) else self.fitted.centre.new_zeros(self.fitted.centre.shape)
        mean, further = self.fitted.means[row], self.further.get(self.names[row])
        if further is None:
            return mean
        before = self.fitted.counts[row]
        return (before * mean + further.sum(0)) / (before + len(further))

    def whitened_means(self, rows: Sequence[int]) -> Tensor:
        """Return the whitened means [R, D] of the examples of classes."""
        means = torch.stack([self._mean(row) for row in rows]) if len(rows) else self.fitted.means[:0]
        return self.whitening.whiten(means.double()) / self.scale

    def _prototypes(self, rows: Sequence[int], fitted: Tensor | None = None) -> Tensor:
        """Return the prototypes [R, D] of classes; added ones need those of the fitted classes."""
        own = self.whitened_means(rows)
        shares = torch.tensor([self.own_share(row) for row in rows], dtype=torch.float64)[:, None]
        prototypes = shares * own
        added = [index for index, row in enumerate(rows) if row >= self.seen and shares[index] < 1 and self.predicted(row)]
        if added and fitted is not None:
            weights = self.relation_weights([rows[index] for index in added])
            prototypes[added] += (1 - shares[added]) * (weights @ fitted[: self.seen].double())
        return prototypes.float()

    def predicted(self, row: int) -> bool:
        """Return whether relations enter the prototype of a class."""
        if row < self.seen or not self.seen or not self.related[row - self.seen] or not self.settings.relations.labels:
            return False  # without fitted classes, there is nothing to predict it from
        return self.settings.relations.blended or not self.examples(row)

    def precision(self, row: int) -> float:
        """Return the number of a class's examples and of those that its expected mean counts for."""
        kappa = self.settings.relations.kappa if self.predicted(row) else self.settings.kappa
        return self.examples(row) + kappa

    def own_share(self, row: int) -> float:
        """Return the share of a class's examples in its prototype."""
        return self.examples(row) / self.precision(row)

    def offset(self, row: int, examples: int) -> float:
        """Return what is added to the logit of a class, had it so many examples: for their number, and for its relations."""
        if row < self.seen:
            return 0.0
        offset = self.settings.offset(examples)
        if self.predicted(row):
            kappa = self.settings.relations.kappa
            offset += self.settings.relations.offset * kappa / (examples + kappa)
        return offset

    def offsets(self) -> Tensor:
        """Return what is added to the logits of classes [V]."""
        rows = range(len(self.names))
        return torch.tensor([self.offset(row, self.examples(row)) for row in rows], dtype=torch.float64)

    def factor(self, row: int) -> float:
        """Return by how much the product of a class's prototype and u counts in its logit, halved."""
        precisions = torch.tensor([self.precision(row)], dtype=torch.float64)
        return self.sharpness * self.classifier.scores(torch.zeros(1, dtype=torch.float64), precisions)[0].item()

    def relation_weights(self, rows: Sequence[int], left_out: int | None = None) -> Tensor:
        """Return the weights [R, S] of fitted prototypes in what relations predict of classes.

        Args:
            rows: The classes.
            left_out: A fitted class whose own prototype takes no part.

        """
        kept = [row for row in range(self.seen) if row != left_out]
        chosen = torch.tensor(kept, dtype=torch.long)
        known, new = [], []
        for label in self.settings.relations.labels:
            matrix = self.relations[label].similarities
            vectors = matrix.index_select(0, chosen).index_select(1, chosen)
            asked = torch.stack([_row(matrix, row) for row in rows])[:, chosen]
            length = centred_length(vectors)
            known.append(vectors / length)
            new.append(asked / length)
        weights = torch.zeros(len(rows), self.seen, dtype=torch.float64)
        weights[:, chosen] = mapped_weights(_joined(known), torch.cat(new, 1).double(), self.settings.relations.ridge)
        return weights

    def linear(self) -> tuple[Tensor, Tensor]:
        """Return weights [V, D] and biases [V], from which the logits of u follow as A u + b."""
        if self._linear is None:
            rows = range(len(self.names))
            precisions = torch.tensor([self.precision(row) for row in rows], dtype=torch.float64)
            weights, biases = self.classifier.linear(self.prototypes.double(), precisions, self.offsets())
            weights, biases = self.sharpness * weights, self.sharpness * biases
            exact = len(self.names) <= MOST_IN_DOUBLE
            self._linear = (weights, biases) if exact else (weights.float(), biases.float())
        return self._linear

    @property
    def sharpness(self) -> float:
        """By what logits are multiplied so that probabilities are the shares of right answers."""
        return self.sharpness_with([len(examples) for examples in self.support])

    def sharpness_with(self, added: Sequence[int]) -> float:
        """Return the sharpness, were these the numbers of examples of added classes."""
        gain = max(1, self.whitening.freedom) / max(1, self.fitted.spread.freedom)
        return self.settings.sharpness_of(self.seen, added, gain)

    def limits(self) -> Tensor:
        """Return what is added to a class's logit for its likeness [V]: limits differ by the number of examples."""
        added = [self.limit(len(examples)) for examples in self.support]
        return torch.tensor([0.0] * self.seen + added, dtype=torch.float64)

    def limit(self, count: int) -> float:
        """Return what is added to the logit of a class added from so many examples, for its likeness."""
        return self.settings.limits.get(FITTED, 0.0) - self.settings.limit(count)

    def scores(self, features: Tensor) -> Tensor:
        """Return the logits [n, V] of features [n, D] with equal priors, before they are tempered."""
        weights, biases = self.linear()
        return torch.addmm(biases, self.whitening.embed(features).to(weights), weights.T)

    def logits(self, features: Tensor, offsets: Tensor | float = 0.0) -> Tensor:
        """Return the logits [n, V] of features [n, D], with offsets [V] such as logarithms of priors."""
        return self.settings.tempered(self.scores(features) + offsets)

    def likeness(self, features: Tensor) -> Tensor:
        """Return how like some class each image is [n]: its largest logit by `limits`, whatever priors and sharpness."""
        return self.answers(features, None)[1]

    def answers(self, features: Tensor, offsets: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the index [n] of the best class of features [n, D] and the likeness [n], without keeping all logits."""
        portion = max(1, NUMBERS_AT_ONCE // len(self.names))
        sharpness = self.sharpness
        limits = sharpness * self.limits()
        limited = bool(limits.any())
        best, likeness = [], []
        for part in torch.split(features, portion):
            scores = self.scores(part)
            top = (scores if offsets is None else scores + offsets.to(scores)).max(1)
            best.append(top.indices)
            if limited:
                top = scores.add_(limits.to(scores)).max(1)
            elif offsets is not None:
                top = scores.max(1)
            likeness.append(top.values.double() / sharpness)
        if not best:
            return torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.float64)
        return torch.cat(best), torch.cat(likeness)


def centred_length(vectors: Tensor) -> float:
    """Return the root mean square length of class vectors [S, F], dense or sparse, less their mean; 1 if it is 0."""
    dense = vectors.layout == torch.strided
    squares = (vectors if dense else vectors.coalesce().values()).double().square().sum().item()
    mean = (vectors.double().sum(0) if dense else torch.sparse.sum(vectors.double(), 0).to_dense()) / vectors.shape[0]
    return max(0.0, squares / vectors.shape[0] - mean.square().sum().item()) ** 0.5 or 1.0


def _row(matrix: Tensor, row: int) -> Tensor:
    return matrix[row] if matrix.layout == torch.strided else matrix.index_select(0, torch.tensor([row])).to_dense()[0]


def _joined(vectors: Sequence[Tensor]) -> Tensor:
    """Return class vectors of several relations as one [S, F], sparse if all are."""
    if all(part.layout != torch.strided for part in vectors):
        return torch.cat(list(vectors), 1).double()
    return torch.cat([part if part.layout == torch.strided else part.to_dense() for part in vectors], 1).double()
