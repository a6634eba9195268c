"""The splits that published numbers rest on: class names and image indices of every part, to the last one."""

import hashlib
import json
from pathlib import Path

import pytest

from protograph.data import Dataset, open_dataset
from protograph.data.splits import DATASET_PARTS

LETTERS = "f40defa9d093509fb86d8a1ede54a612323a4a530c5c0b4ac564b2ab7df51798"
REAL = {  # digest of the split, fingerprint
    "mini-imagenet": ("0a15abad576988cec8922a887fdb90edd10fe7334bfa8950c8b93a62890709b0", "74bca8f224d5a459"),
    "cub": ("7be1d37a0d3cbd729516d0b5db60bd897666b87d2a67553a6d702844d15db3c7", "9ce678212af4870f"),
    "cub-stratified": ("39676776bc897515f474329e8bb953442499a5b91c3a605c42c6177171903906", "70e4877694fc4a27"),
}


def split_digest(dataset: Dataset) -> str:
    pools = {part: getattr(dataset, part) for part in DATASET_PARTS}
    parts = {
        part: hashlib.sha256(json.dumps([pool.classes.tolist(), pool.images.tolist()]).encode()).hexdigest()
        for part, pool in pools.items()
    }
    return hashlib.sha256(json.dumps({"classes": list(dataset.classes), **parts}).encode()).hexdigest()


def test_the_letters_keep_their_split(letters: Dataset) -> None:
    assert split_digest(letters) == LETTERS


@pytest.mark.parametrize("name", REAL)
def test_the_papers_datasets_keep_their_splits(name: str, real_root: Path) -> None:
    dataset = open_dataset(name, real_root)
    assert (split_digest(dataset), dataset.fingerprint) == REAL[name]
