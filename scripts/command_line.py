"""Write docs/command-line.md from the help texts of the command: `python scripts/command_line.py`."""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from protograph.cli import VERBS, app, find_verb

PAGE = Path(__file__).parents[1] / "docs" / "command-line.md"
INTRODUCTION = """# Command line

Every verb prints this help with `--help`. Bad input ends with one line and exit code 2.
This page is written by `make pictures`.
"""


def page() -> str:
    """Return the page: a section for each verb, in the order of the overview."""
    parts = [INTRODUCTION]
    for name in VERBS:
        command = find_verb(name)
        parts += section(command, f"protograph {name}")
        for subname, subcommand in sorted(getattr(command, "commands", {}).items()):
            if subname != name:
                parts += section(subcommand, f"protograph {name} {subname}")
    return "\n".join(parts)


def section(command: Any, name: str) -> Iterator[str]:
    """Yield the heading, the help text, the usage and the parameters of a command."""
    context = get_command(app).make_context("protograph", ["variants"], resilient_parsing=True)
    usage = " ".join(piece for piece in command.collect_usage_pieces(context))
    yield f"## {name}\n"
    text, _, examples = inspect.cleandoc(command.help or "").partition("Examples:\n")
    yield text.strip() + "\n"
    yield f"```\n{name} {usage}\n```\n"
    yield f"Examples:\n\n```\n{inspect.cleandoc(examples)}\n```\n"
    yield "| parameter | meaning | default |\n|---|---|---|"
    for parameter in command.params:
        if "--help" not in parameter.opts:
            yield row(parameter)
    yield ""


def row(parameter: Any) -> str:
    """Return the table row of a parameter."""
    options = ", ".join(f"`{option}`" for option in (*parameter.opts, *parameter.secondary_opts))
    named = options if parameter.param_type_name == "option" else f"`{parameter.metavar or parameter.name.upper()}`"
    shown = parameter.default if parameter.default not in (None, False, (), []) and not callable(parameter.default) else ""
    default = f"`{shown}`" if shown != "" and parameter.show_default is not False else ""
    text = " ".join((getattr(parameter, "help", "") or "").split()).replace("|", "\\|")
    return f"| {named} | {text} | {default} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE.relative_to(PAGE.parents[1])}\n")
