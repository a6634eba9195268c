"""Features of image files, kept so that the next `fit` is immediate.

A shelf is a folder of the cache for one encoder (and one way of augmenting). Each call leaves the features that were new to it
in files of its own, whole or absent, so several processes may use a shelf at once; what two of them encode at the same time is
there twice, and equal.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_hex

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from protograph._internal.files import write_atomically


class Shelf:
    """Features [copies, D] by digest of the file they were made of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, digests: Sequence[str]) -> dict[str, Tensor]:
        """Of these, the ones that are there."""
        wanted = set(digests)
        found: dict[str, Tensor] = {}
        for path in sorted(self.folder.glob("[!.]*.safetensors")):
            try:
                with safe_open(path, framework="pt") as file:
                    rows = {digest: row for row, digest in enumerate(json.loads(file.metadata()["digests"]))}
                    if new := wanted & rows.keys() - found.keys():
                        features = file.get_tensor("features")
                        found |= {digest: features[rows[digest]] for digest in new}
            except (SafetensorError, OSError, ValueError, KeyError, TypeError):
                continue  # damaged or just removed: it will be encoded again
        return found

    def add(self, features: Mapping[str, Tensor]) -> None:
        """Put new features there, if there are any."""
        if not features:
            return
        content = save({"features": torch.stack(list(features.values()))}, {"digests": json.dumps(list(features))})
        write_atomically(self.folder / f"{token_hex(8)}.safetensors", content)
