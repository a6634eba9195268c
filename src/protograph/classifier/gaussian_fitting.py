"""What a Gaussian space is fitted with, chosen on episodes of held-out images and classes of the training data.

Shapes: S fitted classes, V classes of an episode, Q queries, D features, n images.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise, product

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from protograph._internal.errors import InputError
from protograph._internal.progress import Progress
from protograph.classifier.gaussian_space import (
    FITTED,
    ClassStatistics,
    GaussianSettings,
    GaussianSpace,
    RelationUse,
    centred_length,
)
from protograph.classifier.leave_one_out import LeaveOneOut
from protograph.classifier.members import Members
from protograph.episodes import seeded
from protograph.evaluation.unknown import allowed_alarms, false_alarm_threshold
from protograph.nn.classify import GaussianClassifier, tempering
from protograph.nn.operators import mapped_weights
from protograph.nn.whitening import DIRECTIONS, LARGEST_EXACT, Whitening, WithinSpread
from protograph.relations import KeptRelation

POWERS = (1.0, 0.5)
STRENGTHS = (0.25, 1.0, 4.0, 16.0)  # candidates, in multiples of the number of features
USUAL = 4.0  # the multiple where too few images choose one
NEW_SHOTS = (1, 2, 5, 10)  # of classes that act as new
NEW_SHARES = (1 / 3, 1 / 3, 1 / 3)  # of the classes act as new in each fold, every class once
RIDGES = (0.003, 0.03, 0.3)
FEWEST_CLASSES, FEWEST_IMAGES = 4, 4  # that choose settings: so many classes with so many images
MOST_CLASSES, MOST_IMAGES = 200, 40  # that choose settings
MOST_QUERIES = 8  # of a class in an episode
LEFT_OUT_PARTS = 8  # of a class's images, of which one is left out at a time where single images cannot be
ASKED_SHARE = 0.2  # share of a class's images that are queries of a fitted class
OFFSET_WEIGHT = 1e-2  # of no offset on added classes, against the loss
TEMPERING_WEIGHT = 1e-3  # of no tempering, against the loss
MOST_TEMPERING = 0.75
PRIOR_WEIGHT = 1e-3  # of the usual values of the classifier, against the loss
LARGEST_LOGARITHM = math.log(4)  # of a sharpness
LEAST_GAIN = 0.002  # of the loss, for which relations join the examples


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: many steps on small tensors cost more to divide than to do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class HeldOutEpisode:
    """Inner products of an episode whose new classes took no part in its whitening.

    Attributes:
        products: Of queries and whitened class means [Q, V].
        squares: Squared lengths of the whitened class means [V].
        counts: Numbers of examples [V].
        targets: The index of each query's class [Q].
        old: The number of classes that do not act as new, which come first.
        shots: The number of examples K of the others.
        classes: The class of each index [V].
        whitened: The queries [Q, D] and the whitened class means [V, D].

    """

    products: Tensor
    squares: Tensor
    counts: Tensor
    targets: Tensor
    old: int
    shots: int
    classes: list[int]
    whitened: tuple[Tensor, Tensor]

    def loss(self, logits: Tensor) -> Tensor:
        """Return the cross-entropy of logits [Q, V], all classes counting the same."""
        return class_loss(logits, self.targets)

    def accuracy(self, logits: Tensor) -> float:
        """Return the mean over classes of the share of right answers by logits [Q, V]."""
        return class_accuracy(logits, self.targets)

    def logits(self, classifier: GaussianClassifier, offsets: Mapping[int, float] | None = None) -> Tensor:
        """Return the logits [Q, V] without relations, with offsets on classes that act as new by their number of examples."""
        kappa = classifier.values[0]
        shares = self.counts / (self.counts + kappa)
        factors, biases = classifier.scores(shares**2 * self.squares, self.counts + kappa)
        return 2 * self.products * shares * factors + biases + self.on_new((offsets or {}).get(self.shots, 0.0))

    def on_new(self, offset: float | Tensor) -> Tensor:
        """Return an offset on the classes that act as new [V]."""
        return offset * (torch.arange(len(self.counts)) >= self.old)


def fit_space(
    features: Tensor,
    members: Members,
    names: Sequence[str],
    relations: Mapping[str, KeptRelation],
    rate: float | None,
    seed: int,
    progress: Progress,
) -> GaussianSpace:
    """Return the space of classes with features [n, D], after its settings were chosen.

    Args:
        features: The features of all images.
        members: The indices of each class's images, by class id.
        names: The names of the classes; behind those with images, there may be others that relations place.
        relations: Their relations.
        rate: The share of images of known classes that may count as unknown, or None.
        seed: The seed of what is drawn.
        progress: What shows how far the fitting is.

    """
    settings = choose_settings(features, members, relations, rate, seed, progress)
    fitted = class_statistics(features, members, settings.power)
    added = len(names) - len(members)  # classes without images
    return GaussianSpace(settings, fitted, names, relations, [fitted.means[:0]] * added, {}, [True] * added)


def empty_space(features: int, relations: Mapping[str, KeptRelation]) -> GaussianSpace:
    """Return a space of D features without a class yet, with the usual settings."""
    nothing = torch.zeros(0, features)
    fitted = ClassStatistics(nothing, (), torch.zeros(features), WithinSpread(nothing, 0.0, 0))
    return GaussianSpace(usual_settings(features, relations), fitted, [], relations)


def usual_settings(features: int, relations: Mapping[str, KeptRelation]) -> GaussianSettings:
    """Return the settings for D features where too few images choose others."""
    return GaussianSettings(strength=USUAL * features, relations=RelationUse(tuple(relations)))


def enough_to_choose(counts: Iterable[int]) -> bool:
    """Return whether classes with so many images are enough to choose settings."""
    return sum(count >= FEWEST_IMAGES for count in counts) >= FEWEST_CLASSES


def enough_to_calibrate(counts: Iterable[int], rate: float | None) -> bool:
    """Return whether classes with so many images are enough to calibrate a false-alarm rate, if there is one."""
    usable = [min(count, MOST_IMAGES) for count in counts if count >= FEWEST_IMAGES]
    return rate is not None and enough_to_choose(usable) and allowed_alarms(sum(usable[:MOST_CLASSES]), rate) > 0


def class_statistics(
    features: Tensor, members: Members | Sequence[Sequence[int]], power: float, directions: int = DIRECTIONS
) -> ClassStatistics:
    """Return what is kept of classes with features [n, D] by the indices of their images, by so many directions of spread.

    Some of the images are read at a time.
    """
    members, size = Members.listed(members), features.shape[1]
    none = Whitening(power, features.new_zeros(features.shape[1]).double(), features[:0].double(), features[:0, 0], 1.0)
    centre = torch.zeros(size, dtype=torch.float64)
    if len(members) > 1:
        centre = _class_means(features, members, none).mean(0)
    whitening = replace(none, centre=centre)
    means = _class_means(features, members, whitening)
    spread = _within_spread(features, members, whitening, means, directions)
    counts = tuple(members.counts.tolist())
    return ClassStatistics(means.float(), counts, centre.float(), replace(spread, rows=spread.rows.float()))


def _within_spread(features: Tensor, members: Members, whitening: Whitening, means: Tensor, directions: int) -> WithinSpread:
    """Return how aligned features spread around the means [C, D] of their classes."""
    freedom, size = len(members.images) - len(members), features.shape[1]
    parts = (whitening.aligned(features[images]) - means[classes] for images, classes in members.portions(size))
    first = next(parts)
    if len(first) == len(members.images):
        return WithinSpread.of(first, freedom, directions=directions)
    if size > LARGEST_EXACT:
        spread = WithinSpread.of(first, freedom, directions=directions)
        for residuals in parts:
            spread = spread.with_residuals(residuals, freedom, directions)
        return replace(spread, freedom=freedom)
    scatter = first.T @ first
    for residuals in parts:
        scatter += residuals.T @ residuals
    return WithinSpread.of_scatter(scatter, freedom, directions)


def _class_means(features: Tensor, members: Members, whitening: Whitening) -> Tensor:
    """Return the means [C, D] of the aligned features of each class."""
    sums = torch.zeros(len(members), features.shape[1], dtype=torch.float64)
    for images, classes in members.portions(features.shape[1]):
        sums.index_add_(0, classes, whitening.aligned(features[images]))
    return members.means(sums)


def choose_settings(
    features: Tensor,
    members: Members,
    relations: Mapping[str, KeptRelation],
    rate: float | None,
    seed: int,
    progress: Progress,
) -> GaussianSettings:
    """Return the settings with the best accuracy about held-out images; the usual ones where images are too few.

    Classes act as new from 1, 2, 5 and 10 examples, a third of the classes at a time. Among powers and
    strengths of the shrinkage, the most right answers decide; the values of the classifier have the least cross-entropy.
    """
    usual = usual_settings(features.shape[1], relations)
    usable = (members.counts >= FEWEST_IMAGES).nonzero()[:, 0].tolist()
    if not enough_to_choose(members.counts.tolist()):
        if rate is not None:
            raise InputError(
                f"too few images to calibrate 'unknown': give at least {FEWEST_CLASSES} classes with {FEWEST_IMAGES} or more "
                "each, or no rate"
            )
        return usual
    order = torch.randperm(len(usable), generator=seeded(seed, "classes that choose")).tolist()[:MOST_CLASSES]
    chosen = [usable[index] for index in order]
    best: tuple[float, GaussianSettings] | None = None
    with progress.task("choose settings", len(POWERS) * len(STRENGTHS), "candidates") as advance:
        for power in POWERS:
            folds = [Fold.of(features, members, chosen, number, power, seed) for number in range(len(NEW_SHARES))]
            for strength in STRENGTHS:
                draft = replace(usual, power=power, strength=strength * features.shape[1])
                episodes = [episode for fold in folds for episode in fold.episodes(draft.strength)]
                classifier = fit_classifier(episodes)
                accuracy = sum(episode.accuracy(episode.logits(classifier)) for episode in episodes) / len(episodes)
                values = dict(zip(("kappa", "temperature", "dimensions", "widening"), classifier.values.tolist(), strict=True))
                if best is None or accuracy > best[0]:
                    best, kept = (accuracy, replace(draft, **values)), episodes
                advance(1)
    assert best is not None
    settings = replace(best[1], offsets=choose_offsets(kept, best[1].classifier()))
    scores, targets = left_out_scores(features, members, chosen, settings)
    settings = choose_tempering(kept, settings, scores, targets)
    settings = replace(
        settings,
        accuracy=class_accuracy(scores, targets),
        sharpness=choose_sharpness(kept, settings, scores, targets),
        growth=sharpness_growth(features, members, chosen, settings, scores, targets),
    )
    if relations:
        settings = replace(settings, relations=choose_relations(kept, settings, relations))
    if rate is not None:
        settings = replace(settings, limits=choose_limits(kept, settings, rate, scores))
    return settings


@torch.no_grad()
def left_out_scores(
    features: Tensor, members: Mapping[int, Sequence[int]], chosen: Sequence[int], settings: GaussianSettings
) -> tuple[Tensor, Tensor]:
    """Return logits [Q, C] of images of the chosen classes, each as if it had not been fitted, and their classes [Q].

    All directions of the spread are kept here, so that an image can be left out of what tells of it in full. Where they are
    too many, an eighth of the images is left out at a time.
    """
    rows_of = [list(members[class_id]) for class_id in chosen]
    asked, names = [rows[:MOST_IMAGES] for rows in rows_of], [str(class_id) for class_id in chosen]
    targets = torch.tensor([index for index, rows in enumerate(asked) for _ in rows])
    if min(sum(map(len, rows_of)), features.shape[1]) <= LARGEST_EXACT:
        statistics = class_statistics(features, rows_of, settings.power, LARGEST_EXACT)
        space = GaussianSpace(settings, statistics, names, {})
        left_out = LeaveOneOut.of(space)
        scores = [left_out.scores(index, space.whitening.aligned(features[rows])) for index, rows in enumerate(asked)]
        return torch.cat(scores), targets
    parts = torch.tensor([place % LEFT_OUT_PARTS for rows in asked for place in range(len(rows))])
    table = torch.zeros(len(targets), len(names), dtype=torch.float64)
    for part in range(LEFT_OUT_PARTS):
        left = [set(rows[part::LEFT_OUT_PARTS]) for rows in asked]
        rest = [[row for row in rows if row not in apart] for rows, apart in zip(rows_of, left, strict=True)]
        space = GaussianSpace(settings, class_statistics(features, rest, settings.power), names, {})
        table[parts == part] = space.scores(features[[row for rows in asked for row in rows[part::LEFT_OUT_PARTS]]])
    return table, targets


def sharpness_growth(
    features: Tensor,
    members: Mapping[int, Sequence[int]],
    chosen: Sequence[int],
    settings: GaussianSettings,
    scores: Tensor,
    targets: Tensor,
) -> float:
    """Return the power of the degrees of freedom of the whitening by which the right sharpness grows.

    It follows from halves of each class's images, fitted to ask the others. Half of that power counts, because half of the
    images also tell less of each class, unlike the examples of other classes.
    """
    tables = []
    for part in range(2):
        rest = [list(members[class_id])[1 - part :: 2] for class_id in chosen]
        asked = [list(members[class_id])[part::2][:MOST_IMAGES] for class_id in chosen]
        space = GaussianSpace(
            settings, class_statistics(features, rest, settings.power), [str(class_id) for class_id in chosen], {}
        )
        labels = torch.tensor([index for index, rows in enumerate(asked) for _ in rows])
        tables.append((space.scores(features[[row for rows in asked for row in rows]]), labels))
    slope = math.log2(right_confidence_factor([(scores, targets)], settings) / right_confidence_factor(tables, settings))
    return min(1.0, max(0.0, slope)) / 2


def class_weights(targets: Tensor, classes: int) -> Tensor:
    """Return weights [Q] of queries with sum 1 by which all classes count the same."""
    counts = torch.bincount(targets, minlength=classes).double()
    return 1 / counts[targets] / (counts > 0).sum()


def class_accuracy(logits: Tensor, targets: Tensor) -> float:
    """Return the mean over classes of the share of right answers by logits [Q, V] about queries of classes [Q]."""
    right = (logits.argmax(1) == targets).double()
    return (right * class_weights(targets, logits.shape[1])).sum().item()


def class_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of logits [Q, V], all classes counting the same."""
    return (cross_entropy(logits, targets, reduction="none") * class_weights(targets, logits.shape[1])).sum()


def choose_sharpness(
    episodes: Sequence[HeldOutEpisode], settings: GaussianSettings, scores: Tensor, targets: Tensor
) -> dict[int, float]:
    """Return by what logits are multiplied so that confidence is right, by the number of examples of classes acting as new.

    Episodes have fewer images of each class than the fit, and need less sharpness. Hence they only tell by how much classes
    that act as new change that of the others alone.

    Args:
        episodes: Episodes of held-out classes.
        settings: The settings so far.
        scores: Logits [Q, C] about images of fitted classes alone that were left out.
        targets: The classes of these images [Q].

    """
    classifier = settings.classifier()
    fitted = right_confidence_factor([(scores, targets)], settings)
    tables: dict[int, list[tuple[Tensor, Tensor]]] = {}
    alone: dict[int, list[tuple[Tensor, Tensor]]] = {}
    for episode in episodes:
        logits, acts_old = episode.logits(classifier, settings.offsets), episode.targets < episode.old
        tables.setdefault(episode.shots, []).append((logits, episode.targets))
        alone.setdefault(episode.shots, []).append((logits[acts_old, : episode.old], episode.targets[acts_old]))
    changes = {
        shots: right_confidence_factor(table, settings) / right_confidence_factor(alone[shots], settings)
        for shots, table in tables.items()
    }
    return {FITTED: fitted} | {shots: fitted * change for shots, change in changes.items()}


@one_thread()
def choose_tempering(
    episodes: Sequence[HeldOutEpisode], settings: GaussianSettings, scores: Tensor, targets: Tensor
) -> GaussianSettings:
    """Return the settings with the power of tempering that has the least cross-entropy, whatever the sharpness.

    Args:
        episodes: Episodes of held-out classes.
        settings: The settings so far.
        scores: Logits [Q, C] about images of fitted classes alone that were left out.
        targets: The classes of these images [Q].

    """
    classifier = settings.classifier()
    groups = [[(scores, targets)]]
    for shots in sorted({episode.shots for episode in episodes}):
        chosen = [episode for episode in episodes if episode.shots == shots]
        groups.append([(episode.logits(classifier, settings.offsets), episode.targets) for episode in chosen])
    usual = max((scores.amax(1) - scores.mean(1)).mean().item(), 1e-6)
    values = torch.zeros(1 + len(groups), dtype=torch.float64, requires_grad=True)  # the power, logarithms of sharpness
    optimiser = torch.optim.LBFGS([values], max_iter=20, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        optimiser.zero_grad()
        losses = []
        for tables, logarithm in zip(groups, values[1:], strict=True):
            tempered = [(part * tempering(part, usual, 1.0) ** values[0], labels) for part, labels in tables]
            losses.append(torch.stack([class_loss(logarithm.exp() * part, labels) for part, labels in tempered]).mean())
        loss = torch.stack(losses).mean() + TEMPERING_WEIGHT * values.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(objective)  # type: ignore[no-untyped-call]
    power = min(MOST_TEMPERING, max(0.0, values[0].item()))
    return replace(settings, tempering=power, usual_range=usual)


@one_thread()
def right_confidence_factor(tables: Sequence[tuple[Tensor, Tensor]], settings: GaussianSettings) -> float:
    """Return the factor of logits [Q, V] by which the mean confidence is the share of right answers, from a quarter to four.

    The factor comes before the logits are tempered. The least cross-entropy would ask for a smaller one: a few images that look
    like another class weigh much there. One answer that is half right is added, because no factor is too large where all
    answers are right.
    """
    weights = [class_weights(targets, logits.shape[1]) for logits, targets in tables]
    queries = sum(len(targets) for _, targets in tables)
    right = sum(class_accuracy(logits, targets) for logits, targets in tables) / len(tables)
    right = (right * queries + 0.5) / (queries + 1)
    low, high = -LARGEST_LOGARITHM, LARGEST_LOGARITHM
    while high - low > 1e-3:
        middle = (low + high) / 2
        largest = [settings.tempered(math.exp(middle) * logits).softmax(1).max(1).values for logits, _ in tables]
        confidence = sum((values * weight).sum().item() for values, weight in zip(largest, weights, strict=True)) / len(tables)
        low, high = (middle, high) if confidence < right else (low, middle)
    return math.exp((low + high) / 2)


def divided(rows: Sequence[int], share: float, seed: int, class_id: int) -> tuple[list[int], list[int]]:
    """Return a share of a class's images, of which there may be too many, as queries, and the rest."""
    order = torch.randperm(len(rows), generator=seeded(seed, "queries", class_id)).tolist()[:MOST_IMAGES]
    count = min(MOST_QUERIES, math.ceil(share * len(order)))
    return [rows[index] for index in order[:count]], [rows[index] for index in order[count:]]


@dataclass(frozen=True)
class Fold:
    """One division of classes into those that act as new and the others, with the features of their images.

    Attributes:
        statistics: Of the classes that do not act as new.
        power: The power of features.
        old: These classes.
        new: The classes that act as new.
        queries: The indices of queries by class.
        examples: The features [n, D] of the images of classes that act as new, by class, the queries left out.
        features: The features of all images.

    """

    statistics: ClassStatistics
    power: float
    old: list[int]
    new: list[int]
    queries: dict[int, list[int]]
    examples: dict[int, list[int]]
    features: Tensor

    @classmethod
    def of(
        cls,
        features: Tensor,
        members: Mapping[int, Sequence[int]],
        chosen: Sequence[int],
        number: int,
        power: float,
        seed: int,
    ) -> "Fold":
        """Return a fold by its number."""
        ends = [round(len(chosen) * sum(NEW_SHARES[:count])) for count in range(len(NEW_SHARES) + 1)]
        new = list(chosen[ends[number] : max(ends[number] + 1, ends[number + 1])])
        old = [class_id for class_id in chosen if class_id not in set(new)]
        queries, rest = {}, {}
        for class_id in (*old, *new):
            share = 0.5 if class_id in set(new) else ASKED_SHARE
            queries[class_id], rest[class_id] = divided(members[class_id], share, seed, class_id)
        statistics = class_statistics(features, [rest[class_id] for class_id in old], power)
        return cls(statistics, power, old, new, queries, {class_id: rest[class_id] for class_id in new}, features)

    def episodes(self, strength: float) -> list[HeldOutEpisode]:
        """Return an episode for each number of examples that the classes have."""
        names = [str(class_id) for class_id in self.old]
        space = GaussianSpace(GaussianSettings(self.power, strength), self.statistics, names, {})
        queries = [row for class_id in (*self.old, *self.new) for row in self.queries[class_id]]
        targets = [index for index, class_id in enumerate((*self.old, *self.new)) for _ in self.queries[class_id]]
        embedded = space.whitening.embed(self.features[queries])
        old_means = space.whitened_means(range(len(self.old)))
        most = max(len(rows) for rows in self.examples.values())
        episodes = []
        for shots in NEW_SHOTS:
            if shots > max(1, most):
                break
            rows = [self.examples[class_id][:shots] for class_id in self.new]
            aligned = space.whitening.aligned(self.features[[row for part in rows for row in part]])
            ends = torch.tensor([0, *(len(part) for part in rows)]).cumsum(0).tolist()
            means = torch.stack([aligned[begin:end].mean(0) for begin, end in pairwise(ends)])
            means = torch.cat([old_means, space.whitening.whiten(means) / space.scale])
            counts = torch.tensor([*self.statistics.counts, *(len(part) for part in rows)], dtype=torch.float64)
            episodes.append(
                HeldOutEpisode(
                    embedded @ means.T,
                    means.square().sum(1),
                    counts,
                    torch.tensor(targets),
                    len(self.old),
                    shots,
                    [*self.old, *self.new],
                    (embedded, means),
                )
            )
        return episodes


@one_thread()
def fit_classifier(episodes: Sequence[HeldOutEpisode], steps: int = 25) -> GaussianClassifier:
    """Return the classifier with the least cross-entropy in episodes, held near the usual values."""
    classifier = GaussianClassifier()
    start = classifier.logarithms.detach().clone()
    optimiser = torch.optim.LBFGS(classifier.parameters(), max_iter=steps, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        optimiser.zero_grad()
        loss = torch.stack([episode.loss(episode.logits(classifier)) for episode in episodes]).mean()
        loss = loss + PRIOR_WEIGHT * (classifier.logarithms - start).square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(objective)  # type: ignore[no-untyped-call]
    return classifier.requires_grad_(False)


@one_thread()
def choose_offsets(episodes: Sequence[HeldOutEpisode], classifier: GaussianClassifier) -> dict[int, float]:
    """Return what is added to the logits of classes that act as new, by the number of their examples, for the least loss."""
    numbers = sorted({episode.shots for episode in episodes})
    logits = [episode.logits(classifier) for episode in episodes]
    values = torch.zeros(len(numbers), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([values], max_iter=20, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        optimiser.zero_grad()
        losses = [
            episode.loss(part + episode.on_new(values[numbers.index(episode.shots)]))
            for episode, part in zip(episodes, logits, strict=True)
        ]
        loss = len(numbers) * torch.stack(losses).mean() + OFFSET_WEIGHT * values.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(objective)  # type: ignore[no-untyped-call]
    return {FITTED: 0.0, **dict(zip(numbers, values.tolist(), strict=True))}


def choose_relations(
    episodes: Sequence[HeldOutEpisode], settings: GaussianSettings, relations: Mapping[str, KeptRelation]
) -> RelationUse:
    """Return how relations are used: alone or together, how smooth their map is, and by how many examples they count.

    Classes act as new without an example and with some. Where relations lessen the cross-entropy of classes with examples by
    too little, they place classes without examples alone, so that a useless relation costs nothing.
    """
    candidates: list[tuple[str, ...]] = [(label,) for label in relations]
    candidates += [tuple(relations)] if len(relations) > 1 else []
    classifier = settings.classifier()
    losses = [episode.loss(episode.logits(classifier, settings.offsets)) for episode in episodes]
    without = torch.stack(losses).mean().item()
    best: tuple[float, RelationUse] | None = None
    for labels, ridge in product(candidates, RIDGES):
        predicted = [predictions(episode, relations, labels, ridge) for episode in episodes]
        use, alone, loss = fit_relation_use(episodes, predicted, settings, RelationUse(labels, ridge))
        use = replace(use, blended=loss < without - LEAST_GAIN)
        value = loss + alone if use.blended else without + alone
        if best is None or value < best[0]:
            best = value, use
    assert best is not None
    return best[1]


def predictions(episode: HeldOutEpisode, relations: Mapping[str, KeptRelation], labels: Sequence[str], ridge: float) -> Tensor:
    """Return what relations predict [N, D] of the whitened means of the classes that act as new."""
    old, new = torch.tensor(episode.classes[: episode.old]), torch.tensor(episode.classes[episode.old :])
    known, asked = [], []
    for label in labels:
        matrix = relations[label].similarities
        matrix = matrix.index_select(1, old)
        rows = matrix.index_select(0, old)
        length = centred_length(rows)
        known.append((rows.to_dense() if rows.layout != torch.strided else rows) / length)
        part = matrix.index_select(0, new)
        asked.append((part.to_dense() if part.layout != torch.strided else part) / length)
    weights = mapped_weights(torch.cat(known, 1).double(), torch.cat(asked, 1).double(), ridge)
    return weights @ episode.whitened[1][: episode.old]


@one_thread()
def fit_relation_use(
    episodes: Sequence[HeldOutEpisode], predicted: Sequence[Tensor], settings: GaussianSettings, use: RelationUse
) -> tuple[RelationUse, float, float]:
    """Return the use with the best kappa and offset, its loss without examples, and its mean loss with examples."""
    values = torch.tensor([math.log(use.kappa), use.offset], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([values], max_iter=15, line_search_fn="strong_wolfe")
    firsts = {id(part): episode for episode, part in zip(episodes, predicted, strict=True) if episode.shots == 1}
    pairs = list(zip(episodes, predicted, strict=True))
    alone = [(episode, part) for episode, part in pairs if id(part) in firsts]
    classifier = settings.classifier()

    def losses() -> tuple[Tensor, Tensor]:
        kappa, offset = values[0].exp(), values[1]
        with_examples = [
            episode.loss(blended_logits(episode, part, classifier, kappa, offset, settings.offset(episode.shots)))
            for episode, part in pairs
        ]
        without = [
            episode.loss(blended_logits(episode, part, classifier, kappa, offset, settings.offset(0), alone=True))
            for episode, part in alone
        ]
        return torch.stack(without).mean(), torch.stack(with_examples).mean()

    def objective() -> Tensor:
        optimiser.zero_grad()
        total = torch.stack(losses()).sum() + PRIOR_WEIGHT * values.square().sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimiser.step(objective)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        without, with_examples = losses()
        kappa, offset = values[0].exp().item(), values[1].item()
    return replace(use, kappa=kappa, offset=offset), without.item(), with_examples.item()


def blended_logits(
    episode: HeldOutEpisode,
    predicted: Tensor,
    classifier: GaussianClassifier,
    kappa: Tensor,
    offset: Tensor,
    usual: float,
    alone: bool = False,
) -> Tensor:
    """Return the logits [Q, V] where relations predict the classes that act as new, with or without their examples.

    Args:
        episode: The episode.
        predicted: What relations predict [N, D].
        classifier: The classifier.
        kappa: By how many examples the prediction counts.
        offset: What is added to the logits of classes that relations alone place; less with more examples.
        usual: What is added to the logits of all classes that act as new.
        alone: Whether their examples are left out.

    """
    queries, means = episode.whitened
    old = episode.old
    counts = torch.cat([episode.counts[:old], 0 * episode.counts[old:] if alone else episode.counts[old:]])
    kappas = torch.cat([classifier.values[0].expand(old), kappa.expand(len(counts) - old)])
    shares = (counts / (counts + kappas))[:, None]
    new = shares[old:] * means[old:] + (1 - shares[old:]) * predicted
    prototypes = torch.cat([shares[:old] * means[:old], new])
    offsets = torch.cat([torch.zeros(old, dtype=torch.float64), usual + offset * (1 - shares[old:, 0])])
    weights, biases = classifier.linear(prototypes, counts + kappas, offsets)
    return queries @ weights.T + biases


def choose_limits(
    episodes: Sequence[HeldOutEpisode], settings: GaussianSettings, rate: float, scores: Tensor
) -> dict[int, float]:
    """Return the likeness that the given share of held-out images falls below, by the number of examples of their class.

    Those of fitted classes are the images with logits [Q, C] where all classes are fitted.
    """
    classifier = settings.classifier()
    largest: dict[int, list[Tensor]] = {}
    for episode in episodes:
        acts_new = episode.targets >= episode.old
        largest.setdefault(episode.shots, []).append(episode.logits(classifier, settings.offsets).max(1).values[acts_new])
    limits = {FITTED: false_alarm_threshold(scores.max(1).values, rate)}
    return limits | {shots: torch.cat(values).quantile(rate).item() for shots, values in largest.items()}
