"""Class names of a joint label space: found by name, and checked before one joins."""

from collections.abc import Sequence
from difflib import get_close_matches

from protograph._internal.errors import InputError

MOST_LISTED = 10
MOST_COMPARED = 20_000  # with a name that is unknown, which takes a second
LEAST_ALIKE = 0.7  # of a name that is suggested


def class_index(names: Sequence[str], name: str) -> int:
    """Return the index of a class; if there is none of that name, the error suggests the nearest one."""
    if name in names:
        return names.index(name)
    if not names:
        raise InputError(f"there is no class '{name}', nor any other yet: add one")
    lowered = {known.lower(): known for known in names[:MOST_COMPARED]}
    nearest = get_close_matches(name.lower(), list(lowered), 1, LEAST_ALIKE)
    hint = f"did you mean '{lowered[nearest[0]]}'?" if nearest else f"the classes are {_listed(names)}"
    raise InputError(f"there is no class '{name}': {hint}")


def check_new_name(names: Sequence[str], name: str) -> None:
    """Raise an `InputError` if there is a class of that name."""
    if name in names:
        raise InputError(f"there is a class '{name}' already: add examples to it, remove or rename it, or choose another name")


def check_known(name: str, examples: int, related: bool) -> None:
    """Raise an `InputError` if a class has no examples, and no relation knows it."""
    if not examples and not related:
        raise InputError(f"nothing is known of class '{name}': give at least one example, or how it relates to other classes")


def check_removable(names: Sequence[str], name: str) -> int:
    """Return the index of a class that may be removed from those of a trained variant."""
    index = class_index(names, name)
    if len(names) == 1:
        raise InputError(f"class '{name}' is the last one: a classifier of a trained variant needs at least one")
    return index


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return ", ".join(f"'{name}'" for name in names[:MOST_LISTED]) + rest
