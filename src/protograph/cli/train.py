"""protograph train"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

import typer

from protograph._internal.errors import InputError, unknown_name
from protograph.cli.display import ShownProgress, measures_table, reported, show
from protograph.cli.jobs import JOB, arguments, run_all
from protograph.cli.options import (
    RECIPE_SETTINGS_HELP,
    AsJson,
    Device,
    Plugins,
    Precision,
    Root,
    SkipBad,
    find_device,
    find_precision,
    load_plugins,
    parse_changes,
)
from protograph.data import Dataset, open_dataset
from protograph.evaluation.metrics import measure_titles
from protograph.relations import relation_label
from protograph.training.processes import Processes, joined
from protograph.training.recipes import RECIPES, stage_before
from protograph.training.run_config import RunConfig, configure, read_toml
from protograph.training.run_folder import Run, run_path
from protograph.training.setup import trained_model
from protograph.training.stages import configure_first_stage, train
from protograph.variants import find_variant

SETTING_TYPES: dict[str, type] = {
    "dataset": str, "variant": str, "shots": int, "recipe": str, "seed": int, "relations": list, "backbone": str, "out": str,
    "start": str,
}  # fmt: skip


@reported
def train_command(
    context: typer.Context,
    dataset: Annotated[str | None, typer.Option(help="Dataset, see `protograph datasets`. (default: letters)")] = None,
    root: Root = None,
    variant: Annotated[str | None, typer.Option(help="Model, see `protograph variants`. (default: gcgpn-aux)")] = None,
    shots: Annotated[int | None, typer.Option(help="Examples of each novel class (K). (default: 1)")] = None,
    recipe: Annotated[
        str | None, typer.Option(help=f"How to train: {', '.join(RECIPES)}. (default: the dataset's own)")
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(
            help="Seed of weights and training episodes; repeat it for several runs. (default: 0)", show_default=False
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(help="How many of several runs to train at once.", min=1)] = 1,
    relations: Annotated[
        list[str] | None,
        typer.Option(
            help="Side information: a relation of the dataset's, wordnet, names, attributes:FILE, embeddings:FILE, "
            "edges:FILE, or a .csv/.npz similarity matrix; repeat it for several operators. (default: the dataset's own)",
            show_default=False,
        ),
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="Network for the images. (default: the dataset's own for the recipe)")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Run folder; of several runs, the folder of their folders. (default: runs/DATASET/K-shot/VARIANT/RECIPE-SEED; "
            "with other relations than the dataset's own, in a folder of their names)",
            show_default=False,
        ),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            help="For a variant of two stages, or with --set pretrain=cosine, the run it starts from. A finished run is used "
            "as it is; any other is trained first. (default: runs/DATASET/cosine/RECIPE-SEED, for every K)",
            show_default=False,
        ),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help=f"Change a setting of the recipe, such as --set epochs=5, in both stages; repeatable. {RECIPE_SETTINGS_HELP}",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help=f"A TOML file with any of these options: {', '.join(SETTING_TYPES)}. A table [recipe] instead of the option "
            "changes settings of the recipe that it names by `base`. Options on the command line win.",
            show_default=False,
        ),
    ] = None,
    plugin: Plugins = None,
    skip_bad: SkipBad = False,
    device: Device = "auto",
    precision: Precision = "auto",
    as_json: AsJson = False,
) -> None:
    """Train a model and test it.

    The run folder has the configuration, one line per epoch, the weights, the measures and images. After an interruption the
    same command continues; for a finished run it prints the measures at once. Several GPUs of this machine train one model
    together by `torchrun --nproc-per-node N -m protograph train ...`.

    Examples:
        protograph train
        protograph train --dataset cub --root DATA --variant gcgpn-split --shots 5
        protograph train --dataset folder --root images --set epochs=5
    """
    launched = Processes.launched()
    if seed and len(seed) > 1:
        if not launched.alone:
            raise InputError("torchrun trains one model by several processes: give one --seed")
        both = _settings(config, {}, change)[0]
        named, begun = out or both.get("out"), start or both.get("start")
        if begun and not (Path(begun) / "measures.json").exists():
            raise InputError(
                f"{begun} is not trained yet, and several seeds cannot share its training: train it first, or leave out "
                "--start, so that each seed gets a start of its own"
            )
        return train_several(context, seed, jobs, Path(named) if named else None, str(find_device(device)), as_json)
    if jobs > 1:
        raise InputError(f"--jobs {jobs} would be ignored for a single run: leave it out, or give several --seed")
    given: dict[str, Any] = {
        "dataset": dataset, "variant": variant, "shots": shots, "recipe": recipe, "seed": seed[0] if seed else None,
        "relations": relations,
        "backbone": backbone, "out": out, "start": start,
    }  # fmt: skip
    settings, changes = _settings(config, {name: value for name, value in given.items() if value is not None}, change)
    plugins = load_plugins(plugin)
    progress = ShownProgress(quiet=(as_json and JOB not in os.environ) or not launched.leads)
    with joined(device) as own_device:
        with Processes.current().first_alone():
            data = open_dataset(settings.pop("dataset", "letters"), root, progress, skip_bad)
        folder, begun = settings.pop("out", None), settings.pop("start", None)
        chosen = settings.pop("variant", "gcgpn-aux")
        settings["precision"] = find_precision(precision, find_device(own_device))
        resolved = configure(data, chosen, changes=changes, plugins=plugins, **settings)
        folder, begun = Path(folder) if folder else default_folder(resolved, data), Path(begun) if begun else None
        result = run_training(resolved, data, folder, own_device, progress, begun, changes)
    if not launched.leads:
        return None
    title = f"{resolved.dataset}, {resolved.shots}-shot, 600 test episodes, best validation epoch {result['epoch']}; {folder}"
    rows = {resolved.variant: result["measures"]}
    if balanced := result.get("balanced"):
        rows[f"with bias {balanced['bias']:+.2f}"] = balanced["measures"]
    show(result, measures_table(rows, title), as_json)
    return None


def train_several(
    context: typer.Context, seeds: Sequence[int], jobs: int, out: Path | None, device: str, as_json: bool
) -> None:
    """Train the same with several seeds, some of them at once; their measures, and the mean over them with its spread."""
    if len(set(seeds)) != len(seeds):
        raise InputError(f"a seed is given twice in {', '.join(map(str, seeds))}: name each once")
    commands = {
        f"seed {seed}": [
            "train",
            *arguments(context, seed=seed, jobs=None, device=device, as_json=True, out=out / f"seed-{seed}" if out else None),
        ]
        for seed in seeds
    }
    progress = ShownProgress(quiet=as_json)
    results = run_all(commands, jobs, progress)
    rows = {name: result["measures"] for name, result in results.items()}
    means = {measure: [row[measure]["mean"] for row in rows.values()] for measure in measure_titles(rows.values())}
    together = {name: {"mean": fmean(values), "ci95": stdev(values)} for name, values in means.items()}
    title = f"{len(seeds)} seeds, 600 test episodes each; the last row is their mean ± the standard deviation between them"
    results["mean"] = {"measures": {n: {"mean": v["mean"], "std": v["ci95"]} for n, v in together.items()}}
    show(results, measures_table({**rows, "mean": together}, title), as_json)


def default_folder(config: RunConfig, dataset: Dataset) -> Path:
    """Return the default run folder. A run that is trained without examples serves every K."""
    shots = None if find_variant(config.variant).objective == "classify" else config.shots
    others = () if config.relations == dataset.default_relations else tuple(map(relation_label, config.relations))
    return Path("runs") / run_path(config.dataset, shots, config.variant, config.recipe.name, config.seed, others)


def run_training(
    config: RunConfig,
    dataset: Dataset,
    folder: Path,
    device: str,
    progress: ShownProgress,
    start: Path | None = None,
    changes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train into a folder, draw the images of the run and of its first stage, and return the measures.

    Args:
        config: What to train.
        dataset: The dataset.
        folder: The run folder.
        device: The device by the name a user gives.
        progress: Where progress is shown.
        start: The first stage's run folder; by default that of its own training.
        changes: Settings of the recipe that the user changed, which the first stage follows too.

    """
    if start is None and stage_before(find_variant(config.variant), config.recipe):
        start = default_folder(configure_first_stage(config, dataset, changes or {}), dataset)
    result = train(config, dataset, folder, find_device(device), progress, start, changes or {})
    for trained in filter(None, (start, folder)) if Processes.current().leads else ():
        if not (trained / "episode.png").exists():
            # matplotlib takes a third of a second to import, which --help and mistakes do not need
            from protograph.report.figures import draw_run

            run = Run.open(trained)
            draw_run(trained_model(run, dataset), dataset, run)
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
        if name not in SETTING_TYPES:
            raise unknown_name(f"setting in {path}", name, SETTING_TYPES)
        listed = value if isinstance(value, list) else []
        if type(value) is not SETTING_TYPES[name] or not all(isinstance(each, str) for each in listed):
            wanted = {str: "a string", int: "a whole number", list: "a list of strings"}[SETTING_TYPES[name]]
            raise InputError(f"{path}: setting '{name}' must be {wanted}, not {value!r}")
    return {**settings, **given}, {**table, **parse_changes(changes)}
