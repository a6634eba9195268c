"""A cache of the features of image files, which makes the next `fit` immediate.

A shelf is the folder of one encoder and one kind of augmentation. Each call writes its new features into files of its own,
atomically, so several processes may use a shelf at once. Images that two of them encode at the same time are stored twice,
with equal features.
"""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from protograph._internal.files import write_atomically
from protograph._internal.progress import Progress

SECONDS_BETWEEN_BLOCKS = 5.0  # that a killed encoding loses at most


class Shelf:
    """Features [copies, D] by the digest of the image file.

    Args:
        folder: The folder of the cache files.

    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, digests: Sequence[str]) -> dict[str, Tensor]:
        """Return the stored features by digest, of those that are stored."""
        missing = set(digests)
        stored: dict[str, Tensor] = {}
        for path in sorted(self.folder.glob("[!.]*.safetensors")):
            try:
                with safe_open(path, framework="pt") as file:
                    rows = {digest: row for row, digest in enumerate(json.loads(file.metadata()["digests"]))}
                    if new := missing & rows.keys() - stored.keys():
                        features = file.get_tensor("features")
                        stored |= {digest: features[rows[digest]] for digest in new}
            except (SafetensorError, OSError, ValueError, KeyError, TypeError):
                continue  # damaged or just removed: its images are encoded again
        return stored

    def add(self, features: Mapping[str, Tensor]) -> None:
        """Store new features by digest."""
        if not features:
            return
        content = save({"features": torch.stack(list(features.values()))}, {"digests": json.dumps(list(features))})
        write_atomically(self.folder / f"{token_hex(8)}.safetensors", content)


class BlockWriter:
    """Writes features to a shelf in blocks as they come, and the last block when the `with` block ends, even by an error.

    Args:
        shelf: The shelf; None to write nothing.
        progress: What says that the cache cannot be written.

    """

    def __init__(self, shelf: Shelf | None, progress: Progress) -> None:
        self.shelf, self.progress = shelf, progress
        self._block: dict[str, Tensor] = {}
        self._written = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._write()

    def add(self, features: Mapping[str, Tensor]) -> None:
        """Take features by digest; they are written at once if the last block is old enough."""
        if self.shelf is not None:
            self._block |= features
            if time.monotonic() - self._written >= SECONDS_BETWEEN_BLOCKS:
                self._write()

    def _write(self) -> None:
        if self.shelf is None:
            return
        try:
            self.shelf.add(self._block)
        except OSError as error:  # the cache only saves time
            reason = f"{error.strerror}, {self.shelf.folder}"
            self.progress.say(f"features are not cached ({reason}): set PROTOGRAPH_CACHE to a folder that can be written")
            self.shelf = None
        self._block, self._written = {}, time.monotonic()
