"""The classifier that users keep: fit it once, add classes later, predict, save it in one file."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from protograph._internal.errors import InputError
from protograph._internal.memory import require_memory
from protograph._internal.progress import Progress, Silent
from protograph.classifier.base import MOST_REFITTED, as_tensor, is_whole
from protograph.classifier.fitting import (
    Fit,
    check_index,
    choose_variant,
    fitting_bytes,
    fitting_recipe,
    hold_out_share,
    open_run,
    run_relations,
)
from protograph.classifier.gaussian_fitting import empty_space, fit_space
from protograph.classifier.gaussian_space import FITTED, GaussianSpace
from protograph.classifier.history import Change, history, redo, undo, write_change
from protograph.classifier.inputs import as_array, as_images, encode_files, readable_images
from protograph.classifier.joint_space import JointSpace
from protograph.classifier.labels import Array, check_labels
from protograph.classifier.members import Members
from protograph.classifier.model_file import Contents, NamedPaths, locked, read_model, variant_from, write_model
from protograph.classifier.state import State
from protograph.classifier.teaching import Teaching
from protograph.classifier.thumbnails import Examples, Thumbnails
from protograph.data import Dataset, FeatureStore
from protograph.data.kept_split import with_kept_split
from protograph.encoders import Encoder, open_encoder, usual_copies
from protograph.evaluation.metrics import extract
from protograph.evaluation.unknown import false_alarm_threshold
from protograph.nn.backbones import Centred
from protograph.relations import KeptRelation, keep_relations
from protograph.training.run_folder import Run
from protograph.variants import Variant, find_variant


class Classifier(Teaching):
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
        thumbnails: Whether a small JPEG of each example is kept, where there is an encoder, for people to look at.
        refit_up_to: With kept features, up to so many images a change fits anew by itself, where `update` is "all". All
            classes then count as fitted, as if all their images had been there from the start.
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
        bias_: What is added to the logits of added classes; other than 0 only in files of earlier versions.
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
        require_memory(fitting_bytes(len(names), features.shape[1], self.variant), f"fitting {len(names):,} classes")
        rows = Members.of(torch.from_numpy(targets), len(names))
        space: JointSpace | GaussianSpace
        if self.variant is None:
            space = fit_space(features, rows, names, kept, self.unknown, self.seed, progress)
            threshold = None if self.unknown is None else space.settings.limits[FITTED]
        else:
            space, threshold = self._fit_variant(self.variant, features, copies, rows, names, kept, progress)
        images = {name: features[rows[class_id]] for class_id, name in enumerate(names)} if self.keep_features else {}
        thumbnails: dict[str, Thumbnails] = {}
        if self.thumbnails and (shown := as_images(X)) is not None:
            made = self._thumbnails(shown, progress)
            thumbnails = {name: tuple(made[row] for row in rows[class_id]) for class_id, name in enumerate(names)}
        return self._begin(State.of(space, list(classes), classes.dtype.str, images, threshold, thumbnails=thumbnails))

    def _fit_variant(
        self,
        named: str | Variant,
        features: Tensor,
        copies: Tensor | None,
        rows: Mapping[int, Sequence[int]],
        names: Sequence[str],
        kept: Mapping[str, KeptRelation],
        progress: Progress,
    ) -> tuple[JointSpace, float | None]:
        """Train a variant on features [n, D] with copies [n, R, D], by class, and return its space and threshold."""
        recipe = fitting_recipe(len(names), self.steps, self.learning_rate)
        variant = choose_variant(named, bool(kept))
        held_out: dict[int, list[int]] = {}
        if self.unknown is not None:
            rows, held_out = hold_out_share(rows, self.seed)
        similarities = {label: relation.similarities for label, relation in kept.items()}
        shots = cast(tuple[int, int], tuple(self.shots))
        fit, store = Fit(variant, similarities, recipe, self.steps != 0, shots, self.seed), FeatureStore(features, copies)
        check_index(variant, len(names))
        space = JointSpace(fit.model(store, rows, progress), variant, names, kept, progress=progress)
        return space, self._threshold(space, features[[row for images in held_out.values() for row in images]])

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
        if features is not None and not (is_whole(features) and features > 0):
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
            parameters: Parameters of the classifier. `unknown` is calibrated on the dataset's validation images.

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
        return classifier._begin(State.of(space, list(names), np.array(names).dtype.str, {}, threshold))

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

    def read_examples(
        self, files: Sequence[Path], skip_bad: bool = False, progress: Progress | None = None
    ) -> tuple[list[str], Examples]:
        """Return the names of images, or of vectors, and these as examples of a class, which `add_class` takes.

        Args:
            files: Images and folders of images; files of features where the classifier was fitted on features.
            skip_bad: Whether images that cannot be read are left out instead of refused.
            progress: What shows how far it is.

        Raises:
            InputError: A file cannot be read, or its vectors have another length than the fitted ones.

        """
        progress = progress or Silent()
        check_is_fitted(self)
        if self.encoder_ is None:
            names, features = self.encode_files(files, skip_bad, progress)
            return names, Examples(features, (None,) * len(features))
        images = readable_images(files, skip_bad, progress)
        return [str(image) for image in images], self.encode_examples(images, progress)

    def save(self, path: Path | str) -> None:
        """Write the classifier into one file, which is replaced atomically.

        To the large file that it was loaded from, or written into, only what is different is appended. `edit` also keeps the
        version before, for undo.
        """
        check_is_fitted(self)
        self._stored = write_model(Path(path), self._contents(), self._restored)

    def _contents(self) -> Contents:
        """Return what a model file holds of the classifier."""
        state = self._state
        parameters = {name: value for name, value in self.get_params(deep=False).items() if name != "encoder"}
        if isinstance(self.variant, Variant):
            parameters["variant"] = asdict(self.variant)
        if isinstance(self.prior, Mapping):
            parameters["prior"] = [[label, value] for label, value in self.prior.items()]
        values = {
            "classes": list(state.labels),
            "dtype": state.in_space.dtype.str,
            "parameters": parameters,
            "threshold": state.threshold,
            "bias": state.bias,
        }
        return Contents(state.space, self.encoder_, values, state.kept, state.thumbnails, self._stored)

    @classmethod
    def load(cls, path: Path | str, backbone_weights: Path | str | None = None, relations: Sequence[str] = ()) -> Self:
        """Return the classifier of a file that `save` wrote, with this version or an older one.

        Anyone may have written the file, so no path that it names is opened unless you name it, too.

        Args:
            path: The file.
            backbone_weights: The weights of its encoder, if that is "timm:NAME@FILE" or "transformers:FOLDER".
            relations: Its relations that are asked about new classes and read a file, such as "embeddings:FILE".

        Raises:
            InputError: The file is missing, damaged, or of a newer version, or has no use for a path.

        """
        return cls._restored(read_model(Path(path), _named_paths(backbone_weights, relations)))

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
        loaded._stored = contents.stored
        limits = values["threshold"], values["bias"]
        return loaded._begin(
            State.of(contents.space, values["classes"], values["dtype"], contents.kept, *limits, contents.thumbnails)
        )

    @classmethod
    @contextmanager
    def edit(
        cls,
        path: Path | str,
        change: str | None = None,
        backbone_weights: Path | str | None = None,
        relations: Sequence[str] = (),
    ) -> Iterator[Self]:
        """Change a file: `with Classifier.edit("birds.pg") as birds: birds.add_class(...)`.

        Other processes that change the file wait. Processes that read it see the old or the new version. After an error the
        file is unchanged. The version before is kept in a folder beside the file, for `undo`.

        Args:
            path: The file.
            change: What is changed, for the history; by default what the methods that are called do.
            backbone_weights: As for `load`.
            relations: As for `load`.

        """
        with locked(Path(path)):
            classifier = cls.load(path, backbone_weights, relations)
            yield classifier
            what = change or "; ".join(classifier._done) or "changed the settings"
            write_change(Path(path), classifier._contents(), what, cls._restored)

    @staticmethod
    def history(path: Path | str) -> list[Change]:
        """Return the changes of a file that can be undone or redone, the newest first."""
        return history(path)

    @staticmethod
    def undo(path: Path | str) -> Change:
        """Take back the last change of a file that `edit` or a verb made, and return it.

        Raises:
            InputError: There is nothing to undo, or the earlier version is damaged; the file then stays as it is.

        """
        return undo(path)

    @staticmethod
    def redo(path: Path | str) -> Change:
        """Make the change of a file that was undone last once more, and return it.

        Raises:
            InputError: There is nothing to redo, or the later version is damaged; the file then stays as it is.

        """
        return redo(path)

    def _training_set(self, X: Any, y: Any, progress: Progress) -> tuple[Tensor, Tensor | None, Array]:  # noqa: N803
        """Return features [n, D], those of copies [n, R, D] where images can be augmented, and labels [n]."""
        images, given = None if self.encoder_ is None else as_images(X), as_array(y)
        check_labels(given)
        if images is None:
            table, labels = validate_data(self, as_array(X), given, dtype=np.float32)
            features, copies = as_tensor(table), None
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

    def _threshold(self, space: JointSpace, held_out: Tensor) -> float | None:
        """Return the threshold by features [n, D] of held-out images of seen classes."""
        return None if self.unknown is None else false_alarm_threshold(space.likeness(held_out), self.unknown)


def _named_paths(backbone_weights: Path | str | None, relations: Sequence[str]) -> NamedPaths:
    if isinstance(relations, str):
        raise InputError(f"relations must be a list, such as ['{relations}'], not one text")
    return NamedPaths(None if backbone_weights is None else Path(backbone_weights), relations)
