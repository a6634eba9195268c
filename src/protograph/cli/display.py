"""What the command shows: progress on stderr, results on stdout, mistakes in one line."""

import errno
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from protograph._internal.errors import InputError
from protograph._internal.progress import Advance
from protograph.evaluation.metrics import MEASURES

# A full disk, or a place where the user cannot write
UNSAVED = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR,
)  # fmt: skip

P = ParamSpec("P")
R = TypeVar("R")


def errors() -> Console:
    """The console for everything that is not a result."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def reported(command: Callable[P, R]) -> Callable[P, R]:
    """A command that ends a user's mistake, a full disk or a locked place with one line and exit code 2, and Ctrl-C with 130.

    Its help is the docstring with one line for each paragraph, since Typer would keep the line breaks of the source.
    """

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except InputError as error:
            errors().print(f"[bold red]error:[/] {escape(str(error))}")
        except OSError as error:
            if error.errno not in UNSAVED:
                raise
            where = f" ({error.filename})" if error.filename else ""
            errors().print(
                f"[bold red]error:[/] cannot read or save: {escape(str(error.strerror))}{escape(where)}; "
                "nothing was left half-written: make room, see whose place it is, or choose another (--out; of a grid --runs, "
                "--results; of a cache PROTOGRAPH_CACHE), then run the same command to go on"
            )
        except KeyboardInterrupt:
            errors().print("interrupted: run the same command again to go on from the last checkpoint")
            raise typer.Exit(130) from None
        raise typer.Exit(2)

    paragraphs = (command.__doc__ or "").split("\n\n")
    wrapped.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return wrapped


class RateColumn(ProgressColumn):
    """Units per second."""

    def render(self, task: Task) -> Text:
        """Such as '12.3 steps/s'."""
        speed = task.finished_speed or task.speed
        return Text(f"{speed:.3g} {task.fields['unit']}/s" if speed else "", style="cyan")


class ShownProgress:
    """Bars with rate and time left on a terminal; elsewhere only the lines that stay."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = errors()
        self.quiet = quiet

    @contextmanager
    def task(self, title: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        """A bar for as long as the task takes."""
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[unit]}"),
            RateColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        shown = not self.quiet and self.console.is_terminal
        with Bars(*columns, console=self.console, transient=True, disable=not shown) as bars:
            bar = bars.add_task(title, total=total, completed=done, unit=unit)
            yield lambda count: bars.advance(bar, count)

    def say(self, line: str) -> None:
        """A line above the bar."""
        if not self.quiet:
            self.console.print(line, markup=False)  # a file may be called [red]


def measures_table(rows: Mapping[str, Mapping[str, Any]], title: str) -> Table:
    """One row of six measures with intervals per name; for two rows, their difference below."""

    def made(narrow: bool) -> Table:
        table = Table(title=escape(title), title_justify="left")
        table.add_column("", overflow="fold")
        add_measures(table, narrow)
        for name, measures in rows.items():
            texts = (f"{measures[key]['mean']:.2f} ± {measures[key]['ci95']:.2f}" for key in MEASURES)
            table.add_row(escape(name), *stacked(texts, narrow))
        if len(rows) == 2:
            one, two = rows.values()
            table.add_section()
            table.add_row("difference", *(f"{two[key]['mean'] - one[key]['mean']:+.2f}" for key in MEASURES))
        return table

    return fitting(made)


def fitting(make: Callable[[bool], Table]) -> Table:
    """A table as it is made for a wide terminal, or, where that is cut off by this one, for a narrow one."""
    wide, console = make(False), Console()
    return wide if not console.is_terminal or wanted_width(wide) <= console.width else make(True)


def wanted_width(table: Table) -> int:
    """How wide a table is where nothing has to be broken."""
    return Console(width=1000).measure(table).maximum


def add_measures(table: Table, narrow: bool) -> None:
    """A column for each of the six measures."""
    for label in MEASURES.values():
        table.add_column(label.replace("-", "-\n") if narrow else label, justify="right", no_wrap=True)


def stacked(texts: Iterable[str], narrow: bool) -> list[str]:
    """Numbers with their intervals below them, where the table is narrow."""
    return [text.replace(" ±", "\n±") if narrow else text for text in texts]


def show(result: Any, table: Table | None, as_json: bool) -> None:
    """Print a result for a person or, as JSON, for a machine."""
    if as_json or table is None:
        print(json.dumps(result, indent=2, ensure_ascii=False))
    else:
        console = Console(highlight=False)
        if not console.is_terminal:  # a pipe has no width to respect
            console = Console(highlight=False, width=max(120, wanted_width(table)))
        console.print(table)
