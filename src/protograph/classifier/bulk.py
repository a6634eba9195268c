"""Answers about any number of images, in bounded memory, into a table and into a folder per class."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph._internal.files import is_folder
from protograph._internal.locks import hold_lock
from protograph._internal.progress import Progress
from protograph._internal.wording import counted
from protograph._version import __version__
from protograph.classifier.answer_file import Answer, AnswerFile, check_answer_file
from protograph.classifier.inputs import check_encoder_of, list_files
from protograph.classifier.labels import plain_label
from protograph.classifier.sorting import SortedFolder
from protograph.data.feature_shards import ShardReader, is_feature_folder
from protograph.encoders.base import KeptEncoder
from protograph.encoders.preparation import unreadable

if TYPE_CHECKING:
    from protograph.classifier.answering import TopPredictions
    from protograph.classifier.estimator import Classifier

RECALL_IMAGES = 1000  # images that are also compared with all classes, where an index is used
ANSWERED_TOGETHER = 512  # images that are answered, copied and written together; a kill loses less than twice as many
DEFAULT_TABLE = "answers.csv"  # in the folder of sorted images, where no other is named


@dataclass(frozen=True)
class BulkResult:
    """What was done with many images.

    Attributes:
        table: The table of answers.
        images: The number of images.
        continued: How many of them an earlier, interrupted run had answered.
        unreadable: How many cannot be read.
        classes: The number of images by answer.

    """

    table: Path
    images: int
    continued: int
    unreadable: int
    classes: dict[str, int]


@dataclass(frozen=True)
class _Questions:
    """What is asked: names, and the features [b, D] of a range of them or, of images, the reasons why some cannot be read."""

    names: Sequence[str]
    images: Sequence[Path] | None
    stamps: str
    features: Callable[[int, int], tuple[Tensor, Mapping[int, str]]]


def predict_files(
    classifier: "Classifier",
    model: Path,
    files: Sequence[Path],
    out: Path | None,
    sort_into: Path | None,
    top: int,
    skip_bad: bool,
    progress: Progress,
    plugins: Sequence[str] = (),
    index: bool = False,
) -> BulkResult:
    """Answer about images, write a table and sort copies; after a kill, the same call continues.

    Images are encoded in chunks that depend on the list of files alone, past the cache of features, so that an interrupted run
    ends with the same bytes as any other.

    Args:
        classifier: The classifier.
        model: The file that it was loaded from.
        files: Images and folders of images; files of features where the classifier was fitted on features.
        out: The table, .csv or .jsonl; by default one in `sort_into`.
        sort_into: The folder for copies, if they are wanted.
        top: The number of most probable classes that the table names.
        skip_bad: Whether images that cannot be read get a row that says why, instead of ending the run.
        progress: Shows how far it is.
        plugins: Names and digests of plugins that were loaded.
        index: Whether an index names the classes that images are compared with; then another run may answer otherwise.

    Raises:
        InputError: An image cannot be read, a table exists, or what an earlier run began with has changed.

    """
    table = out or (sort_into or Path()) / DEFAULT_TABLE
    check_answer_file(table)
    if sort_into is not None:
        _check_apart(sort_into, files, classifier)
    questions = _questions(classifier, files, skip_bad, progress)
    begun_with = {
        "model": _digest(model),
        "images": questions.stamps,
        "top": top,
        "protograph": __version__,
        "plugins": list(plugins),
        **({"index": True} if index else {}),
    }
    total, nearest = len(questions.names), min(top, len(classifier.space_.names))
    with _locked(table), _sorted_folder(sort_into, classifier) as folder:
        written = AnswerFile(table, total, nearest, begun_with)
        continued = written.done
        if continued:
            progress.say(f"continuing {table}: {continued} of {total} are answered")
        with progress.task("predict", total, "images", continued) as advance:
            for start in range(continued, total, ANSWERED_TOGETHER):
                stop = min(start + ANSWERED_TOGETHER, total)
                features, problems = questions.features(start, stop)
                if index and start == continued and len(features):
                    progress.say(recall_line(classifier, features))
                answers = _answers(classifier, questions.names[start:stop], features, problems, nearest, index)
                if folder is not None and questions.images is not None:
                    for image, answer in zip(questions.images[start:stop], answers, strict=True):
                        if answer.problem is None:
                            folder.copy(image, answer.label)
                written.add(answers)
                advance(stop - start)
        written.finish()
    return BulkResult(table, total, continued, written.unreadable, written.classes)


def recall_line(classifier: "Classifier", features: Tensor) -> str:
    """Return how good the index is about features [n, D], in a line."""
    asked = features[:RECALL_IMAGES]
    share = classifier.index_recall(asked)
    return f"index: the class that comparing with all finds, for {100 * share:.1f} % of {counted(len(asked), 'image')}"


def _answers(
    classifier: "Classifier",
    names: Sequence[str],
    features: Tensor,
    problems: Mapping[int, str],
    nearest: int,
    index: bool,
) -> list[Answer]:
    """Return the answers about images by name, from the features [n, D] of those that could be read."""
    found = iter(answers_of(classifier.top(features, nearest, index))) if len(features) else iter(())
    return [
        Answer(name, problem=problems[row]) if row in problems else Answer(name, *next(found)) for row, name in enumerate(names)
    ]


def answers_of(predictions: "TopPredictions") -> Iterator[tuple[Any, float, list[tuple[Any, float]]]]:
    """Yield label, likeness and the most probable classes of each image, as plain values."""
    both = zip(predictions.nearest.tolist(), predictions.probabilities.tolist(), strict=True)
    for row, (classes, chances) in enumerate(both):
        nearest = list(zip(classes, chances, strict=True))
        yield plain_label(predictions.labels[row]), float(predictions.likeness[row]), nearest


def _questions(classifier: "Classifier", files: Sequence[Path], skip_bad: bool, progress: Progress) -> _Questions:
    encoder = classifier.encoder_
    if len(files) == 1 and is_feature_folder(files[0]):
        return _questions_of_shards(classifier, files[0])
    if encoder is None:
        names, vectors = classifier.encode_files(files, skip_bad, progress)
        return _Questions(names, None, _stamps(files), lambda start, stop: (vectors[start:stop], {}))
    images = list_files(files, progress)
    encode = encoder.encode_uncached if isinstance(encoder, KeptEncoder) else encoder.encode

    def features(start: int, stop: int) -> tuple[Tensor, Mapping[int, str]]:
        asked = images[start:stop]
        bad = unreadable(asked) if skip_bad else {}
        readable = [image for row, image in enumerate(asked) if row not in bad]
        return (encode(readable) if readable else torch.zeros(0, classifier.n_features_in_)), bad

    return _Questions([str(image) for image in images], images, _stamps(images), features)


def _questions_of_shards(classifier: "Classifier", folder: Path) -> _Questions:
    check_encoder_of(folder, classifier.encoder_, classifier.n_features_in_)
    reader = ShardReader(folder)
    shards = [reader.manifest.path(folder, index) for index in range(reader.manifest.shards)]
    return _Questions(reader.names, None, _stamps(shards), lambda start, stop: (reader.vectors(start, stop), {}))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _stamps(files: Sequence[Path]) -> str:
    """Return a digest of the names, sizes and times of files, which tells whether any has changed."""
    digest = hashlib.sha256()
    for file in files:
        try:
            status = file.stat()
            stamp = f"{status.st_size} {status.st_mtime_ns}"
        except (OSError, ValueError):  # it is named when it is read
            stamp = "-"
        digest.update(os.fsencode(file) + f"\0{stamp}\0".encode())
    return digest.hexdigest()


def _check_apart(folder: Path, files: Sequence[Path], classifier: "Classifier") -> None:
    """Refuse to sort into a folder whose copies would be found among the images."""
    if classifier.encoder_ is None or any(map(is_feature_folder, files)):
        raise InputError("these are features, which cannot be sorted: leave out --sort-into")
    target = folder.resolve()
    for file in files:
        source = Path(os.path.realpath(file))
        if source.is_relative_to(target) or (is_folder(file) and target.is_relative_to(source)):
            raise InputError(f"--sort-into {folder} and {file} lie in one another: choose a folder elsewhere")


@contextmanager
def _locked(table: Path) -> Iterator[None]:
    table.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(table.with_name(f".{table.name}.lock"), table, "wait for it, or choose another --out"):
        yield


@contextmanager
def _sorted_folder(root: Path | None, classifier: "Classifier") -> Iterator[SortedFolder | None]:
    if root is None:
        yield None
        return
    labels = {*map(str, classifier.classes_.tolist()), str(classifier.unknown_label)}
    with SortedFolder.opened(root, sorted(labels)) as folder:
        yield folder
