"""Tensors and a text in one safetensors file, with a checksum over both."""

import hashlib
import json
from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor


def seal(tensors: dict[str, Tensor], key: str, text: str, **metadata: str) -> bytes:
    """Return a safetensors file that holds tensors, a text and a digest of both.

    Args:
        tensors: The tensors by name.
        key: The name of the text in the metadata of the file.
        text: The text.
        metadata: Further texts of the metadata, which the digest does not cover.
    """
    ready = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    return save(ready, {**metadata, key: text, "digest": tensors_digest(text, ready)})


def with_sorted_header(content: bytes) -> bytes:
    """Return a safetensors file whose header is sorted: the library writes texts in an order that differs each time."""
    length = int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8 : 8 + length]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # so that numbers stay aligned
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def unseal(content: bytes, key: str, texts: Mapping[str, str] | None = None) -> tuple[str, dict[str, Tensor]]:
    """Return the text and the tensors of a file that `seal` wrote.

    Args:
        content: The file.
        key: The name of the text.
        texts: Its metadata, where they were read before.

    Raises:
        ValueError: The file is damaged, or `seal` did not write it.
    """
    try:
        tensors, texts = load(content), texts or metadata(content)
        text = texts[key]
    except (SafetensorError, KeyError, TypeError) as error:
        raise ValueError(str(error) or type(error).__name__) from error
    if texts.get("digest") != tensors_digest(text, tensors):
        raise ValueError("its contents do not match their checksum")
    return text, tensors


def with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def metadata(content: bytes) -> dict[str, str]:
    """Return the texts in the metadata of a safetensors file.

    Raises:
        ValueError: The file is no safetensors file, or has no metadata.
    """
    try:
        texts = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError("it is no safetensors file with metadata") from error
    if not isinstance(texts, dict):
        raise ValueError("it is no safetensors file with metadata")
    return texts


def tensors_digest(text: str, tensors: dict[str, Tensor]) -> str:
    """Return a digest of a text and of the names, types, shapes and contents of tensors."""
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
