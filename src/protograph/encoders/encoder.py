"""Images -> features, by a frozen network.

n images, D features.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

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
from protograph.encoders.cache import Shelf
from protograph.encoders.preparation import Preparation, file_digest, image_names, is_file
from protograph.nn.backbones import feature_count

VERSION = 1  # to be raised whenever the same file gives other features
BATCH = {"cpu": 8, "cuda": 64}  # images that pass the network together; on a CPU, few enough for its caches
PORTION = 1024  # images after which features are put into the cache, so that a killed encoding goes on
FEWEST = 16  # files worth the cache: fewer are encoded as fast as they are looked up


class ImageEncoder:
    """A frozen network with the way images take into it.

    Images are paths, PIL images, arrays [H, W] or [H, W, 3], or tensors [C, H, W], in any mixture. Features of files are kept
    in the cache by the files' contents.

    Args:
        network: normalised images [n, C, H, W] -> features [n, D]
        preparation: how an image becomes pixels
        augmentation: what changes augmented copies at random
        origin: JSON that says what the network is
        kept: whether its weights go into the model file; otherwise the origin tells where they are
        device: where it runs; by default the GPU where there is one

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
        """Run on a device from now on."""
        self.device = device
        self.network.to(device)
        return self

    def description(self) -> dict[str, Any]:
        """JSON from which `open_encoder` builds it again, together with `tensors`."""
        return {
            **self.origin,
            "preparation": self.preparation.to_dict(),
            "augmentation": self.augmentation.to_dict(),
        }

    def tensors(self) -> dict[str, Tensor]:
        """Weights to be kept in the model file: none where they are somewhere else."""
        return {name: value.cpu().contiguous() for name, value in self.network.state_dict().items()} if self.kept else {}

    def digest(self) -> str:
        """What changes when the same image may give other features."""
        description = json.dumps([VERSION, self.description()], sort_keys=True)
        return sealed.tensors_digest(description, self.tensors())

    def encode(self, images: Sequence[Any], progress: Progress | None = None) -> Tensor:
        """Features [n, D] of images as they are."""
        return self._encode(images, None, 1, progress)[:, 0]

    def encode_augmented(self, images: Sequence[Any], copies: int, seed: int, progress: Progress | None = None) -> Tensor:
        """Features [n, copies, D] of copies that are changed at random, by the seed and the image alone."""
        return self._encode(images, seed, copies, progress)

    def _encode(self, images: Sequence[Any], seed: int | None, copies: int, progress: Progress | None) -> Tensor:
        if isinstance(images, str | os.PathLike | Image.Image):
            raise InputError(f"give a list of images, not a single {type(images).__name__}")
        progress = progress or Silent()
        names = image_names(images)
        keys = [file_digest(one, name) if is_file(one) else name for one, name in zip(images, names, strict=True)]
        known: dict[str, Tensor] = {}
        shelf = None
        if sum(map(is_file, images)) >= FEWEST:
            way = "plain" if seed is None else f"{copies}-{seed}"
            shelf = Shelf(cache_folder() / f"features-{self.digest()}" / way)
            known = shelf.find(keys)
        missing = list({key: row for row, key in enumerate(keys) if key not in known}.values())  # the same contents once
        if len(missing) >= FEWEST and self.device.type == "cpu":
            keep_freed_memory()
        with progress.task("encode", len(missing), "images") as advance:
            for start in range(0, len(missing), PORTION):
                portion = missing[start : start + PORTION]
                for rows, made in self._portion(portion, images, names, seed, copies):
                    known |= zip((keys[row] for row in rows), made, strict=True)
                    advance(len(rows))
                if shelf:
                    try:
                        shelf.add({keys[row]: known[keys[row]] for row in portion if is_file(images[row])})
                    except OSError as error:  # a help that is missing, no reason to stop
                        reason = f"{error.strerror}, {shelf.folder}"
                        progress.say(f"features are not kept ({reason}): PROTOGRAPH_CACHE names another place")
                        shelf = None
        return torch.stack([known[key] for key in keys]) if keys else torch.zeros(0, copies, self.features)

    def _portion(
        self, missing: Sequence[int], images: Sequence[Any], names: Sequence[str], seed: int | None, copies: int
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Rows and their features [b, copies, D], batch by batch."""
        size = max(1, BATCH.get(self.device.type, 8) // copies)
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
            for start in range(0, len(missing), size):
                rows = list(missing[start : start + size])
                pixels = self.preparation.read_all([images[row] for row in rows], [names[row] for row in rows], threads)
                with torch.no_grad():
                    made: Tensor = self.network(self._inputs(pixels, seed, copies).to(self.device))
                yield rows, made.float().cpu().view(len(rows), copies, self.features)

    def _inputs(self, pixels: Tensor, seed: int | None, copies: int) -> Tensor:
        """Network input [b * copies, C, H, W] of pixels [b, C, H, W]."""
        if seed is None:
            return ImageStore(pixels, self.preparation.normalisation).gather(torch.arange(len(pixels)))
        drawn = []
        for image in pixels:
            own = hashlib.sha256(image.numpy().tobytes()).digest()
            generator = torch.Generator().manual_seed((int.from_bytes(own[:7]) + seed) % 2**63)
            store = ImageStore(image[None], self.preparation.normalisation)
            drawn.append(store.gather(torch.zeros(copies, dtype=torch.long), self.augmentation, generator))
        return torch.cat(drawn)
