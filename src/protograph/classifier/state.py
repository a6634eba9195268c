"""All of a classifier that changes with its classes, as one value: a change makes a new one, which then takes its place."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from protograph._internal.rows import Names
from protograph.classifier.gaussian_space import GaussianSpace
from protograph.classifier.joint_space import JointSpace
from protograph.classifier.labels import Array, as_labels, common_dtype
from protograph.classifier.thumbnails import Thumbnails


@dataclass(frozen=True)
class State:
    """What a classifier knows. Nothing in it is changed once it is in use, so whoever holds it sees one whole state.

    Attributes:
        space: The joint space of all classes.
        labels: The label of each class, in the order of the space. Texts are the names of the space.
        dtype: A type of arrays in which all of them fit.
        kept: The features of all images by class name, if they are kept.
        thumbnails: The thumbnails of examples by class name, in their order, of the classes that have some.
        threshold: The calibrated threshold on likeness, or None.
        bias: What is added to the logits of added classes; other than 0 only in files of earlier versions.

    """

    space: JointSpace | GaussianSpace
    labels: Names
    dtype: str
    kept: Mapping[str, Tensor]
    threshold: float | None = None
    bias: float = 0.0
    thumbnails: Mapping[str, Thumbnails] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        space: JointSpace | GaussianSpace,
        labels: Sequence[Any],
        dtype: str,
        kept: Mapping[str, Tensor],
        threshold: float | None,
        bias: float = 0.0,
        thumbnails: Mapping[str, Thumbnails] | None = None,
    ) -> "State":
        """Return the state of classes whose labels are given in the order of the space."""
        given = as_labels([label.item() if isinstance(label, np.generic) else label for label in labels], dtype)
        shown = {name: part for name, part in (thumbnails or {}).items() if any(part)}
        same = space.names if given.dtype.kind == "U" else Names(given.tolist())
        return cls(space, same, given.dtype.str, dict(kept), threshold, bias, shown)

    @cached_property
    def in_space(self) -> Array:
        """The labels in the order of the space, as an array."""
        return as_labels(list(self.labels), self.dtype)

    @cached_property
    def order(self) -> Array:
        """For each label in sorted order, its index in the space."""
        return np.argsort(self.in_space, kind="stable")

    @property
    def classes(self) -> Array:
        """The labels of all classes, sorted."""
        return self.in_space[self.order]

    @property
    def sample(self) -> Array:
        """The first label, if there is one, as an array of the labels' type."""
        return as_labels(self.labels[:1], self.dtype)

    def labels_of(self, rows: Sequence[int]) -> Array:
        """Return the labels [n] of classes by their index in the space."""
        return np.array([self.labels[row] for row in rows], self.dtype)

    def changed(
        self,
        space: JointSpace | GaussianSpace,
        kept: Mapping[str, Tensor],
        thumbnails: Mapping[str, Thumbnails],
        relabel: Callable[[Names], Names] = lambda labels: labels,
        new: Sequence[Any] = (),
    ) -> "State":
        """Return the state after a change of the classes.

        Args:
            space: The space after the change.
            kept: The features of all images that are kept.
            thumbnails: The thumbnails of examples.
            relabel: What the change makes of the labels.
            new: The labels that it brings.

        """
        dtype = self.dtype
        if new:
            dtype = as_labels(list(new), dtype if self.labels else common_dtype(list(new))).dtype.str
            dtype = np.promote_types(dtype, self.dtype).str if self.labels else dtype
        labels = space.names if np.dtype(dtype).kind == "U" else relabel(self.labels)
        shown = {name: part for name, part in thumbnails.items() if any(part)} if thumbnails else {}
        return State(space, labels, dtype, kept, self.threshold, self.bias, shown)

    def replaced(self, **parts: Any) -> "State":
        """Return the state with other parts."""
        return replace(self, **parts)


class ChangeLock:
    """A lock that one change of a classifier holds at a time. A copy of a classifier, or a pickled one, has a new one.

    Attributes:
        held: What a change enters. Python cannot be interrupted between its release and the end of the block.

    """

    def __init__(self) -> None:
        self.held = threading.RLock()

    def __reduce__(self) -> tuple[type["ChangeLock"], tuple[()]]:
        return ChangeLock, ()
