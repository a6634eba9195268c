"""A cache of the features of image files, which makes the next `fit` immediate.

A shelf is the folder of one encoder and one kind of augmentation. Each call writes its new features into files of its own,
atomically, so several processes may use a shelf at once. Images that two of them encode at the same time are stored twice,
with equal features.
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
