"""What the library does not do yet, in one place."""

from typing import Any

from protograph._internal.errors import InputError
from protograph.classifier.estimator import Classifier


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
