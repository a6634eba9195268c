"""The classifier people keep: fit it once, add classes as they come, ask it, save it in one file."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from protograph._internal.errors import InputError, unknown_name
from protograph._internal.progress import Progress, Silent
from protograph.classifier.explanation import Nearest, explain, relation_share
from protograph.classifier.fitting import (
    Fit,
    choose_variant,
    fitting_recipe,
    hold_out_images,
    open_run,
    run_relations,
)
from protograph.classifier.inputs import as_array, as_images, encode_files
from protograph.classifier.joint_space import JointSpace
from protograph.classifier.labels import as_label, as_labels
from protograph.classifier.model_file import Contents, locked, read_model, variant_from, write_model
from protograph.data import Dataset, FeatureStore
from protograph.data.kept_split import with_kept_split
from protograph.encoders import Encoder, open_encoder
from protograph.evaluation.calibration import auroc, check_rate, false_alarm_threshold
from protograph.evaluation.metrics import choose_bias, extract
from protograph.nn.backbones import Centred
from protograph.relations import ClassHint, keep_relations, parse_hints
from protograph.training.run import Run
from protograph.variants import Variant, find_variant

Update = Literal["all", "novel"]
UPDATES = ("all", "novel")
Array = NDArray[Any]


@dataclass(frozen=True)
class Predictions:
    """All that a classifier says of n images.

    Attributes:
        labels: The label [n] of each image, or `unknown_label`.
        probabilities: The probability [n, V] of every class, in the order of `classes_`.
        likeness: The largest cosine [n] to a prototype, which `threshold_` is compared with.

    """

    labels: Array
    probabilities: Array
    likeness: Array


class Classifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier that takes in new classes from a few examples, without training, among all it knows.

    Fitting learns a prototype for every class and how prototypes that relate help one another, on simulated episodes in which
    some classes act as new. An added class is the mean of its examples; the graph of all classes then updates all prototypes.
    Where there are fewer than three classes, or most have a single image, class means and the graph's starting values serve.

    encoder:  None where X holds feature vectors [n, D]; otherwise what makes features of images: an `Encoder` or its name,
              such as "conv4". X are then paths, PIL images, uint8 arrays [H, W] or [H, W, 3], or tensors [C, H, W]; a table
              of floats is still taken as features
    variant:  the model, by name: one with the cosine classifier that is trained for the joint label space in one stage. By
              default gcgpn-aux with relations and gcgpn-cos-aux without
    update:   whether adding or removing a class updates "all" prototypes, as the paper does, or, with "novel", leaves all
              others exactly as they are; then the order in which classes come matters
    unknown:  a false-alarm rate, such as 0.05: `predict` answers `unknown_label` for images less like any prototype than so
              many of held-out images of the seen classes. A fifth of each class is held out for it. Classes added from one
              or two examples lose more of their images to it, since such prototypes are less like any image
    balance:  whether to weigh added classes against seen ones by one bias. It is chosen with a model that is fitted before,
              without a fifth of the classes, and to which these are new
    shots:    fewest and most examples of a class acting as new
    copies:   augmented copies of each image to train on, where there is an encoder
    steps:    of the training; by default twice the number of classes, from 50 to 300: the fewer classes there are, the sooner
              new ones suffer from what is learned of them
    learning_rate, seed: of the training

    classes_:    labels, the fitted ones sorted, then the added ones in the order they came
    prototypes_: [V, D], in that order
    threshold_, bias_: what was calibrated, or None and 0

    >>> import numpy as np
    >>> from protograph import Classifier
    >>> animals = Classifier().fit(np.eye(4), ["cat", "cat", "dog", "dog"])
    >>> animals.add_class("owl", [[1.0, 0.0, -2.0, -2.0]]).predict([[1.0, 0.0, -1.0, -3.0], [0.0, 0.0, 1.0, 0.0]]).tolist()
    ['owl', 'dog']
    """

    classes_: Array
    space_: JointSpace
    encoder_: Encoder | None
    threshold_: float | None
    bias_: float

    def __init__(
        self,
        encoder: Encoder | str | None = None,
        variant: str | Variant | None = None,
        update: Update = "all",
        unknown: float | None = None,
        unknown_label: Any = "unknown",
        balance: bool = False,
        shots: tuple[int, int] = (1, 5),
        copies: int = 4,
        steps: int | None = None,
        learning_rate: float = 0.2,
        seed: int = 0,
    ) -> None:
        self.encoder = encoder
        self.variant = variant
        self.update = update
        self.unknown = unknown
        self.unknown_label = unknown_label
        self.balance = balance
        self.shots = shots
        self.copies = copies
        self.steps = steps
        self.learning_rate = learning_rate
        self.seed = seed

    def fit(self, X: Any, y: Any, relations: Any = None, progress: Progress | None = None) -> Self:  # noqa: N803
        """Learn the classes of labels y [n] from images or features X [n].

        relations: how classes relate: a name as the command knows it ("wordnet", "attributes:FILE"), a `Relation`, similarities
            [V, V] in the order of the sorted labels, or by pair ({(a, b): s} or {a: {b: s}}; pairs not named have no edge);
            several as a list, or as a dict by label. Classes that a source lacks are warned of, and unrelated
        """
        progress = progress or Silent()
        self.check()
        self.encoder_ = open_encoder(self.encoder) if isinstance(self.encoder, str) else self.encoder
        features, copies, labels = self._training_set(X, y, progress)
        classes, targets = np.unique(labels, return_inverse=True)
        names = [str(label) for label in classes]
        self._check_names(names)
        recipe = fitting_recipe(len(names), self.steps, self.learning_rate)
        kept = keep_relations(relations, names)
        variant = choose_variant(self.variant, bool(kept))
        rows: dict[int, list[int]] = {class_id: [] for class_id in range(len(names))}
        for row, class_id in enumerate(targets.tolist()):
            rows[class_id].append(row)
        held: dict[int, list[int]] = {}
        if self.unknown is not None:
            rows, held = hold_out_images(rows, self.seed)
        similarities = {label: relation.similarities for label, relation in kept.items()}
        shots = cast(tuple[int, int], tuple(self.shots))
        fit, store = Fit(variant, similarities, recipe, self.steps != 0, shots, self.seed), FeatureStore(features, copies)
        self.bias_ = fit.bias(store, rows, progress) if self.balance else 0.0
        self.space_ = JointSpace(fit.model(store, rows, progress), variant, names, kept)
        self.classes_ = classes
        self._calibrate(features[[row for images in held.values() for row in images]])
        return self

    @classmethod
    def from_run(cls, run: Run | Path | str, dataset: Dataset, progress: Progress | None = None, **parameters: Any) -> Self:
        """A classifier of a trained run: its learned prototypes and graph block, its backbone, the relations it was given.

        It answers as `evaluate` measures the run. What `parameters` ask to calibrate (`unknown`, `balance`) is calibrated on
        the dataset's validation images and classes. Its classes are the dataset's seen ones, in the dataset's order.
        """
        run = run if isinstance(run, Run) else Run.open(Path(run))
        dataset = with_kept_split(dataset, run.folder, run.config.fingerprint, progress or Silent())
        config, names = run.config, dataset.classes[: dataset.seen]
        made = cls(variant=config.variant, shots=(config.shots, config.shots), seed=config.seed, **parameters)
        made.check(names)
        model, made.encoder_ = open_run(run, dataset)
        made.encoder = made.encoder_
        sizes = config.shots, config.recipe.ways, config.recipe.test_queries, config.recipe.validation_episodes
        made.bias_ = choose_bias(model, dataset, *sizes, progress=progress) if made.balance else 0.0
        held_out, rows = torch.zeros(0, model.prototypes.shape[1]), dataset.seen_validation.all_images()
        if isinstance(dataset.store, FeatureStore):
            held_out = dataset.store.features[rows]  # which the model's own backbone centres
        else:
            if made.unknown is not None:
                held_out = extract(model, dataset.store, rows, progress)
            model.backbone = Centred(torch.zeros(held_out.shape[1]))
        made.n_features_in_ = held_out.shape[1]
        made.space_ = JointSpace(model, find_variant(config.variant), names, run_relations(run, dataset))
        made.classes_ = np.array(names)
        made._calibrate(held_out)
        return made

    def add_class(self, name: Any, examples: Any = (), relations: Any = None) -> Self:
        """Take in a new class from its examples, without training; from none, it is placed by its relations alone.

        relations: similarities to other classes ({class: s}, the same both ways), a name or text under which the source of the
            relation knows it, or its attributes as a vector; of several relations, a dict of these by label. By default the
            source is asked for the name. A pair of which nothing is known has no edge or, in a dense relation, the lowest
            similarity of two seen classes; a class that the source lacks is warned of
        """
        check_is_fitted(self)
        label = as_label(name, self.classes_)
        self._check_names([str(label)])
        nothing = isinstance(examples, list | tuple | np.ndarray | Tensor) and not len(examples)
        features = torch.zeros(0, self.n_features_in_) if nothing else self._features(self._single(examples))
        classes = as_labels([*self.classes_.tolist(), label], self.classes_.dtype.str)
        self.space_.add(str(label), features, self._hints(relations), self._only_new())
        self.classes_ = classes
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
        self, files: Sequence[Path], skip_bad: bool = False, progress: Progress | None = None
    ) -> tuple[list[str], Tensor]:
        """Return the names of images, or of vectors, and their features [n, D].

        Args:
            files: Images and folders of images; files of features where the classifier was fitted on features.
            skip_bad: Whether images that cannot be read are left out instead of refused.
            progress: What shows how far the encoding is.

        Raises:
            InputError: A file cannot be read, or its vectors have another length than the fitted ones.

        """
        check_is_fitted(self)
        return encode_files(files, self.encoder_, self.n_features_in_, skip_bad, progress or Silent())

    def remove_class(self, name: Any) -> Self:
        """Forget a class, fitted or added; the others keep their order."""
        check_is_fitted(self)
        name = str(as_label(name, self.classes_))
        place = self.space_.place(name)
        self.space_.remove(name, self._only_new())
        self.classes_ = np.delete(self.classes_, place)
        return self

    def rename_class(self, old: Any, new: Any) -> Self:
        """Call a class otherwise; its place and its prototype stay."""
        check_is_fitted(self)
        old, label = str(as_label(old, self.classes_)), as_label(new, self.classes_)
        place = self.space_.place(old)
        self._check_names([str(label)])
        labels = self.classes_.tolist()
        labels[place] = label
        classes = as_labels(labels, self.classes_.dtype.str)
        self.space_.rename(old, str(label))
        self.classes_ = classes
        return self

    def predict(self, X: Any) -> Array:  # noqa: N803
        """The label [n] of each image, or `unknown_label` where it is less like any class than the threshold."""
        check_is_fitted(self)
        features = self._features(X)
        likeness = None if self.threshold_ is None else self.space_.likeness(features)
        return self._labels(self.space_.logits(features, self.bias_), likeness)

    def predictions(self, X: Any) -> Predictions:  # noqa: N803
        """Return labels, probabilities and likeness of images, computed in one pass.

        Args:
            X: Images or features [n, D], as in `fit`.

        """
        check_is_fitted(self)
        features = self._features(X)
        logits, likeness = self.space_.logits(features, self.bias_), self.space_.likeness(features)
        return Predictions(self._labels(logits, likeness), logits.softmax(1).numpy(), likeness.numpy())

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """The probability [n, V] of every class, in the order of `classes_`; of "unknown" it knows nothing."""
        check_is_fitted(self)
        probabilities: Array = self.space_.logits(self._features(X), self.bias_).softmax(1).numpy()
        return probabilities

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """The share of right answers, weighed; "unknown" is a wrong one, unless an image is labelled so."""
        right = [answer == label for answer, label in zip(self.predict(X).tolist(), as_array(y), strict=True)]
        return float(np.average(right, weights=sample_weight))

    def decision_function(self, X: Any) -> Array:  # noqa: N803
        """Logits [n, V]; of two classes, as scikit-learn has it, how much more the second [n] is preferred."""
        check_is_fitted(self)
        logits: Array = self.space_.logits(self._features(X), self.bias_).numpy()
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def explain(self, x: Any, top: int = 5) -> list[Nearest]:
        """The prototypes nearest to one image, each with what its own examples and which related classes brought."""
        check_is_fitted(self)
        features = self._features(self._single(x))
        if len(features) != 1:
            raise InputError(f"one image is explained at a time, not {len(features)}")
        return explain(self.space_, features[0], self.bias_, top)

    def relation_share(self, name: Any) -> float:
        """How much of a class's prototype other classes bring through relations, from 0 to 1, had it been added last.

        By length: no image's cosine to a prototype of which they bring 1 % has a part of more than 0.01 or so from them. A
        fitted class acts as new with its learned prototype as its example; how many examples there are hardly matters, unless
        there are none: then relations bring all.
        """
        check_is_fitted(self)
        return relation_share(self.space_, self.space_.place(str(as_label(name, self.classes_))))

    def unknown_score(self, X: Any) -> Array:  # noqa: N803
        """How much each image [n] is like some class: the largest cosine to a prototype, what all have in common included."""
        check_is_fitted(self)
        scores: Array = self.space_.likeness(self._features(X)).numpy()
        return scores

    def auroc(self, known: Any, unknown: Any) -> float:
        """The chance that an image of a known class is more like some class than one of an unknown class."""
        scores = (torch.from_numpy(self.unknown_score(images)) for images in (known, unknown))
        return auroc(*scores).item()

    @property
    def prototypes_(self) -> Array:
        """Updated prototypes [V, D]."""
        prototypes: Array = self.space_.prototypes.numpy()
        return prototypes

    def save(self, path: Path | str) -> None:
        """Write the classifier into one file, which is replaced as a whole."""
        check_is_fitted(self)
        parameters = {name: value for name, value in self.get_params(deep=False).items() if name != "encoder"}
        if isinstance(self.variant, Variant):
            parameters["variant"] = asdict(self.variant)
        values = {
            "classes": self.classes_.tolist(),
            "dtype": self.classes_.dtype.str,
            "parameters": parameters,
            "threshold": self.threshold_,
            "bias": self.bias_,
        }
        write_model(Path(path), Contents(self.space_, self.encoder_, values))

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """The classifier of a file that `save` wrote."""
        contents = read_model(Path(path))
        values, known = contents.values, cls().get_params(deep=False)
        parameters = {name: value for name, value in values["parameters"].items() if name in known}
        if isinstance(parameters["variant"], Mapping):
            parameters["variant"] = variant_from(parameters["variant"])
        parameters["shots"] = tuple(parameters["shots"])
        loaded = cls(encoder=contents.encoder, **parameters)
        loaded.encoder_, loaded.space_ = contents.encoder, contents.space
        loaded.classes_ = as_labels(values["classes"], values["dtype"])
        loaded.threshold_, loaded.bias_ = values["threshold"], values["bias"]
        loaded.n_features_in_ = values["features"]
        return loaded

    @classmethod
    @contextmanager
    def edit(cls, path: Path | str) -> Iterator[Self]:
        """Change a file: `with Classifier.edit("birds.pg") as birds: birds.add_class(...)`.

        Other processes that change it wait; those that read it see it as it was, and then as it is. After an error it stays.
        """
        with locked(Path(path)):
            classifier = cls.load(path)
            yield classifier
            classifier.save(path)

    def _training_set(self, X: Any, y: Any, progress: Progress) -> tuple[Tensor, Tensor | None, Array]:  # noqa: N803
        """Features [n, D], copies of them [n, R, D] where images can be augmented, and labels [n]."""
        images = None if self.encoder_ is None else as_images(X)
        if images is None:
            table, labels = validate_data(self, as_array(X), as_array(y), dtype=np.float32)
            features, copies = _as_tensor(table), None
        else:
            assert self.encoder_ is not None
            labels = column_or_1d(as_array(y))
            if len(labels) != len(images):
                raise InputError(f"{len(images)} images have {len(labels)} labels: give one each")
            features = self.encoder_.encode(images, progress)
            augmented = self.copies and self.steps != 0
            copies = self.encoder_.encode_augmented(images, self.copies, self.seed, progress) if augmented else None
            self.n_features_in_ = features.shape[1]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The number of unique classes")  # a class may well have a single image
            check_classification_targets(labels)
        return features, copies, labels

    def _features(self, X: Any) -> Tensor:  # noqa: N803
        """Features [n, D] of images, of one image, or of what are features already."""
        images = None if self.encoder_ is None else as_images(X)
        if images is not None:
            assert self.encoder_ is not None
            return self.encoder_.encode(images)
        return _as_tensor(validate_data(self, as_array(X), dtype=np.float32, reset=False))

    def _labels(self, logits: Tensor, likeness: Tensor | None) -> Array:
        """Return the label [n] of images by their logits [n, V] and, where there is a threshold, their likeness [n]."""
        labels: Array = self.classes_[logits.argmax(1).numpy()]
        if self.threshold_ is None or likeness is None:
            return labels
        rejected = (likeness < self.threshold_).tolist()
        mixed = [self.unknown_label if reject else label for label, reject in zip(labels.tolist(), rejected, strict=True)]
        same_kind = isinstance(self.unknown_label, str) == (self.classes_.dtype.kind == "U")
        return np.array(mixed, None if same_kind and mixed else object)

    def _single(self, x: Any) -> Any:
        """One vector of features [D] as a table of one row; anything else as it is."""
        table = as_array(x)
        return table[None] if isinstance(table, np.ndarray) and table.ndim == 1 and table.dtype.kind == "f" else x

    def _calibrate(self, held_out: Tensor) -> None:
        """Set the threshold by features [n, D] of held-out images of seen classes."""
        self.threshold_ = None
        if self.unknown is not None:
            self.threshold_ = false_alarm_threshold(self.space_.likeness(held_out), self.unknown)

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
        fewest, most = self.shots
        if not 1 <= fewest <= most:
            raise InputError(f"shots are the fewest and the most examples of a class acting as new, not {self.shots}")
        self._check_names(names)

    def _only_new(self) -> bool:
        if self.update not in UPDATES:
            raise unknown_name("update", self.update, UPDATES)
        return self.update == "novel"

    def _hints(self, relations: Any) -> dict[str, ClassHint]:
        if relations is not None and not self.space_.relations:
            raise InputError(f"variant '{self.space_.variant.name}' uses no side information: leave out the relations")
        return parse_hints(relations, self.space_.relations)

    def _check_names(self, names: Sequence[str]) -> None:
        if self.unknown is not None and str(self.unknown_label) in names:
            raise InputError(
                f"a class is called '{self.unknown_label}', as unknown images are: rename it, or choose another unknown_label"
            )


def _as_tensor(table: Array) -> Tensor:
    return torch.from_numpy(np.require(table, requirements=["C", "W"]))  # a copy only of what may not be written to
