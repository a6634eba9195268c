"""A classifier in one file: safetensors, with JSON in the metadata and a checksum over all of it. No pickle.

format, version, protograph    the kind of file, the version of its layout, the version of the package that wrote it
classifier                     JSON: classes, variant, parameters, relations, threshold, bias, encoder, the change that made it
digest                         checksum of that JSON and of all tensors

prototypes                     [V, D], updated
support                        [n, D] examples of all added classes, one after another
model.*                        of a variant: learned prototypes, operators, graph block, temperature
neighbours.*                   of a variant with many classes: the nearest ones of each, by operator, and their scores
gaussian.*                     of the Gaussian model: class means, the spread within classes, the whitening
kept                           [n, D] features of all images, if they are kept
thumbnails                     bytes of the thumbnails of examples, one after another, if they are kept
further.I                      [n, D] examples that fitted classes were given later
relation.I.*                   similarities of the classes, and small tables of the source
encoder.*                      weights of the encoder, if the file keeps them

A large file holds the same in another layout (`segmented_file.py`), to which changes are appended.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import msgspec
import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph._internal.files import (
    check_plain_file,
    followed,
    new_file,
    read_plain_file,
    remove_unfinished,
    write_atomically,
)
from protograph._internal.locks import hold_lock
from protograph._internal.old_names import CLASSIFIER_PARAMETERS, renamed
from protograph._internal.sealed import metadata, seal, unseal, with_prefix
from protograph._internal.segments import RowParts, SegmentList, row_bytes
from protograph._version import __version__
from protograph.classifier import segmented_file
from protograph.classifier.gaussian_space import ClassStatistics, GaussianSettings, GaussianSpace, RelationUse
from protograph.classifier.joint_space import JointSpace
from protograph.classifier.model_schema import check_contents, check_size, largest_size, parse_values
from protograph.classifier.segmented_file import (
    FILE_FORMAT,
    SEGMENTED_VERSION,
    Stored,
    append_change,
    has_segments,
    list_segments,
    read_stored,
    write_stored,
)
from protograph.classifier.thumbnails import Thumbnails, check_thumbnail
from protograph.encoders import Encoder, KeptEncoder, check_weights_used, open_encoder
from protograph.nn.backbones import Centred
from protograph.nn.whitening import Whitening, WithinSpread
from protograph.relations import KeptRelation, RelationSpec, relation_label
from protograph.relations.stored import described_path
from protograph.variants import OPERATORS, Op, Variant, build

MOST_BUILT = 64_000_000  # bytes of a variant that is built before it is compared with the tensors of its file
FORMAT_VERSION = 3  # of the plain files this code writes; it reads every version from 1 on
MAX_MODEL_BYTES = 16_000_000_000  # of a plain file; the largest encoders that are kept in one have a tenth
MAX_SEGMENTED_BYTES = 2**44  # of one with segments, which is mapped
TABLES = ("offsets", "sharpness", "limits")  # settings by the number of examples
LOCK_SECONDS = 60.0  # seconds that a change waits for one of another process


@dataclass(frozen=True)
class Contents:
    """The contents of a model file.

    Attributes:
        space: The joint label space.
        encoder: The encoder, or None for a classifier of features.
        values: Plain JSON values.
        kept: The features [n, D] of all images by class, if they are kept.
        thumbnails: The thumbnails of examples by class, if they are kept.
        stored: What the large file holds that they came from, or were written into.

    """

    space: JointSpace | GaussianSpace
    encoder: Encoder | None
    values: dict[str, Any]
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    thumbnails: Mapping[str, Thumbnails] = field(default_factory=dict)
    stored: Stored | None = None


@dataclass(frozen=True)
class NamedPaths:
    """The paths that a user names beside a model file. What only the file names is not opened.

    Attributes:
        backbone_weights: The weights of an encoder of timm or transformers.
        relations: Relations with their files, KIND:PATH or the PATH of a similarity matrix.

    """

    backbone_weights: Path | None = None
    relations: Sequence[str] = ()

    def relation_specs(self, described: Sequence[Mapping[str, Any]]) -> dict[str, RelationSpec]:
        """Return the named relations by the label of the described relation that each is.

        Raises:
            InputError: The file names no such relation.

        """
        named = {spec.label: spec for spec in map(RelationSpec.parse, self.relations)}
        specs = {}
        for relation in described:
            path = described_path(relation["source"])
            if path is not None and (spec := named.pop(relation_label(path), None)):
                specs[relation["label"]] = spec
        if named:
            first = next(iter(named.values()))
            raise InputError(f"relation {first} would be ignored, since the model names no such file: leave it out")
        return specs


@dataclass(frozen=True)
class Packed:
    """The contents of a model file as values and tensors.

    Attributes:
        values: The values.
        tensors: The tensors by name, some in parts.
        stored: As in `Contents`.

    """

    values: dict[str, Any]
    tensors: dict[str, RowParts]
    stored: Stored | None

    @cached_property
    def large(self) -> bool:
        """Whether they are to be a large file."""
        return sum(map(row_bytes, self.tensors.values())) >= segmented_file.SEGMENTED_BYTES

    @cached_property
    def slim(self) -> dict[str, Any]:
        """The values of a large file: without the names where these are the labels, and without the change."""
        alike = self.values["names"] == self.values["classes"]
        left_out = ("change", "names") if alike else ("change",)
        return {name: value for name, value in self.values.items() if name not in left_out}

    @property
    def note(self) -> dict[str, Any]:
        """What a large file says of this state."""
        return {"classes": len(self.values["names"]), "change": self.values.get("change")}


def write_model(path: Path, contents: Contents, restore: Callable[[Contents], object]) -> Stored | None:
    """Write a model file, if it can be loaded again. Readers see the old file or the new one.

    To the large file that the contents came from, only what is different is appended.

    Args:
        path: The file.
        contents: What to write.
        restore: What makes a classifier of contents, tried on those that are to be written.

    Returns:
        What the file holds then, if it is a large one.

    Raises:
        InputError: What would be written could not be loaded again.

    """
    packed = pack(contents)
    if packed.large and not path.is_dir():  # it takes a while, and nobody shall take the new file for a leftover
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path):
            if path.exists() and (appended := append_model(path, packed)):
                return appended
            with loadable(path, packed, restore) as ready:
                ready.move()
            return ready.stored
    with loadable(path, packed, restore) as ready:
        ready.move()
    remove_unfinished(followed(path))
    return ready.stored


def append_model(path: Path, packed: Packed) -> Stored | None:
    """Append what is different to the large model file that it came from, whose lock the caller holds.

    Returns:
        What the file then holds; None where it stays as it is, and is to be written anew.

    Raises:
        InputError: What would be appended could not be loaded again.

    """
    if packed.stored is None or not packed.large:
        return None
    with _tried(path):
        sketches = {name: _sketch(rows) for name, rows in packed.tensors.items()}
        check_contents(msgspec.to_builtins(packed.values, enc_hook=lambda number: number.item()), sketches)
        return append_change(followed(path), packed.stored, packed.slim, packed.tensors, packed.note)


@dataclass
class NewModelFile:
    """A model file that can be loaded again, and is not in its place yet.

    Attributes:
        move: What moves it into its place.
        stored: What it holds, if it is a large one.

    """

    move: Callable[[], None]
    stored: Stored | None = None


@contextmanager
def loadable(path: Path, packed: Packed, restore: Callable[[Contents], object]) -> Iterator[NewModelFile]:
    """Yield a new model file, if it can be loaded again.

    Args:
        path: The file whose place it is to take.
        packed: What to write.
        restore: What makes a classifier of contents, tried on those that are to be written.

    Raises:
        InputError: What would be written could not be loaded again.

    """
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file, such as {path / 'classes.pg'}")
    if not packed.large:
        content = _plain_file(packed)
        with _tried(path):
            restore(unpack(content, path))
        yield NewModelFile(partial(write_atomically, path, content))
        return
    path = followed(path)
    with new_file(path) as (unplaced, move):
        with _tried(path):
            with unplaced.open("r+b", buffering=0) as file:
                write_stored(file, packed.slim, packed.tensors, packed.note)
            read = _read_segmented(unplaced, path, NamedPaths())
            restore(read)
        assert read.stored is not None
        yield NewModelFile(move, replace(read.stored, values=packed.slim, tensors=packed.tensors))


@contextmanager
def _tried(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, IndexError, RuntimeError) as error:
        raise InputError(f"{path} was left as it was, since the new file could not be loaded again: {error}") from error


def _sketch(rows: RowParts) -> Tensor:
    """Return a tensor of the type and the shape of rows, without numbers where these are floating-point ones."""
    if isinstance(rows, Tensor):
        return torch.empty_like(rows, device="meta") if rows.is_floating_point() else rows
    return torch.empty(sum(map(len, rows)), *rows[0].shape[1:], dtype=rows[0].dtype, device="meta")


def _model_values(space: JointSpace | GaussianSpace) -> dict[str, Any]:
    """Return the JSON values that only one kind of joint space has."""
    if isinstance(space, JointSpace):
        return {"model": "variant", "variant": asdict(space.variant)}
    settings = asdict(space.settings)
    for table in TABLES:
        settings[table] = [[count, value] for count, value in settings[table].items()]
    return {
        "model": "gaussian",
        "settings": settings,
        "counts": list(space.fitted.counts),
        "spread": {"rest": space.fitted.spread.rest, "freedom": space.fitted.spread.freedom},
        "whitening": {"base": space.whitening.base, "scale": space.scale, "freedom": space.whitening.freedom},
        "related": space.related,
        "further": list(space.further),
    }


def _model_tensors(space: JointSpace | GaussianSpace) -> dict[str, Tensor]:
    """Return the tensors that only one kind of joint space has."""
    if isinstance(space, JointSpace):
        kept = space.neighbours()
        tensors = {f"model.{name}": value for name, value in space.model.state_dict().items()}
        return tensors | {f"neighbours.{name}": value for name, value in kept.items()}
    further = {f"further.{index}": examples for index, examples in enumerate(space.further.values())}
    return further | {
        "gaussian.means": space.fitted.means,
        "gaussian.centre": space.fitted.centre,
        "gaussian.spread": space.fitted.spread.rows,
        "gaussian.directions": space.whitening.directions.float(),
        "gaussian.gains": space.whitening.gains.float(),
    }


def read_model(path: Path, named: NamedPaths | None = None) -> Contents:
    """Return the contents of a model file.

    Args:
        path: The file.
        named: The paths that the user names beside it.

    Raises:
        InputError: There is no model file, or it is damaged, or of a newer version, or has no use for a named path.

    """
    if is_segmented(path):
        return _read_segmented(path, path, named or NamedPaths())
    return unpack(read_plain_file(path, "model file", MAX_MODEL_BYTES), path, named)


def is_segmented(path: Path) -> bool:
    """Return whether a model file is a large one, laid out in segments.

    Raises:
        InputError: There is no plain file.

    """
    check_plain_file(path, "model file", MAX_SEGMENTED_BYTES)
    try:
        return has_segments(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): check its permissions") from error


def _read_segmented(file: Path, path: Path, named: NamedPaths) -> Contents:
    """Return the contents of a large model file, which errors call by a path."""
    try:
        stored = read_stored(file)
        values = dict(stored.values)
        values.setdefault("names", values.get("classes"))
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise _damaged(path, error) from error
    contents = _contents(path, values, cast(Mapping[str, Tensor], stored.tensors), named)
    parts = {"support": contents.space.support, "kept": list(contents.kept.values())}
    tensors = dict(stored.tensors)
    for name, listed in parts.items():  # the same rows, as they are packed, so that they are seen to be the same
        if name in tensors and cast(Tensor, tensors[name]).dtype == torch.float32:
            tensors[name] = [cast(Tensor, tensors[name])[:0], *listed]
    return replace(contents, stored=replace(stored, tensors=tensors))


def read_header(path: Path) -> dict[str, str]:
    """Return the texts in the metadata of a model file, such as its digest, without reading its tensors.

    They are not compared with the tensors: only `read_model` shows that a file is whole.

    Raises:
        InputError: There is no model file.

    """
    if is_segmented(path):
        segments = read_segment_list(path)
        return {**segments.segments[0].header.metadata, "digest": segments.head.digest}
    try:
        with path.open("rb") as file:
            length = file.read(8)
            size = int.from_bytes(length, "little")
            header = metadata(length + file.read(size if size <= os.fstat(file.fileno()).st_size else 0))
    except ValueError as error:
        raise _not_a_model(path, error) from error
    if header.get("format") != FILE_FORMAT or "digest" not in header:
        raise InputError(f"{path} is a safetensors file, but not a Protograph classifier: give a file that `fit` made")
    return header


def read_segment_list(path: Path) -> SegmentList:
    """Return the segments of a large model file, by their headers.

    Raises:
        InputError: One is damaged.

    """
    try:
        return list_segments(path)
    except ValueError as error:
        raise _damaged(path, error) from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from changing a model file; remove unfinished files of killed processes."""
    if not path.parent.is_dir():
        raise InputError(f"there is no model file at {path}")
    file = followed(path)  # a link and its target share one lock
    with hold_lock(file.with_name(f".{file.name}.lock"), path, "wait for it, then run the same command again", LOCK_SECONDS):
        remove_unfinished(file)
        yield


def pack(contents: Contents) -> Packed:
    """Return the contents of a model file as values and tensors."""
    space, encoder = contents.space, contents.encoder
    described = [relation.describe() for relation in space.relations.values()]
    values = {
        **contents.values,
        "names": list(space.names),
        "examples": [len(examples) for examples in space.support],
        "features": space.prototypes.shape[1],
        **_model_values(space),
        "relations": [relation for relation, _ in described],
        "encoder": None if encoder is None else encoder.description(),
    }
    values["kept"] = [[name, len(features)] for name, features in contents.kept.items()]
    tensors: dict[str, RowParts] = dict(_model_tensors(space))
    if contents.thumbnails:
        values["thumbnails"] = [[name, [len(part or b"") for part in parts]] for name, parts in contents.thumbnails.items()]
        joined = b"".join(part for parts in contents.thumbnails.values() for part in parts if part)
        tensors["thumbnails"] = torch.frombuffer(bytearray(joined), dtype=torch.uint8)
    if contents.kept:
        tensors["kept"] = [space.prototypes[:0], *contents.kept.values()]
    tensors |= {"prototypes": space.prototypes, "support": [space.prototypes[:0], *space.support]}
    for index, (_, parts) in enumerate(described):
        tensors |= {f"relation.{index}.{name}": value for name, value in parts.items()}
    if encoder is not None:
        tensors |= {f"encoder.{name}": value for name, value in encoder.tensors().items()}
    return Packed(values, tensors, contents.stored)


def _plain_file(packed: Packed) -> bytes:
    """Return the bytes of a plain model file."""
    return seal(
        {  # safetensors refuses tensors that share memory
            name: rows.clone() if isinstance(rows, Tensor) else torch.cat(list(rows)) for name, rows in packed.tensors.items()
        },
        "classifier",
        json.dumps(packed.values, ensure_ascii=False, default=lambda number: number.item()),  # numpy's own numbers
        format=FILE_FORMAT,
        version=str(FORMAT_VERSION),
        protograph=__version__,
    )


def unpack(content: bytes, path: Path, named: NamedPaths | None = None) -> Contents:
    """Return the contents of a plain file, also of an earlier version."""
    try:
        header = metadata(content)
    except ValueError as error:
        raise _not_a_model(path, error) from error
    if header.get("format") != FILE_FORMAT:
        raise InputError(f"{path} is a safetensors file, but not a Protograph classifier: give a file that `fit` made")
    version = _format_version(header, path)
    try:
        text, tensors = unseal(content, "classifier", header)
        values = upgraded(parse_values(text), version)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, error) from error
    return _contents(path, values, tensors, named or NamedPaths())


def _contents(path: Path, values: dict[str, Any], tensors: Mapping[str, Tensor], named: NamedPaths) -> Contents:
    """Return the contents of a file with these values, in today's layout, and these tensors."""
    try:
        check_contents(values, tensors)
        tensors = {name: value.float() if _is_single(name) else value for name, value in tensors.items()}
        operators = values["variant"]["operators"] if values["model"] == "variant" else []
        unknown = sorted({op["kind"] for op in operators} - OPERATORS.keys())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, error) from error
    if unknown:
        raise InputError(
            f"{path} was made with the operator '{unknown[0]}', which is not registered: name the file that registers it "
            "(--plugin FILE), or import it"
        )
    check_weights_used(values["encoder"], named.backbone_weights)
    specs = named.relation_specs(values["relations"])
    try:
        make_space = _variant_space if values["model"] == "variant" else _gaussian_space
        space = make_space(values, tensors, _kept_relations(values, tensors, specs))
        counts = dict(values["kept"])
        features = torch.split(tensors["kept"], list(counts.values())) if counts else ()
        images = dict(zip(counts, features, strict=True))
        thumbnails = dict(_thumbnails(values.get("thumbnails", []), tensors))
        encoder, weights = values["encoder"], named.backbone_weights
        opener = open_encoder if weights is None else partial(open_encoder, weights=weights)
        kept = None if encoder is None else KeptEncoder(encoder, with_prefix(tensors, "encoder."), values["features"], opener)
    except (ValueError, KeyError, TypeError, RuntimeError, IndexError, AttributeError, ArithmeticError) as error:
        raise _damaged(path, error) from error
    return Contents(space, kept, values, images, thumbnails)


def _is_single(name: str) -> bool:
    """Return whether a tensor is computed with in float32, whatever the file has."""
    return name in ("prototypes", "support", "kept") or name.startswith("further.")


def upgraded(values: dict[str, Any], version: int) -> dict[str, Any]:
    """Return the JSON of a file of any known version in the layout of today's."""
    values["parameters"].pop("balance", None)  # what it chose is kept as the bias
    if version < 2:  # `rate` became `learning_rate`
        values["parameters"] = renamed(values["parameters"], CLASSIFIER_PARAMETERS)
    if version < 3:  # all of them were trained variants, whether the user had named one or not
        values["model"] = "variant"
        values["kept"] = []
        values["parameters"]["variant"] = values["parameters"].get("variant") or values["variant"]["name"]
    return values


def _format_version(header: Mapping[str, str], path: Path) -> int:
    """Return the version of a file's format, if this code reads it."""
    text = str(header.get("version"))
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"{path} is damaged (version {text} of its format): restore a copy, or fit again")
    if int(text) > SEGMENTED_VERSION:
        raise InputError(
            f"{path} has version {text} of the format, written by protograph {header.get('protograph')}; this is protograph "
            f"{__version__}, which reads versions 1 to {SEGMENTED_VERSION}: install a newer one"
        )
    if int(text) > FORMAT_VERSION:
        raise InputError(f"{path} is damaged (its header is not that of version {text}): restore a copy, or fit again")
    return int(text)


def _not_a_model(path: Path, error: ValueError) -> InputError:
    return InputError(f"{path} is not a model file ({error}): give a file that `fit` made")


def _damaged(path: Path, error: Exception) -> InputError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return InputError(f"{path} is damaged ({reason}): restore a copy, or fit again")


def _kept_relations(
    values: Mapping[str, Any], tensors: Mapping[str, Tensor], specs: Mapping[str, RelationSpec]
) -> dict[str, KeptRelation]:
    relations = [
        KeptRelation.restore(relation, with_prefix(tensors, f"relation.{index}."), specs.get(relation["label"]))
        for index, relation in enumerate(values["relations"])
    ]
    return {relation.label: relation for relation in relations}


def _thumbnails(sizes: Sequence[tuple[str, Sequence[int]]], tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Thumbnails]]:
    """Yield the thumbnails of each class from the bytes of all.

    Raises:
        ValueError: One is no JPEG, or too large.

    """
    content = tensors["thumbnails"].numpy().tobytes() if sizes else b""
    end = 0
    for name, lengths in sizes:
        parts: list[bytes | None] = []
        for length in lengths:
            parts.append(content[end : end + length] or None)
            check_thumbnail(parts[-1])
            end += length
        yield name, tuple(parts)


def _gaussian_space(
    values: Mapping[str, Any], tensors: Mapping[str, Tensor], relations: Mapping[str, KeptRelation]
) -> GaussianSpace:
    chosen = dict(values["settings"])
    use = dict(chosen.pop("relations"))
    use["labels"] = tuple(use["labels"])
    for table in TABLES:
        chosen[table] = {int(count): value for count, value in chosen.get(table, [])}
    settings = GaussianSettings(**chosen, relations=RelationUse(**use))
    parts, spread = with_prefix(tensors, "gaussian."), values["spread"]
    fitted = ClassStatistics(
        parts["means"],
        tuple(values["counts"]),
        parts["centre"],
        WithinSpread(parts["spread"], spread["rest"], spread["freedom"]),
    )
    whitening = Whitening(
        settings.power,
        fitted.centre.double(),
        parts["directions"].double(),
        parts["gains"].double(),
        values["whitening"]["base"],
        values["whitening"].get("freedom", spread["freedom"]),  # the first files had none
    )
    further = {name: tensors[f"further.{index}"] for index, name in enumerate(values["further"])}
    return GaussianSpace(
        settings,
        fitted,
        values["names"],
        relations,
        torch.split(tensors["support"], values["examples"]),
        further,
        values["related"],
        (whitening, values["whitening"]["scale"], tensors["prototypes"]),
    )


def _variant_space(
    values: Mapping[str, Any], tensors: Mapping[str, Tensor], relations: Mapping[str, KeptRelation]
) -> JointSpace:
    names, counts, features = values["names"], values["examples"], values["features"]
    variant = variant_from(values["variant"])
    similarities = {label: relation.similarities for label, relation in relations.items()}
    seen = len(names) - len(counts)
    if largest_size(values["variant"], features, len(names)) > MOST_BUILT:
        with suppress(NotImplementedError, RuntimeError), torch.device("meta"):  # a custom operator may need real numbers
            shapes = {label: torch.empty(len(names), len(names)) for label in relations}
            sketch = build(variant, Centred(torch.zeros(features)), (features,), seen, shapes)
            check_size(sketch, with_prefix(tensors, "model."))
    model = build(variant, Centred(torch.zeros(features)), (features,), seen, similarities)
    check_size(model, with_prefix(tensors, "model."))
    centred = {f"backbone.{name}": value for name, value in model.backbone.state_dict().items()}  # the first files had none
    model.load_state_dict(centred | with_prefix(tensors, "model."))
    support = torch.split(tensors["support"], counts)
    neighbours = with_prefix(tensors, "neighbours.") or None
    return JointSpace(model, variant, names, relations, support, tensors["prototypes"], kept_neighbours=neighbours)


def variant_from(values: Mapping[str, Any]) -> Variant:
    """Return a variant from its fields, with lists of JSON as tuples."""
    known = {field.name for field in fields(Variant)}
    arguments: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items() if name in known
    }
    arguments["operators"] = tuple(
        Op(op["kind"], None if op["blocks"] is None else tuple(op["blocks"]), op["order"], op["options"])
        for op in values["operators"]
    )
    return Variant(**arguments)
