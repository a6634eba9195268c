"""All of a classifier that changes with its classes, as one value: a change makes a new one, which then takes its place."""

import copy
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from protograph.classifier.gaussian_space import GaussianSpace
from protograph.classifier.joint_space import JointSpace
from protograph.classifier.labels import Array, as_labels, common_dtype
from protograph.classifier.thumbnails import Thumbnails


@dataclass(frozen=True)
class State:
    """What a classifier knows. Nothing in it is changed once it is in use, so whoever holds it sees one whole state.

    Attributes:
        space: The joint space of all classes.
        labels: The label of each class, in the order of the space.
        in_space: The same labels as an array.
        order: For each label in sorted order, its index in the space.
        kept: The features of all images by class name, if they are kept.
        thumbnails: The thumbnails of examples by class name, in their order, of the classes that have some.
        threshold: The calibrated threshold on likeness, or None.
        bias: What is added to the logits of added classes; other than 0 only in files of earlier versions.

    """

    space: JointSpace | GaussianSpace
    labels: list[Any]
    in_space: Array
    order: Array
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
        in_space = as_labels([label.item() if isinstance(label, np.generic) else label for label in labels], dtype)
        order = np.argsort(in_space, kind="stable")
        shown = {name: part for name, part in (thumbnails or {}).items() if any(part)}
        return cls(space, in_space.tolist(), in_space, order, dict(kept), threshold, bias, shown)

    @property
    def classes(self) -> Array:
        """The labels of all classes, sorted."""
        return self.in_space[self.order]

    def copy_space(self) -> JointSpace | GaussianSpace:
        """Return a space that can be changed while this one stays as it is. Tensors are shared: no change writes into one."""
        space = copy.copy(self.space)
        vars(space).update({name: copy.copy(value) for name, value in vars(space).items() if isinstance(value, list | dict)})
        if isinstance(space, JointSpace):
            tensors = [*space.model.parameters(), *space.model.buffers()]
            space.model = copy.deepcopy(space.model, {id(tensor): tensor for tensor in tensors})
        return space

    def changed(
        self,
        space: JointSpace | GaussianSpace,
        labels: Sequence[Any],
        kept: Mapping[str, Tensor],
        thumbnails: Mapping[str, Thumbnails],
    ) -> "State":
        """Return the state after a change of the classes."""
        dtype = self.in_space.dtype.str if self.labels or not labels else common_dtype(list(labels))
        return State.of(space, labels, dtype, kept, self.threshold, self.bias, thumbnails)

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
