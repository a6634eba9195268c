"""Options that several verbs share: the same words everywhere."""

import hashlib
import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from traceback import extract_tb
from typing import Annotated

import torch
import typer

from protograph._internal.errors import InputError, unknown_name
from protograph.device import PRECISIONS, best_device, best_precision
from protograph.training.recipes import SETTINGS
from protograph.training.run_config import PLUGIN_DIGEST
from protograph.training.run_folder import Run

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
RECIPE_SETTINGS_HELP = "The settings: " + ", ".join(SETTINGS) + "."
RETRIES = 3
Retries = Annotated[
    int,
    typer.Option(help="With another engine than local, how often the work of a worker that died is begun again.", min=0),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for machines.")]
Plugins = Annotated[
    list[Path] | None,
    typer.Option(
        "--plugin",
        help="A Python file that registers relations, operators, variants or other parts; repeatable.",
        show_default=False,
    ),
]
BackboneWeights = Annotated[
    Path | None,
    typer.Option(
        help="The weights of the model's backbone, where it was fitted with timm:NAME@FILE or transformers:FOLDER: a path that "
        "only the model file names is not opened.",
        metavar="PATH",
        show_default=False,
    ),
]
RelationFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--relations",
        help="A relation of the model's that reads a file, as it was fitted with, such as embeddings:FILE, to ask it about new "
        "classes; repeatable. A path that only the model file names is not opened.",
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


def parse_changes(given: list[str] | None, option: str = "--set") -> dict[str, str]:
    """What --set, or another option of names and values, says by the name."""
    for change in given or ():
        if "=" not in change:
            raise InputError(f"{option} takes NAME=VALUE, not '{change}'")
    return {name: value for name, _, value in (change.partition("=") for change in given or ())}


def load_plugins(paths: Sequence[Path] | None, runs: Sequence[Run] = ()) -> tuple[str, ...]:
    """Run the plugin files that the user named, and no other, and return the name and digest of each.

    A run folder says which plugins it was trained with. It never makes this command run them: the user names them.

    Args:
        paths: The files.
        runs: The runs that need their plugins.

    Raises:
        InputError: A file is missing, fails, or is not the one that a run was trained with, or a run's plugin was not named.

    """
    named = {path: _plugin_identity(path) for path in paths or ()}
    for run in runs:
        for plugin in run.config.plugins:
            _check_plugin(plugin, run, named)
    for path in named:
        try:
            runpy.run_path(str(path))
        except Exception as error:  # whatever a user's own code may raise
            lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == str(path)]
            line = getattr(error, "lineno", None) or (lines[-1] if lines else "?")
            raise InputError(f"plugin {path}, line {line}: {type(error).__name__}: {error}; fix it") from error
    return tuple(named.values())


def _plugin_identity(path: Path) -> str:
    if not path.is_file():
        raise InputError(f"no plugin file at {path}")
    return f"{path.name}{PLUGIN_DIGEST}{hashlib.sha256(path.read_bytes()).hexdigest()}"


def _check_plugin(plugin: str, run: Run, named: Mapping[Path, str]) -> None:
    """Refuse a run whose plugin the user did not name, or named another file for."""
    name, _, digest = plugin.partition(PLUGIN_DIGEST)
    if digest and plugin in named.values():
        return
    same_name = [path for path in named if path.name == name]
    if not same_name:
        raise InputError(f"{run.folder} was trained with plugin {name}, which runs only if you name it: add --plugin {name}")
    if digest:
        raise InputError(f"plugin {same_name[0]} is not the file that {run.folder} was trained with: name that one")
