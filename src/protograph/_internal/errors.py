"""What a user can get wrong: one sentence that names the culprit and the way out."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """A mistake in what the user gave. The command prints it as one line and exits with code 2."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """An `InputError` for a name that is not among the known ones, with the nearest of them."""
    names = sorted(known)
    close = get_close_matches(name, names, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names)}"
    return InputError(f"unknown {kind} '{name}': {hint}")
