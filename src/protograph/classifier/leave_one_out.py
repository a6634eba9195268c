"""Examples of a classifier, each asked as if it had not been one.

Shapes: q images of one class, V classes, D features.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from protograph.classifier.gaussian_space import MOST_ITSELF, GaussianSpace
from protograph.classifier.joint_space import JointSpace
from protograph.nn.whitening import DIRECTIONS, LARGEST_EXACT, WithinSpread


def kept_examples(space: GaussianSpace | JointSpace, kept: Mapping[str, Tensor]) -> dict[int, Tensor]:
    """Return the examples [q, D] that can be left out, by the index of their class; those of a Gaussian space are aligned.

    These are the examples of added classes; of fitted classes, all where features are kept, else those given later.

    Args:
        space: The joint space.
        kept: The features of all images by class name, if they are kept.

    """
    examples = {}
    if isinstance(space, GaussianSpace):
        for row, name in enumerate(space.names[: space.seen]):
            if name in kept:
                examples[row] = space.whitening.aligned(kept[name])
            elif name in space.further:
                examples[row] = space.further[name]
    return examples | {space.seen + index: support for index, support in enumerate(space.support)}


def answers_without(
    space: GaussianSpace | JointSpace, examples: Mapping[int, Tensor], offsets: Tensor, only_new: bool
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield each class with the logits [q, V] and the likeness [q] of its examples, each asked as if it had not been one.

    Args:
        space: The joint space, which nobody else changes or asks at the same time.
        examples: The examples [q, D] by the index of their class, as `kept_examples` returns them.
        offsets: What prior and bias add to the logits [V].
        only_new: Whether a change of a class leaves all others as they are.

    """
    if isinstance(space, GaussianSpace):
        left_out = LeaveOneOut.of(space if only_new else in_all_directions(space, examples), only_new)
        for row, aligned in examples.items():
            scores = left_out.scores(row, aligned)
            yield row, space.settings.tempered(scores + offsets), left_out.likeness(row, scores)
        return
    for row, features in examples.items():
        answers = []
        for index in range(len(features)):
            without = _joint_without(space, row, index, only_new)
            answers.append((without.logits(features[[index]], offsets), without.likeness(features[[index]])))
        yield row, torch.cat([logits for logits, _ in answers]), torch.cat([likeness for _, likeness in answers])


def in_all_directions(space: GaussianSpace, examples: Mapping[int, Tensor]) -> GaussianSpace:
    """Return a space by all directions in which its examples spread, so that each can be left out of what tells of it in full.

    Args:
        space: The space, which keeps the strongest directions alone.
        examples: The aligned examples [q, D] that can be left out, by the index of their class.

    """
    if len(space.whitening.directions) < DIRECTIONS:
        return space
    fitted, parts = space.fitted, [examples[row][:count] for row, count in enumerate(space.fitted.counts) if row in examples]
    freedom = sum(len(part) - 1 for part in parts)
    if freedom == fitted.spread.freedom:  # the features of all fitted images were kept
        residuals = torch.cat([part - part.mean(0) for part in parts])
        fitted = replace(fitted, spread=WithinSpread.of(residuals, freedom, directions=LARGEST_EXACT))
    relations, related = space.relations, space.related
    return GaussianSpace(
        space.settings, fitted, space.names, relations, space.support, space.further, related, directions=LARGEST_EXACT
    )


def _joint_without(space: JointSpace, row: int, index: int, only_new: bool) -> JointSpace:
    """Return a trained variant's space without one example of an added class."""
    without = space.copied()
    without.remove_examples(space.names[row], [index], None, only_new)
    return without


@dataclass(frozen=True)
class LeaveOneOut:
    r"""A Gaussian space whose examples are left out one at a time, in closed form.

    An image with residual r in a class of n images leaves the scatter :math:`S - a r r^\top` and the mean
    :math:`m - r / (n - 1)`, where :math:`a = n / (n - 1)`. So products whitened without it follow from those with it,

    .. math:: x^\top M' y = x^\top M y + \frac{a \, (x^\top M r)(r^\top M y)}{1 - a \, r^\top M r}, \quad
              M = (S + \lambda \bar s I)^{-1}.

    The centre, the mean variance and the scale of the whitening stay as they are: one image of many changes them little.

    Attributes:
        space: The space.
        prototypes: The whitened prototypes [V, D], before the scale.
        precisions: The precision of each class [V].
        offsets: What is added to the logit of each class [V].
        limits: The limit on the likeness of each class [V].
        variance: The mean variance within classes; None where the whitening stays as it is.

    """

    space: GaussianSpace
    prototypes: Tensor
    precisions: Tensor
    offsets: Tensor
    limits: Tensor
    variance: float | None

    @classmethod
    def of(cls, space: GaussianSpace, only_own: bool = False) -> "LeaveOneOut":
        """Return the examples of a space, to be left out.

        Args:
            space: The space.
            only_own: Whether an example tells of its own class alone, and not of the whitening.

        """
        rows = range(len(space.names))
        precisions = torch.tensor([space.precision(row) for row in rows], dtype=torch.float64)
        variance = None
        if not only_own and space.whitening.freedom:
            spread = space.spread()
            variance = (spread.rows.double().square().sum().item() + spread.rest) / spread.rows.shape[1] or None
        return cls(space, space.scale * space.prototypes.double(), precisions, space.offsets(), space.limits(), variance)

    def scores(self, row: int, aligned: Tensor) -> Tensor:
        """Return the logits [q, V], with equal priors and before they are tempered, of aligned examples [q, D] of a class.

        The class has at least two examples.
        """
        space, count = self.space, self.space.examples(row)
        whitening, scale = space.whitening, space.scale
        queries = whitening.whiten(aligned.double())
        mean = scale * space.whitened_means([row])[0]
        residuals = queries - mean
        lengths, gain = residuals.square().sum(1), torch.zeros(len(queries), 1, dtype=torch.float64)
        if self.variance is not None:
            growth = count / (count - 1)
            share = (growth * lengths / self.variance).clamp(max=MOST_ITSELF)
            gain = (growth / self.variance / (1 - share))[:, None]
        own, precision = self._own(row, mean, residuals)
        along, products = residuals @ self.prototypes.T, queries @ self.prototypes.T
        squares = self.prototypes.square().sum(1).repeat(len(queries), 1)
        along[:, row], products[:, row] = (residuals * own).sum(1), (queries * own).sum(1)
        squares[:, row] = own.square().sum(1)
        query_along = (queries * residuals).sum(1, keepdim=True)
        norms = (queries.square().sum(1, keepdim=True) + gain * query_along.square()).sqrt().clamp(min=1e-12)
        cosines = (products + gain * query_along * along) / (norms * scale)
        squares = (squares + gain * along.square()) / scale**2
        precisions, offsets = self.precisions.clone(), self.offsets.clone()
        precisions[row] = precision
        offsets[row] = space.offset(row, count - 1)
        factors, biases = space.classifier.scores(squares, precisions)
        return self._sharpness(row) * (2 * cosines * factors + biases + offsets)

    def likeness(self, row: int, scores: Tensor) -> Tensor:
        """Return how like some class images [q] left out of a class are, from what `scores` returns."""
        limits = self.limits.clone()
        if row >= self.space.seen:
            limits[row] = self.space.limit(self.space.examples(row) - 1)
        return (scores / self._sharpness(row) + limits).max(1).values

    def _own(self, row: int, mean: Tensor, residuals: Tensor) -> tuple[Tensor, float]:
        """Return the whitened prototype [q, D] and the precision of a class without each of its images."""
        space, count = self.space, self.space.examples(row)
        precision = space.precision(row) - 1
        share = (count - 1) / precision
        own = share * (mean - residuals / (count - 1))
        if space.predicted(row):
            predicted = (self.prototypes[row] - space.own_share(row) * mean) / (1 - space.own_share(row))
            own = own + (1 - share) * predicted
        return own, precision

    def _sharpness(self, row: int) -> float:
        """Return by what logits are multiplied where a class has one example less."""
        added = [len(examples) for examples in self.space.support]
        if row >= self.space.seen:
            added[row - self.space.seen] -= 1
        return self.space.sharpness_with(added)
