"""The verbs that go back and forth between versions of a model file: history, undo and redo."""

from dataclasses import asdict
from typing import Any

from rich.table import Table

from protograph._internal.wording import counted
from protograph.classifier.history import Change, history, history_folder, redo, undo
from protograph.cli.classifier import Model, tell
from protograph.cli.display import escape, reported, show, visible
from protograph.cli.options import AsJson, Plugins, load_plugins


@reported
def history_command(model: Model, as_json: AsJson = False) -> None:
    """List the changes of a model file that can be undone or redone.

    Each change keeps the version before it in a folder beside the file, up to 20 of them. A large file holds them itself.

    Examples:
        protograph history birds.pg
    """
    changes, folder = history(model), history_folder(model)
    kept = [file.stat().st_size for file in folder.iterdir() if file.is_file()] if folder.is_dir() else []
    result = {"file": str(model), "changes": [asdict(change) for change in changes], "bytes": sum(kept)}
    table = Table(title=escape(f"{model}: {counted(len(changes), 'change')}, the newest first"), title_justify="left")
    for heading in ("change", "when (UTC)", "what", "classes", ""):
        table.add_column(heading, justify="right" if heading in ("change", "classes") else "left", overflow="fold")
    for change in changes:
        cells = str(change.number), change.when, change.what, str(change.classes), "undone" if change.undone else ""
        table.add_row(*map(escape, cells))
    if changes or as_json:
        show(result, table, as_json)
    if not as_json:
        held = f"{folder} holds {counted(len(kept), 'version')} of it, {sum(kept) / 1e6:.1f} MB"
        itself = f"{model} holds them itself" if changes else f"there is nothing to undo or redo in {model}"
        print(visible(held if kept else itself))


@reported
def undo_command(model: Model, plugin: Plugins = None, as_json: AsJson = False) -> None:
    """Take back the last change of a model file.

    The version before it takes the file's place. `redo` makes the change once more, until the file is changed otherwise.

    Examples:
        protograph undo birds.pg
    """
    load_plugins(plugin)
    change = undo(model)
    tell_state(model, change, "undone", as_json)


@reported
def redo_command(model: Model, plugin: Plugins = None, as_json: AsJson = False) -> None:
    """Make the change of a model file that was undone last once more.

    Examples:
        protograph redo birds.pg
    """
    load_plugins(plugin)
    change = redo(model)
    tell_state(model, change, "redone", as_json)


def tell_state(model: Any, change: Change, done: str, as_json: bool) -> None:
    """Print which change was undone or redone, and what can be undone next."""
    following = next((other.what for other in history(model) if not other.undone), None)
    rest = "nothing more to undo" if following is None else f"the change before it: {following}"
    tell({"file": str(model), done: asdict(change), "next": following}, f"{done} in {model}: {change.what} ({rest})", as_json)
