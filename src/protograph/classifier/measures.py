"""What a classifier's answers about labelled images are worth.

Shapes: n images, V classes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protograph.classifier.labels import Array

BINS = 10  # of confidence
SAME = 1e-3  # distance of the features of one image, encoded twice, as a share of their length; of two images it is far larger


@dataclass(frozen=True)
class ReliabilityBin:
    """Images whose probability of the answer lies in one interval.

    Attributes:
        images: Their number.
        confidence: The mean probability of their answers.
        accuracy: The share of right answers.

    """

    images: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class AnswerMeasures:
    """Measures of answers.

    Attributes:
        images: The number of images.
        joint: The mean over the asked classes of the share of right answers.
        by_class: The number of images and the share of right answers, by class.
        confusions: The most frequent wrong answers: class, answer, number of images.
        unknown: The share of images answered as unknown.
        calibration_error: The mean distance of confidence and accuracy over the bins, weighted by their images.
        reliability: The bins with images, by confidence.

    """

    images: int
    joint: float
    by_class: dict[Any, tuple[int, float]]
    confusions: list[tuple[Any, Any, int]]
    unknown: float
    calibration_error: float
    reliability: list[ReliabilityBin]


def measure_answers(
    labels: Sequence[Any],
    answers: Sequence[Any],
    probabilities: Array,
    classes: Sequence[Any],
    unknown_label: Any,
    most: int = 10,
) -> AnswerMeasures:
    """Return the measures of answers.

    Args:
        labels: The class of each image [n].
        answers: The answer about each [n], or `unknown_label`, which is wrong.
        probabilities: The probability [n, V] of every class.
        classes: The V classes.
        unknown_label: The answer for unknown images.
        most: The number of confusions.

    """
    right = np.array([label == answer for label, answer in zip(labels, answers, strict=True)])
    by_class = {}
    for name in dict.fromkeys(labels):
        chosen = np.array([label == name for label in labels])
        by_class[name] = int(chosen.sum()), float(right[chosen].mean())
    wrong = Counter((label, answer) for label, answer in zip(labels, answers, strict=True) if label != answer)
    confidence, best = probabilities.max(1), probabilities.argmax(1)
    likeliest = np.array([classes[index] == label for index, label in zip(best.tolist(), labels, strict=True)])
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    reliability = [
        ReliabilityBin(int(inside.sum()), float(confidence[inside].mean()), float(likeliest[inside].mean()))
        for inside in (bins == index for index in range(BINS))
        if inside.any()
    ]
    error = sum(part.images * abs(part.confidence - part.accuracy) for part in reliability) / len(right)
    return AnswerMeasures(
        len(right),
        float(np.mean([share for _, share in by_class.values()])),
        by_class,
        [(label, answer, count) for (label, answer), count in wrong.most_common(most)],
        float(np.mean([answer == unknown_label for answer in answers])),
        error,
        reliability,
    )


def count_examples(features: Tensor, names: Sequence[str], examples: Mapping[str, Tensor]) -> int:
    """Return how many labelled images are examples of their class, by their features.

    Args:
        features: The features [n, D] of the images.
        names: The class of each.
        examples: The features [K, D] of the examples of each class, of those that are known.

    """
    count = 0
    for name in {*names} & examples.keys():
        asked = features[[row for row, other in enumerate(names) if other == name]].double()
        if len(examples[name]):
            nearest = torch.cdist(asked, examples[name].double(), compute_mode="donot_use_mm_for_euclid_dist").min(1).values
            count += int((nearest <= SAME * asked.norm(dim=1)).sum())
    return count
