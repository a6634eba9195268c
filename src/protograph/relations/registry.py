"""Relations as a user names them: a kind, a kind and its file, or just the file of a similarity matrix."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protograph._internal.errors import InputError, unknown_name
from protograph.relations.attributes import AttributeRelation
from protograph.relations.base import Relation
from protograph.relations.edges import EdgeRelation, Measure
from protograph.relations.embeddings import EmbeddingRelation, SentenceRelation
from protograph.relations.matrix import MatrixRelation
from protograph.relations.tables import require_file
from protograph.relations.wordnet import WordNetRelation

KINDS = {
    "wordnet": "wordnet, its path similarity by id or name (wordnet:FOLDER where it is not installed)",
    "names": "names, what a sentence encoder makes of the class names",
    "attributes": "attributes:FILE, a table of class x attribute",
    "embeddings": "embeddings:FILE, a vector per class or word",
    "edges": "edges:FILE, a graph by its edges",
    "matrix": "matrix:FILE or just FILE, similarities with the names of their classes",
}
SETTINGS = {"centred": ("attributes", "embeddings"), "measure": ("edges",), "power": ("edges",)}  # who takes which


@dataclass(frozen=True)
class RelationSpec:
    """What names a relation: its kind and, for most kinds, the file or folder it is read from."""

    kind: str
    path: Path | None = None

    @classmethod
    def parse(cls, text: str, others: Iterable[str] = ()) -> "RelationSpec":
        """From KIND, KIND:PATH or the PATH of a matrix; `others` are names that would have been right, too."""
        kind, colon, path = text.partition(":")
        if kind in KINDS:
            if colon and not path:
                raise InputError(f"relation '{text}' has no file behind the colon: {KINDS[kind]}")
            if kind == "names" and path:
                raise InputError(f"relation 'names' takes no file, '{path}' would be ignored: leave it out")
            if kind not in ("wordnet", "names") and not path:
                raise InputError(f"relation '{kind}' needs a file: {KINDS[kind]}")
            return cls(kind, Path(path) if path else None)
        if colon and len(kind) > 1 and not Path(text).exists():  # one letter is a drive
            raise unknown_name("relation", kind, [*KINDS, *others])
        if not Path(text).suffix:
            raise unknown_name("relation", text, [*KINDS, *others])
        return cls("matrix", Path(text))

    def __str__(self) -> str:
        """The same wherever it is read: with the path made absolute, and `matrix` left unsaid."""
        if self.path is None:
            return self.kind
        return str(self.path.resolve()) if self.kind == "matrix" else f"{self.kind}:{self.path.resolve()}"

    @property
    def label(self) -> str:
        """What the operator is called, which must be fit for a part of a module's name."""
        if self.path is None or self.kind == "wordnet":
            return self.kind
        stem = self.path.stem.replace(".", "-")
        return stem if self.kind == "matrix" else f"{self.kind}_{stem}"

    @property
    def digest(self) -> str:
        """What changes when the relation's content does: of the file, or the version of WordNet or of the encoder."""
        if self.kind == "wordnet":
            return WordNetRelation(self.path).version
        if self.path is None:
            return SentenceRelation().version
        require_file(self.path, KINDS[self.kind])
        return hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]

    def open(
        self,
        titles: Mapping[str, str] | None = None,
        centred: bool | None = None,
        measure: Measure | None = None,
        power: int | None = None,
    ) -> Relation:
        """The relation; a setting that its kind does not have may not be given.

        titles: class names as a person would write them, where they differ, for the kinds that read words
        """
        settings = {"centred": centred, "measure": measure, "power": power}
        given: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
        for name in given:
            if self.kind not in SETTINGS[name]:
                raise InputError(f"relation '{self.kind}' has no setting '{name}': it is for {' and '.join(SETTINGS[name])}")
        if self.kind == "wordnet":
            return WordNetRelation(self.path)
        if self.path is None:
            return SentenceRelation(titles)
        if self.kind == "attributes":
            return AttributeRelation.read(self.path, **given)
        if self.kind == "embeddings":
            return EmbeddingRelation.read(self.path, titles=titles, **given)
        return EdgeRelation.read(self.path, **given) if self.kind == "edges" else MatrixRelation.read(self.path)


def open_relations(
    named: Sequence[str], own: Mapping[str, Relation] | None = None, titles: Mapping[str, str] | None = None
) -> dict[str, Relation]:
    """Relations by label, in the order named: each one of a dataset's own, or what its name specifies.

    titles: class names as a person would write them, where they differ
    """
    own = own or {}
    found: dict[str, Relation] = {}
    labelled: dict[str, str] = {}
    for name in named:
        spec = None if name in own else RelationSpec.parse(name, own)
        label = spec.label if spec else name
        if label in labelled:
            raise InputError(
                f"relations '{labelled[label]}' and '{name}' would both be called '{label}': leave out or rename one"
            )
        labelled[label] = name
        found[label] = spec.open(titles) if spec else own[name]
    return found


def canonical_name(name: str, own: Mapping[str, Relation] | None = None) -> str:
    """A relation's name that means the same in every folder; one of a dataset's own is so already."""
    own = own or {}
    return name if name in own else str(RelationSpec.parse(name, own))


def relation_label(name: str) -> str:
    """What the relation of a canonical name is called wherever its file lies."""
    return RelationSpec.parse(name).label if ":" in name or Path(name).suffix else name
