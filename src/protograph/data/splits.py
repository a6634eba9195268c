"""Who may see what, by rules that need no random numbers and so are the same everywhere.

Where something has to be drawn, things are ordered by a hash of the seed and their names and taken from the front.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from protograph._internal.errors import InputError, unknown_name

T = TypeVar("T")

PARTS = ("train", "seen_validation", "seen_test", "novel_validation", "novel_test")
KINDS = ("seen", "novel-validation", "novel-test")  # what a class can be
NOVEL_VALIDATION, NOVEL_TEST = 0.16, 0.20  # of the classes, as in miniImageNet
SEEN_VALIDATION, SEEN_TEST = 0.10, 0.20  # of the images of a seen class
FEWEST_IMAGES = 6  # of a class; fewer cannot be divided
AMPLE = 20  # images with which a class can be novel: five shots and fifteen queries

Rows = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Split:
    """Images by class for each part; the classes of the first three are the same, those of the others their own."""

    train: Rows
    seen_validation: Rows
    seen_test: Rows
    novel_validation: Rows
    novel_test: Rows

    @property
    def classes(self) -> tuple[str, ...]:
        """Seen classes, then novel ones for validation, then those for test."""
        return (*self.train, *self.novel_validation, *self.novel_test)

    def counts(self) -> str:
        """In one line."""
        seen = [sum(map(len, getattr(self, part).values())) for part in PARTS[:3]]
        return (
            f"{len(self.train)} seen classes ({seen[0]} images for training, {seen[1]} for validation, {seen[2]} for test), "
            f"{len(self.novel_validation)} novel classes for validation, {len(self.novel_test)} for test"
        )

    def without(self, rows: set[int]) -> "Split":
        """The same split with these images left out."""
        if not rows:
            return self
        return Split(
            *({name: [row for row in own if row not in rows] for name, own in getattr(self, part).items()} for part in PARTS)
        )


def drawn(things: Sequence[T], count: int, seed: int, *scope: object) -> list[T]:
    """`count` of `things`, by the hash of seed, scope and their places; in their order."""

    def key(place: int) -> bytes:
        return hashlib.sha256("/".join(map(str, (seed, *scope, place))).encode()).digest()

    chosen = sorted(range(len(things)), key=key)[:count]
    return [things[place] for place in sorted(chosen)]


def hold_out(
    rows: Sequence[int], name: str, validation: int, test: int, seed: int = 0
) -> tuple[list[int], list[int], list[int]]:
    """Images of the seen class `name` for training, validation and test: so many for the latter two, all others to train."""
    held = drawn(rows, test, seed, name, "test")
    rest = _others(rows, held)
    validated = drawn(rest, validation, seed, name, "validation")
    return _others(rest, validated), validated, held


def _others(rows: Sequence[int], taken: Sequence[int]) -> list[int]:
    gone = set(taken)
    return [row for row in rows if row not in gone]


def split_seen(
    members: Rows, validation: float = SEEN_VALIDATION, test: float = SEEN_TEST, seed: int = 0
) -> tuple[Rows, Rows, Rows]:
    """Divide the images of every seen class by shares; at least one for each part."""
    train: dict[str, list[int]] = {}
    validated: dict[str, list[int]] = {}
    tested: dict[str, list[int]] = {}
    for name, rows in members.items():
        count, test_count = (max(1, round(share * len(rows))) for share in (validation, test))
        train[name], validated[name], tested[name] = hold_out(rows, name, count, test_count, seed)
    return train, validated, tested


def check_sizes(members: Rows, what: str, source: str = "") -> None:
    """Complain of a class of `source` that has too few of `what` to be divided."""
    for name, rows in members.items():
        if len(rows) < FEWEST_IMAGES:
            where = f" of {source}" if source else ""
            raise InputError(f"class '{name}'{where} has {len(rows)} {what}: give every class at least {FEWEST_IMAGES}")


def check_assigned(assigned: Mapping[str, str], names: Iterable[str], source: str) -> None:
    """Complain of an assignment by `source` that is not one of all these classes to all kinds."""
    for name, kind in assigned.items():
        if kind not in KINDS:
            raise unknown_name(f"split of class '{name}' in {source}", kind, KINDS)
    for name in names:
        if name not in assigned:
            raise InputError(f"{source} does not say what class '{name}' is: give it to one of {', '.join(KINDS)}")
    if absent := assigned.keys() - set(names):
        raise InputError(f"{source} names class '{min(absent)}', of which there are no images: leave it out")
    for kind in KINDS:
        if kind not in assigned.values():
            raise InputError(f"{source} has no class for '{kind}': give each of {', '.join(KINDS)} some")


def split_freely(members: Rows, assigned: Mapping[str, str] | None = None, seed: int = 0) -> Split:
    """Divide classes nobody has divided yet, and the images of the seen ones.

    Of all classes 20 % become novel for test and 16 % novel for validation (at least five each where there are twenty
    classes), drawn among those with at least twenty images, or, where these are too few, among the largest; the others are
    seen and hold out 20 % of their images for test and 10 % for validation. `assigned` settles the classes instead: name ->
    seen, novel-validation or novel-test.
    """
    if assigned is None:
        if len(members) < 8:
            raise InputError(
                f"{len(members)} classes are too few to hold some out: give at least 8, better 20; "
                "`protograph fit` on a trained backbone takes fewer"
            )
        novel_count = {
            part: max(round(share * len(members)), min(5, len(members) // 4))
            for part, share in (("novel-test", NOVEL_TEST), ("novel-validation", NOVEL_VALIDATION))
        }
        by_size = sorted(members, key=lambda name: (-len(members[name]), name))
        wanted = sum(novel_count.values())
        able = sorted(name for place, name in enumerate(by_size) if len(members[name]) >= AMPLE or place < wanted)
        test = set(drawn(able, novel_count["novel-test"], seed, "novel-test"))
        validation = set(
            drawn([name for name in able if name not in test], novel_count["novel-validation"], seed, "novel-validation")
        )
        assigned = {
            name: "novel-test" if name in test else "novel-validation" if name in validation else "seen" for name in members
        }
    return Split(
        *split_seen({name: rows for name, rows in members.items() if assigned[name] == "seen"}, seed=seed),
        {name: rows for name, rows in members.items() if assigned[name] == "novel-validation"},
        {name: rows for name, rows in members.items() if assigned[name] == "novel-test"},
    )
