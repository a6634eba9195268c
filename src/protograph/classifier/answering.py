"""What a classifier answers."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from protograph._internal.errors import InputError
from protograph._internal.progress import Progress, Silent
from protograph.classifier.base import ClassifierBase, is_whole
from protograph.classifier.checking import ExampleCheck, check_examples
from protograph.classifier.explanation import Heatmap, Nearest, draw_up_heatmap, explain, relation_share
from protograph.classifier.inputs import as_array, as_images
from protograph.classifier.labels import Array, as_label
from protograph.classifier.relating import ClassMap, Suggestion, class_map, suggest_relations
from protograph.evaluation.unknown import auroc


@dataclass(frozen=True)
class Predictions:
    """All that a classifier says of n images.

    Attributes:
        labels: The label [n] of each image, or `unknown_label`.
        probabilities: The probability [n, V] of every class, in the order of `classes_`.
        likeness: How like some class each image is [n], which `threshold_` is compared with.
        classes: The labels of all classes [V], sorted, as they were when this was predicted.

    """

    labels: Array
    probabilities: Array
    likeness: Array
    classes: Array


@dataclass(frozen=True)
class TopPredictions:
    """The most probable classes of n images.

    Attributes:
        labels: The label [n] of each image, or `unknown_label`.
        nearest: The labels [n, k] of its most probable classes, the most probable first.
        probabilities: Their probabilities [n, k] among all classes.
        likeness: How like some class each image is [n], which `threshold_` is compared with.

    """

    labels: Array
    nearest: Array
    probabilities: Array
    likeness: Array


class Answering(ClassifierBase):
    """The methods of a `Classifier` that change nothing: answers, and the reasons for them."""

    def check_examples(self, progress: Progress | None = None) -> ExampleCheck:
        """Return whether it was taught enough: each kept image is asked as if it had not been an example.

        Images of added classes are always kept, as features; those of fitted classes with `keep_features=True`. Nothing is
        fitted anew: the image's part in the class mean, the whitening and the number of examples is taken away in closed form.
        With a variant, all prototypes are updated without it.

        Args:
            progress: What shows how far the check is.

        """
        check_is_fitted(self)
        state = self._state
        return check_examples(
            state,
            self._offsets(state),
            lambda best, likeness: self._named(best, likeness, state),
            self.unknown_label,
            self._only_new(),
            progress or Silent(),
        )

    def predict(self, X: Any, index: bool = False) -> Array:  # noqa: N803
        """Return the label [n] of each image, or `unknown_label` where its likeness to every class is below the threshold.

        Args:
            X: Images or features [n, D], as in `fit`.
            index: Whether an index names the classes that an image is compared with, which misses the best one at times. It
                takes usearch (`protograph[ann]`), and is made when it is first used.

        """
        check_is_fitted(self)
        features, state = self._features(X), self._asked()
        if index:
            best = state.space.best_indexed(features, self._offsets(state))
            return self._named(best.classes[:, 0], best.likeness, state)
        best = state.space.best(features, self._offsets(state), like=state.threshold is not None)
        return self._named(best.classes[:, 0], best.likeness, state)

    def top(self, X: Any, count: int = 5, index: bool = False) -> TopPredictions:  # noqa: N803
        """Return the most probable classes of images, without holding what is said of all others.

        Args:
            X: Images or features [n, D], as in `fit`.
            count: The number of classes, of which there may be fewer.
            index: As for `predict`. Probabilities are then among the classes that the index names.

        """
        check_is_fitted(self)
        if not (is_whole(count) and count > 0):
            raise InputError(f"the number of classes to name must be a positive whole number, not {count!r}")
        features, state = self._features(X), self._asked()
        if index:
            best = state.space.best_indexed(features, self._offsets(state), int(count))
        else:
            best = state.space.best(features, self._offsets(state), int(count), probable=True, like=True)
        assert best.total is not None
        assert best.likeness is not None
        nearest = state.labels_of(best.classes.flatten().tolist()).reshape(best.classes.shape)
        probabilities = (best.logits.double() - best.total[:, None]).exp()
        labels = self._named(best.classes[:, 0], best.likeness, state)
        return TopPredictions(labels, nearest, probabilities.numpy(), best.likeness.numpy())

    def index_recall(self, X: Any) -> float:  # noqa: N803
        """Return the share of images for which the index finds the class that comparing with all finds.

        Args:
            X: Images or features [n, D], as in `fit`; a sample of those that are asked about.

        """
        check_is_fitted(self)
        features, state = self._features(X), self._asked()
        exact, found = (ask(features, self._offsets(state)).classes for ask in (state.space.best, state.space.best_indexed))
        return (exact[:, 0] == found[:, 0]).double().mean().item()

    def predictions(self, X: Any) -> Predictions:  # noqa: N803
        """Return labels, probabilities and likeness of images, computed in one pass.

        Args:
            X: Images or features [n, D], as in `fit`.

        """
        check_is_fitted(self)
        features, state = self._features(X), self._asked()
        logits, likeness = state.space.logits(features, self._offsets(state)), state.space.likeness(features)
        probabilities = logits.softmax(1).numpy()[:, state.order]
        labels = self._named(logits.argmax(1), likeness, state)
        return Predictions(labels, probabilities, likeness.numpy(), state.classes)

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """Return the probability [n, V] of every class, in the order of `classes_`. "unknown" has none."""
        check_is_fitted(self)
        features, state = self._features(X), self._asked()
        probabilities: Array = state.space.logits(features, self._offsets(state)).softmax(1).numpy()[:, state.order]
        return probabilities

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """Return the weighted share of right answers. "unknown" counts as wrong unless the image is labelled so."""
        right = [answer == label for answer, label in zip(self.predict(X).tolist(), as_array(y), strict=True)]
        return float(np.average(right, weights=sample_weight))

    def decision_function(self, X: Any) -> Array:  # noqa: N803
        """Return logits [n, V]; for two classes, as in scikit-learn, those of the second less those of the first [n]."""
        check_is_fitted(self)
        features, state = self._features(X), self._asked()
        logits: Array = state.space.logits(features, self._offsets(state)).numpy()[:, state.order]
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def explain(self, x: Any, top: int = 5) -> list[Nearest]:
        """Return the prototypes nearest to one image, with the contributions of their own examples and of related classes.

        Args:
            x: One image, or its features [D].
            top: The number of prototypes.

        """
        check_is_fitted(self)
        features = self._features(self._single(x))
        if len(features) != 1:
            raise InputError(f"explain takes one image at a time, not {len(features)}")
        state = self._asked()
        return explain(state.space, features[0], self._offsets(state), top)

    def heatmap(self, x: Any, name: Any = None, against: Any = None) -> Heatmap:
        """Return which parts of an image speak for a class.

        Args:
            x: One image.
            name: The class; by default the most probable one.
            against: The class that it is compared with; by default the mean of all others.

        Raises:
            InputError: The classifier or the image is one of features, there is no such class, or the encoder's features do
                not add up over positions.

        """
        check_is_fitted(self)
        images = None if self.encoder_ is None else as_images(x)
        if self.encoder_ is None or images is None:
            raise InputError("there is no heatmap of features: it takes an image, and a classifier fitted on images")
        if len(images) != 1:
            raise InputError(f"heatmap takes one image at a time, not {len(images)}")
        state = self._asked()
        names = (None if label is None else str(as_label(label, state.sample)) for label in (name, against))
        return draw_up_heatmap(state.space, self.encoder_, images[0], self._offsets(state), *names)

    def thumbnails_of(self, name: Any) -> list[bytes | None]:
        """Return the thumbnails of a class's examples, in their order: JPEG, or None where an example has none.

        Args:
            name: The label of the class.

        """
        check_is_fitted(self)
        state = self._state
        row = state.space.index(str(as_label(name, state.sample)))
        return list(state.thumbnails.get(state.space.names[row], (None,) * (state.space.examples(row) or 0)))

    def suggest_relations(self, name: Any, top: int = 8) -> list[Suggestion]:
        """Return the classes that a class is likely to be similar to, the most similar first: (label, similarity, source).

        The sources of the classifier's relations say so, else WordNet if it is installed. Where none knows the class, its
        prototype is compared with the others.

        Args:
            name: The label of a class, or of one to come, which has no prototype.
            top: The largest number of classes.

        """
        check_is_fitted(self)
        state = self._state
        return suggest_relations(state, str(as_label(name, state.sample)), top)

    def class_map(self) -> ClassMap:
        """Return a map of all classes in two dimensions, with lines between related ones."""
        check_is_fitted(self)
        return class_map(self._state)

    def relation_share(self, name: Any) -> float:
        """Return the share of a class's prototype, from 0 to 1, that relations bring from other classes, had it come last.

        It is a share of lengths: at 1 %, relations change no image's cosine to the prototype by more than about 0.01. A fitted
        class acts as new with its learned prototype as its example. The number of examples hardly matters; without any,
        relations bring all.
        """
        check_is_fitted(self)
        state = self._state
        return relation_share(state.space, state.space.index(str(as_label(name, state.sample))))

    def unknown_score(self, X: Any) -> Array:  # noqa: N803
        """Return how like some class each image [n] is, which `threshold_` is compared with.

        It is the largest logit, whatever the prior, and with a variant the largest cosine to a prototype.
        """
        check_is_fitted(self)
        features, state = self._features(X), self._asked()
        scores: Array = state.space.likeness(features).numpy()
        return scores

    def auroc(self, known: Any, unknown: Any) -> float:
        """Return the chance that an image of a known class is more like some class than an image of an unknown class."""
        scores = (torch.from_numpy(self.unknown_score(images)) for images in (known, unknown))
        return auroc(*scores).item()
