"""The output of the command: progress and errors on stderr, results on stdout."""

import errno
import functools
import inspect
import json
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from textwrap import dedent
from typing import Any, ParamSpec, TypeVar

import typer
from rich import markup
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from protograph._internal.errors import InputError, shorten_middle
from protograph._internal.progress import Advance
from protograph.evaluation.metrics import measure_titles
from protograph.training.processes import Processes, leave_to_first

LONGEST_PATH = 200  # characters, of a path in an error of the system
# A full disk, or a path where the user cannot write
UNSAVED = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR,
    errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO, errno.EIO, errno.ETXTBSY, errno.EMFILE, errno.ENFILE,
)  # fmt: skip

DIRECTION_MARKS = {chr(code) for code in (0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))}
FIRST_LINE, LONGEST_SILENCE = 10.0, 60.0  # seconds, of progress where there is no terminal

P = ParamSpec("P")
R = TypeVar("R")


def visible(text: str) -> str:
    """Return a text with control characters, those of direction too, shown and not sent; line breaks and tabs stay."""
    return "".join(
        ascii(letter)[1:-1]
        if letter in DIRECTION_MARKS or (unicodedata.category(letter) in ("Cc", "Cs") and letter not in "\n\t")
        else letter
        for letter in text
    )


def escape(text: str) -> str:
    """Return a text as Rich prints it in a table or a line: no markup, and no control characters."""
    return markup.escape(visible(text))


def errors() -> Console:
    """Return the console on stderr."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def reported(command: Callable[P, R]) -> Callable[P, R]:
    """Let a command report errors of the user in one line.

    A mistake, a full disk or a path without permission ends the command with exit code 2, Ctrl-C with 130. Typer does not look
    whether files can be read: its answer would be a box, and would leave no chance to --skip-bad. The help is the
    docstring with one line for each paragraph, since Typer would keep the line breaks of the source. Only the examples, which
    come last, keep a line each.
    """

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except InputError as error:
            leave_to_first()
            errors().print(f"[bold red]error:[/] {escape(str(error))}")
        except OSError as error:
            if error.errno not in UNSAVED:
                raise
            path = f" ({shorten_middle(str(error.filename), LONGEST_PATH)})" if error.filename else ""
            errors().print(
                f"[bold red]error:[/] cannot read or save: {escape(str(error.strerror))}{escape(path)}; "
                "no file was left incomplete. Free space, check permissions, or choose another folder (--out; for a grid "
                "--runs, --results; for the cache PROTOGRAPH_CACHE), then run the same command again to continue"
            )
        except MemoryError as error:
            errors().print(f"[bold red]error:[/] not enough memory ({escape(str(error))}): give smaller files, or fewer")
        except KeyboardInterrupt:
            if Processes.launched().leads:
                errors().print("interrupted: run the same command again to continue from the last checkpoint")
            raise typer.Exit(130) from None
        raise typer.Exit(2)

    for annotation in command.__annotations__.values():
        for part in getattr(annotation, "__metadata__", ()):
            if hasattr(part, "readable"):
                part.readable = False
    text, heading, examples = inspect.cleandoc(command.__doc__ or "").partition("Examples:\n")
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n")]
    wrapped.__doc__ = "\n\n".join([*paragraphs, heading + dedent(examples)] if heading else paragraphs)
    return wrapped


class RateColumn(ProgressColumn):
    """A column of a progress bar: units per second."""

    def render(self, task: Task) -> Text:
        """Return the text of the column, such as '12.3 steps/s'."""
        speed = task.finished_speed or task.speed
        return Text(f"{speed:.3g} {task.fields['unit']}/s" if speed else "", style="cyan")


class ProgressLines:
    """Lines on how far a task is, where no bar can be shown: after ten seconds, later and later, at least every minute.

    Args:
        title: What is done.
        total: The number of units of work.
        unit: The name of a unit, in the plural.
        done: The number of units that were finished already.
        write: What writes a line.

    """

    def __init__(self, title: str, total: int, unit: str, done: int, write: Callable[[str], None]) -> None:
        self.title, self.total, self.unit, self.write = title, total, unit, write
        self.done, self.earlier = done, done
        self.began = time.monotonic()
        self.due = FIRST_LINE

    def advance(self, count: int) -> None:
        """Count finished units, and write a line if one is due."""
        self.done += count
        elapsed = time.monotonic() - self.began
        if elapsed < self.due or self.done >= self.total:
            return
        self.due = elapsed + min(elapsed, LONGEST_SILENCE)
        speed = (self.done - self.earlier) / elapsed
        remaining = f", {duration((self.total - self.done) / speed)} left" if speed else ""
        self.write(f"{self.title}: {self.done} of {self.total} {self.unit}, {speed:.3g} {self.unit}/s{remaining}")


def duration(seconds: float) -> str:
    """Return a time in words, such as '2 min 5 s'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


class ShownProgress:
    """Progress bars with speed and remaining time on a terminal; elsewhere a line now and then, and the lines that stay."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = errors()
        self.quiet = quiet

    @contextmanager
    def task(self, title: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        """Show a bar until the task ends; lines where there is no terminal."""
        if not self.quiet and not self.console.is_terminal:
            yield ProgressLines(title, total, unit, done, self.say).advance
            return
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[unit]}"),
            RateColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        with Bars(*columns, console=self.console, transient=True, disable=self.quiet) as bars:
            bar = bars.add_task(title, total=total, completed=done, unit=unit)
            yield lambda count: bars.advance(bar, count)

    def say(self, line: str) -> None:
        """Show a line above the bar."""
        if not self.quiet:
            self.console.print(visible(line), markup=False)  # a file may be called [red]


def measures_table(rows: Mapping[str, Mapping[str, Any]], title: str) -> Table:
    """Return a table with one row of measures and intervals per name and, below two rows, their difference."""
    titles = measure_titles(rows.values())

    def make_table(narrow: bool) -> Table:
        table = Table(title=escape(title), title_justify="left")
        table.add_column("", overflow="fold")
        add_measures(table, titles, narrow)
        for name, measures in rows.items():
            texts = (f"{measures[key]['mean']:.2f} ± {measures[key]['ci95']:.2f}" for key in titles)
            table.add_row(escape(name), *stacked(texts, narrow))
        if len(rows) == 2:
            first, second = rows.values()
            table.add_section()
            table.add_row("difference", *(f"{second[key]['mean'] - first[key]['mean']:+.2f}" for key in titles))
        return table

    return fit_terminal(make_table)


def fit_terminal(make_table: Callable[[bool], Table]) -> Table:
    """Return the wide form of a table, or the narrow form if the terminal would cut the wide one.

    Args:
        make_table: Makes the narrow form for True, and the wide form for False.
    """
    wide, console = make_table(False), Console()
    return wide if not console.is_terminal or natural_width(wide) <= console.width else make_table(True)


def natural_width(table: Table) -> int:
    """Return the width of a table without line breaks in its cells."""
    return Console(width=1000).measure(table).maximum


def add_measures(table: Table, titles: Mapping[str, str], narrow: bool) -> None:
    """Add a column for each measure, by their titles."""
    for label in titles.values():
        table.add_column(label.replace("-", "-\n") if narrow else label, justify="right", no_wrap=True)


def stacked(texts: Iterable[str], narrow: bool) -> list[str]:
    """Return numbers with their intervals below them if the table is narrow."""
    return [text.replace(" ±", "\n±") if narrow else text for text in texts]


def show(result: Any, table: Table | None, as_json: bool) -> None:
    """Print a result as a table or as JSON."""
    if as_json or table is None:
        text = json.dumps(result, indent=2, ensure_ascii=False)
        try:
            text.encode(sys.stdout.encoding or "utf-8")
        except UnicodeEncodeError:  # another encoding, or a file name that is not UTF-8
            text = json.dumps(result, indent=2)
        print(text)
    else:
        console = Console(highlight=False)
        if not console.is_terminal:  # a pipe has no width to respect
            console = Console(highlight=False, width=max(120, natural_width(table)))
        console.print(table)
