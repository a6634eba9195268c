"""Features of many images in a folder of shards: what `protograph embed` writes, and others read like a file of features.

    manifest.json               the encoder, the digest of the list of images, how many images and shards there are
    00000.safetensors, ...      the features of some images each, in the order of the list

Shard k has the images k * images_per_shard and on, whoever makes it. Each shard is a file of features by itself, and names the
manifest that it belongs to, so features of different encoders never mix.

Shapes: b images of a shard, P of all shards, D features.
"""

import hashlib
import io
import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import torch
from msgspec import Meta, Struct
from numpy.typing import NDArray
from torch import Tensor

from protograph._internal import sealed
from protograph._internal.errors import InputError
from protograph._internal.files import ALWAYS_ALLOWED, is_folder, read_plain_file
from protograph._internal.parquet import equal_lists, read_parquet

MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 1_000_000
MAX_SHARD_BYTES = 4_000_000_000
MOST_SHRUNK = 100  # of the bytes of features and of the shards that hold them; features hardly shrink
MISSING_NAMED = 3  # shards in the error about those that are missing
TEXT = "shard"  # the key of the text in a shard
SHARD_NAME = re.compile(r"[0-9]{5,12}")
ShardKind = Literal["safetensors", "parquet"]

Count = Annotated[int, Meta(ge=1, le=10**12)]
ShardCount = Annotated[int, Meta(ge=1, le=10**6)]
FeatureCount = Annotated[int, Meta(ge=1, le=10**5)]


class EncoderNotes(Struct, frozen=True, forbid_unknown_fields=True):
    """What a manifest says of the encoder: how the user named it, its digest, its edge of images and its features D."""

    name: str
    digest: str
    size: ShardCount
    features: FeatureCount


class Manifest(Struct, frozen=True, forbid_unknown_fields=True):
    """What a folder of shards was begun with.

    Attributes:
        encoder: What made the features.
        list_digest: The digest of names, classes and parts of all images.
        images: How many there are, P.
        images_per_shard: How many a shard has; the last has the rest.
        kind: The format of the shards.
        labelled: Whether the images have classes.
        format: The version of this format.

    """

    encoder: EncoderNotes
    list_digest: str
    images: Count
    images_per_shard: ShardCount
    kind: ShardKind
    labelled: bool
    format: Literal[1] = 1

    @property
    def shards(self) -> int:
        """The number of shards."""
        return -(-self.images // self.images_per_shard)

    def rows(self, shard: int) -> range:
        """Return which images of the list a shard has."""
        return range(shard * self.images_per_shard, min(self.images, (shard + 1) * self.images_per_shard))

    def path(self, folder: Path, shard: int) -> Path:
        """Return the file of a shard."""
        return folder / f"{shard:05d}.{self.kind}"

    def digest(self) -> str:
        """Return the digest by which shards name this manifest."""
        return hashlib.blake2b(json.dumps(msgspec.to_builtins(self), sort_keys=True).encode(), digest_size=16).hexdigest()


class ShardNotes(Struct, frozen=True):
    """The text of a shard: the attributes of `Shard`, and its manifest, its index and the classes by number."""

    manifest: str
    index: int
    names: list[str]
    classes: list[str]
    parts: list[Literal["train", "validation", "test"]] | None
    problems: dict[str, str]
    sizes: list[int]


@dataclass(frozen=True)
class Shard:
    """Features of some images.

    Attributes:
        vectors: The features [b, D].
        names: The names of the images [b].
        labels: Their classes [b]; None where the list has none.
        parts: "train", "validation" or "test" [b]; None where the images do not come in parts.
        problems: Why images of this shard cannot be read, by name; they have no features.
        sizes: The bytes of each file when it was read, those with problems too, in the order of the list.

    """

    vectors: Tensor
    names: Sequence[str]
    labels: Sequence[str] | None
    parts: Sequence[str] | None
    problems: Mapping[str, str]
    sizes: Sequence[int]

    def content(self, manifest: Manifest, index: int) -> bytes:
        """Return the file of this shard. Equal shards give equal bytes."""
        classes = sorted(set(self.labels or ()))
        text = json.dumps(
            {
                "manifest": manifest.digest(),
                "index": index,
                "names": list(self.names),
                "classes": classes,
                "parts": self.parts and list(self.parts),
                "problems": dict(self.problems),
                "sizes": list(self.sizes),
            }
        )
        number = {label: position for position, label in enumerate(classes)}
        labels = torch.tensor([number[label] for label in self.labels or ()], dtype=torch.int64)
        tensors = {"vectors": self.vectors} | ({} if self.labels is None else {"labels": labels})
        if manifest.kind == "safetensors":
            return sealed.with_sorted_header(sealed.seal(tensors, TEXT, text, classes=json.dumps(classes)))
        return _as_parquet(self, text, sealed.tensors_digest(text, tensors))


def is_feature_folder(path: Path) -> bool:
    """Return whether a path is a folder of shards."""
    return is_folder(path) and (path / MANIFEST).is_file()


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder of shards.

    Raises:
        InputError: There is none, or it is damaged.

    """
    path = folder / MANIFEST
    content = read_plain_file(path, "manifest of features", MAX_MANIFEST_BYTES, "make them with `protograph embed`")
    try:
        return msgspec.json.decode(content, type=Manifest)
    except (ValueError, RecursionError) as error:  # of UTF-8, of JSON, of types
        raise InputError(f"{path} is not a manifest of features ({error}): make them anew with `protograph embed`") from error


def read_shard(folder: Path, manifest: Manifest, index: int) -> Shard:
    """Return a shard after all checks.

    Raises:
        InputError: The file is missing or damaged, or belongs to another manifest.

    """
    path = manifest.path(folder, index)
    content = read_plain_file(path, "shard of features", MAX_SHARD_BYTES, "run the same `protograph embed` again")
    try:
        text, tensors = sealed.unseal(content, TEXT) if manifest.kind == "safetensors" else _from_parquet(content)
        return _checked(json.loads(text), tensors, manifest, index)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is damaged ({error}): remove it and run the same `protograph embed` again") from error


def check_complete(folder: Path, manifest: Manifest) -> None:
    """Raise an `InputError` that names the first missing shards, if there are any."""
    present = finished_shards(folder, manifest)
    if lacking := manifest.shards - len(present):
        missing = islice((index for index in range(manifest.shards) if index not in present), MISSING_NAMED)
        named = ", ".join(manifest.path(folder, index).name for index in missing)
        more = f" and {lacking - MISSING_NAMED} more" if lacking > MISSING_NAMED else ""
        raise InputError(
            f"{folder} lacks {lacking} of {manifest.shards} shards ({named}{more}): run the same `protograph embed` again"
        )


def finished_shards(folder: Path, manifest: Manifest) -> set[int]:
    """Return which shards of a manifest are there; they are checked when they are read."""
    with os.scandir(folder) as entries:
        stems = [entry.name.removesuffix(f".{manifest.kind}") for entry in entries if entry.name.endswith(f".{manifest.kind}")]
    indices = {int(stem) for stem in stems if SHARD_NAME.fullmatch(stem)}
    return {index for index in indices if index < manifest.shards}


def read_shards(folder: Path) -> Iterator[Shard]:
    """Yield the shards of a complete folder, one after the other.

    Raises:
        InputError: A shard is missing, before the first is read; or one is damaged or belongs to another manifest.

    """
    manifest = read_manifest(folder)
    check_complete(folder, manifest)
    for index in range(manifest.shards):
        yield read_shard(folder, manifest, index)


class ShardReader:
    """The features of a complete folder of shards, of which one shard at a time is in memory.

    Args:
        folder: The folder. All shards are read once, and checked.

    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.manifest = folder, read_manifest(folder)
        self.names: list[str] = []
        self._starts: list[int] = []
        self._held: tuple[int, Tensor] | None = None
        for shard in read_shards(folder):
            self._starts.append(len(self.names))
            self.names += shard.names

    def vectors(self, start: int, stop: int) -> Tensor:
        """Return the features of a range of the images."""
        parts = []
        while start < stop:
            shard = bisect_right(self._starts, start) - 1
            vectors, first = self._shard(shard), self._starts[shard]
            parts.append(vectors[start - first : stop - first])
            start += len(parts[-1])
        return torch.cat(parts) if parts else torch.zeros(0, self.manifest.encoder.features)

    def _shard(self, index: int) -> Tensor:
        if self._held is None or self._held[0] != index:
            self._held = index, read_shard(self.folder, self.manifest, index).vectors
        return self._held[1]


@dataclass(frozen=True)
class ShardedFeatures:
    """All of a folder of shards: vectors [P, D], and for each its name and, where there are some, its class and its part."""

    vectors: NDArray[np.float32]
    names: list[str]
    labels: list[str] | None
    parts: list[str] | None


def read_feature_folder(folder: Path) -> ShardedFeatures:
    """Return the features of a folder of shards, with the errors of `read_shards`."""
    manifest = read_manifest(folder)
    check_complete(folder, manifest)
    stored = sum(manifest.path(folder, index).stat().st_size for index in range(manifest.shards))
    if (expected := manifest.images * manifest.encoder.features * 4) > MOST_SHRUNK * stored + ALWAYS_ALLOWED:
        raise InputError(
            f"the shards of {folder} have {stored:,} bytes and would unpack to {expected:,}, more than {MOST_SHRUNK} times as "
            "many: make them anew with `protograph embed`"
        )
    vectors = np.empty((manifest.images, manifest.encoder.features), np.float32)
    names: list[str] = []
    labels: list[str] = []
    parts: list[str] = []
    for shard in read_shards(folder):
        vectors[len(names) : len(names) + len(shard.names)] = shard.vectors.numpy()
        names += shard.names
        labels += shard.labels or ()
        parts += shard.parts or ()
    return ShardedFeatures(
        vectors[: len(names)], names, labels if manifest.labelled else None, parts if len(parts) == len(names) > 0 else None
    )


def _checked(values: Any, tensors: Mapping[str, Tensor], manifest: Manifest, index: int) -> Shard:
    notes = msgspec.convert(values, ShardNotes)
    if notes.manifest != manifest.digest() or notes.index != index:
        raise ValueError("it belongs to another list of images or another encoder")
    names, parts, vectors, images = notes.names, notes.parts, tensors["vectors"], len(manifest.rows(index))
    if vectors.dtype != torch.float32 or vectors.shape != (len(names), manifest.encoder.features):
        raise ValueError(f"its vectors are {vectors.dtype} {list(vectors.shape)}")
    numbers = tensors["labels"] if manifest.labelled else torch.zeros(len(names), dtype=torch.int64)
    if numbers.dtype != torch.int64 or numbers.shape != (len(names),) or len(parts or names) != len(names):
        raise ValueError("its classes or parts are not one for each vector")
    if manifest.labelled and len(names) and not 0 <= numbers.min() <= numbers.max() < len(notes.classes):
        raise ValueError(f"it has {len(notes.classes)} classes, and the number {int(numbers.max())} of one")
    if len(names) + len(notes.problems) != images or len(notes.sizes) != images:
        raise ValueError("it has another number of images")
    labels = [notes.classes[number] for number in numbers.tolist()] if manifest.labelled else None
    return Shard(vectors, names, labels, parts, notes.problems, notes.sizes)


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError('shards as .parquet files need pyarrow: pip install "protograph[parquet]"') from error
    return pyarrow


def _as_parquet(shard: Shard, text: str, digest: str) -> bytes:
    """Return a shard as a Parquet file with the columns file, vector and, where there are some, label and part."""
    arrow = _pyarrow()
    flat = arrow.array(shard.vectors.numpy().reshape(-1))
    columns = {
        "file": [name.encode(errors="backslashreplace").decode() for name in shard.names],
        "vector": arrow.FixedSizeListArray.from_arrays(flat, shard.vectors.shape[1]),
    }
    if shard.labels is not None:
        columns["label"] = list(shard.labels)
    if shard.parts is not None:
        columns["part"] = list(shard.parts)
    table = arrow.table(columns).replace_schema_metadata({TEXT: text, "digest": digest})
    buffer = io.BytesIO()
    arrow.parquet.write_table(table, buffer, compression="none")
    return buffer.getvalue()


def _from_parquet(content: bytes) -> tuple[str, dict[str, Tensor]]:
    """Return the text and the tensors of a Parquet file that `_as_parquet` wrote."""
    columns, metadata = read_parquet(content, lambda names: [name for name in ("vector", "label") if name in names])
    text = metadata[TEXT.encode()].decode()
    tensors = {"vectors": torch.from_numpy(equal_lists(columns["vector"]))}
    if "label" in columns:
        number = {label: position for position, label in enumerate(json.loads(text)["classes"])}
        tensors["labels"] = torch.tensor([number[label] for label in columns["label"].to_pylist()], dtype=torch.int64)
    if metadata[b"digest"].decode() != sealed.tensors_digest(text, tensors):
        raise ValueError("its contents do not match their checksum")
    return text, tensors
