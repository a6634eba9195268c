"""Similarity by WordNet: the distance of two meanings in its tree of nouns.

WordNet's database files are read, and only the lines that are needed. The id of a noun, such as n01532829, is the position of
its line in `data.noun`. `index.noun` has the nouns by name, `noun.exc` the irregular plurals.
"""

import hashlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from textwrap import shorten
from typing import Literal

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph.relations.base import Description, Relation, Sense, missing_classes, split_words
from protograph.relations.registry import register_relation
from protograph.relations.stored import name_relation

LAST_OFFSET = 99_999_999  # a position in data.noun has eight digits
SYSTEM = (Path("/usr/share/wordnet"), Path("/usr/local/WordNet-3.0/dict"))  # where Debian and WordNet's installer put it
NLTK = ("/usr/share", "/usr/local/share", "/usr/lib", "/usr/local/lib", sys.prefix, f"{sys.prefix}/share", f"{sys.prefix}/lib")
PLURALS = (
    ("s", ""), ("ses", "s"), ("ves", "f"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"), ("men", "man"),
    ("ies", "y"),
)  # fmt: skip
REMEDY = "give its WordNet 3.0 id (n02012849), a sense (crane.n.05) or another name"

FoundBy = Literal["id", "name", "last words"]


@dataclass(frozen=True)
class Synset:
    """One line of `data.noun`: a meaning.

    Attributes:
        offset: The position of the line.
        words: The words for it.
        hypernyms: The positions of the more general meanings.
        gloss: What it is.

    """

    offset: int
    words: tuple[str, ...]
    hypernyms: tuple[int, ...]
    gloss: str

    @property
    def id(self) -> str:
        """The id, such as n01532829."""
        return f"n{self.offset:08d}"


class WordNetRelation(Relation):
    r"""WordNet path similarity [V, V], :math:`1 / (1 + d)`, of any names; two names of one meaning have similarity 1.

    d is the least number of steps from one noun up to a common, more general one and down to the other, over hypernyms and
    instance hypernyms. Without a common one, the similarity is 0. A class is given by

    * its id: n01532829, n01532829-house_finch
    * its name: house_finch, House Finch, 012.House_Finch, house finches; the first sense is taken
    * its sense: crane.n.05, crane#5

    Of a name that WordNet does not have, the last words are taken: Brewer_Hawk is a hawk. `senses` says what was taken.

    Args:
        path: The folder of WordNet. By default, the usual folders are searched.

    """

    def __init__(self, path: Path | None = None) -> None:
        self.folder = find_wordnet(path)
        self._synsets: dict[int, Synset | None] = {}

    @cached_property
    def version(self) -> str:
        """The release that the files name, or else a digest of them."""
        content = (self.folder / "data.noun").read_bytes()
        release = re.search(rb"WordNet (\d+\.\d+) Copyright", content[:4096])
        return f"WordNet {release[1].decode()}" if release else hashlib.sha256(content).hexdigest()[:16]

    @property
    def summary(self) -> str:
        """The release."""
        return f"path similarity of {self.version}"

    def describe(self) -> Description:
        """Return the name of the relation, with its folder if that is not the usual one."""
        try:
            usual = find_wordnet() == self.folder
        except InputError:
            usual = False
        return name_relation("wordnet" if usual else f"wordnet:{self.folder.resolve()}")

    def similarities(self, names: Sequence[str]) -> Tensor:
        """Return the similarities [V, V] of the named classes; 1 on the diagonal."""
        climbs = [self._climb(synset.offset) for synset, _ in self._find_all(names)]
        kinds = {kind: column for column, kind in enumerate(sorted(set().union(*climbs)))}
        steps = torch.full((len(names), len(kinds)), torch.inf)
        for row, climb in zip(steps, climbs, strict=True):
            row[[kinds[kind] for kind in climb]] = torch.tensor(list(climb.values()), dtype=torch.float32)
        distances = torch.zeros(len(names), len(names))
        for row, climb in enumerate(climbs):
            columns = [kinds[kind] for kind in climb]  # a common kind is one of these
            distances[row] = (steps[:, columns] + steps[row, columns]).amin(1)
        return 1 / (1 + distances)

    def senses(self, names: Sequence[str]) -> list[Sense]:
        """Return the meaning that each name was taken for; `by` is "id", "name" or "last words"."""
        return [
            Sense(name, by, synset.id, self._sense(synset), synset.words, synset.gloss)
            for name, (synset, by) in zip(names, self._find_all(names), strict=True)
        ]

    def _find_all(self, names: Sequence[str]) -> list[tuple[Synset, FoundBy]]:
        matches = [self._find(name) for name in names]
        if missing := [name for name, match in zip(names, matches, strict=True) if match is None]:
            raise missing_classes("wordnet", missing, REMEDY)
        return [match for match in matches if match is not None]

    def _find(self, name: str) -> tuple[Synset, FoundBy] | None:
        if match := re.match(r"n(\d{8})($|[\s_-])", name):
            synset = self._synset(int(match[1]))
            return (synset, "id") if synset else None
        number, words, exact = 1, split_words(name), False
        if match := re.fullmatch(r"(.+?)(?:\.n\.|#)(\d+)", name):
            number, words, exact = int(match[2]), split_words(match[1]), True
        for first in range(1 if exact else len(words)):
            lemma = "_".join(words[first:])
            if offsets := self._lemma(lemma) or self._lemma(re.sub(r"_?\d+$", "", lemma)):  # cat2 is a cat
                synset = self._synset(offsets[number - 1]) if 1 <= number <= len(offsets) else None
                return (synset, "last words" if first else "name") if synset else None
        return None

    def _lemma(self, name: str) -> tuple[int, ...]:
        """Return the synsets of a noun, first sense first, with its words joined in any way, in singular or plural."""
        exact, loose = self._index
        for form in self._forms(name.lower()):
            if offsets := exact.get(form) or exact.get(loose.get(_loose(form), "")):
                return offsets
        return ()

    def _forms(self, name: str) -> Iterator[str]:
        yield name
        before, joint, last = name.rpartition("_")
        for head, word in (("", name), (before + joint, last)):
            for singular in self._exceptions.get(word, ()):
                yield head + singular
        for plural, singular in PLURALS:
            if name.endswith(plural):
                yield name.removesuffix(plural) + singular

    @cached_property
    def _index(self) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """Synsets by lemma, and lemmas by their spelling without hyphens and apostrophes."""
        exact = {}
        with (self.folder / "index.noun").open(encoding="latin-1") as file:
            for line in file:
                if line.strip() and not line.startswith("  "):  # the licence is indented
                    try:
                        lemma, _, senses, *rest = line.split()
                        exact[lemma] = tuple(int(offset) for offset in rest[-int(senses) :])
                    except ValueError as error:
                        raise self._damaged(f"index.noun has the line '{shorten(line, 60)}'") from error
        loose: dict[str, str] = {}
        for lemma in exact:
            loose.setdefault(_loose(lemma), lemma)
        return exact, loose

    @cached_property
    def _exceptions(self) -> dict[str, list[str]]:
        path = self.folder / "noun.exc"
        lines = path.read_text(encoding="latin-1").splitlines() if path.is_file() else []
        return {plural: singulars for plural, *singulars in (line.split() for line in lines if line.strip())}

    def _synset(self, offset: int) -> Synset | None:
        """Return the noun whose line begins at a position, if one does."""
        if offset not in self._synsets:
            with (self.folder / "data.noun").open("rb") as file:
                if 0 <= offset <= LAST_OFFSET:
                    file.seek(offset)
                self._synsets[offset] = _parse(file.readline().decode("latin-1"), offset)
        return self._synsets[offset]

    def _climb(self, offset: int) -> dict[int, int]:
        """Return the noun and all more general ones, with the least number of steps up to each."""
        steps, queue = {offset: 0}, [offset]
        for kind in queue:  # grows as it goes
            synset = self._synset(kind)
            if synset is None:
                raise self._damaged(f"it has no noun n{kind:08d}")
            for above in synset.hypernyms:
                if above not in steps:
                    steps[above] = steps[kind] + 1
                    queue.append(above)
        return steps

    def _damaged(self, reason: str) -> InputError:
        return InputError(f"the WordNet in {self.folder} is damaged: {reason}; install it again")

    def _sense(self, synset: Synset) -> str:
        lemma = synset.words[0].lower()
        offsets = self._index[0].get(lemma, ())
        return f"{lemma}.n.{offsets.index(synset.offset) + 1:02d}" if synset.offset in offsets else lemma


def find_wordnet(path: Path | None = None) -> Path:
    """Return the folder of WordNet's database files.

    Args:
        path: The folder. By default, the variables WNSEARCHDIR and WNHOME name it, or the usual folders are searched.

    Raises:
        InputError: There is no WordNet.

    """
    named = [("", path)] if path else []
    named += [(f" ({name})", Path(value)) for name in ("WNSEARCHDIR", "WNHOME") if (value := os.environ.get(name))]
    if named:
        variable, parent = named[0]
        for folder in (parent, parent / "dict"):
            if _is_wordnet(folder):
                return folder
        raise InputError(f"there is no WordNet in {parent}{variable}: give the folder that has data.noun and index.noun")
    data = [Path(part) for part in os.environ.get("NLTK_DATA", "").split(os.pathsep) if part]
    data += [Path.home() / "nltk_data", *(Path(part) / "nltk_data" for part in NLTK)]
    for folder in (*SYSTEM, *(part / "corpora" / "wordnet" for part in data)):
        if _is_wordnet(folder):
            return folder
    for part in data:
        if (packed := part / "corpora" / "wordnet.zip").is_file():
            raise InputError(f"WordNet is packed in {packed}: unzip it there")
    raise InputError(
        "WordNet is not installed: run `apt install wordnet-base`, or `python -m nltk.downloader wordnet` and unzip the "
        "download, or give its folder as wordnet:PATH"
    )


def has_wordnet() -> bool:
    """Return whether WordNet is installed."""
    try:
        find_wordnet()
    except InputError:
        return False
    return True


def _is_wordnet(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("data.noun", "index.noun"))


def _loose(lemma: str) -> str:
    """Return a lemma as class names spell it, without apostrophes and hyphens: Brewer's, red-winged."""
    return lemma.replace("'s", "").replace("'", "").replace("-", "_")


def _parse(line: str, offset: int) -> Synset | None:
    head, bar, gloss = line.partition("|")
    fields = head.split()
    if not bar or len(fields) < 6 or fields[0] != f"{offset:08d}" or fields[2] != "n":
        return None
    try:
        count = int(fields[3], 16)
        words, rest = fields[4 : 4 + 2 * count : 2], fields[4 + 2 * count :]
        pointers = zip(rest[1::4], rest[2::4], strict=False)
        above = tuple(int(target) for symbol, target in pointers if symbol in ("@", "@i"))
    except ValueError:
        return None
    return Synset(offset, tuple(words), above, gloss.strip())


register_relation(
    "wordnet",
    WordNetRelation,
    "wordnet, its path similarity by id or name (wordnet:FOLDER where it is not installed)",
    digest=lambda path: WordNetRelation(path).version,
)
