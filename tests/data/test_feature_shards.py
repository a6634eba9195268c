"""Shards of features: a manifest and its shards are checked completely. tests/encoders/test_embedding.py writes them."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from protograph._internal import sealed
from protograph._internal.errors import InputError
from protograph.data.feature_shards import EncoderNotes, Manifest, Shard, read_feature_folder, read_manifest, read_shard

MANIFEST = Manifest(EncoderNotes("conv4", "0" * 32, 84, 2), "1" * 32, 3, 3, "safetensors", True)
SHARD = Shard(torch.eye(3, 2), ["1.png", "2.png", "3.png"], ["owl", "crow", "owl"], ["train", "train", "test"], {}, [7, 8, 9])


def write_folder(folder: Path, manifest: Manifest = MANIFEST) -> Path:
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    manifest.path(folder, 0).write_bytes(SHARD.content(manifest, 0))
    return folder


def test_a_whole_folder_is_read(tmp_path: Path) -> None:
    features = read_feature_folder(write_folder(tmp_path))
    assert torch.equal(torch.from_numpy(features.vectors), SHARD.vectors)
    assert (features.names, features.labels, features.parts) == (SHARD.names, SHARD.labels, SHARD.parts)


@pytest.mark.parametrize(
    "changes",
    [
        {"parts": ["train", "train", "-"]},
        {"parts": ["train"]},
        {"parts": "abc"},
        {"names": [1, 2, 3]},
        {"names": ["1.png"]},
        {"classes": ["owl"]},
        {"classes": [1, 2]},
        {"classes": {"0": "owl", "1": "crow"}},
        {"problems": ["a", "b"]},
        {"problems": {"4.png": "gone"}},
        {"sizes": [1]},
        {"sizes": ["1", "2", "3"]},
        {"index": 1},
        {"index": False},
        {"manifest": "0"},
    ],
)
def test_values_of_other_types_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = MANIFEST.path(write_folder(tmp_path), 0)
    text, tensors = sealed.unseal(path.read_bytes(), "shard")
    path.write_bytes(sealed.seal(tensors, "shard", json.dumps(json.loads(text) | changes)))
    with pytest.raises(InputError, match=r"00000\.safetensors is damaged"):
        read_shard(tmp_path, MANIFEST, 0)


@pytest.mark.parametrize(
    "labels", [torch.tensor([0, 1, -1]), torch.tensor([0, 1, 2]), torch.tensor([0.0, 1.0, 0.0]), torch.tensor([[0], [1], [0]])]
)
def test_numbers_of_classes_that_are_not_there_are_refused(tmp_path: Path, labels: torch.Tensor) -> None:
    """A negative one would be the last class, without a word."""
    path = MANIFEST.path(write_folder(tmp_path), 0)
    text, tensors = sealed.unseal(path.read_bytes(), "shard")
    path.write_bytes(sealed.seal({**tensors, "labels": labels}, "shard", text))
    with pytest.raises(InputError, match=r"00000\.safetensors is damaged"):
        read_shard(tmp_path, MANIFEST, 0)


@pytest.mark.parametrize("content", [b"\xff", b"{", b"[" * 100_000, b"{}", b"[]"])
def test_a_damaged_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(InputError, match="is not a manifest of features"):
        read_manifest(tmp_path)


def test_a_manifest_of_more_images_than_its_shards_can_hold_takes_no_memory(tmp_path: Path) -> None:
    """Room for all features used to be made before a shard was looked at."""
    encoder = EncoderNotes("conv4", "0" * 32, 84, 10**5)
    large = msgspec.structs.replace(MANIFEST, encoder=encoder, images=10**6, images_per_shard=10**6)
    with pytest.raises(InputError, match=r"have 5\d\d bytes and would unpack to 400,000,000,000, more than 100 times as many"):
        read_feature_folder(write_folder(tmp_path, large))
    endless = msgspec.structs.replace(MANIFEST, images=10**12, images_per_shard=1)
    with pytest.raises(InputError, match="lacks 999999999999 of 1000000000000 shards"):
        read_feature_folder(write_folder(tmp_path, endless))
