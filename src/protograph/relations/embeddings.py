"""Similarity by the meaning of words: a vector per class or word from a file."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from protograph._internal.errors import InputError
from protograph.relations.base import Relation, cosine_similarities, index_rows, missing_classes, split_words
from protograph.relations.registry import register_relation
from protograph.relations.tables import finite_rows, read_table, require_file

_FILES = "vectors as .npz, .csv, .tsv, or as .txt or .vec in the text format of word2vec and GloVe"


class EmbeddingRelation(Relation):
    """Cosine similarity [V, V] of vectors; a class of several words without a vector takes the mean of its words' vectors.

    Names are looked up as they are, then by their words in any case, joined in any way, then word by word.

    Args:
        vectors: [C, D], one per class or word; each is normalised first.
        names: The C classes or words.
        centred: Whether to subtract the mean of all C normalised vectors.
        titles: Class names as a person would write them, which are looked up where a class name has no vector.
        source: The name of the relation in error messages.

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
        require_file(path, _FILES)
        if path.suffix in (".txt", ".vec"):
            names, vectors = _read_text(path)
        elif path.suffix in (".csv", ".tsv", ".npz"):
            names, vectors, _ = read_table(path, "vectors", header=None)
        else:
            raise InputError(f"cannot read embeddings from {path}: give {_FILES}")
        return cls(vectors, names, centred, titles, str(path))

    @property
    def summary(self) -> str:
        """The size of the table."""
        return f"vectors of {self.vectors.shape[1]} numbers of {len(self.names)} classes or words"

    def similarities(self, names: Sequence[str]) -> Tensor:
        """Return the similarities [V, V] of the named classes, for any whose words have vectors; 1 on the diagonal."""
        rows_of_names = [self._find_rows(name) or self._find_rows(self.titles.get(name, "")) for name in names]
        if missing := [name for name, rows in zip(names, rows_of_names, strict=True) if not rows]:
            raise missing_classes(self.source, missing, "add its vector, or one for each of its words")
        if not rows_of_names:
            return torch.zeros(0, 0)
        return cosine_similarities(torch.stack([self.vectors[rows].double().mean(0) for rows in rows_of_names]) - self._centre)

    def _find_rows(self, name: str) -> list[int]:
        """Return the rows of a name: the one of the name, or one for each of its words, or none."""
        for rows, key in ((self._rows, name), (self._loose, _joined(name))):
            if key in rows:
                return [rows[key]]
        words = [self._rows.get(word, self._loose.get(word.casefold(), -1)) for word in split_words(name)]
        return [] if -1 in words else words


def _joined(name: str) -> str:
    return " ".join(split_words(name)).casefold()


def _read_text(path: Path) -> tuple[list[str], Tensor]:
    """Return words and vectors from the text format of word2vec and GloVe; of a word that comes twice, the first vector.

    Words may hold spaces: the numbers are counted from the end of the line, and the rest is the word.
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
    """Return whether a word looks like part of a vector; integers may be names of classes."""
    try:
        float(word)
    except ValueError:
        return False
    return not word.isdecimal()


register_relation("embeddings", EmbeddingRelation.read, "embeddings:FILE, a vector per class or word")
