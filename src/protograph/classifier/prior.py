"""What a classifier is told about how likely its classes are."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from protograph._internal.errors import InputError, unknown_name

PRIORS = ("uniform", "half")


def check_prior(prior: Any) -> None:
    """Raise an `InputError` unless a prior is "uniform", "half", or a positive number per class."""
    if isinstance(prior, Mapping):
        for label, value in prior.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise InputError(f"the prior of class '{label}' must be a positive number, not {value!r}")
    elif prior not in PRIORS:
        raise unknown_name("prior", str(prior), PRIORS)


def prior_offsets(prior: Any, labels: Sequence[Any], seen: int) -> Tensor:
    """Return what a prior adds to the logit of each class [V].

    Args:
        prior: "uniform", "half", or numbers by class, which count relative to one another; a class not named counts 1.
        labels: The labels of all classes, the fitted ones first.
        seen: The number of fitted classes.

    """
    check_prior(prior)
    offsets = torch.zeros(len(labels), dtype=torch.float64)
    if isinstance(prior, Mapping):
        for label, value in prior.items():
            if label not in labels:
                raise unknown_name("class in the prior", str(label), [str(other) for other in labels])
            offsets[labels.index(label)] = math.log(value)
        return offsets
    added = len(labels) - seen
    if prior == "half" and seen and added:
        offsets[:seen] -= math.log(seen)
        offsets[seen:] -= math.log(added)
    return offsets
