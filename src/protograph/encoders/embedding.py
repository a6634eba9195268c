"""Features of any number of images, into a folder of shards: by one process or by many, which share nothing but the folder.

A shard is made as a whole and moved into place, so after a kill it is complete or absent, and whoever runs the same command
again makes what is missing. Two processes that make the same shard write the same bytes.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from torch import Tensor

from protograph._internal.errors import InputError
from protograph._internal.files import remove_unfinished, write_atomically
from protograph._internal.progress import Progress
from protograph._internal.wording import counted
from protograph.data.feature_shards import (
    MANIFEST,
    EncoderNotes,
    Manifest,
    Shard,
    ShardKind,
    finished_shards,
    is_feature_folder,
    read_manifest,
    read_shard,
)
from protograph.data.image_list import ImageList, ListedImage
from protograph.data.tar_images import TarMember
from protograph.encoders.base import ImageEncoder

IMAGES_PER_SHARD = 2048  # a kill loses one shard of each process
SHARDS_DEPEND_ON = {  # what a manifest says -> what to say where it is no longer the same
    "encoder": "the features there are by {before.encoder.name} at {before.encoder.size} pixels, not {now.encoder.name} at "
    "{now.encoder.size}",
    "list_digest": "images were added, removed or renamed since it was begun",
    "images_per_shard": "its shards have {before.images_per_shard} images, not {now.images_per_shard}",
    "kind": "its shards are .{before.kind}, not .{now.kind}",
}


@dataclass(frozen=True)
class Share:
    """A share of the shards: `number` of `of`, counted from 1. It has every `of`-th shard."""

    number: int = 1
    of: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise InputError(f"there is no share {self.number}/{self.of}: give I/N, where I is 1 to N")

    def shards(self, count: int) -> range:
        """Return the shards of this share, of `count` in all."""
        return range(self.number - 1, count, self.of)


@dataclass(frozen=True)
class ShardSettings:
    """The form of shards: how many images each has, and the format of the files."""

    images_per_shard: int = IMAGES_PER_SHARD
    kind: ShardKind = "safetensors"


@dataclass(frozen=True)
class Embedding:
    """The shards of a list of images by an encoder, in a folder.

    Attributes:
        images: The images.
        encoder: The encoder.
        folder: The folder of the shards.
        manifest: What it was begun with.
        skip_bad: Whether images that cannot be read are left out instead of refused.

    """

    images: ImageList
    encoder: ImageEncoder
    folder: Path
    manifest: Manifest
    skip_bad: bool = False

    @classmethod
    def opened(
        cls, images: ImageList, encoder: ImageEncoder, name: str, folder: Path, settings: ShardSettings, skip_bad: bool
    ) -> "Embedding":
        """Return the shards that are to be made in a new folder, or in one that was begun with the same.

        Args:
            images: The images.
            encoder: The encoder.
            name: How the user calls the encoder.
            folder: The folder.
            settings: The form of the shards.
            skip_bad: Whether images that cannot be read are left out.

        Raises:
            InputError: The folder was begun with another encoder, another list or other settings, or holds other files.

        """
        notes = EncoderNotes(name, encoder.digest(), max(encoder.preparation.shape[1:]), encoder.features)
        manifest = Manifest(
            notes, images.digest(), len(images.images), settings.images_per_shard, settings.kind, images.labelled
        )
        if is_feature_folder(folder):
            _check_same(read_manifest(folder), manifest, folder)
        elif folder.exists() and (not folder.is_dir() or any(not path.name.startswith(".") for path in folder.iterdir())):
            raise InputError(f"{folder} exists and holds no features of `protograph embed`: choose another --out, or remove it")
        else:
            content = json.dumps(msgspec.to_builtins(manifest), indent=2, ensure_ascii=False) + "\n"
            write_atomically(folder / MANIFEST, content.encode(errors="backslashreplace"))
            _check_same(read_manifest(folder), manifest, folder)  # another process may have been faster
        remove_unfinished(folder / MANIFEST)
        return cls(images, encoder, folder, manifest, skip_bad)

    def finished(self, shards: Sequence[int]) -> dict[int, Shard]:
        """Return those of some shards that are there, whole, and of files that still have the sizes they had."""
        present = finished_shards(self.folder, self.manifest)
        read = {index: self._read(index) for index in shards if index in present}
        return {index: shard for index, shard in read.items() if shard is not None}

    def _read(self, index: int) -> Shard | None:
        try:
            shard = read_shard(self.folder, self.manifest, index)
        except InputError:
            return None
        current = list(shard.sizes) == [image.size() for image in self._images(index)]
        return shard if current and (self.skip_bad or not shard.problems) else None

    def make(self, index: int, advance: Callable[[int], None]) -> Mapping[str, str]:
        """Make a shard, and return by name why images of it cannot be read.

        Args:
            index: The number of the shard.
            advance: Called with the number of images that were encoded.

        Raises:
            InputError: An image cannot be read, and `skip_bad` does not allow to leave it out.

        """
        images = self._images(index)
        sizes = [image.size() for image in images]
        vectors, problems = self.encoder.encode_each(len(images), lambda row: self._pixels(images[row]), advance)
        if problems and not self.skip_bad:
            raise InputError(f"{self.images.source}: {problems[min(problems)]}; --skip-bad leaves such images out")
        shard = _shard(images, vectors, problems, sizes)
        path = self.manifest.path(self.folder, index)
        write_atomically(path, shard.content(self.manifest, index))
        remove_unfinished(path)
        return shard.problems

    def _images(self, index: int) -> Sequence[ListedImage]:
        rows = self.manifest.rows(index)
        return self.images.images[rows.start : rows.stop]

    def _pixels(self, image: ListedImage) -> Tensor:
        contents = image.contents.read() if isinstance(image.contents, TarMember) else image.contents
        return self.encoder.preparation.read(contents, image.name)  # wherever the source lies


@dataclass
class EmbedResult:
    """What was done with a share of the shards.

    Attributes:
        images: The number of images of the share.
        continued: How many of them earlier calls had encoded.
        shards: The number of shards of the share.
        missing: How many shards of the folder are still to be made by others.
        problems: Why images of the share cannot be read, by name.

    """

    images: int
    continued: int
    shards: int
    missing: int = 0
    problems: dict[str, str] = field(default_factory=dict)


# (shards to make, done): makes shards, and calls `done` as images are encoded; returns the problems by name
MakeShards = Callable[[Sequence[int], Callable[[int], None]], dict[str, str]]


def embed(embedding: Embedding, share: Share, progress: Progress, make_shards: MakeShards | None = None) -> EmbedResult:
    """Make what is missing of a share of the shards.

    Args:
        embedding: The shards.
        share: Which of them.
        progress: Shows how far it is, and names images that are left out.
        make_shards: Makes them; by default this process does, one after the other.

    Raises:
        InputError: An image cannot be read, and is not to be left out. Finished shards stay.

    """
    manifest = embedding.manifest
    shards = share.shards(manifest.shards)
    finished = embedding.finished(shards)
    total = sum(len(manifest.rows(index)) for index in shards)
    result = EmbedResult(total, sum(len(manifest.rows(index)) for index in finished), len(shards))
    for shard in finished.values():
        result.problems |= shard.problems
    if finished:
        progress.say(f"continuing {embedding.folder}: {result.continued} of {counted(total, 'image')} are encoded")
    with progress.task("embed", total, "images", result.continued) as advance:
        missing = [index for index in shards if index not in finished]
        result.problems |= (make_shards or _in_turn(embedding))(missing, advance)
    result.missing = manifest.shards - len(finished_shards(embedding.folder, manifest))
    return result


def _in_turn(embedding: Embedding) -> MakeShards:
    def make_shards(shards: Sequence[int], advance: Callable[[int], None]) -> dict[str, str]:
        problems: dict[str, str] = {}
        for index in shards:
            problems |= embedding.make(index, advance)
        return problems

    return make_shards


def _shard(images: Sequence[ListedImage], vectors: Tensor, problems: Mapping[int, str], sizes: Sequence[int]) -> Shard:
    rows = [row for row in range(len(images)) if row not in problems]
    labels = [image.label for row in rows if (image := images[row]).label is not None]
    parts = [image.part for row in rows if (image := images[row]).part is not None]
    labelled, divided = images[0].label is not None, images[0].part is not None
    return Shard(
        vectors[rows],
        [images[row].name for row in rows],
        labels if labelled else None,
        parts if divided else None,
        {images[row].name: problems[row] for row in sorted(problems)},
        sizes,
    )


def _check_same(before: Manifest, now: Manifest, folder: Path) -> None:
    """Refuse to continue a folder that was begun with something else."""
    for name, change in SHARDS_DEPEND_ON.items():
        if getattr(before, name) != getattr(now, name):
            raise InputError(
                f"{folder} cannot be continued: {change.format(before=before, now=now)}; choose another --out, or remove it"
            )
