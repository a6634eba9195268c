"""protograph train"""

from pathlib import Path
from typing import Annotated, Any

import typer

from protograph.cli.display import ShownProgress, measures_table, reported, show
from protograph.cli.options import AsJson, Device, Plugins, Root, SkipBad, find_device, load_plugins
from protograph.config import RECIPES, RunConfig, read_toml
from protograph.data import Dataset, open_dataset
from protograph.errors import InputError, unknown
from protograph.figures import draw_run
from protograph.runs import Run
from protograph.training import configure, load_weights, make_model, train

SETTINGS: dict[str, type] = {
    "dataset": str, "variant": str, "shots": int, "recipe": str, "seed": int, "relations": list, "backbone": str, "out": str,
}  # fmt: skip


@reported
def train_command(
    dataset: Annotated[str | None, typer.Option(help="Dataset, see `protograph datasets`. (default: letters)")] = None,
    root: Root = None,
    variant: Annotated[str | None, typer.Option(help="Model, see `protograph variants`. (default: gcgpn-aux)")] = None,
    shots: Annotated[int | None, typer.Option(help="Examples of each novel class (K). (default: 1)")] = None,
    recipe: Annotated[
        str | None, typer.Option(help=f"How to train: {', '.join(RECIPES)}. (default: the dataset's own)")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights and training episodes. (default: 0)")] = None,
    relations: Annotated[
        list[str] | None,
        typer.Option(
            help="Side information: a relation of the dataset's, wordnet, names, attributes:FILE, embeddings:FILE, "
            "edges:FILE, or a .csv/.npz similarity matrix; repeat it for several operators. (default: the dataset's own)",
            show_default=False,
        ),
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="Network for the pictures. (default: the dataset's own)")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Run folder. (default: runs/DATASET/K-shot/VARIANT/RECIPE-SEED)", show_default=False),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting of the recipe, such as --set epochs=5; repeatable.", show_default=False),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="A TOML file with these options, and changes to the recipe in a table of that name; options given here win.",
            show_default=False,
        ),
    ] = None,
    plugin: Plugins = None,
    skip_bad: SkipBad = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train a model and test it.

    Leaves a run folder with the configuration, one line per epoch, the weights, the measures and pictures. The same command
    goes on where it was interrupted; a finished run prints its result at once.
    """
    given: dict[str, Any] = {
        "dataset": dataset, "variant": variant, "shots": shots, "recipe": recipe, "seed": seed, "relations": relations,
        "backbone": backbone, "out": out,
    }  # fmt: skip
    settings, changes = _settings(config, {name: value for name, value in given.items() if value is not None}, change)
    plugins = load_plugins(plugin)
    progress = ShownProgress(quiet=as_json)
    data = open_dataset(settings.pop("dataset", "letters"), root, progress, skip_bad)
    folder = settings.pop("out", None)
    resolved = configure(data, settings.pop("variant", "gcgpn-aux"), changes=changes, plugins=plugins, **settings)
    folder = Path(folder) if folder else default_folder(resolved)
    result = run_training(resolved, data, folder, device, progress)
    title = f"{resolved.dataset}, {resolved.shots}-shot, 600 test episodes, best validation epoch {result['epoch']}; {folder}"
    show(result, measures_table({resolved.variant: result["measures"]}, title), as_json)


def default_folder(config: RunConfig) -> Path:
    """Where a run goes unless told otherwise."""
    return Path("runs") / config.dataset / f"{config.shots}-shot" / config.variant / f"{config.recipe.name}-{config.seed}"


def run_training(config: RunConfig, dataset: Dataset, folder: Path, device: str, progress: ShownProgress) -> dict[str, Any]:
    """Train into a folder and draw its pictures."""
    chosen = find_device(device)
    result = train(config, dataset, folder, chosen, progress)
    if not (folder / "episode.png").exists():
        model = make_model(config, dataset)
        run = Run.open(folder)
        load_weights(model, run.weights("best"), run)
        draw_run(model, dataset, run)
    return result


def _settings(path: Path | None, given: dict[str, Any], changes: list[str] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options and recipe changes, from the file and over it from the command line."""
    settings = read_toml(path) if path else {}
    recipe = settings.get("recipe")
    table = dict(recipe) if isinstance(recipe, dict) else {}
    if isinstance(recipe, dict):
        settings["recipe"] = table.pop("base", None)
        if settings["recipe"] is None:
            del settings["recipe"]
    for name, value in settings.items():
        if name not in SETTINGS:
            raise unknown(f"setting in {path}", name, SETTINGS)
        listed = value if isinstance(value, list) else []
        if type(value) is not SETTINGS[name] or not all(isinstance(each, str) for each in listed):
            wanted = {str: "a string", int: "a whole number", list: "a list of strings"}[SETTINGS[name]]
            raise InputError(f"{path}: setting '{name}' must be {wanted}, not {value!r}")
    for change in changes or ():
        name, equals, value = change.partition("=")
        if not equals:
            raise InputError(f"--set takes NAME=VALUE, not '{change}'")
        table[name] = value
    return {**settings, **given}, table
