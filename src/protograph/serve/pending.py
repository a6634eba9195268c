"""What the library does not do yet, in one place."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from protograph._internal.errors import InputError
from protograph.classifier.estimator import Classifier


@contextmanager
def edit(path: Path, what: str) -> Iterator[Classifier]:
    """Change a file."""
    with Classifier.edit(path) as classifier:
        yield classifier


def history(path: Path) -> list[Any]:
    """Return the changes, newest first."""
    return []


def undo(path: Path) -> Any:
    """Undo the last change."""
    raise InputError("there is no change to undo")


def redo(path: Path) -> Any:
    """Make the last undone change again."""
    raise InputError("there is no change to make again")


def empty(encoder: Any, relations: Any) -> Classifier:
    """Return a classifier without a class."""
    return Classifier.empty(encoder, relations=relations)


def thumbnails(classifier: Classifier, name: Any) -> list[bytes | None]:
    """Return the thumbnails of a class's examples."""
    row = classifier.space_.index(str(name))
    return [None] * (classifier.space_.examples(row) or 0)


def with_thumbnails(features: Any, contents: list[bytes]) -> Any:
    """Return examples."""
    return features


def remove_examples(classifier: Classifier, name: Any, indices: list[int]) -> None:
    """Remove examples of a class."""
    raise InputError("examples cannot be removed yet")


def relate(classifier: Classifier, name: Any, relations: Any) -> None:
    """Tell how a class relates."""
    raise InputError("relations cannot be told anew yet")


def suggest_relations(classifier: Classifier, name: Any) -> list[Any]:
    """Return classes that a class may be related to."""
    return []


def class_map(classifier: Classifier) -> Any:
    """Return the map of classes."""
    raise InputError("there is no map yet")
