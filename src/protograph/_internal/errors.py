"""The error for mistakes of the user: one sentence that names the culprit and the way out."""

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST_MESSAGE = 6000  # characters: enough for the longest path; what a file holds may be far longer


class InputError(ValueError):
    """A mistake in the user's input. The command prints it as one line and exits with code 2.

    Args:
        message: The sentence. What it quotes may have line breaks, which are shown, and no end.

    """

    def __init__(self, message: str) -> None:
        in_one_line = message.replace("\r", "\\r").replace("\n", "\\n")
        super().__init__(shorten_middle(in_one_line, LONGEST_MESSAGE))


def shorten_middle(text: str, most: int) -> str:
    """Return a text with its middle left out where it has more than `most` characters."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """Return an error for an unknown name that suggests the nearest known names.

    Args:
        kind: What the name names, such as "variant".
        name: The unknown name.
        known: All known names.
    """
    names = sorted(known)
    close = get_close_matches(name, names, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names)}"
    return InputError(f"unknown {kind} '{name}': {hint}")
