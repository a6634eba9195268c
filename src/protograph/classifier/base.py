"""What every part of a classifier needs: its parameters, its state, and features of what it is given."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from protograph._internal.errors import InputError, unknown_name
from protograph._internal.progress import Progress, Silent
from protograph.classifier.gaussian_space import GaussianSpace
from protograph.classifier.inputs import as_array, as_images
from protograph.classifier.joint_space import JointSpace
from protograph.classifier.labels import Array
from protograph.classifier.prior import check_prior, prior_offsets
from protograph.classifier.segmented_file import Stored
from protograph.classifier.state import ChangeLock, State
from protograph.classifier.thumbnails import Examples, Thumbnails, count_bytes, make_thumbnails
from protograph.encoders import Encoder
from protograph.evaluation.unknown import check_rate
from protograph.variants import Variant

Update = Literal["all", "novel"]
UPDATES = ("all", "novel")
MOST_REFITTED = 300  # images up to which a classifier that began without a class fits anew at each change: in about a second
SMALLEST_FEATURE, LARGEST_FEATURE = 1e-15, 1e15  # squares of float32, and their sums, neither vanish nor overflow


class ClassifierBase(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The parameters and the state of a `Classifier`."""

    encoder_: Encoder | None
    _state: State  # all that changes with the classes: a reader takes it once, a change replaces it
    _changes: ChangeLock
    _done: list[str]  # what was changed since it was fitted or loaded
    _stored: Stored | None = None  # what the large file holds that it was loaded from or written into

    def __init__(
        self,
        encoder: Encoder | str | None = None,
        variant: str | Variant | None = None,
        update: Update = "all",
        unknown: float | None = None,
        unknown_label: Any = "unknown",
        prior: Any = "uniform",
        keep_features: bool = False,
        thumbnails: bool = False,
        refit_up_to: int = 0,
        shots: tuple[int, int] = (1, 5),
        copies: int | None = None,
        steps: int | None = None,
        learning_rate: float = 0.2,
        seed: int = 0,
    ) -> None:
        self.encoder = encoder
        self.variant = variant
        self.update = update
        self.unknown = unknown
        self.unknown_label = unknown_label
        self.prior = prior
        self.keep_features = keep_features
        self.thumbnails = thumbnails
        self.refit_up_to = refit_up_to
        self.shots = shots
        self.copies = copies
        self.steps = steps
        self.learning_rate = learning_rate
        self.seed = seed

    def check(self, names: Sequence[str] = ()) -> None:
        """Check the parameters, before hours are spent on training with them.

        Args:
            names: The classes it shall know, none of which may have the label of unknown images.

        Raises:
            InputError: A parameter is wrong, or a class has the label of unknown images.

        """
        if self.update not in UPDATES:
            raise unknown_name("update", self.update, UPDATES)
        if self.unknown is not None:
            check_rate(self.unknown)
        check_prior(self.prior)
        if not (is_whole(self.refit_up_to) and self.refit_up_to >= 0):
            raise InputError(f"refit_up_to must be a whole number from 0 on, not {self.refit_up_to!r}")
        if self.refit_up_to and not self.keep_features:
            raise InputError("refit_up_to would be ignored without keep_features: leave it out")
        if self.thumbnails and self.encoder is None:
            raise InputError("thumbnails are made of images, and this is a classifier of features: leave thumbnails out")
        if self.variant is None:
            self._check_gaussian()
        elif self.keep_features or self.refit_up_to:
            raise InputError("keep_features serves to refit the Gaussian model: leave it out, or the variant")
        shots = tuple(self.shots)
        if len(shots) != 2 or not all(is_whole(count) for count in shots) or not 1 <= shots[0] <= shots[1]:
            raise InputError(f"shots must be the fewest and the most examples of a class acting as new, not {self.shots}")
        for name, value in (("steps", self.steps), ("copies", self.copies)):
            if value is not None and not (is_whole(value) and value >= 0):
                raise InputError(f"{name} must be a whole number from 0 on, or None for the default, not {value!r}")
        if not (isinstance(self.learning_rate, int | float | np.number) and 0 < self.learning_rate < math.inf):
            raise InputError(f"the learning rate must be a positive number, not {self.learning_rate!r}")
        self._check_names(names)

    def _check_gaussian(self) -> None:
        """Raise an `InputError` if a parameter is set that only the training of a variant uses."""
        usual: dict[str, Any] = {"shots": (1, 5), "steps": None, "learning_rate": 0.2}
        if self.copies:
            raise InputError("copies belongs to the training of a variant: leave it out, or name one, such as gcgpn-aux")
        for name, value in usual.items():
            if getattr(self, name) != value:
                raise InputError(f"{name} belongs to the training of a variant: leave it out, or name one, such as gcgpn-aux")

    def _check_names(self, names: Sequence[str]) -> None:
        if self.unknown is not None and str(self.unknown_label) in names:
            raise InputError(
                f"a class is called '{self.unknown_label}', as unknown images are: rename it, or choose another unknown_label"
            )

    def _begin(self, state: State) -> Self:
        """Take a first state, and return the classifier."""
        self._changes, self._state, self._done = ChangeLock(), state, []
        return self

    def _change_to(self, state: State, what: str) -> None:
        """Take the state after a change, and note what was changed."""
        self._state = state
        self._done = [*self._done, what]

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_state")

    def _asked(self) -> State:
        """Return the state to answer by.

        Raises:
            InputError: It has no class yet.

        """
        if not self._state.labels:
            raise InputError("the classifier knows no class yet: add one first (add_class, `protograph add-class`)")
        return self._state

    @property
    def classes_(self) -> Array:
        """The labels of all classes, sorted."""
        return self._state.classes

    @property
    def order_(self) -> Array:
        """For each of `classes_`, its index in the joint space, whose fitted classes come first."""
        return self._state.order

    @property
    def kept_(self) -> Mapping[str, Tensor]:
        """The features of all images by class name, if they are kept."""
        return self._state.kept

    @property
    def thumbnail_bytes(self) -> int:
        """The size of all thumbnails that are kept."""
        return count_bytes(self._state.thumbnails)

    @property
    def space_(self) -> JointSpace | GaussianSpace:
        """The joint space of all classes."""
        return self._state.space

    @space_.setter
    def space_(self, space: JointSpace | GaussianSpace) -> None:
        self._state = self._state.replaced(space=space)

    @property
    def threshold_(self) -> float | None:
        """The calibrated threshold on likeness, or None."""
        return self._state.threshold

    @threshold_.setter
    def threshold_(self, threshold: float | None) -> None:
        self._state = self._state.replaced(threshold=threshold)

    @property
    def bias_(self) -> float:
        """What is added to the logits of added classes; other than 0 only in files of earlier versions."""
        return self._state.bias

    @bias_.setter
    def bias_(self, bias: float) -> None:
        self._state = self._state.replaced(bias=bias)

    @property
    def prototypes_(self) -> Array:
        """The updated prototypes [V, D], in the order of `classes_`."""
        state = self._state
        prototypes: Array = state.space.prototypes.numpy()[state.order]
        return prototypes

    def offsets(self) -> Tensor:
        """Return what prior and bias add to the logits [V], in the order of the joint space."""
        return self._offsets(self._state)

    def _offsets(self, state: State) -> Tensor:
        offsets = prior_offsets(self.prior, state.labels, state.space.seen)
        offsets[state.space.seen :] += state.bias
        return offsets

    def _named(self, best: Tensor, likeness: Tensor | None, state: State) -> Array:
        """Return the label [n] of images by the index of their best class [n] in the joint space, and their likeness [n].

        The likeness is needed where there is a threshold.
        """
        labels = state.labels_of(best.tolist())
        if state.threshold is None:
            return labels
        assert likeness is not None
        rejected = (likeness < state.threshold).tolist()
        mixed = [self.unknown_label if reject else label for label, reject in zip(labels.tolist(), rejected, strict=True)]
        same_kind = isinstance(self.unknown_label, str) == (labels.dtype.kind == "U")
        return np.array(mixed, None if same_kind and mixed else object)

    def _only_new(self) -> bool:
        if self.update not in UPDATES:
            raise unknown_name("update", self.update, UPDATES)
        return self.update == "novel"

    def _features(self, X: Any) -> Tensor:  # noqa: N803
        """Return the features [n, D] of images, or features as they are."""
        images = None if self.encoder_ is None else as_images(X)
        if images is not None:
            assert self.encoder_ is not None
            return self.encoder_.encode(images)
        features = as_tensor(validate_data(self, as_array(X), dtype=np.float32, reset=False))
        self._check_scale(features, smallest=0.0)
        return features

    def encode_examples(self, images: Any, progress: Progress | None = None) -> Examples:
        """Return images as examples of a class, which `add_class` and `add_examples` take; the classifier stays as it is.

        Args:
            images: Images, as in `fit`.
            progress: What shows how far it is.

        Raises:
            InputError: An image cannot be read, or the classifier is one of features.

        """
        check_is_fitted(self)
        given = None if self.encoder_ is None else as_images(images)
        if self.encoder_ is None or given is None:
            raise InputError("encode_examples takes images, and a classifier fitted on images")
        features = self.encoder_.encode(given, progress)
        return Examples(features, self._thumbnails(given, progress or Silent()))

    def _thumbnails(self, images: Sequence[Any], progress: Progress) -> Thumbnails:
        """Return a thumbnail of each image, or None for each if they are not kept."""
        return make_thumbnails(images, progress) if self.thumbnails else (None,) * len(images)

    def _examples(self, examples: Any) -> Examples:
        """Return the examples of a class, of which there may be none."""
        if isinstance(examples, Examples):
            return replace(examples, features=self._features(examples.features)) if len(examples) else examples
        if isinstance(examples, list | tuple | np.ndarray | Tensor) and not len(examples):
            return Examples(torch.zeros(0, self.n_features_in_), ())
        single = self._single(examples)
        if self.encoder_ is not None and as_images(single) is not None:
            return self.encode_examples(single)
        features = self._features(single)
        return Examples(features, (None,) * len(features))

    def _single(self, x: Any) -> Any:
        """Return one vector of features [D] as a table of one row; anything else as it is."""
        table = as_array(x)
        return table[None] if isinstance(table, np.ndarray) and table.ndim == 1 and table.dtype.kind == "f" else x

    def _check_scale(self, features: Tensor, smallest: float = SMALLEST_FEATURE) -> None:
        """Raise an `InputError` if a variant, which is trained in float32, would lose features [n, D] by their size."""
        most = features.abs().max().item() if features.numel() else 0.0
        if self.variant is not None and most and not smallest <= most <= LARGEST_FEATURE:
            raise InputError(
                f"the largest feature is {most:.3g}, and a variant takes {SMALLEST_FEATURE:g} to {LARGEST_FEATURE:g}: multiply "
                "all features by one number, or leave out the variant"
            )


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def as_tensor(table: Array) -> Tensor:
    """Return an array as a tensor, with the same memory where it may be written to."""
    return torch.from_numpy(np.require(table, requirements=["C", "W"]))  # copies only read-only arrays
