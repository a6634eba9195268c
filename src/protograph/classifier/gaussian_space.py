"""The joint label space of a classifier of frozen features: a Gaussian model of all classes in whitened features.

Shapes: S fitted classes, N added, V = S + N, K examples, D features, n images.
"""

import copy
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph._internal.rows import ROWS_AT_ONCE, Names, Rows
from protograph.classifier.asking import CANDIDATES, MOST_IN_DOUBLE, Best, ClassIndex, Likeness, Linear, find_best
from protograph.classifier.naming import check_known, check_new_name, class_index
from protograph.nn.classify import GaussianClassifier, milder, tempering
from protograph.nn.operators import mapped_weights
from protograph.nn.whitening import DIRECTIONS, Whitening, WithinSpread
from protograph.relations import ClassHint, KeptRelation

MOST_REWHITENED = 4096  # classes that are all whitened anew at each change; with more, only after enough new examples
LEAST_GROWTH = 0.1  # of the degrees of freedom, or of the features where these are more, which are enough
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
        numbers = Counter(added).items()
        mixed = sum(times * math.log(between(self.sharpness, count)) for count, times in numbers) / len(added)
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

    @cached_property
    def numbers(self) -> Tensor:
        """The counts as a tensor [S]."""
        return torch.tensor(self.counts, dtype=torch.float64)

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
        self.names, self.relations = names if isinstance(names, Names) else Names(names), dict(relations)
        self.support, self.further, self.related = list(support), dict(further or {}), list(related)
        self.classifier = settings.classifier()
        self._rows: Rows
        self._index: ClassIndex | None
        self._weights: Rows | None  # what prototypes are in the logits [V, D + 1], with their biases
        if state is None:
            self._update()
        else:
            self.whitening, self.scale, self.prototypes = state

    def copied(self) -> "GaussianSpace":
        """Return a space that can be changed while this one stays as it is. Tensors are shared: no change writes into one."""
        space = copy.copy(self)
        space.relations, space.further = dict(self.relations), dict(self.further)
        space.support, space.related = list(self.support), list(self.related)
        return space

    @property
    def prototypes(self) -> Tensor:
        """The prototypes [V, D] of all classes."""
        return self._rows.tensor()

    @prototypes.setter
    def prototypes(self, prototypes: Tensor) -> None:
        self._rows, self._weights, self._index = Rows.of(prototypes), None, None

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

    def prototype(self, row: int) -> Tensor:
        """Return the prototype [D] of a class, by its index."""
        return self._rows[row]

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
        relations, names, related = dict(self.relations), self.names, list(self.related)
        for name, features in examples.items():
            check_new_name(names, name)
            known = False
            for label, relation in relations.items():
                relations[label], answered = relation.added(name, names, hints.get(name, {}).get(label))
                known |= answered
            check_known(name, len(features), known)
            names = names.extended([name])
            related.append(known)
        first = len(self.names)
        self.relations, self.names, self.related = relations, names, related
        self.support += [self.whitening.aligned(features).float() for features in examples.values()]
        if only_new or self._keeps_whitening():
            self._take_new(self._prototypes(range(first, len(names)), self._rows))
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
        if only_new or self._keeps_whitening():
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
        if only_new or self._keeps_whitening():
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
        if only_new or self._keeps_whitening():
            self._change_one(row)
        else:
            self._update()

    def relate_by_hand(self) -> None:
        """Begin a relation in which people say how classes relate; there is no other one."""
        relation = KeptRelation.by_hand(self.names)
        self.relations, self._weights, self._index = {relation.label: relation}, None, None
        self.settings = replace(self.settings, relations=RelationUse((relation.label,)))

    def remove(self, name: str, only_new: bool = False) -> None:
        """Remove a class, fitted or added; `only_new` leaves all other prototypes as they are."""
        index = self.index(name)
        if index >= self.seen:
            del self.support[index - self.seen], self.related[index - self.seen]
        else:
            self.fitted = self.fitted.without(index)
            self.further.pop(name, None)
        self.names = self.names.without(index)
        self.relations = {label: relation.removed(index) for label, relation in self.relations.items()}
        if only_new or self._keeps_whitening():
            self._rows = self._rows.without(index)
            self._weights = self._weights.without(index) if self._weights is not None and self.seen else None
            self._index = None if self._index is None or self._weights is None else self._index.without(index)
        else:
            self._update()

    def rename(self, old: str, new: str) -> None:
        """Rename a class. Nothing else changes."""
        index = self.index(old)
        check_new_name(self.names, new)
        self.names = self.names.renamed(index, new)
        if old in self.further:
            self.further[new] = self.further.pop(old)

    def _keeps_whitening(self) -> bool:
        """Return whether the whitening stays as it is after a change: of many classes, until the examples are a tenth more.

        Otherwise each change would compute all prototypes. A change then reaches the prototype of its class alone.
        """
        before = self.whitening.freedom
        enough = LEAST_GROWTH * max(len(self.fitted.centre), before)
        return len(self.names) > MOST_REWHITENED and abs(self.freedom - before) < enough

    @property
    def freedom(self) -> int:
        """The degrees of freedom of the spread of all examples."""
        added = sum(len(examples) - 1 for examples in self.support if len(examples))
        return self.fitted.spread.freedom + added + sum(map(len, self.further.values()))

    @torch.no_grad()
    def _update(self) -> None:
        """Compute the whitening and all prototypes."""
        spread = self.spread()
        self.whitening = Whitening.of(self.settings.power, self.fitted.centre, spread, self.settings.strength)
        self.scale = self._mean_length(spread)
        counts = self.counts()
        shares = counts / (counts + self.settings.kappa)
        parts = [shares[rows.start : rows.stop, None] * self.whitened_means(rows) for rows in _portions(0, self.seen)]
        fitted = Rows([*(part.float() for part in parts), self.fitted.means[:0]])
        added = [self._prototypes(rows, fitted) for rows in _portions(self.seen, len(self.names))]
        self._rows = Rows([*fitted.blocks, *added])
        self._weights = self._index = None

    def _take_new(self, prototypes: Tensor) -> None:
        """Take the prototypes [N, D] of the last classes, which are new."""
        self._rows = self._rows.extended(prototypes)
        if self._weights is not None:
            new = range(len(self.names) - len(prototypes), len(self.names))
            self._weights = self._weights.extended(self._weights_of(new, prototypes))
            self._index = None if self._index is None else self._index.extended(new)

    def _change_one(self, row: int) -> None:
        """Compute the prototype of one class alone."""
        prototype = self._prototypes([row], self._rows)
        self._rows = self._rows.replaced([row], prototype)
        if self._weights is not None:
            self._weights = self._weights.replaced([row], self._weights_of([row], prototype))
            self._index = None if self._index is None else self._index.extended([row])

    def spread(self) -> WithinSpread:
        """Return the spread of all examples around the means of their classes."""
        residuals = [examples - examples.mean(0) for examples in self.support if len(examples) > 1]
        freedom = sum(len(examples) - 1 for examples in self.support if len(examples))
        for name, examples in self.further.items():
            before = self.fitted.counts[index := self.names.index(name)]
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
        if not self.names:
            return 1.0
        counts, between = self.counts(), 0.0
        for rows in _portions(0, len(self.names)):
            whitened = self.whitening.whiten(self._means(rows).double())
            between += (whitened.square().sum(1) @ counts[rows.start : rows.stop]).item()
        total = max(1.0, counts.sum().item())
        within = self.whitening.whiten(spread.rows.double()).square().sum().item() + self.whitening.base**2 * spread.rest
        itself = min(MOST_ITSELF, spread.explained(self.settings.strength) / total)
        return ((between + within / (1 - itself)) / total) ** 0.5 or 1.0

    def _means(self, rows: Sequence[int]) -> Tensor:
        """Return the means [R, D] of the aligned examples of classes; without any, zero."""
        means = self.fitted.means.new_zeros(len(rows), len(self.fitted.centre))
        index = torch.arange(rows.start, rows.stop) if isinstance(rows, range) else torch.tensor(rows, dtype=torch.long)
        fitted = index < self.seen
        means[fitted] = self.fitted.means[index[fitted]]
        for place in (~fitted).nonzero()[:, 0].tolist():
            examples = self.support[rows[place] - self.seen]
            if len(examples):
                means[place] = examples.mean(0)
        places = {row: place for place, row in enumerate(rows)} if self.further else {}
        for name, further in self.further.items():
            if (place := places.get(self.names.index(name), -1)) >= 0:
                before = self.fitted.counts[rows[place]]
                means[place] = (before * means[place] + further.sum(0)) / (before + len(further))
        return means

    def whitened_means(self, rows: Sequence[int]) -> Tensor:
        """Return the whitened means [R, D] of the examples of classes."""
        return self.whitening.whiten(self._means(rows).double()) / self.scale

    def _prototypes(self, rows: Sequence[int], fitted: Rows | None = None) -> Tensor:
        """Return the prototypes [R, D] of classes; added ones need those of the fitted classes, which come first."""
        own = self.whitened_means(rows)
        shares = torch.tensor([self.own_share(row) for row in rows], dtype=torch.float64)[:, None]
        prototypes = shares * own
        added = [index for index, row in enumerate(rows) if row >= self.seen and shares[index] < 1 and self.predicted(row)]
        if added and fitted is not None:
            weights = self.relation_weights([rows[index] for index in added])
            prototypes[added] += (1 - shares[added]) * (weights @ fitted.tensor()[: self.seen].double())
        return prototypes.float()

    def counts(self) -> Tensor:
        """Return the numbers of examples of classes [V]."""
        counts = torch.cat([self.fitted.numbers, torch.tensor([len(part) for part in self.support], dtype=torch.float64)])
        for name, examples in self.further.items():
            counts[self.names.index(name)] += len(examples)
        return counts

    def precisions(self) -> Tensor:
        """Return the precisions of classes [V]."""
        kappas = torch.full((len(self.names),), self.settings.kappa, dtype=torch.float64)
        if self.settings.relations.labels and self.seen:
            predicted = torch.tensor([self.predicted(row) for row in range(self.seen, len(self.names))], dtype=torch.bool)
            kappas[self.seen :][predicted] = self.settings.relations.kappa
        return self.counts() + kappas

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
        rows = range(self.seen, len(self.names))
        offsets = torch.zeros(len(self.names), dtype=torch.float64)
        offsets[self.seen :] = torch.tensor([self.offset(row, self.examples(row)) for row in rows], dtype=torch.float64)
        return offsets

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
        weights = self.sharpness * self._logit_weights().tensor()
        return weights[:, :-1], weights[:, -1]

    def _logit_weights(self) -> Rows:
        """Return weights and biases [V, D + 1] of logits, before these get their sharpness."""
        kind = torch.float64 if len(self.names) <= MOST_IN_DOUBLE else torch.float32
        if self._weights is None or self._weights.blocks[0].dtype != kind:
            precisions, offsets = self.precisions(), self.offsets()
            parts = [self._rows.blocks[0].new_zeros(0, len(self.fitted.centre) + 1, dtype=kind)]
            for start, block in self._rows:
                ends = slice(start, start + len(block))
                weights, biases = self.classifier.linear(block.double(), precisions[ends], offsets[ends])
                parts.append(torch.cat([weights, biases[:, None]], 1).to(kind))
            self._weights = Rows(parts)
        return self._weights

    def _weights_of(self, rows: Sequence[int], prototypes: Tensor) -> Tensor:
        """Return weights and biases [R, D + 1] of the prototypes [R, D] of some classes."""
        precisions = torch.tensor([self.precision(row) for row in rows], dtype=torch.float64)
        offsets = torch.tensor([self.offset(row, self.examples(row)) for row in rows], dtype=torch.float64)
        weights, biases = self.classifier.linear(prototypes.double(), precisions, offsets)
        return torch.cat([weights, biases[:, None]], 1)

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
        limits = torch.zeros(len(self.names), dtype=torch.float64)
        limits[self.seen :] = torch.tensor([self.limit(len(examples)) for examples in self.support], dtype=torch.float64)
        return limits

    def limit(self, count: int) -> float:
        """Return what is added to the logit of a class added from so many examples, for its likeness."""
        return self.settings.limits.get(FITTED, 0.0) - self.settings.limit(count)

    def scores(self, features: Tensor) -> Tensor:
        """Return the logits [n, V] of features [n, D] with equal priors, before they are tempered."""
        queries = self._queries(features)
        return torch.cat([queries @ rows.T for _, rows in self._logit_weights()], 1)

    def logits(self, features: Tensor, offsets: Tensor | float = 0.0) -> Tensor:
        """Return the logits [n, V] of features [n, D], with offsets [V] such as logarithms of priors."""
        return self.settings.tempered(self.scores(features) + offsets)

    def likeness(self, features: Tensor) -> Tensor:
        """Return how like some class each image is [n]: its largest logit by `limits`, whatever priors and sharpness."""
        return self.answers(features, None)[1]

    def answers(self, features: Tensor, offsets: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the index [n] of the best class of features [n, D] and the likeness [n], without keeping all logits."""
        best = self.best(features, offsets, like=True)
        assert best.likeness is not None
        return best.classes[:, 0], best.likeness

    def best(
        self, features: Tensor, offsets: Tensor | None, count: int = 1, probable: bool = False, like: bool = False
    ) -> Best:
        """Return the best classes of features [n, D] with their logits, without keeping all logits.

        Args:
            features: The features.
            offsets: What prior and bias add to the logits [V].
            count: The number of classes.
            probable: Whether the sum over all classes is asked for, which probabilities need.
            like: Whether the likeness is asked for.

        """
        linear, queries = self._logits_by_block(offsets), self._queries(features)
        total = probable and not self.settings.tempering
        best = find_best(linear, queries, count, total, self._likeness(offsets) if like else None)
        if best.likeness is not None:
            best = replace(best, likeness=best.likeness.double() / self.sharpness)
        if total or not probable:
            return best
        sums = torch.stack([block.double().sum(0) for _, block in self._logit_weights()]).sum(0)  # those of logits follow
        means = queries.double() @ sums / len(self.names) + (0.0 if offsets is None else offsets.mean())
        settings = self.settings
        factors = milder(best.logits[:, :1].double() - means[:, None], settings.usual_range, settings.tempering).to(queries)
        if linear.offset is None:
            again = find_best(linear, factors * queries, total=True)
        else:
            again = find_best(linear.joined(), torch.cat([factors * queries, factors], 1), total=True)
        return replace(best, logits=factors * best.logits, total=again.total)

    def best_indexed(self, features: Tensor, offsets: Tensor | None, count: int = 1) -> Best:
        """Return the best classes of features [n, D], and their likeness, among those that an index names.

        The index is made when it is first used. The arguments are those of `best`.
        """
        linear, queries = self._logits_by_block(offsets), self._queries(features)
        if self._index is None:
            middle = torch.zeros_like(queries[:1])  # what all biases share tells no class from another
            middle[0, -1] = torch.cat([block[:, -1] for _, block in linear.weights]).mean()
            self._index = ClassIndex.of(linear.weights.mapped(lambda block: block - middle.to(block)))
        best = self._index.best(linear, queries, max(count, CANDIDATES))
        named, change = best.classes.clamp(min=0), self.sharpness * self.limits()
        change = change if offsets is None else change - offsets
        likeness = (best.logits.double() + change[named]).amax(1) / self.sharpness
        return replace(best, classes=named[:, :count], logits=best.logits[:, :count], likeness=likeness)

    def _queries(self, features: Tensor) -> Tensor:
        """Return the queries [n, D + 1] of logits, with their sharpness."""
        embedded = self.whitening.embed(features)
        queries = torch.cat([embedded, torch.ones_like(embedded[:, :1])], 1)
        return (self.sharpness * queries).to(self._logit_weights().blocks[0])

    def _logits_by_block(self, offsets: Tensor | None) -> Linear:
        moved = offsets is not None and bool(offsets.any())
        weights = self._logit_weights()
        return Linear(weights, offsets.to(weights.blocks[0]) if offsets is not None and moved else None)

    def _likeness(self, offsets: Tensor | None) -> Likeness:
        """Return what makes likeness of logits: without priors, with limits."""
        change = self.sharpness * self.limits()
        if offsets is not None:
            change = change - offsets
        same = not bool(change.any())
        return lambda logits, start, _: logits if same else logits + change[start : start + logits.shape[1]].to(logits)


def _portions(start: int, stop: int) -> Iterator[range]:
    """Yield portions of a range of classes that are computed together."""
    for first in range(start, stop, ROWS_AT_ONCE):
        yield range(first, min(stop, first + ROWS_AT_ONCE))


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
