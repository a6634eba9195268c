"""What all commands have in common."""

import typer
from typer.testing import CliRunner

from protograph.cli.display import reported


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
