"""What a model file may say: its JSON and its tensors are checked completely before anything is built from them.

A checksum shows that a file is as it was written, not who wrote it. So every value has a type and bounds, every tensor has a
name, a type, a shape and finite numbers, and no part that is built may be larger than the tensors that the file holds for it.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
import torch
from msgspec import Meta, Struct
from torch import Tensor, nn

from protograph._internal.sealed import with_prefix
from protograph.classifier.thumbnails import MOST_BYTES

LARGEST_NUMBER = 1e300
MOST_LAYERS = 64  # of a graph block, and the highest power of an operator
LARGEST_EDGE = 4096  # pixels, to which an image is resized
LARGEST_INPUT = 1024  # pixels, of an edge that a network takes
LARGEST_OPTION = 2**31
LONGEST_CHANGE = 500  # characters that say what was changed
FLOATS = (torch.float32, torch.float64)

Finite = Annotated[float, Meta(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]
Positive = Annotated[float, Meta(gt=0, le=LARGEST_NUMBER)]
NotNegative = Annotated[float, Meta(ge=0, le=LARGEST_NUMBER)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
AtLeastOne = Annotated[int, Meta(ge=1, le=2**53)]
Layers = Annotated[int, Meta(ge=1, le=MOST_LAYERS)]
Edge = Annotated[int, Meta(ge=1, le=LARGEST_EDGE)]
InputEdge = Annotated[int, Meta(ge=1, le=LARGEST_INPUT)]
Sharpness = Annotated[float, Meta(ge=1e-3, le=1e3)]  # those that `fit` chooses lie between 1/4 and 4
Growth = Annotated[float, Meta(ge=-10, le=10)]  # an exponent
ThumbnailBytes = Annotated[int, Meta(ge=0, le=MOST_BYTES)]
Label = str | bool | int | float
BlockName = Literal["ss", "sn", "ns", "nn"]


class OperatorValues(Struct):
    """An operator of a variant."""

    kind: str
    blocks: list[BlockName] | None
    order: Layers
    options: dict[str, str | bool | Annotated[int, Meta(ge=-LARGEST_OPTION, le=LARGEST_OPTION)] | Finite | None]


class VariantValues(Struct):
    """A variant, as far as a model is built from it."""

    name: str
    operators: Annotated[list[OperatorValues], Meta(max_length=MOST_LAYERS)]
    summary: str
    layers: Layers = 1
    theta: Literal["diagonal", "full", "identity"] = "diagonal"
    fixed_theta: list[str] = []
    normalise_inputs: bool = True
    normalise_outputs: bool = True
    normalise_support: bool = True
    normalise_seen: bool = False
    scales: bool = True
    last_relu: bool = False
    classifier: Literal["cosine"] = "cosine"
    objective: str = "joint"
    chosen_by: str | list[str] = []
    seen_means: bool = False
    after: str | None = None
    frozen: list[str] = []
    candidates: list[dict[str, Any]] = []


class ParameterValues(Struct):
    """The parameters of a classifier."""

    variant: str | VariantValues | None
    update: Literal["all", "novel"]
    unknown_label: Label | None
    shots: tuple[AtLeastOne, AtLeastOne]
    seed: int
    unknown: Fraction | None = None
    prior: Literal["uniform", "half"] | list[tuple[Label, Positive]] = "uniform"
    keep_features: bool = False
    thumbnails: bool = False
    refit_up_to: Count = 0
    copies: Count | None = None
    steps: Count | None = None
    learning_rate: Positive = 0.2


class RelationUseValues(Struct):
    """How relations enter a prototype."""

    labels: list[str]
    ridge: Positive
    kappa: NotNegative
    offset: Finite
    blended: bool


class SettingsValues(Struct):
    """The settings of a Gaussian model."""

    power: Annotated[float, Meta(gt=0, le=10)]
    strength: NotNegative
    kappa: NotNegative
    temperature: Positive
    dimensions: NotNegative
    widening: NotNegative
    relations: RelationUseValues
    sharpness: list[tuple[Count, Sharpness]]
    growth: Growth
    limits: list[tuple[Count, Finite]]
    accuracy: Fraction | None
    offsets: list[tuple[Count, Finite]] = []
    tempering: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    usual_range: Positive = 1.0


class SpreadValues(Struct):
    """The spread of images around the means of their classes."""

    rest: NotNegative
    freedom: Count


class WhiteningValues(Struct):
    """A whitening, beside its tensors."""

    base: Positive
    scale: Positive
    freedom: Count = 0


class RelationValues(Struct):
    """A relation, beside its tensors."""

    label: str
    floor: Finite
    known: list[str | None]
    source: dict[str, Any] | None


class PreparationValues(Struct):
    """How an image becomes pixels."""

    shape: tuple[Annotated[int, Meta(ge=1, le=3)], InputEdge, InputEdge]
    mean: list[Finite]
    std: list[Positive]
    resize: Edge | Annotated[list[Edge], Meta(min_length=2, max_length=2)]  # a tuple in a union crashes msgspec 0.22
    interpolation: str
    margin: Annotated[int, Meta(ge=1, le=64)] = 2


class AugmentationValues(Struct, forbid_unknown_fields=True):
    """Random changes of images."""

    pad: Annotated[int, Meta(ge=0, le=LARGEST_EDGE)] = 0
    flip: bool = False
    zoom: Annotated[float, Meta(ge=1, le=100)] = 1.0
    stretch: Annotated[float, Meta(ge=1, le=100)] = 1.0
    crop: Annotated[float, Meta(gt=0, le=1)] = 1.0
    image_size: Annotated[int, Meta(ge=0, le=LARGEST_INPUT)] = 0
    colour: Fraction = 0.0
    erase: Fraction = 0.0


class EncoderValues(Struct):
    """An encoder, beside its weights."""

    kind: str
    name: str
    preparation: PreparationValues
    augmentation: AugmentationValues
    last_relu: bool = False
    weights: str | None = None


class ChangeValues(Struct):
    """The change that made a file of an earlier one.

    Attributes:
        number: The number of the change, from 1 on.
        what: What was changed.
        when: When, in UTC.
        after: The digest of the earlier file.

    """

    number: AtLeastOne
    what: Annotated[str, Meta(max_length=LONGEST_CHANGE)]
    when: Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")]
    after: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$")]


class ModelValues(Struct, tag_field="model", kw_only=True):
    """The values that all models have.

    Attributes:
        classes: The labels of all classes, in the order of the joint space.
        dtype: Their type in NumPy.
        names: The same labels as texts.
        examples: The number of examples of each added class.
        features: The number of features D.
        kept: The number of kept images by class.
        thumbnails: The number of bytes of each example's thumbnail, by class; 0 where it has none.
        change: The change that made the file of an earlier one, if any.

    """

    classes: list[Label]
    dtype: Annotated[str, Meta(pattern=r"^(\|b1|\|O|[<>|=]?[iuf][1248]|[<>=|]?U\d{1,9})$")]
    names: list[str]
    examples: list[Count]
    features: Annotated[int, Meta(ge=1, le=2**31)]
    parameters: ParameterValues
    threshold: Finite | None
    bias: Finite
    relations: list[RelationValues]
    encoder: dict[str, Any] | None
    kept: list[tuple[str, Count]]
    thumbnails: list[tuple[str, list[ThumbnailBytes]]] = []
    change: ChangeValues | None = None

    @property
    def seen(self) -> int:
        """The number of fitted classes S."""
        return len(self.names) - len(self.examples)


class TrainedValues(ModelValues, tag="variant"):
    """The values of a trained variant."""

    variant: VariantValues


class GaussianValues(ModelValues, tag="gaussian"):
    """The values of a Gaussian model."""

    settings: SettingsValues
    counts: list[AtLeastOne]
    spread: SpreadValues
    whitening: WhiteningValues
    related: list[bool]
    further: list[str]


class NamedSource(Struct):
    """A source of similarities that is opened by its name."""

    spec: str
    titles: dict[str, str] | None = None


class MatrixSource(Struct):
    """A similarity matrix."""

    names: list[str]
    source: str


class AttributeSource(Struct):
    """A table of attributes."""

    names: list[str]
    centred: bool
    source: str


class UnicodeSource(Struct):
    """Letters by Unicode."""

    weights: dict[str, NotNegative]
    alike: dict[str, str]


SOURCES: dict[str, type[Struct]] = {
    "named": NamedSource,
    "matrix": MatrixSource,
    "attributes": AttributeSource,
    "unicode": UnicodeSource,
}
ENCODER_KINDS = ("backbone", "efficientnet-lite", "timm", "transformers")
LABEL_TYPES: dict[str, tuple[type, ...]] = {"U": (str,), "b": (bool,), "i": (int,), "u": (int,), "f": (int, float)}


def parse_values(text: str) -> dict[str, Any]:
    """Return the JSON values of a model file.

    Raises:
        ValueError: The text is no JSON object, or has a number that is not finite, or a whole one of more than 64 bits.

    """
    return parse_as(text, dict[str, Any])


Parsed = TypeVar("Parsed")
_LONG_NUMBER = re.compile(rb"(?<!\d)\d{19}")  # a whole number of more than 64 bits has as many digits


def parse_as(text: str | bytes | memoryview, kind: type[Parsed]) -> Parsed:
    """Return JSON values of a type, with the errors of `parse_values`."""
    try:
        values = msgspec.json.decode(text, type=kind)
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ValueError("its JSON is not UTF-8") from error
    if _LONG_NUMBER.search(text.encode() if isinstance(text, str) else text):
        _check_whole_numbers(msgspec.to_builtins(values))
    return values


def _check_whole_numbers(value: Any) -> None:
    """Raise a `ValueError` if a whole number has more than 64 bits: PyTorch takes it for no number."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("it holds a whole number of more than 64 bits")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_whole_numbers(inner)


def check_contents(values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Check all values and tensors of a model file, in today's layout.

    Raises:
        ValueError: Something is missing, of a wrong type or size, not finite, or at odds with the rest.

    """
    model: TrainedValues | GaussianValues = msgspec.convert(values, TrainedValues | GaussianValues)
    _check_classes(model)
    expected = _expected_tensors(model, tensors)
    for name, tensor in tensors.items():
        if name not in expected:
            raise ValueError(f"nothing needs the tensor '{name}'")
        check_tensor(name, tensor, *expected[name])
    if missing := sorted(expected.keys() - tensors.keys()):
        raise ValueError(f"the tensor '{missing[0]}' is missing")
    for index, relation in enumerate(model.relations):
        _check_relation(relation, len(model.names), with_prefix(tensors, f"relation.{index}."))


def check_tensor(
    name: str, tensor: Tensor, dtypes: Sequence[torch.dtype] | None = FLOATS, shape: Sequence[int | None] | None = None
) -> None:
    """Raise a `ValueError` unless a tensor has one of the types and the shape, where None is any, and is finite.

    Of a tensor on the device "meta", which has no numbers, these are not checked.
    """
    if dtypes is not None and tensor.dtype not in dtypes:
        raise ValueError(f"the tensor '{name}' is of {tensor.dtype}".replace("torch.", ""))
    if shape is not None and (
        tensor.ndim != len(shape) or any(given not in (None, size) for given, size in zip(shape, tensor.shape, strict=True))
    ):
        wanted = tuple("any" if size is None else size for size in shape)
        raise ValueError(f"the tensor '{name}' is {tuple(tensor.shape)}, not {wanted}")
    # The sum would overflow, and a mask would take memory
    numbers = tensor.is_floating_point() and tensor.numel() and not tensor.is_meta
    if numbers and not all(math.isfinite(bound.item()) for bound in tensor.aminmax()):
        raise ValueError(f"the tensor '{name}' holds NaN or infinity")


def largest_size(variant: Mapping[str, Any], features: int, classes: int) -> int:
    """Return a bound on the bytes of a variant's parameters: each of its parts has a matrix or two of its largest number."""
    numbers, parts, remaining = [features, classes], 1, list(variant.values())
    while remaining:
        value = remaining.pop()
        if isinstance(value, dict | list):
            remaining += value.values() if isinstance(value, dict) else value
            parts += 1
        elif isinstance(value, int):
            numbers.append(value)
    return 8 * parts * int(variant.get("layers", 1)) * max(numbers) ** 2


def check_size(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Raise a `ValueError` unless a file holds the parameters of a model with the same shapes.

    Args:
        model: The model, built on the device "meta", where it takes no memory.
        tensors: The parameters in the file.

    """
    wanted = {name: value.shape for name, value in model.state_dict().items() if not name.startswith("backbone.")}
    given = {name: value.shape for name, value in tensors.items() if not name.startswith("backbone.")}
    if wanted != given:
        wrong = min(name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name))
        raise ValueError(f"the parameters of its variant do not fit: '{wrong}'")


def _check_classes(model: TrainedValues | GaussianValues) -> None:
    """Raise a `ValueError` unless labels, names and numbers of classes agree."""
    names, dtype = model.names, np.dtype(model.dtype)
    different = set(names)
    if len(model.classes) != len(names) or len(different) != len(names):
        raise ValueError(f"it has {len(model.classes)} labels, and {len(different)} different names of {len(names)} classes")
    if model.seen < 0:
        raise ValueError(f"it has examples of {len(model.examples)} classes, and {len(names)} names")
    if "\0" in "".join(names):
        raise ValueError("a name holds the character NUL")
    types = LABEL_TYPES.get(dtype.kind, (str, bool, int, float))
    texts = str in types and model.classes == names and set(map(type, model.classes)) <= {str}  # a million at once
    for label, name in () if texts else zip(model.classes, names, strict=True):
        if not isinstance(label, types) or (dtype.kind in "iuf" and isinstance(label, bool)):
            raise ValueError(f"the label {label!r} is not of type {dtype}")
        if str(label) != name and not (dtype.kind == "f" and str(dtype.type(label)) == name):
            raise ValueError(f"the label {label!r} and the name '{name}' of a class disagree")
        if isinstance(label, int) and not -(2**63) <= label < 2**63:
            raise ValueError("a label is too large a number")
    labels = {relation.label for relation in model.relations}
    if len(labels) != len(model.relations):
        raise ValueError("two relations have the same label")
    if strangers := {name for name, _ in model.kept} - different:
        raise ValueError(f"it keeps features of '{min(strangers)}', which is no class")
    if len(dict(model.kept)) != len(model.kept):
        raise ValueError("it keeps the features of a class twice")
    if model.encoder is not None and model.encoder.get("kind") in ENCODER_KINDS:  # `open_encoder` takes no other
        _check_preparation(msgspec.convert(model.encoder, EncoderValues).preparation)
    if isinstance(model, GaussianValues):
        _check_gaussian(model, labels)


def _check_gaussian(model: GaussianValues, labels: set[str]) -> None:
    if len(model.counts) != model.seen or len(model.related) != len(model.examples):
        raise ValueError(f"it counts images of {len(model.counts)} fitted classes, and {len(model.related)} added classes")
    if model.further and (strangers := set(model.further) - set(model.names[: model.seen])):
        raise ValueError(f"it has further examples of '{min(strangers)}', which is no fitted class")
    if len(set(model.further)) != len(model.further):
        raise ValueError("it has further examples of a class twice")
    if strangers := set(model.settings.relations.labels) - labels:
        raise ValueError(f"it uses relation '{min(strangers)}', which it does not have")
    for table in (model.settings.offsets, model.settings.sharpness, model.settings.limits):
        if table and not any(count == 0 for count, _ in table):
            raise ValueError("a table by the number of examples has no value for fitted classes")


def _check_preparation(preparation: PreparationValues) -> None:
    channels, height, width = preparation.shape
    if channels == 2 or len(preparation.mean) != channels or len(preparation.std) != channels:
        raise ValueError(f"images of {channels} channels have {len(preparation.mean)} means")
    edges = [preparation.resize] * 2 if isinstance(preparation.resize, int) else preparation.resize
    if edges[0] < height or edges[1] < width:
        raise ValueError(f"{height} x {width} pixels cannot be cut out of an image resized to {preparation.resize}")


Rule = tuple[Sequence[torch.dtype] | None, Sequence[int | None] | None]  # types and shape


def _expected_tensors(model: TrainedValues | GaussianValues, tensors: Mapping[str, Tensor]) -> dict[str, Rule]:
    """Return the types and the shape of each tensor that a file must have, and of those it may have."""
    features, seen = model.features, model.seen
    expected: dict[str, Rule] = {
        "prototypes": (FLOATS, (len(model.names), features)),
        "support": (FLOATS, (sum(model.examples), features)),
    }
    if model.kept:
        expected["kept"] = FLOATS, (sum(count for _, count in model.kept), features)
    if model.thumbnails:
        _check_thumbnails(model, tensors)
        expected["thumbnails"] = (torch.uint8,), (sum(sum(sizes) for _, sizes in model.thumbnails),)
    if isinstance(model, GaussianValues):
        directions = tensors["gaussian.directions"].shape[:1] if "gaussian.directions" in tensors else (None,)
        expected |= {
            "gaussian.means": (FLOATS, (seen, features)),
            "gaussian.centre": (FLOATS, (features,)),
            "gaussian.spread": (FLOATS, (None, features)),
            "gaussian.directions": (FLOATS, (*directions, features)),
            "gaussian.gains": (FLOATS, directions),
        }
        expected |= {f"further.{index}": (FLOATS, (None, features)) for index in range(len(model.further))}
        free: tuple[str, ...] = ("encoder.",)
    else:
        expected["model.prototypes"] = FLOATS, (seen, features)
        expected |= _check_neighbours(len(model.names), with_prefix(tensors, "neighbours."))
        free = ("encoder.", "model.")  # compared with what is built, by `check_size` and where an encoder is opened
    free += tuple(f"relation.{index}." for index in range(len(model.relations)))
    return expected | {name: (None, None) for name in tensors if name.startswith(free) and name not in expected}


def _check_neighbours(classes: int, tensors: Mapping[str, Tensor]) -> dict[str, Rule]:
    """Return the types and shapes of kept neighbours of so many classes, each of which is one of them."""
    expected: dict[str, Rule] = {}
    for name, tensor in tensors.items():
        position, _, kind = name.partition(".")
        if name == "stale":
            expected["neighbours.stale"] = (torch.int64,), (None,)
        elif position.isdecimal() and kind in ("indices", "scores") and tensor.ndim == 2:
            width = tensors[f"{position}.indices"].shape[-1]
            expected[f"neighbours.{name}"] = (torch.int32,) if kind == "indices" else FLOATS, (classes, width)
            if kind == "indices" and f"{position}.scores" not in tensors:
                raise ValueError(f"the neighbours of operator {position} have no scores")
        else:
            continue
        if kind != "scores" and tensor.numel() and not 0 <= int(tensor.min()) <= int(tensor.max()) < classes:
            raise ValueError(f"the tensor 'neighbours.{name}' names a class that there is not")
    return expected


def _check_thumbnails(model: TrainedValues | GaussianValues, tensors: Mapping[str, Tensor]) -> None:
    """Raise a `ValueError` unless every example of a class that has thumbnails has a size of one."""
    if len(dict(model.thumbnails)) != len(model.thumbnails):
        raise ValueError("it has thumbnails of a class twice")
    rows = {name: row for row, name in enumerate(model.names)}
    for name, sizes in model.thumbnails:
        if name not in rows:
            raise ValueError(f"it has thumbnails of '{name}', which is no class")
        row, examples = rows[name], None
        if row >= model.seen:
            examples = model.examples[row - model.seen]
        elif isinstance(model, GaussianValues):
            more = f"further.{model.further.index(name)}" if name in model.further else ""
            examples = model.counts[row] + (len(tensors[more]) if more in tensors and tensors[more].ndim else 0)
        if examples not in (None, len(sizes)):
            raise ValueError(f"it has thumbnails of {len(sizes)} examples of '{name}', which has {examples}")


def _check_relation(relation: RelationValues, classes: int, tensors: Mapping[str, Tensor]) -> None:
    """Raise a `ValueError` unless a relation has a matrix of all classes, and its source the tensors of its kind."""
    if len(relation.known) != classes:
        raise ValueError(f"relation '{relation.label}' is not of {classes} classes")
    rest = dict(tensors)
    _check_matrix("similarities", classes, rest)
    if relation.source is None:
        source, kind = None, ""
    else:
        kind = relation.source.get("kind", "")
        if not isinstance(kind, str):
            raise ValueError(f"relation '{relation.label}' has a source of no kind")
        if kind not in SOURCES:  # of a plugin, which checks what it reads
            return
        source = msgspec.convert(relation.source, SOURCES[kind])
    if isinstance(source, MatrixSource):
        _check_matrix("matrix", len(source.names), rest)
    if isinstance(source, AttributeSource):
        table, centre = rest.pop("table", None), rest.pop("centre", None)
        if table is None or centre is None:
            raise ValueError(f"relation '{relation.label}' has no table of attributes")
        check_tensor("table", table, FLOATS, (len(source.names), None))
        check_tensor("centre", centre, FLOATS, table.shape[1:])
    if rest:
        raise ValueError(f"nothing needs the tensor '{min(rest)}' of relation '{relation.label}'")


def _check_matrix(name: str, size: int, tensors: dict[str, Tensor]) -> None:
    """Raise a `ValueError` unless there is a matrix [V, V] of this name, dense or by its edges; take its tensors out."""
    if name in tensors:
        check_tensor(name, tensors.pop(name), FLOATS, (size, size))
        return
    values, edges = tensors.pop(f"{name}.values", None), tensors.pop(f"{name}.edges", None)
    if values is None or edges is None:
        raise ValueError(f"the tensor '{name}' is missing")
    check_tensor(f"{name}.values", values, FLOATS, (None,))
    check_tensor(f"{name}.edges", edges, (torch.int64,), (2, len(values)))
    if edges.numel() and not 0 <= int(edges.min()) <= int(edges.max()) < size:
        raise ValueError(f"the tensor '{name}.edges' names classes beyond {size}")
