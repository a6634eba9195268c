"""What a model file says of itself, read from its header: nothing is loaded, built or opened, and nothing is believed."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protograph._internal.errors import InputError
from protograph._internal.files import check_plain_file
from protograph.classifier.model_file import MAX_MODEL_BYTES, is_segmented
from protograph.classifier.segmented_file import list_segments, read_values
from protograph.encoders import backbone_title, names_path
from protograph.relations.stored import described_path
from protograph.variants import OPERATORS

LARGEST_HEADER = 100_000_000  # bytes, as in safetensors
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError)
ITEM_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F16": 2, "BF16": 2, "I16": 2, "F32": 4, "I32": 4, "F64": 8, "I64": 8}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as the header describes it.

    Attributes:
        name: Its name.
        dtype: Its type, such as F32.
        shape: Its shape.
        size: Its bytes.

    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class StoredSegment:
    """A segment of a large file as its header describes it.

    Attributes:
        kind: A base, a change of a state, or a return to one.
        what: What was changed.
        digest: The digest of the state that the file is in up to here.
        present: Whether it takes part in the present state.
        size: Its bytes.

    """

    kind: str
    what: str
    digest: str
    present: bool
    size: int


@dataclass(frozen=True)
class Inspection:
    """What a model file says of itself.

    Attributes:
        size: The bytes of the file.
        metadata: The texts of the header but the JSON: format, version, protograph, digest.
        parts: What the JSON says, by name: model, classes, features, encoder, relations and so on.
        opens: What would be opened beside the file, and when.
        tensors: The tensors; of a large file, those of its base.
        segments: The segments of a large file.
        unfinished: The bytes at its end that a killed process left, which the next change overwrites.

    """

    size: int
    metadata: dict[str, str]
    parts: dict[str, Any]
    opens: tuple[str, ...]
    tensors: tuple[StoredTensor, ...]
    segments: tuple[StoredSegment, ...] = ()
    unfinished: int = 0


def inspect_model(path: Path) -> Inspection:
    """Return what a model file says of itself.

    Raises:
        InputError: It is no safetensors file of a classifier.

    """
    if is_segmented(path):
        return _inspect_segments(path)
    check_plain_file(path, "model file", MAX_MODEL_BYTES)
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            length = int.from_bytes(file.read(8), "little")
            if length > min(LARGEST_HEADER, size):
                raise ValueError("it is no safetensors file")
            header: dict[str, Any] = json.loads(file.read(length))
            texts = header.pop("__metadata__")
            values = json.loads(texts["classifier"])
            tensors = tuple(_tensor(str(name), described, size) for name, described in sorted(header.items()))
            parts, opens = _parts(values), tuple(_opens(values))
    except UNREADABLE as error:
        raise _not_a_model(path, error) from error
    metadata = {str(name): str(text) for name, text in texts.items() if name != "classifier"}
    return Inspection(size, metadata, parts, opens, tensors)


def _inspect_segments(path: Path) -> Inspection:
    """Return what a large file says of itself, with the values of its present state."""
    try:
        segments = list_segments(path)
        values = read_values(path, segments)
        parts, opens = _parts(values), tuple(_opens(values))
        line, head, described = segments.line(segments.head), "", []
        for segment in segments.segments:
            header = segment.header
            change = header.note.get("change") or {}
            head = header.on if header.kind == "return" else segment.digest
            size = segment.stop - segment.start
            described.append(StoredSegment(header.kind, str(change.get("what", "")), head, segment in line, size))
    except UNREADABLE as error:
        raise _not_a_model(path, error) from error
    base = segments.segments[0]
    tensors = tuple(
        StoredTensor(name, part.dtype, tuple(part.shape), part.size) for name, part in sorted(base.header.parts.items())
    )
    metadata = {**base.header.metadata, "digest": segments.head.digest}
    return Inspection(segments.size, metadata, parts, opens, tensors, tuple(described), segments.size - segments.stop)


def _not_a_model(path: Path, error: Exception) -> InputError:
    return InputError(f"{path} is not a model file ({error}): give a file that `fit` made")


def _tensor(name: str, described: Mapping[str, Any], most: int) -> StoredTensor:
    dtype, shape, (start, stop) = str(described["dtype"]), tuple(described["shape"]), described["data_offsets"]
    if not all(isinstance(number, int) and number >= 0 for number in (*shape, start, stop)) or not start <= stop <= most:
        raise ValueError(f"the tensor '{name}' lies outside of the file")
    if dtype in ITEM_BYTES and math.prod(shape) * ITEM_BYTES[dtype] != stop - start:
        raise ValueError(f"the tensor '{name}' of {dtype} {shape} has {stop - start} bytes")
    return StoredTensor(name, dtype, shape, stop - start)


def _parts(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the JSON of a model file says, as short plain values."""
    encoder, variant = values.get("encoder"), values.get("variant")
    names, added = list(values["names"]), len(values["examples"])
    return {
        "model": str(values.get("model", "variant")),
        "variant": str(variant["name"]) if isinstance(variant, dict) else None,
        "classes": len(names),
        "of these added": added,
        "first classes": [str(name) for name in names[:5]],
        "features": int(values["features"]),
        "encoder": None if encoder is None else backbone_title(encoder),
        "relations": [str(relation["label"]) for relation in values["relations"]],
        "kept images": sum(int(count) for _, count in values.get("kept", ())),
    }


def _opens(values: Mapping[str, Any]) -> Sequence[str]:
    """Return what would be opened beside the file."""
    opens, encoder = [], values.get("encoder")
    if encoder is not None:
        kind, title = str(encoder["kind"]), backbone_title(encoder)
        if names_path(kind, str(encoder["name"])):
            opens.append(f"{title}, for images, only if you name it by --backbone-weights")
        elif kind in ("timm", "transformers"):
            opens.append(f"the weights of {title} in your cache, for images")
        elif kind != "backbone":
            opens.append(f"the weights of {title} from their installed package, for images")
    for relation in values["relations"]:
        source = relation["source"]
        if source is None:
            continue
        if path := described_path(source):
            opens.append(f"{path}, for new classes, only if you name it by --relations")
        elif source.get("spec"):
            opens.append(f"the relation '{source['spec']}' as it is installed, for new classes")
    if isinstance(variant := values.get("variant"), dict):
        unknown = sorted({str(operator["kind"]) for operator in variant["operators"]} - OPERATORS.keys())
        opens += [f"the operator '{kind}', only from a file that you name by --plugin" for kind in unknown]
    return opens
