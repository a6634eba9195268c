"""What a classifier's answers about labelled files are worth, and whether it was given these before."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from protograph._internal.progress import Progress
from protograph.classifier.gaussian_space import GaussianSpace
from protograph.classifier.inputs import LabelledFiles
from protograph.classifier.labels import parse_label
from protograph.classifier.leave_one_out import kept_examples
from protograph.classifier.measures import AnswerMeasures, count_examples, measure_answers

if TYPE_CHECKING:
    from protograph.classifier.estimator import Classifier


@dataclass(frozen=True)
class FileMeasures:
    """What a classifier's answers about labelled files are worth.

    Attributes:
        answers: Measures over the images of classes that it knows; None if there are none.
        strangers: The classes that it does not know.
        strangers_unknown: The share of unknown answers about images of these; None if there are none.
        examples: The number of images that are examples of the classifier, as far as it keeps their features.

    """

    answers: AnswerMeasures | None
    strangers: list[str]
    strangers_unknown: float | None
    examples: int


def measure_files(classifier: "Classifier", files: LabelledFiles, progress: Progress) -> FileMeasures:
    """Return the measures of a classifier's answers about labelled images or vectors."""
    labels = [parse_label(label, classifier.classes_) for label in files.labels]
    if files.features:
        features = torch.from_numpy(files.inputs)
    else:
        assert classifier.encoder_ is not None
        features = classifier.encoder_.encode(files.inputs, progress)
    predictions = classifier.predictions(features)
    known = set(classifier.classes_.tolist())
    rows = [row for row, label in enumerate(labels) if label in known]
    others = [row for row in range(len(labels)) if labels[row] not in known]
    answers = None
    if rows:
        answers = measure_answers(
            [labels[row] for row in rows],
            predictions.labels[rows].tolist(),
            predictions.probabilities[rows],
            classifier.classes_.tolist(),
            classifier.unknown_label,
        )
    unknown = [bool(predictions.labels[row] == classifier.unknown_label) for row in others]
    return FileMeasures(
        answers,
        sorted({str(labels[row]) for row in others}),
        float(np.mean(unknown)) if unknown else None,
        count_own_examples(classifier, features, labels),
    )


def count_own_examples(classifier: "Classifier", features: Tensor, labels: Sequence[Any]) -> int:
    """Return how many labelled images are examples of a classifier, as far as it keeps these: those of added classes always."""
    space = classifier.space_
    examples = {space.names[row]: part for row, part in kept_examples(space, classifier.kept_).items()}
    asked = space.whitening.aligned(features) if isinstance(space, GaussianSpace) else features
    return count_examples(asked, [str(label) for label in labels], examples)
