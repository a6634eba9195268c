"""What all commands have in common."""

import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner, Result

from protograph.cli import display
from protograph.cli.display import ProgressLines, ShownProgress, measures_table, reported
from protograph.evaluation.metrics import MEASURES


def test_help_is_broken_where_the_terminal_ends_and_between_paragraphs_alone() -> None:
    @reported
    def command() -> None:
        """Do it.

        One sentence of some length that goes
        on in the next line.

        Another paragraph.
        """

    app = typer.Typer(add_completion=False)
    app.command()(command)
    shown = CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}).invoke(app, ["--help"]).stdout
    lines = [line.strip() for line in shown.splitlines()]
    start = lines.index("Do it.")
    assert lines[start : start + 5] == [
        "Do it.", "", "One sentence of some length that goes on in the next line.", "", "Another paragraph.",
    ]  # fmt: skip


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], io.StringIO]:
    """Lets what is shown go to a terminal of so many columns, whose contents it answers."""

    def open_terminal(width: int) -> io.StringIO:
        screen = io.StringIO()
        made = lambda **more: Console(**{"file": screen, "force_terminal": True, "color_system": None, "width": width, **more})
        monkeypatch.setattr(display, "Console", made)
        return screen

    return open_terminal


ROWS = {
    name: {key: {"mean": 10.0 * place + len(name), "ci95": 0.43} for place, key in enumerate(MEASURES)}
    for name in ("aux-only", "gcgpn-aux")
}


@pytest.mark.parametrize("width", [80, 130])
def test_a_table_of_measures_is_whole_on_any_terminal(terminal: Callable[[int], io.StringIO], width: int) -> None:
    screen = terminal(width)
    display.show(None, measures_table(ROWS, "letters"), False)
    shown = screen.getvalue()
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    for words in ("aux-only", "gcgpn-aux", "difference", "± 0.43", "58.00", "59.00", "+1.00"):
        assert words in shown
    assert ("Joint-Joint" in shown) == ("59.00 ± 0.43" in shown) == (width == 130)
    assert "Joint-" in shown


@pytest.mark.parametrize("columns", ["40", "120", "130"])
def test_what_is_piped_is_as_wide_as_it_wants_to_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    name = "a run of a long name " * 5
    display.show(None, measures_table({name: ROWS["aux-only"], **ROWS}, "letters"), False)
    (row,) = [line for line in capsys.readouterr().out.splitlines() if name.strip() in line]
    assert row.count("± 0.43") == len(MEASURES)


def test_brackets_in_names_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    (row, *_) = ROWS.values()
    display.show(None, measures_table({"[red]one[/]": row}, "letters; runs [/lr=1] [lr=2]"), False)
    shown = capsys.readouterr().out
    assert "runs [/lr=1] [lr=2]" in shown
    assert "[red]one[/]" in shown


def test_progress_is_told_in_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    now, lines = 0.0, []
    monkeypatch.setattr(display.time, "monotonic", lambda: now)
    told = ProgressLines("encode", 1000, "images", 100, lines.append)
    for now in (1.0, 9.0):  # noqa: B007 - the clock
        told.advance(10)
    assert lines == [], "what is done within seconds needs no line"
    now = 10.0
    told.advance(80)
    assert lines == ["encode: 200 of 1000 images, 10 images/s, 1 min 20 s left"]
    for now in range(11, 500):  # noqa: B007
        told.advance(1)
    assert 5 < len(lines) < 15, "less and less often, but every minute"
    told.advance(1000)
    assert not lines[-1].startswith("encode: 1000 of"), "the end needs no line"


def test_only_a_pipe_gets_lines_of_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(display, "FIRST_LINE", 0.0)
    for quiet in (False, True):
        with ShownProgress(quiet).task("encode", 10, "images") as advance:
            advance(5)
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith("encode: 5 of 10 images, ") != quiet


@pytest.mark.parametrize(("seconds", "text"), [(4.4, "4 s"), (125, "2 min 5 s"), (7290, "2 h 1 min")])
def test_times_are_told_in_words(seconds: float, text: str) -> None:
    assert display.duration(seconds) == text


def test_control_characters_are_shown_and_not_sent(capsys: pytest.CaptureFixture[str]) -> None:
    assert display.visible("a\x1b[31mb\r\u202e\x9b\n\té") == "a\\x1b[31mb\\r\\u202e\\x9b\n\té"
    assert display.escape("[red]\x07") == "\\[red]\\x07"
    ShownProgress().say("left out \x1b]0;title\x07")
    assert capsys.readouterr().err == "left out \\x1b]0;title\\x07\n"


def run(command: Callable[..., None], *arguments: str) -> Result:
    app = typer.Typer(add_completion=False)
    app.command()(reported(command))
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}).invoke(app, [*arguments])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENAMETOOLONG, "File name too long", "n" * 5000), "cannot read or save: File name too long (nnn"),
        (OSError(errno.ELOOP, "Too many links", "a"), "cannot read or save: Too many links (a)"),
        (MemoryError("Unable to allocate 4 PiB"), "not enough memory (Unable to allocate 4 PiB)"),
    ],
)
def test_what_the_system_refuses_is_one_line(error: Exception, said: str) -> None:
    def command() -> None:
        """Do it."""
        raise error

    answer = run(command)
    assert (answer.exit_code, answer.stderr.count("\n")) == (2, 1)
    assert said in answer.stderr
    assert len(answer.stderr) < 800


def test_a_file_that_cannot_be_read_is_left_to_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode, **more: False)
    given: list[Path] = []

    def command(file: Annotated[Path, typer.Argument()], files: Annotated[list[Path] | None, typer.Option()] = None) -> None:
        """Do it."""
        given.extend([file, *(files or ())])

    assert run(command, str(tmp_path), f"--files={tmp_path}").exit_code == 0
    assert given == [tmp_path] * 2


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_json_is_json_in_any_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.TextIOWrapper(io.BytesIO(), encoding, write_through=True)
    monkeypatch.setattr(sys, "stdout", screen)
    value = {"class": "é😀", "file": "\udcff.png"}
    display.show(value, None, True)
    assert json.loads(screen.buffer.getvalue().decode(encoding)) == value  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_terminal_of_another_encoding_shows_numbers_for_letters_that_it_lacks(tmp_path: Path) -> None:
    vectors = np.eye(8, dtype=np.float32)
    np.savez(tmp_path / "own.npz", vectors=vectors, labels=np.array(["é", "漢"] * 4))
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(display.__file__).parents[2])}
    for words in (["fit", "own.npz", "--out", "own.pg"], ["classes", "own.pg"], ["predict", "own.pg", "own.npz", "--json"]):
        command = [sys.executable, "-m", "protograph", *words]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        assert words[0] == "fit" or "\\xe9" in ended.stdout or "\\u00e9" in ended.stdout
    assert {answer["class"] for answer in json.loads(ended.stdout)} == {"é", "漢"}
