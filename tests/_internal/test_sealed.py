import json

import pytest
import torch
from safetensors.torch import save

from protograph._internal.sealed import metadata, seal, tensors_digest, unseal, with_prefix

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(3)}


def test_text_and_tensors_come_back() -> None:
    content = seal({**TENSORS, "c": torch.arange(6.0).view(2, 3).T}, "words", "ê", format="own")
    text, tensors = unseal(content, "words")
    assert text == "ê"
    assert metadata(content)["format"] == "own"
    assert set(tensors) == {"a", "b", "c"}
    assert torch.equal(tensors["c"], TENSORS["a"].T)


def test_every_change_of_a_byte_is_noticed() -> None:
    content = bytearray(seal(TENSORS, "words", json.dumps({"x": 1})))
    refused = 0
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1
        try:
            text, tensors = unseal(bytes(changed), "words")
        except ValueError:
            refused += 1
        else:  # a space more or less in the header, which says nothing
            assert (text, tensors_digest(text, tensors)) == ('{"x": 1}', tensors_digest(text, TENSORS))
    assert refused > 0.9 * len(content)


def test_other_files_are_refused() -> None:
    for content in (b"", b"PK\x03\x04 something", save(TENSORS), save(TENSORS, {"words": "x"}), seal(TENSORS, "others", "x")):
        with pytest.raises(ValueError, match=r"."):
            unseal(content, "words")


def test_tensors_are_taken_by_their_prefix_and_lose_it() -> None:
    tensors = {"best.a": torch.ones(1), "best.best.b": torch.zeros(1), "last.a": torch.zeros(2)}
    assert with_prefix(tensors, "best.") == {"a": tensors["best.a"], "best.b": tensors["best.best.b"]}
