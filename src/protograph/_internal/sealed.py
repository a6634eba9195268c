"""Tensors and a text in one safetensors file, with a checksum over both."""

import hashlib
import json
from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor


def seal(tensors: dict[str, Tensor], key: str, text: str, **more: str) -> bytes:
    """A file that holds the tensors and, in its metadata, the text under `key`, a digest, and what `more` says."""
    ready = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    return save(ready, {**more, key: text, "digest": tensors_digest(text, ready)})


def unseal(content: bytes, key: str) -> tuple[str, dict[str, Tensor]]:
    """Text and tensors of such a file; ValueError where it is damaged or another."""
    try:
        tensors, said = load(content), metadata(content)
        text = said[key]
    except (SafetensorError, KeyError, TypeError) as error:
        raise ValueError(str(error) or type(error).__name__) from error
    if said.get("digest") != tensors_digest(text, tensors):
        raise ValueError("its contents do not match their checksum")
    return text, tensors


def with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def metadata(content: bytes) -> dict[str, str]:
    """The texts that a safetensors file carries; ValueError where it is none."""
    try:
        found = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError("it is no safetensors file with metadata") from error
    if not isinstance(found, dict):
        raise ValueError("it is no safetensors file with metadata")
    return found


def tensors_digest(text: str, tensors: dict[str, Tensor]) -> str:
    """What changes when the text, or any tensor's name, type, shape or content does."""
    found = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        found.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        found.update(tensors[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
