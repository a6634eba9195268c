"""What the JSON of a run folder may say: it is checked where it is read, since anybody may have written it.

Values that nothing reads may be anything, so that folders of earlier versions are still read.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from protograph.evaluation.metrics import stored_measures

Finite = Annotated[float, Meta(ge=-1e300, le=1e300)]
NotNegative = Annotated[float, Meta(ge=0, le=1e300)]
Count = Annotated[int, Meta(ge=0, le=2**53)]


class MeasureValues(Struct):
    """A mean with its 95 % interval, in per cent."""

    mean: Finite
    ci95: NotNegative


MeasuresValues = dict[str, MeasureValues]


def check_all_measures(measures: MeasuresValues) -> None:
    """Raise a `ValueError` unless stored measures are all of the paper's, or those of novel classes alone."""
    if missing := set(stored_measures(measures.keys())) - measures.keys():
        raise ValueError(f"the measure '{min(missing)}' is missing")


class MeasuredValues(Struct):
    """The measures of some test episodes, such as those with other statistics of batch norm."""

    measures: MeasuresValues

    def __post_init__(self) -> None:
        check_all_measures(self.measures)


class EpochValues(Struct):
    """A line of epochs.jsonl; the loss of a training that diverged may be any number."""

    epoch: Count
    loss: float
    validation: MeasuresValues
    learned: dict[str, float] = {}

    def __post_init__(self) -> None:
        check_all_measures(self.validation)


class LastEpochValues(MeasuredValues):
    """The measures of the last epoch."""

    epoch: Count


class BalancedValues(MeasuredValues):
    """The measures with a bias on novel classes."""

    bias: Finite


class FinalValues(MeasuredValues):
    """The contents of measures.json."""

    epoch: Count
    balanced: BalancedValues | None = None
    last_epoch: LastEpochValues | None = None
    statistics: str = ""
    other_statistics: dict[str, MeasuredValues] = {}


class ProgressValues(Struct):
    """The values of a checkpoint beside its tensors."""

    step: Count
    best_epoch: Count
    best_score: float
    seconds: float
    history: list[EpochValues]


class EnvironmentValues(Struct):
    """The versions and the device that a run used."""

    protograph: str
    torch: str
    gpu: str | None = None


def check_epochs(lines: Sequence[Mapping[str, Any]]) -> None:
    """Raise a `ValueError` unless these may be the lines of epochs.jsonl."""
    msgspec.convert(lines, list[EpochValues])


def check_measures(values: Mapping[str, Any]) -> None:
    """Raise a `ValueError` unless these may be the contents of measures.json."""
    msgspec.convert(values, FinalValues)


def check_progress(values: Mapping[str, Any]) -> None:
    """Raise a `ValueError` unless these may be the values of a checkpoint."""
    msgspec.convert(values, ProgressValues)


def check_environment(values: Mapping[str, Any]) -> None:
    """Raise a `ValueError` unless these may be the contents of environment.json."""
    msgspec.convert(values, EnvironmentValues)
