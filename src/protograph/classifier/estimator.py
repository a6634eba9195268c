"""The classifier that users keep: fit it once, add classes later, predict, save it in one file."""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from protograph._internal.errors import InputError, unknown_name
from protograph._internal.progress import Progress, Silent
from protograph.classifier.checking import ExampleCheck, check_examples
from protograph.classifier.explanation import Heatmap, Nearest, draw_up_heatmap, explain, relation_share
from protograph.classifier.fitting import (
    Fit,
    choose_variant,
    fitting_recipe,
    hold_out_share,
    open_run,
    run_relations,
)
from protograph.classifier.gaussian_fitting import empty_space, enough_to_choose, fit_space
from protograph.classifier.gaussian_space import FITTED, GaussianSpace
from protograph.classifier.inputs import as_array, as_images, encode_files
from protograph.classifier.joint_space import JointSpace
from protograph.classifier.labels import Array, as_label, check_labels
from protograph.classifier.model_file import Contents, locked, read_model, variant_from, write_model
from protograph.classifier.prior import check_prior, prior_offsets
from protograph.classifier.state import ChangeLock, State
from protograph.data import Dataset, FeatureStore
from protograph.data.kept_split import with_kept_split
from protograph.encoders import Encoder, open_encoder, usual_copies
from protograph.evaluation.metrics import EvaluationSizes, choose_bias, extract
from protograph.evaluation.unknown import auroc, check_rate, false_alarm_threshold
from protograph.nn.backbones import Centred
from protograph.relations import ClassHint, KeptRelation, keep_relations, parse_hints
from protograph.training.run_folder import Run
from protograph.variants import Variant, find_variant

Update = Literal["all", "novel"]
UPDATES = ("all", "novel")
MOST_REFITTED = 300  # images up to which a classifier that began without a class fits anew at each change: in about a second
SMALLEST_FEATURE, LARGEST_FEATURE = 1e-15, 1e15  # squares of float32, and their sums, neither vanish nor overflow


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


class Classifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that learns new classes from a few examples, without training, beside all it knows.

    By default the classes are Gaussians in features that are whitened by the covariance within classes. A class from few
    examples is less certain than one from many, and its logits say so; relations say where it is to be expected. What there is
    to choose is chosen on held-out images and classes of the training data. With a `variant`, fitting learns a prototype for
    every class, and how related prototypes help one another, on simulated episodes in which some classes act as new; the graph
    of all classes then updates all prototypes whenever a class is added.

    Args:
        encoder: None where X holds feature vectors [n, D]. Otherwise what makes features of images: an `Encoder`, or its
            name, such as "efficientnet-lite0". X then holds paths, PIL images, uint8 arrays [H, W] or [H, W, 3], or tensors
            [C, H, W]; a table of floats is still taken as features.
        variant: None for the Gaussian model. Otherwise a model of the paper's kind, by name: one with the cosine classifier,
            trained for the joint label space in one stage, such as gcgpn-aux or gcgpn-cos-aux.
        update: "all": adding or removing a class updates all prototypes, as in the paper; in the Gaussian model its examples
            also sharpen the whitening. "novel": all other prototypes stay exactly as they are; then the order in which
            classes are added matters.
        unknown: A false-alarm rate, such as 0.05. `predict` answers `unknown_label` for images less like any prototype than
            this share of held-out images. In the Gaussian model the limit depends on the number of a class's examples, so that
            the share is the same for classes from one example and from many.
        unknown_label: The answer for such images.
        prior: How likely the classes are. "uniform": all are equally likely. "half": half of the images are of added classes.
            Or a number per class, {label: number}, of which only the ratios count; a class not named counts 1. With a variant,
            "uniform" leaves the logits as its episodes trained them, and a prior moves them as it does in the Gaussian model.
        keep_features: Whether the features of all images are kept, so that `refit` can fit anew.
        refit_up_to: With kept features, up to so many images a change fits anew by itself, where `update` is "all". All
            classes then count as fitted, as if all their images had been there from the start.
        balance: With a variant, whether one bias weighs added classes against seen ones. It is chosen with a model that is
            fitted first without a fifth of the classes, which are new to it. Where other numbers of classes are added, a
            `prior` serves better, and needs no second fit.
        shots: With a variant, the fewest and the most examples of a class acting as new.
        copies: With a variant, the number of augmented copies of each image to train on, where there is an encoder. The
            default is 4 for networks of this package, and 0 for those trained on more images, which copies do not help.
        steps: With a variant, the number of training steps. The default is twice the number of classes, from 50 to 300: with
            fewer classes, long training hurts new classes sooner.
        learning_rate: With a variant, the learning rate of the training.
        seed: The seed of everything that is drawn.

    Attributes:
        classes_: The labels of all classes, sorted.
        prototypes_: The prototypes [V, D] of these classes.
        threshold_: The calibrated threshold on likeness, or None.
        bias_: The calibrated bias on added classes, or 0.
        kept_: The features of all images by class name, if they are kept.
        order_: For each of `classes_`, its index in the joint space, whose fitted classes come first.

    Examples:
        >>> import numpy as np
        >>> from protograph import Classifier
        >>> animals = Classifier().fit(np.eye(4), ["cat", "cat", "dog", "dog"])
        >>> animals = animals.add_class("owl", [[1.0, 0.0, -2.0, -2.0]])
        >>> animals.predict([[1.0, 0.0, -1.0, -3.0], [0.0, 0.0, 1.0, 0.0]]).tolist()
        ['owl', 'dog']

    """

    encoder_: Encoder | None
    _state: State  # all that changes with the classes: a reader takes it once, a change replaces it
    _changes: ChangeLock

    def __init__(
        self,
        encoder: Encoder | str | None = None,
        variant: str | Variant | None = None,
        update: Update = "all",
        unknown: float | None = None,
        unknown_label: Any = "unknown",
        prior: Any = "uniform",
        keep_features: bool = False,
        refit_up_to: int = 0,
        balance: bool = False,
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
        self.refit_up_to = refit_up_to
        self.balance = balance
        self.shots = shots
        self.copies = copies
        self.steps = steps
        self.learning_rate = learning_rate
        self.seed = seed

    def fit(self, X: Any, y: Any, relations: Any = None, progress: Progress | None = None) -> Self:  # noqa: N803
        """Learn classes from examples and return the classifier.

        Args:
            X: Images or features [n, D].
            y: The label [n] of each.
            relations: How the classes relate: a name from the command line ("wordnet", "attributes:FILE"), a `Relation`,
                similarities [V, V] in the order of the sorted labels, or similarities by pair ({(a, b): s} or {a: {b: s}};
                other pairs have no edge). Several relations are a list, or a dict by label. A class that a source does not
                know is unrelated, with a warning.
            progress: What shows how far the fitting is.

        Raises:
            InputError: A parameter, the examples or the relations are wrong.

        """
        progress = progress or Silent()
        self.check()
        self.encoder_ = open_encoder(self.encoder) if isinstance(self.encoder, str) else self.encoder
        features, copies, labels = self._training_set(X, y, progress)
        classes, targets = np.unique(labels, return_inverse=True)
        names = [str(label) for label in classes]
        self._check_names(names)
        kept = keep_relations(relations, names)
        rows: dict[int, list[int]] = {class_id: [] for class_id in range(len(names))}
        for row, class_id in enumerate(targets.tolist()):
            rows[class_id].append(row)
        space: JointSpace | GaussianSpace
        if self.variant is None:
            space, bias = fit_space(features, rows, names, kept, self.unknown, self.seed, progress), 0.0
            threshold = None if self.unknown is None else space.settings.limits[FITTED]
        else:
            space, bias, threshold = self._fit_variant(self.variant, features, copies, rows, names, kept, progress)
        images = {name: features[rows[class_id]] for class_id, name in enumerate(names)} if self.keep_features else {}
        return self._begin(State.of(space, list(classes), classes.dtype.str, images, threshold, bias))

    def refit(self, progress: Progress | None = None) -> Self:
        """Fit anew on the features that are kept, those of added classes among them, and return the classifier.

        Added classes then count as fitted, except those without examples. It takes a classifier fitted with
        `keep_features=True`.

        Args:
            progress: What shows how far the fitting is.

        Raises:
            InputError: No features are kept.

        """
        check_is_fitted(self)
        with self._changes.held:
            state = self._state
            if not state.kept or not all_features_kept(state):
                raise InputError(
                    "the features of its images were not kept: fit with keep_features=True (`fit --keep-features`)"
                )
            self._state = self._refitted(state, self.unknown, progress or Silent())
        return self

    def _refitted(self, state: State, rate: float | None, progress: Progress) -> State:
        """Return the state fitted anew on its kept features, to answer a share of images as unknown."""
        space, kept = state.space, state.kept
        order = [row for row in state.order.tolist() if space.names[row] in kept]
        order += [row for row in range(len(state.labels)) if space.names[row] not in kept]
        names, labels = [space.names[row] for row in order], [state.labels[row] for row in order]
        fitted = [name for name in names if name in kept]
        features = torch.cat([kept[name] for name in fitted])
        ends = torch.tensor([0, *(len(kept[name]) for name in fitted)]).cumsum(0).tolist()
        rows = {index: list(range(begin, end)) for index, (begin, end) in enumerate(pairwise(ends))}
        relations = {label: relation.reordered(order) for label, relation in space.relations.items()}
        space = fit_space(features, rows, names, relations, rate, self.seed, progress)
        threshold = None if rate is None else space.settings.limits[FITTED]
        return State.of(space, labels, state.in_space.dtype.str, kept, threshold)

    def _settled(self, state: State) -> State:
        """Return the state after a change: fitted anew where there are few enough images for that."""
        if not self.refit_up_to or self._only_new():
            return state
        counts = [len(features) for features in state.kept.values()]
        if not counts or sum(counts) > self.refit_up_to or not all_features_kept(state):
            return state
        return self._refitted(state, self.unknown if enough_to_choose(counts) else None, Silent())

    def _begin(self, state: State) -> Self:
        """Take a first state, and return the classifier."""
        self._changes, self._state = ChangeLock(), state
        return self

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
        """The calibrated bias on added classes, or 0."""
        return self._state.bias

    @bias_.setter
    def bias_(self, bias: float) -> None:
        self._state = self._state.replaced(bias=bias)

    def _fit_variant(
        self,
        named: str | Variant,
        features: Tensor,
        copies: Tensor | None,
        rows: dict[int, list[int]],
        names: Sequence[str],
        kept: Mapping[str, KeptRelation],
        progress: Progress,
    ) -> tuple[JointSpace, float, float | None]:
        """Train a variant on features [n, D] with copies [n, R, D], by class, and return its space, bias and threshold."""
        recipe = fitting_recipe(len(names), self.steps, self.learning_rate)
        variant = choose_variant(named, bool(kept))
        held_out: dict[int, list[int]] = {}
        if self.unknown is not None:
            rows, held_out = hold_out_share(rows, self.seed)
        similarities = {label: relation.similarities for label, relation in kept.items()}
        shots = cast(tuple[int, int], tuple(self.shots))
        fit, store = Fit(variant, similarities, recipe, self.steps != 0, shots, self.seed), FeatureStore(features, copies)
        bias = fit.bias(store, rows, progress) if self.balance else 0.0
        space = JointSpace(fit.model(store, rows, progress), variant, names, kept)
        return space, bias, self._threshold(space, features[[row for images in held_out.values() for row in images]])

    @classmethod
    def empty(
        cls,
        encoder: Encoder | str | None = None,
        features: int | None = None,
        relations: Any = None,
        keep_features: bool = True,
        refit_up_to: int | None = None,
        **parameters: Any,
    ) -> Self:
        """Return a classifier without a class yet: `add_class` teaches it the first ones.

        Its features are kept, and while there are few images, each change fits anew. So it ends as if it had been fitted on
        all images at once. Without kept features, it whitens by what the added classes tell, and centres nothing.

        Args:
            encoder: As for the classifier.
            features: The number of features D, where there is no encoder.
            relations: Relations that are asked by name about each class to come, such as "wordnet".
            keep_features: As for the classifier.
            refit_up_to: As for the classifier; by default 300 where features are kept.
            parameters: Further parameters of the classifier.

        Raises:
            InputError: A parameter is wrong, or neither an encoder nor a number of features is given.

        """
        if refit_up_to is None:
            refit_up_to = MOST_REFITTED if keep_features else 0
        classifier = cls(encoder, keep_features=keep_features, refit_up_to=refit_up_to, **parameters)
        classifier.check()
        if classifier.variant is not None:
            raise InputError(f"variant '{classifier.variant}' is trained on classes: leave it out to begin without any")
        classifier.encoder_ = open_encoder(encoder) if isinstance(encoder, str) else encoder
        if (classifier.encoder_ is None) == (features is None):
            raise InputError("give an encoder, or the number of features where there is none")
        if features is not None and not (_is_whole(features) and features > 0):
            raise InputError(f"the number of features must be a positive whole number, not {features!r}")
        count = int(features) if features is not None else cast(Encoder, classifier.encoder_).features
        classifier.n_features_in_ = count
        space = empty_space(count, keep_relations(relations, []))
        return classifier._begin(State.of(space, [], "<U1", {}, None))

    @classmethod
    def from_run(cls, run: Run | Path | str, dataset: Dataset, progress: Progress | None = None, **parameters: Any) -> Self:
        """Return the classifier of a trained run, with its prototypes, graph block, backbone and relations.

        It answers as `evaluate` measures the run. Its classes are the dataset's seen ones.

        Args:
            run: The run, or its folder.
            dataset: The dataset it was trained on.
            progress: What shows how far the calibration is.
            parameters: Parameters of the classifier. `unknown` and `balance` are calibrated on the dataset's validation
                images and classes.

        Raises:
            InputError: The run has no cosine classifier, or belongs to another dataset.

        """
        run = run if isinstance(run, Run) else Run.open(Path(run))
        dataset = with_kept_split(dataset, run.folder, run.config.fingerprint, progress or Silent())
        config, names = run.config, dataset.classes[: dataset.seen]
        classifier = cls(variant=config.variant, shots=(config.shots, config.shots), seed=config.seed, **parameters)
        classifier.check(names)
        model, classifier.encoder_ = open_run(run, dataset)
        classifier.encoder = classifier.encoder_
        recipe = config.recipe
        sizes = EvaluationSizes(config.shots, recipe.ways, recipe.test_queries, recipe.validation_episodes)
        bias = choose_bias(model, dataset, sizes, progress) if classifier.balance else 0.0
        held_out, rows = torch.zeros(0, model.prototypes.shape[1]), dataset.seen_validation.all_images()
        if isinstance(dataset.store, FeatureStore):
            held_out = dataset.store.features[rows]  # which the model's own backbone centres
        else:
            if classifier.unknown is not None:
                held_out = extract(model, dataset.store, rows, progress)
            model.backbone = Centred(torch.zeros(held_out.shape[1]))
        classifier.n_features_in_ = held_out.shape[1]
        space = JointSpace(model, find_variant(config.variant), names, run_relations(run, dataset))
        threshold = classifier._threshold(space, held_out)
        return classifier._begin(State.of(space, list(names), np.array(names).dtype.str, {}, threshold, bias))

    def add_class(self, name: Any, examples: Any = (), relations: Any = None) -> Self:
        """Add a class from its examples, without training, and return the classifier.

        Args:
            name: The label of the class.
            examples: Images or features [K, D]. Without any, relations alone make the prototype.
            relations: Similarities to other classes ({class: s}, the same in both directions), a name or text by which the
                relation's source knows the class, or its attributes as a vector; for several relations, a dict of these by
                label. By default the source is asked for the class's name. A pair with no known similarity has no edge or, in
                a dense relation, the lowest similarity of two seen classes. A class that the source does not know causes a
                warning.

        Raises:
            InputError: The class exists, or nothing is known of it.

        """
        return self.add_classes({name: examples}, {name: relations})

    def add_classes(self, examples: Mapping[Any, Any], relations: Mapping[Any, Any] | None = None) -> Self:
        """Add classes from their examples with one update for all, and return the classifier; after an error none is added.

        Args:
            examples: Images or features [K, D] by label; they may be empty where relations say enough.
            relations: What is known of a class by label, as in `add_class`.

        Raises:
            InputError: A class exists, or nothing is known of it.

        """
        check_is_fitted(self)
        relations = relations or {}
        labels = {name: as_label(name, self.classes_) for name in examples}
        self._check_names([str(label) for label in labels.values()])
        features = {str(labels[name]): self._examples(given) for name, given in examples.items()}
        with self._changes.held:
            state = self._state
            hints = {str(labels[name]): self._hints(relations.get(name)) for name in examples}
            space = state.copy_space()
            space.add_all(features, hints, self._only_new())
            kept = self._with_features(state.kept, features)
            self._state = self._settled(state.changed(space, [*state.labels, *labels.values()], kept))
        return self

    def add_examples(self, name: Any, examples: Any) -> Self:
        """Add examples to a class, fitted or added, without training, and return the classifier.

        Args:
            name: The label of the class.
            examples: Images or features [K, D].

        Raises:
            InputError: There is no such class, or it was learned by training a variant.

        """
        check_is_fitted(self)
        label = str(as_label(name, self.classes_))
        self.space_.index(label)
        features = self._examples(examples)
        if not len(features):
            raise InputError(f"no examples are given for class '{name}': give at least one")
        with self._changes.held:
            state = self._state
            space = state.copy_space()
            space.add_examples(label, features, self._only_new())
            kept = self._with_features(state.kept, {label: features})
            self._state = self._settled(state.changed(space, state.labels, kept))
        return self

    def add_held_out(self, dataset: Dataset, root: Path, progress: Progress | None = None) -> Self:
        """Add the novel classes of a dataset of image files from all their images.

        Args:
            dataset: The dataset of the run that the classifier was made from.
            root: The folder of its files.
            progress: What shows how far the encoding is.

        """
        check_is_fitted(self)
        if self.encoder_ is None or dataset.images is None:
            raise InputError(f"dataset '{dataset.name}' has no image files to add classes from: use add_class")
        for pool in (dataset.novel_validation, dataset.novel_test):
            for class_id, rows in zip(pool.classes.tolist(), pool.by_class(), strict=True):
                files = [root / dataset.images.names[row] for row in rows.tolist()]
                self.add_class(dataset.classes[class_id], self.encoder_.encode(files, progress))
        return self

    def encode_files(
        self, files: Sequence[Path], skip_bad: bool = False, progress: Progress | None = None, recursive: bool = False
    ) -> tuple[list[str], Tensor]:
        """Return the names of images, or of vectors, and their features [n, D].

        Args:
            files: Images and folders of images; files of features where the classifier was fitted on features.
            skip_bad: Whether images that cannot be read are left out instead of refused.
            progress: What shows how far the encoding is.
            recursive: Whether images are also taken from the folders in a folder, such as class folders.

        Raises:
            InputError: A file cannot be read, or its vectors have another length than the fitted ones.

        """
        check_is_fitted(self)
        return encode_files(files, self.encoder_, self.n_features_in_, skip_bad, progress or Silent(), recursive)

    def remove_class(self, name: Any) -> Self:
        """Remove a class, fitted or added, and return the classifier."""
        check_is_fitted(self)
        name = str(as_label(name, self.classes_))
        with self._changes.held:
            state = self._state
            index, space = state.space.index(name), state.copy_space()
            space.remove(name, self._only_new())
            kept = {other: features for other, features in state.kept.items() if other != name}
            self._state = self._settled(state.changed(space, [*state.labels[:index], *state.labels[index + 1 :]], kept))
        return self

    def rename_class(self, old: Any, new: Any) -> Self:
        """Rename a class and return the classifier. Its prototype stays."""
        check_is_fitted(self)
        old, label = str(as_label(old, self.classes_)), as_label(new, self.classes_)
        self._check_names([str(label)])
        with self._changes.held:
            state = self._state
            labels, space = list(state.labels), state.copy_space()
            labels[space.index(old)] = label
            space.rename(old, str(label))
            kept = {str(label) if name == old else name: features for name, features in state.kept.items()}
            self._state = state.changed(space, labels, kept)
        return self

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

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the label [n] of each image, or `unknown_label` where its likeness to every class is below the threshold."""
        check_is_fitted(self)
        features, state = self._features(X), self._asked()
        best, likeness = state.space.answers(features, self._offsets(state))
        return self._named(best, likeness, state)

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
        names = (None if label is None else str(as_label(label, state.in_space)) for label in (name, against))
        return draw_up_heatmap(state.space, self.encoder_, images[0], self._offsets(state), *names)

    def relation_share(self, name: Any) -> float:
        """Return the share of a class's prototype, from 0 to 1, that relations bring from other classes, had it come last.

        It is a share of lengths: at 1 %, relations change no image's cosine to the prototype by more than about 0.01. A fitted
        class acts as new with its learned prototype as its example. The number of examples hardly matters; without any,
        relations bring all.
        """
        check_is_fitted(self)
        state = self._state
        return relation_share(state.space, state.space.index(str(as_label(name, state.in_space))))

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

    @property
    def prototypes_(self) -> Array:
        """The updated prototypes [V, D], in the order of `classes_`."""
        state = self._state
        prototypes: Array = state.space.prototypes.numpy()[state.order]
        return prototypes

    def save(self, path: Path | str) -> None:
        """Write the classifier into one file, which is replaced atomically."""
        check_is_fitted(self)
        state = self._state
        parameters = {name: value for name, value in self.get_params(deep=False).items() if name != "encoder"}
        if isinstance(self.variant, Variant):
            parameters["variant"] = asdict(self.variant)
        if isinstance(self.prior, Mapping):
            parameters["prior"] = [[label, value] for label, value in self.prior.items()]
        values = {
            "classes": state.labels,
            "dtype": state.in_space.dtype.str,
            "parameters": parameters,
            "threshold": state.threshold,
            "bias": state.bias,
        }
        write_model(Path(path), Contents(state.space, self.encoder_, values, state.kept), self._restored)

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Return the classifier of a file that `save` wrote, with this version or an older one.

        Raises:
            InputError: The file is missing, damaged, or of a newer version.

        """
        return cls._restored(read_model(Path(path)))

    @classmethod
    def _restored(cls, contents: Contents) -> Self:
        """Return the classifier of a file's contents."""
        values, known = contents.values, cls().get_params(deep=False)
        parameters = {name: value for name, value in values["parameters"].items() if name in known}
        if isinstance(parameters["variant"], Mapping):
            parameters["variant"] = variant_from(parameters["variant"])
        parameters["shots"] = tuple(parameters["shots"])
        if isinstance(parameters.get("prior"), list):
            parameters["prior"] = dict(parameters["prior"])
        loaded = cls(encoder=contents.encoder, **parameters)
        loaded.encoder_, loaded.n_features_in_ = contents.encoder, values["features"]
        return loaded._begin(
            State.of(contents.space, values["classes"], values["dtype"], contents.kept, values["threshold"], values["bias"])
        )

    @classmethod
    @contextmanager
    def edit(cls, path: Path | str) -> Iterator[Self]:
        """Change a file: `with Classifier.edit("birds.pg") as birds: birds.add_class(...)`.

        Other processes that change the file wait. Processes that read it see the old or the new version. After an error the
        file is unchanged.
        """
        with locked(Path(path)):
            classifier = cls.load(path)
            yield classifier
            classifier.save(path)

    def _training_set(self, X: Any, y: Any, progress: Progress) -> tuple[Tensor, Tensor | None, Array]:  # noqa: N803
        """Return features [n, D], those of copies [n, R, D] where images can be augmented, and labels [n]."""
        images, given = None if self.encoder_ is None else as_images(X), as_array(y)
        check_labels(given)
        if images is None:
            table, labels = validate_data(self, as_array(X), given, dtype=np.float32)
            features, copies = _as_tensor(table), None
            self._check_scale(features)
        else:
            assert self.encoder_ is not None
            labels = column_or_1d(given)
            if len(labels) != len(images):
                raise InputError(f"{len(images)} images have {len(labels)} labels: give one label per image")
            features = self.encoder_.encode(images, progress)
            count = usual_copies(self.encoder_) if self.copies is None else self.copies
            augmented = count and self.steps != 0 and self.variant is not None
            copies = self.encoder_.encode_augmented(images, count, self.seed, progress) if augmented else None
            self.n_features_in_ = features.shape[1]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The number of unique classes")  # a class may have a single image
            check_classification_targets(labels)
        return features, copies, labels

    def _features(self, X: Any) -> Tensor:  # noqa: N803
        """Return the features [n, D] of images, or features as they are."""
        images = None if self.encoder_ is None else as_images(X)
        if images is not None:
            assert self.encoder_ is not None
            return self.encoder_.encode(images)
        features = _as_tensor(validate_data(self, as_array(X), dtype=np.float32, reset=False))
        self._check_scale(features, smallest=0.0)
        return features

    def _examples(self, examples: Any) -> Tensor:
        """Return the features [K, D] of the examples of a class, of which there may be none."""
        nothing = isinstance(examples, list | tuple | np.ndarray | Tensor) and not len(examples)
        return torch.zeros(0, self.n_features_in_) if nothing else self._features(self._single(examples))

    def offsets(self) -> Tensor:
        """Return what prior and bias add to the logits [V], in the order of the joint space."""
        return self._offsets(self._state)

    def _offsets(self, state: State) -> Tensor:
        offsets = prior_offsets(self.prior, state.labels, state.space.seen)
        offsets[state.space.seen :] += state.bias
        return offsets

    def _named(self, best: Tensor, likeness: Tensor, state: State) -> Array:
        """Return the label [n] of images by the index of their best class [n] in the joint space, and their likeness [n]."""
        labels: Array = state.in_space[best.numpy()]
        if state.threshold is None:
            return labels
        rejected = (likeness < state.threshold).tolist()
        mixed = [self.unknown_label if reject else label for label, reject in zip(labels.tolist(), rejected, strict=True)]
        same_kind = isinstance(self.unknown_label, str) == (state.in_space.dtype.kind == "U")
        return np.array(mixed, None if same_kind and mixed else object)

    def _single(self, x: Any) -> Any:
        """Return one vector of features [D] as a table of one row; anything else as it is."""
        table = as_array(x)
        return table[None] if isinstance(table, np.ndarray) and table.ndim == 1 and table.dtype.kind == "f" else x

    def _threshold(self, space: JointSpace, held_out: Tensor) -> float | None:
        """Return the threshold by features [n, D] of held-out images of seen classes."""
        return None if self.unknown is None else false_alarm_threshold(space.likeness(held_out), self.unknown)

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
        if not (_is_whole(self.refit_up_to) and self.refit_up_to >= 0):
            raise InputError(f"refit_up_to must be a whole number from 0 on, not {self.refit_up_to!r}")
        if self.refit_up_to and not self.keep_features:
            raise InputError("refit_up_to would be ignored without keep_features: leave it out")
        if self.variant is None:
            self._check_gaussian()
        elif self.keep_features or self.refit_up_to:
            raise InputError("keep_features serves to refit the Gaussian model: leave it out, or the variant")
        shots = tuple(self.shots)
        if len(shots) != 2 or not all(_is_whole(count) for count in shots) or not 1 <= shots[0] <= shots[1]:
            raise InputError(f"shots must be the fewest and the most examples of a class acting as new, not {self.shots}")
        for name, value in (("steps", self.steps), ("copies", self.copies)):
            if value is not None and not (_is_whole(value) and value >= 0):
                raise InputError(f"{name} must be a whole number from 0 on, or None for the default, not {value!r}")
        if not (isinstance(self.learning_rate, int | float | np.number) and 0 < self.learning_rate < math.inf):
            raise InputError(f"the learning rate must be a positive number, not {self.learning_rate!r}")
        self._check_names(names)

    def _check_scale(self, features: Tensor, smallest: float = SMALLEST_FEATURE) -> None:
        """Raise an `InputError` if a variant, which is trained in float32, would lose features [n, D] by their size."""
        most = features.abs().max().item() if features.numel() else 0.0
        if self.variant is not None and most and not smallest <= most <= LARGEST_FEATURE:
            raise InputError(
                f"the largest feature is {most:.3g}, and a variant takes {SMALLEST_FEATURE:g} to {LARGEST_FEATURE:g}: multiply "
                "all features by one number, or leave out the variant"
            )

    def _check_gaussian(self) -> None:
        """Raise an `InputError` if a parameter is set that only the training of a variant uses."""
        usual: dict[str, Any] = {"balance": False, "shots": (1, 5), "steps": None, "learning_rate": 0.2}
        if self.copies:
            raise InputError("copies belongs to the training of a variant: leave it out, or name one, such as gcgpn-aux")
        for name, value in usual.items():
            if getattr(self, name) != value:
                way_out = "use prior" if name == "balance" else "name one, such as gcgpn-aux"
                raise InputError(f"{name} belongs to the training of a variant: leave it out, or {way_out}")

    def _with_features(self, kept: Mapping[str, Tensor], examples: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the kept features with those [K, D] of new examples by class name; none, where none are kept."""
        if not self.keep_features:
            return kept
        grown = {name: torch.cat([kept.get(name, part[:0]), part]) for name, part in examples.items() if len(part)}
        return {**kept, **grown}

    def _only_new(self) -> bool:
        if self.update not in UPDATES:
            raise unknown_name("update", self.update, UPDATES)
        return self.update == "novel"

    def _hints(self, relations: Any) -> dict[str, ClassHint]:
        if relations is not None and not self.space_.relations:
            reason = "was fitted without relations"
            if isinstance(self.space_, JointSpace) and not self.space_.variant.needs_relation:
                reason = f"is of variant '{self.space_.variant.name}', which uses no relations"
            raise InputError(
                f"this classifier {reason}, so it cannot be told how a class relates: fit it with relations, such as wordnet"
            )
        return parse_hints(relations, self.space_.relations)

    def _check_names(self, names: Sequence[str]) -> None:
        if self.unknown is not None and str(self.unknown_label) in names:
            raise InputError(
                f"a class is called '{self.unknown_label}', as unknown images are: rename it, or choose another unknown_label"
            )


def all_features_kept(state: State) -> bool:
    """Return whether the features of all images of all classes are kept."""
    space = state.space
    return all(len(state.kept.get(name, ())) == space.examples(row) for row, name in enumerate(space.names))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _as_tensor(table: Array) -> Tensor:
    return torch.from_numpy(np.require(table, requirements=["C", "W"]))  # copies only read-only arrays
