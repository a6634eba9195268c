"""How long-running work reports its progress, whoever displays it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

Advance = Callable[[int], None]


class Progress(Protocol):
    """A display of tasks: `with progress.task("draw letters", 8000, "glyphs") as advance: ...`."""

    def task(self, title: str, total: int, unit: str, done: int = 0) -> AbstractContextManager[Advance]:
        """Announce a task, and return a function that counts finished units.

        Args:
            title: What is done.
            total: The number of units of work.
            unit: The name of a unit, in the plural.
            done: The number of units that are finished already.
        """
        ...

    def say(self, line: str) -> None:
        """Show a line that stays, such as the result of an epoch."""
        ...


class Silent:
    """A display that shows nothing, the default for use as a library."""

    @contextmanager
    def task(self, title: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        """Return a function that ignores the count."""
        yield lambda count: None

    def say(self, line: str) -> None:
        """Ignore the line."""
