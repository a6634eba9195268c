"""What WordNet knows of classes: how far apart two kinds of things are in its tree of kinds.

WordNet's own database files are read, and only the lines that are needed: the id of a noun, such as n01532829, is where its
line begins in `data.noun`. `index.noun` has the nouns by name, `noun.exc` the irregular plurals.
"""

import hashlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph.relations.base import missing_classes, split_words

SYSTEM = (Path("/usr/share/wordnet"), Path("/usr/local/WordNet-3.0/dict"))  # Debian's place, and WordNet's own
NLTK = ("/usr/share", "/usr/local/share", "/usr/lib", "/usr/local/lib", sys.prefix, f"{sys.prefix}/share", f"{sys.prefix}/lib")
PLURALS = (
    ("s", ""), ("ses", "s"), ("ves", "f"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"), ("men", "man"),
    ("ies", "y"),
)  # fmt: skip
REMEDY = "give its WordNet 3.0 id (n02012849), a sense (crane.n.05) or another name"


@dataclass(frozen=True)
class Synset:
    """One line of `data.noun`: words for one thing, the kinds it belongs to, and what it is."""

    offset: int
    words: tuple[str, ...]
    hypernyms: tuple[int, ...]
    gloss: str

    @property
    def id(self) -> str:
        """Such as n01532829."""
        return f"n{self.offset:08d}"


@dataclass(frozen=True)
class Sense:
    """What a class name was taken as.

    by: what was found: the id, the name, or only the name's last words
    sense: WordNet's name of it, such as crane.n.05
    """

    name: str
    by: Literal["id", "name", "last words"]
    id: str
    sense: str
    words: tuple[str, ...]
    gloss: str


class WordNetRelation:
    r"""WordNet path similarity [V, V], :math:`1 / (1 + d)`, of any names; two of the same meaning have similarity 1.

    d is the number of steps from one noun up to a kind both belong to and down to the other, over hypernyms and instance
    hypernyms, at the kind where it is least; without one, the similarity is 0. A class is given by

    its id:       n01532829, n01532829-house_finch
    its name:     house_finch, House Finch, 012.House_Finch, house finches; the first sense is taken
    its sense:    crane.n.05, crane#5

    Of a name that WordNet does not have the last words are taken: Brewer_Hawk is a hawk. `senses` tells what was taken.

    path: WordNet's folder; without it, the usual places are looked at
    """

    def __init__(self, path: Path | None = None, source: str = "wordnet") -> None:
        self.source = source
        self.folder = find_wordnet(path)
        self._synsets: dict[int, Synset | None] = {}

    @cached_property
    def version(self) -> str:
        """The release, as the files say it; of files that do not, a digest."""
        content = (self.folder / "data.noun").read_bytes()
        release = re.search(rb"WordNet (\d+\.\d+) Copyright", content[:4096])
        return f"WordNet {release[1].decode()}" if release else hashlib.sha256(content).hexdigest()[:16]

    def similarities(self, names: Sequence[str]) -> Tensor:
        """Similarities of the named classes; 1 on the diagonal."""
        climbs = [self._climb(synset.offset) for synset, _ in self._found(names)]
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
        """What each name was taken as."""
        return [
            Sense(name, by, synset.id, self._sense(synset), synset.words, synset.gloss)
            for name, (synset, by) in zip(names, self._found(names), strict=True)
        ]

    def _found(self, names: Sequence[str]) -> list[tuple[Synset, Literal["id", "name", "last words"]]]:
        found = [self._find(name) for name in names]
        if missing := [name for name, taken in zip(names, found, strict=True) if taken is None]:
            raise missing_classes(self.source, missing, REMEDY)
        return [taken for taken in found if taken is not None]

    def _find(self, name: str) -> tuple[Synset, Literal["id", "name", "last words"]] | None:
        if given := re.match(r"n(\d{8})($|[\s_-])", name):
            synset = self._synset(int(given[1]))
            return (synset, "id") if synset else None
        number, words, exact = 1, split_words(name), False
        if given := re.fullmatch(r"(.+?)(?:\.n\.|#)(\d+)", name):
            number, words, exact = int(given[2]), split_words(given[1]), True
        for first in range(1 if exact else len(words)):
            whole = "_".join(words[first:])
            if offsets := self._lemma(whole) or self._lemma(re.sub(r"_?\d+$", "", whole)):  # cat2 is a cat
                synset = self._synset(offsets[number - 1]) if 1 <= number <= len(offsets) else None
                return (synset, "last words" if first else "name") if synset else None
        return None

    def _lemma(self, name: str) -> tuple[int, ...]:
        """The synsets of a noun, first sense first, however it is joined, and in the singular where that is needed."""
        exact, loose = self._index
        for form in self._forms(name.lower()):
            if found := exact.get(form) or exact.get(loose.get(_loose(form), "")):
                return found
        return ()

    def _forms(self, name: str) -> Iterator[str]:
        yield name
        before, joint, last = name.rpartition("_")
        for whole, head, word in (("", "", name), (before, joint, last)):
            for singular in self._exceptions.get(word, ()):
                yield f"{whole}{head}{singular}"
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
                    lemma, _, senses, *rest = line.split()
                    exact[lemma] = tuple(int(offset) for offset in rest[-int(senses) :])
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
        """The noun whose line begins there, if one does."""
        if offset not in self._synsets:
            with (self.folder / "data.noun").open("rb") as file:
                file.seek(offset)
                self._synsets[offset] = _parse(file.readline().decode("latin-1"), offset)
        return self._synsets[offset]

    def _climb(self, offset: int) -> dict[int, int]:
        """The noun itself and every kind it belongs to, with the least number of steps up to each."""
        steps, queue = {offset: 0}, [offset]
        for kind in queue:  # grows as it goes
            synset = self._synset(kind)
            if synset is None:
                raise InputError(f"the WordNet in {self.folder} is damaged: it has no noun n{kind:08d}; install it again")
            for above in synset.hypernyms:
                if above not in steps:
                    steps[above] = steps[kind] + 1
                    queue.append(above)
        return steps

    def _sense(self, synset: Synset) -> str:
        lemma = synset.words[0].lower()
        offsets = self._index[0].get(lemma, ())
        return f"{lemma}.n.{offsets.index(synset.offset) + 1:02d}" if synset.offset in offsets else lemma


def find_wordnet(path: Path | None = None) -> Path:
    """The folder of WordNet's database files: the given one, the variables' WNSEARCHDIR or WNHOME, or a usual place."""
    given = [("", path)] if path else []
    given += [(f" ({name})", Path(value)) for name in ("WNSEARCHDIR", "WNHOME") if (value := os.environ.get(name))]
    if given:
        said_by, place = given[0]
        for folder in (place, place / "dict"):
            if _is_wordnet(folder):
                return folder
        raise InputError(f"there is no WordNet in {place}{said_by}: give the folder that has data.noun and index.noun")
    data = [Path(part) for part in os.environ.get("NLTK_DATA", "").split(os.pathsep) if part]
    data += [Path.home() / "nltk_data", *(Path(part) / "nltk_data" for part in NLTK)]
    for folder in (*SYSTEM, *(part / "corpora" / "wordnet" for part in data)):
        if _is_wordnet(folder):
            return folder
    for part in data:
        if (packed := part / "corpora" / "wordnet.zip").is_file():
            raise InputError(f"WordNet is packed in {packed}: unzip it there")
    raise InputError(
        "WordNet is not installed: run `apt install wordnet-base`, or `python -m nltk.downloader wordnet` and unzip what it "
        "fetched, or give its folder as wordnet:PATH"
    )


def _is_wordnet(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("data.noun", "index.noun"))


def _loose(lemma: str) -> str:
    """Spelt without what class names leave out: Brewer's, red-winged."""
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
