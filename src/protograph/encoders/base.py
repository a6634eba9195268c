"""What an encoder is: images -> features, by a frozen network.

Shapes: n images, D features, R augmented copies, b images of one batch.
"""

import hashlib
import json
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from PIL import Image
from torch import Tensor, nn

from protograph._internal import sealed
from protograph._internal.errors import InputError
from protograph._internal.files import cache_folder
from protograph._internal.memory import keep_freed_memory
from protograph._internal.progress import Progress, Silent
from protograph.data.augmentation import Augmentation
from protograph.data.store import ImageStore
from protograph.device import best_device
from protograph.encoders.cache import BlockWriter, Shelf
from protograph.encoders.preparation import Preparation, file_digest, image_names, is_file
from protograph.encoders.workers import cpu_workers, ordered_results
from protograph.nn.backbones import feature_count

FEATURES_VERSION = 1  # raise it when the same file gives other features
BATCH = {"cpu": 16, "cuda": 64}  # images per forward pass; on a CPU, oneDNN takes slower ways with fewer
FULL_BATCH_PIXELS = 320 * 320  # of an image; of larger ones, fewer are passed together, or their activations fill the memory
LARGEST_SHIFT = 8 / 84  # of augmented copies, as a share of the image's edge, as in training
FEWEST = 16  # files for which the cache is used: fewer are encoded as fast as they are looked up


class Encoder(Protocol):
    """What a classifier asks of an encoder: images -> features, by a network that stays as it is.

    Images are paths, contents of image files (bytes), PIL images, arrays or tensors.
    """

    @property
    def features(self) -> int:
        """The number of features D."""
        ...

    def encode(self, images: Sequence[Any], progress: Progress | None = None) -> Tensor:
        """Return the features [n, D] of images, as float32."""
        ...

    def encode_augmented(self, images: Sequence[Any], copies: int, seed: int, progress: Progress | None = None) -> Tensor:
        """Return the features [n, R, D] of R copies of each image, changed at random by the seed."""
        ...

    def description(self) -> dict[str, Any]:
        """Return JSON from which, with `tensors`, the encoder is opened again."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights that go into a model file; none where they are stored elsewhere."""
        ...


@runtime_checkable
class SpatialEncoder(Encoder, Protocol):
    """An encoder that says where in an image a score of its features comes from."""

    def prepare(self, image: Any) -> Tensor:
        """Return an image as the network sees it, uint8 [C, H, W]."""
        ...

    def encode_pixels(self, pixels: Tensor) -> Tensor:
        """Return the features [b, D] of images as `prepare` returns them, uint8 [b, C, H, W]."""
        ...

    def score_map(self, pixels: Tensor, weights: Tensor) -> Tensor:
        """Return what each position adds to features @ weights, [h, w], for pixels [C, H, W] and weights [D].

        Raises:
            InputError: The network does not keep positions apart.

        """
        ...


class KeptEncoder:
    """The encoder of a model file, opened when the first image comes. Features and class lists do without it.

    Args:
        description: JSON that describes the encoder.
        tensors: Its weights.
        features: The number of features D.
        opener: The function that opens an encoder from description and tensors.

    """

    def __init__(
        self,
        description: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        features: int,
        opener: Callable[[Mapping[str, Any], Mapping[str, Tensor]], Encoder],
    ) -> None:
        self.features = features
        self._description, self._tensors, self._opener = dict(description), dict(tensors), opener
        self._encoder: Encoder | None = None

    def encode(self, images: Sequence[Any], progress: Progress | None = None) -> Tensor:
        """Return the features [n, D] of images."""
        return self.opened().encode(images, progress)

    def encode_uncached(self, images: Sequence[Any], progress: Progress | None = None) -> Tensor:
        """Return the features [n, D] of images, past the cache where the encoder has one."""
        encoder = self.opened()
        uncached = encoder.encode_uncached if isinstance(encoder, ImageEncoder) else encoder.encode
        return uncached(images, progress)

    def encode_augmented(self, images: Sequence[Any], copies: int, seed: int, progress: Progress | None = None) -> Tensor:
        """Return the features [n, R, D] of R changed copies of each image."""
        return self.opened().encode_augmented(images, copies, seed, progress)

    def prepare(self, image: Any) -> Tensor:
        """Return an image as the network sees it, uint8 [C, H, W]."""
        return self._spatial().prepare(image)

    def encode_pixels(self, pixels: Tensor) -> Tensor:
        """Return the features [b, D] of prepared pixels [b, C, H, W]."""
        return self._spatial().encode_pixels(pixels)

    def score_map(self, pixels: Tensor, weights: Tensor) -> Tensor:
        """Return what each position of pixels [C, H, W] adds to features @ weights, [h, w]."""
        return self._spatial().score_map(pixels, weights)

    def description(self) -> dict[str, Any]:
        """Return the description from the file."""
        return self._description

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights from the file."""
        return self._tensors

    def opened(self) -> Encoder:
        """Return the encoder, opened at the first call.

        Raises:
            InputError: Its library or its weights are missing, or the user has not named the path that the file names.

        """
        self._encoder = self._encoder or self._opener(self._description, self._tensors)
        return self._encoder

    def _spatial(self) -> SpatialEncoder:
        encoder = self.opened()
        assert isinstance(encoder, SpatialEncoder)
        return encoder


class ImageEncoder:
    """A frozen network with the preparation of its images.

    Images are paths, contents of image files (bytes), PIL images, arrays [H, W] or [H, W, 3], or tensors [C, H, W], in any
    mixture. The cache keeps the
    features of files by the files' contents.

    Args:
        network: Normalised images [n, C, H, W] -> features [n, D].
        preparation: How an image becomes pixels.
        augmentation: How augmented copies are changed at random.
        origin: JSON that describes the network.
        kept: Whether the weights go into the model file; otherwise the origin tells where they are.
        device: The device it runs on; by default the GPU if there is one.

    """

    def __init__(
        self,
        network: nn.Module,
        preparation: Preparation,
        augmentation: Augmentation,
        origin: Mapping[str, Any],
        kept: bool = True,
        device: torch.device | None = None,
    ) -> None:
        self.network = network.eval().requires_grad_(False)
        self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.preparation, self.augmentation = preparation, augmentation
        self.origin, self.kept = dict(origin), kept
        self.features = feature_count(self.network, preparation.shape)
        self.to(device or best_device())

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.preparation.shape))
        return f"<{self.origin['kind']} encoder {self.origin.get('name', '')}: {shape} pixels to {self.features} features>"

    def to(self, device: torch.device) -> "ImageEncoder":
        """Move the network to a device and return the encoder."""
        self.device = device
        self.network.to(device)
        return self

    def description(self) -> dict[str, Any]:
        """Return JSON from which, with `tensors`, `open_encoder` builds the encoder again."""
        return {
            **self.origin,
            "preparation": self.preparation.to_dict(),
            "augmentation": self.augmentation.to_dict(),
        }

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights that go into the model file; none where they are stored elsewhere."""
        return {name: value.cpu().contiguous() for name, value in self.network.state_dict().items()} if self.kept else {}

    def digest(self) -> str:
        """Return a digest that changes whenever the same image may give other features."""
        description = json.dumps([FEATURES_VERSION, self.description()], sort_keys=True)
        return sealed.tensors_digest(description, self.tensors())

    def encode(self, images: Sequence[Any], progress: Progress | None = None) -> Tensor:
        """Return the features [n, D] of unchanged images."""
        return self._encode(images, None, 1, progress)[:, 0]

    def encode_uncached(self, images: Sequence[Any], progress: Progress | None = None) -> Tensor:
        """Return the features [n, D] of images that are asked about once: the cache is neither read nor written.

        The batches depend on the list of images alone, and so do the last digits of features.
        """
        return self._encode(images, None, 1, progress, cached=False)[:, 0]

    def encode_each(
        self, count: int, read: Callable[[int], Tensor], advance: Callable[[int], None]
    ) -> tuple[Tensor, dict[int, str]]:
        """Return the features [n, D] of images in full batches, and by index why some cannot be read.

        Batches depend on the indices alone: neither on the number of cores, nor on images that cannot be read, whose features
        are those of a black image. So the last digits of features are the same on one core as on many.

        Args:
            count: The number of images n.
            read: Returns the pixels of an image, uint8 [C, H, W], by its index; called by several threads.
            advance: Called with the number of images that were encoded.

        """
        size, on_cpu = self.batch_size(), self.device.type == "cpu"
        workers, threads = cpu_workers() if on_cpu else (min(8, os.cpu_count() or 1), None)
        batches = [range(start, min(start + size, count)) for start in range(0, count, size)]
        problems: dict[int, str] = {}

        def pixels(row: int) -> Tensor:
            try:
                return read(row)
            except InputError as error:
                problems[row] = str(error)
                return torch.zeros(self.preparation.shape, dtype=torch.uint8)

        def work(rows: range) -> Tensor:
            inputs = self._inputs(torch.stack([pixels(row) for row in rows]), None, 1)
            return self._forward(inputs) if on_cpu else inputs

        if on_cpu:
            keep_freed_memory()
        encoded = []
        with warnings.catch_warnings():  # Pillow warns of metadata that is not used
            warnings.simplefilter("ignore")
            for rows, result in zip(batches, ordered_results(work, batches, workers, threads), strict=True):
                encoded.append(result if on_cpu else self._forward(result))
                advance(len(rows))
        return torch.cat(encoded) if encoded else torch.zeros(0, self.features), problems

    def encode_augmented(self, images: Sequence[Any], copies: int, seed: int, progress: Progress | None = None) -> Tensor:
        """Return the features [n, copies, D] of copies changed at random, by the seed and the image alone."""
        return self._encode(images, seed, copies, progress)

    def _encode(
        self, images: Sequence[Any], seed: int | None, copies: int, progress: Progress | None, cached: bool = True
    ) -> Tensor:
        if isinstance(images, str | os.PathLike | bytes | Image.Image):
            raise InputError(f"give a list of images, not a single {type(images).__name__}")
        progress = progress or Silent()
        names = image_names(images)
        keys = [
            file_digest(image, name) if cached and is_file(image) else name for image, name in zip(images, names, strict=True)
        ]
        known: dict[str, Tensor] = {}
        shelf = None
        if cached and sum(map(is_file, images)) >= FEWEST:
            kind = "plain" if seed is None else f"{copies}-{seed}"
            shelf = Shelf(cache_folder() / f"features-{self.digest()}" / kind)
            known = shelf.find(keys)
        missing = list({key: row for row, key in enumerate(keys) if key not in known}.values())  # the same contents once
        if len(missing) >= FEWEST and self.device.type == "cpu":
            keep_freed_memory()
        with progress.task("encode", len(missing), "images") as advance, BlockWriter(shelf, progress) as writer:
            for rows, features in self._batches(missing, images, names, seed, copies):
                encoded = {keys[row]: vectors for row, vectors in zip(rows, features, strict=True)}
                known |= encoded
                writer.add({keys[row]: encoded[keys[row]] for row in rows if is_file(images[row])})
                advance(len(rows))
        return torch.stack([known[key] for key in keys]) if keys else torch.zeros(0, copies, self.features)

    def _batches(
        self, missing: Sequence[int], images: Sequence[Any], names: Sequence[str], seed: int | None, copies: int
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Yield the rows of each batch with their features [b, copies, D].

        On a CPU, each worker takes a batch from files to features. For another device they only decode.
        """
        on_cpu = self.device.type == "cpu"
        workers, threads = cpu_workers() if on_cpu else (min(8, os.cpu_count() or 1), None)
        largest = max(1, self.batch_size() // copies)
        size = max(1, min(largest, math.ceil(len(missing) / workers)))  # a few images are divided among the workers
        batches = [list(missing[start : start + size]) for start in range(0, len(missing), size)]
        if len(batches) == 1:  # by all cores
            workers, threads = 1, None

        def work(rows: list[int]) -> Tensor:
            pixels = torch.stack([self.preparation.read(images[row], names[row]) for row in rows])
            inputs = self._inputs(pixels, seed, copies)
            return self._forward(inputs) if on_cpu else inputs

        with warnings.catch_warnings():  # Pillow warns of metadata that is not used
            warnings.simplefilter("ignore")
            for rows, result in zip(batches, ordered_results(work, batches, workers, threads), strict=True):
                features = result if on_cpu else self._forward(result)
                yield rows, features.view(len(rows), copies, self.features)

    def batch_size(self) -> int:
        """Return how many images are passed together."""
        _, height, width = self.preparation.shape
        usual = BATCH.get(self.device.type, 8)
        return max(1, min(usual, usual * FULL_BATCH_PIXELS // (height * width)))

    def prepare(self, image: Any) -> Tensor:
        """Return an image as the network sees it, uint8 [C, H, W].

        Raises:
            InputError: The image cannot be read.

        """
        return self.preparation.read(image, image_names([image])[0])

    def score_map(self, pixels: Tensor, weights: Tensor) -> Tensor:
        """Return what each position adds to features @ weights, [h, w], for pixels [C, H, W] and weights [D].

        Raises:
            InputError: The network does not keep positions apart.

        """
        score_map = getattr(self.network, "score_map", None)
        if score_map is None:
            raise InputError(
                f"there is no heatmap: the features of {self.origin['kind']} model '{self.origin['name']}' do not add up over "
                "positions. Fit with another backbone, such as efficientnet-lite0"
            )
        with torch.no_grad():
            scores: Tensor = score_map(self._inputs(pixels[None], None, 1).to(self.device), weights.float().to(self.device))
        return scores[0].cpu()

    def encode_pixels(self, pixels: Tensor) -> Tensor:
        """Return the features [b, D] of the prepared pixels, uint8 [b, C, H, W], of one batch."""
        return self._forward(self._inputs(pixels, None, 1))

    def _forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            features: Tensor = self.network(inputs.to(self.device))
        return features.float().cpu()

    def _inputs(self, pixels: Tensor, seed: int | None, copies: int) -> Tensor:
        """Return the network's input [b * copies, C, H, W] for pixels [b, C, H, W]."""
        if seed is None:
            return ImageStore(pixels, self.preparation.normalisation).gather(torch.arange(len(pixels)))
        drawn = []
        for image in pixels:
            digest = hashlib.sha256(image.numpy().tobytes()).digest()
            generator = torch.Generator().manual_seed((int.from_bytes(digest[:7]) + seed) % 2**63)
            store = ImageStore(image[None], self.preparation.normalisation)
            drawn.append(store.gather(torch.zeros(copies, dtype=torch.long), self.augmentation, generator))
        return torch.cat(drawn)
