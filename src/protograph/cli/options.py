"""Options that several verbs share: the same words everywhere."""

import runpy
from pathlib import Path
from traceback import extract_tb
from typing import Annotated

import torch
import typer

from protograph._internal.errors import InputError, unknown_name
from protograph.device import PRECISIONS, best_device, best_precision
from protograph.training.recipes import SETTINGS

Root = Annotated[
    Path | None,
    typer.Option(
        help="Where the dataset's files are; letters need none. (default: the variable PROTOGRAPH_DATA)", show_default=False
    ),
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out images that cannot be read, and say how many, instead of stopping.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N; auto takes the GPU if there is one.")]
Precision = Annotated[
    str,
    typer.Option(help="Of the backbone: auto, float32 or bfloat16; auto takes bfloat16 on GPUs that have it."),
]
RECIPE_SETTINGS = "The settings: " + ", ".join(SETTINGS) + "."
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for machines.")]
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        help="A Python file that registers relations, operators, variants or other parts; repeatable.",
        show_default=False,
    ),
]


def find_device(name: str) -> torch.device:
    """A device by the name a user gives."""
    if name == "auto":
        return best_device()
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"device '{name}' cannot be used here: use auto or cpu") from error
    return device


def find_precision(name: str, device: torch.device) -> str:
    """A precision by the name a user gives."""
    if name not in ("auto", *PRECISIONS):
        raise unknown_name("precision", name, ("auto", *PRECISIONS))
    return best_precision(device) if name == "auto" else name


def parse_changes(given: list[str] | None) -> dict[str, str]:
    """What --set says, by the name of the setting."""
    for change in given or ():
        if "=" not in change:
            raise InputError(f"--set takes NAME=VALUE, not '{change}'")
    return {name: value for name, _, value in (change.partition("=") for change in given or ())}


def load_plugins(paths: list[Path] | tuple[str, ...] | None) -> tuple[str, ...]:
    """Run the files that register own operators or variants."""
    for path in paths or ():
        if not Path(path).is_file():
            raise InputError(f"no plugin file at {path}")
        try:
            runpy.run_path(str(path))
        except Exception as error:  # whatever a user's own code may raise
            own = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == str(path)]
            line = getattr(error, "lineno", None) or (own[-1] if own else "?")
            raise InputError(f"plugin {path}, line {line}: {type(error).__name__}: {error}; mend it") from error
    return tuple(str(Path(path).resolve()) for path in paths or ())
