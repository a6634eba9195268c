"""The kinds of relations, and relations by the names that users give: KIND, KIND:PATH or the PATH of a similarity matrix."""

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from protograph._internal.errors import InputError, unknown_name
from protograph.relations.base import HasSimilarities, Relation, as_relation
from protograph.relations.tables import require_file

Restore = Callable[[Mapping[str, Any], Mapping[str, Tensor]], Relation]
GIVEN_BY_CALLER = ("path", "titles")  # parameters of `open` that are not settings


@dataclass(frozen=True)
class RelationKind:
    """How the relations of a kind are opened by name and restored from a model file.

    Attributes:
        open: Opens a relation; None if the kind cannot be named.
        help: One line for users: how to name it, and what it is.
        digest: Returns a text that changes when the content at the path does.
        restore: Restores a relation from what its `describe` returned.
        parameters: The names of the parameters of `open`.
        needs_path: Whether `open` needs a path.

    """

    open: Callable[..., HasSimilarities] | None
    help: str
    digest: Callable[[Path | None], str] | None
    restore: Restore | None
    parameters: tuple[str, ...]
    needs_path: bool

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings that `open` takes beside the path and the titles of classes."""
        return tuple(name for name in self.parameters if name not in GIVEN_BY_CALLER)


RELATION_KINDS: dict[str, RelationKind] = {}


def register_relation(
    kind: str,
    open: Callable[..., HasSimilarities] | None = None,
    help: str = "",
    *,
    digest: Callable[[Path | None], str] | None = None,
    restore: Restore | None = None,
) -> None:
    """Make a kind of relation known, so that users can name it as KIND or KIND:PATH.

    Args:
        kind: The name of the kind.
        open: A function or class that returns a relation. Its parameters say what a user may give: `path`, a `pathlib.Path`,
            for the file or folder behind the colon, which must have a default if it can be left out; `titles`, class names
            as a person would write them; every other parameter is a setting and must have a default. Without `open`, the
            kind is known to model files only.
        help: One line for users, such as "edges:FILE, a graph by its edges".
        digest: A function that takes the path, if any, and returns a text that changes when the content does. By default, the
            digest of the file, or "" without a path.
        restore: A function that makes a relation from the JSON values and the tensors that its `describe` returned.

    """
    parameters = inspect.signature(open).parameters if open else {}
    required = {name for name, parameter in parameters.items() if parameter.default is parameter.empty}
    if unknown := sorted(required - {"path"}):
        raise InputError(
            f"relation kind '{kind}' cannot be opened without '{unknown[0]}': name the parameter for its file 'path', and give "
            "all others a default"
        )
    needs_path = "path" in required
    help = help or (f"{kind}:PATH" if needs_path else kind)
    RELATION_KINDS[kind] = RelationKind(open, help, digest, restore, tuple(parameters), needs_path)


def named_kinds() -> dict[str, RelationKind]:
    """Return the kinds that a user can name, by name."""
    return {name: kind for name, kind in RELATION_KINDS.items() if kind.open is not None}


@dataclass(frozen=True)
class RelationSpec:
    """A relation as a user names it.

    Attributes:
        kind: The name of its kind.
        path: The file or folder it is read from, if any.

    """

    kind: str
    path: Path | None = None

    @classmethod
    def parse(cls, text: str, known: Iterable[str] = ()) -> "RelationSpec":
        """Return the specification that a text names.

        Args:
            text: KIND, KIND:PATH or the PATH of a similarity matrix.
            known: Names of a dataset's relations, which an error message suggests too.

        Raises:
            InputError: The text names no relation.

        """
        name, colon, path = text.partition(":")
        kinds = named_kinds()
        if name in kinds:
            kind = kinds[name]
            if colon and not path:
                raise InputError(f"relation '{text}' has no file behind the colon: {kind.help}")
            if path and "path" not in kind.parameters:
                raise InputError(f"relation '{name}' takes no file, '{path}' would be ignored: leave it out")
            if kind.needs_path and not path:
                raise InputError(f"relation '{name}' needs a file: {kind.help}")
            return cls(name, Path(path) if path else None)
        if colon and len(name) > 1 and not Path(text).exists():  # one letter is a drive
            raise unknown_name("relation", name, [*kinds, *known])
        if not Path(text).suffix:
            raise unknown_name("relation", text, [*kinds, *known])
        return cls("matrix", Path(text))

    def __str__(self) -> str:
        """Return the name with an absolute path, which means the same in every folder; `matrix` is left out."""
        if self.path is None:
            return self.kind
        return str(self.path.resolve()) if self.kind == "matrix" else f"{self.kind}:{self.path.resolve()}"

    @property
    def label(self) -> str:
        """The name of the relation's operator, which must be fit for a part of a module's name."""
        kind = RELATION_KINDS.get(self.kind)
        if self.path is None or (kind is not None and not kind.needs_path):
            return self.kind
        stem = self.path.stem.replace(".", "-")
        return stem if self.kind == "matrix" else f"{self.kind}_{stem}"

    @property
    def digest(self) -> str:
        """A text that changes when the relation's content does: a digest of the file, or a version."""
        kind = RELATION_KINDS[self.kind]
        if kind.digest is not None:
            return kind.digest(self.path)
        if self.path is None:
            return ""
        require_file(self.path, kind.help)
        return hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]

    def open(self, titles: Mapping[str, str] | None = None, **settings: Any) -> Relation:
        """Open the relation.

        Args:
            titles: Class names as a person would write them, where they differ, for the kinds that read words.
            settings: Settings of the kind; None stands for its default.

        Raises:
            InputError: The kind does not have one of the settings.

        """
        kinds = named_kinds()
        kind = kinds[self.kind]
        options = {name: value for name, value in settings.items() if value is not None}
        for name in options:
            if name not in kind.settings:
                takers = [taker for taker, record in kinds.items() if name in record.settings]
                raise InputError(
                    f"relation '{self.kind}' has no setting '{name}': "
                    + (f"only {' and '.join(takers)} have it" if takers else "leave it out")
                )
        if self.path is not None:
            options["path"] = self.path
        if "titles" in kind.parameters:
            options["titles"] = titles
        assert kind.open is not None
        return as_relation(kind.open(**options))


def open_relations(
    names: Sequence[str], known: Mapping[str, Relation] | None = None, titles: Mapping[str, str] | None = None
) -> dict[str, Relation]:
    """Open relations by name.

    Args:
        names: Names of a dataset's relations, or of others as a user gives them.
        known: The dataset's relations by name.
        titles: Class names as a person would write them, where they differ.

    Returns:
        The relations by label, in the order of their names.

    Raises:
        InputError: Two relations have the same label.

    """
    known = known or {}
    relations: dict[str, Relation] = {}
    named: dict[str, str] = {}
    for name in names:
        spec = None if name in known else RelationSpec.parse(name, known)
        label = spec.label if spec else name
        if label in named:
            raise InputError(f"relations '{named[label]}' and '{name}' would both be called '{label}': leave out or rename one")
        named[label] = name
        relations[label] = spec.open(titles) if spec else known[name]
    return relations


def canonical_name(name: str, known: Mapping[str, Relation] | None = None) -> str:
    """Return a relation's name that means the same in every folder; a dataset's relation keeps its name."""
    known = known or {}
    return name if name in known else str(RelationSpec.parse(name, known))


def relation_label(name: str) -> str:
    """Return the label of a relation from its canonical name, wherever its file lies and whether its kind is known or not."""
    kind, colon, path = name.partition(":")
    if colon and len(kind) > 1:  # one letter is a drive
        return RelationSpec(kind, Path(path)).label
    return RelationSpec("matrix", Path(name)).label if Path(name).suffix else name
