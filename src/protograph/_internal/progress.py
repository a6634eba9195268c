"""How long work says where it stands, without knowing who listens."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

Advance = Callable[[int], None]


class Progress(Protocol):
    """Shows tasks to somebody: `with progress.task("draw letters", 8000, "glyphs") as advance: ...`."""

    def task(self, title: str, total: int, unit: str, done: int = 0) -> AbstractContextManager[Advance]:
        """Announce `total` units of work, `done` of them already; the given function counts on."""
        ...

    def say(self, line: str) -> None:
        """One line that stays, such as an epoch's result."""
        ...


class Silent:
    """The default for library use: nothing is shown."""

    @contextmanager
    def task(self, title: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        """Count into the void."""
        yield lambda count: None

    def say(self, line: str) -> None:
        """Keep it to oneself."""
