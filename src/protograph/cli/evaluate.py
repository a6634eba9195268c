"""protograph evaluate"""

from pathlib import Path
from typing import Annotated, Any

import typer

from protograph._internal.errors import InputError
from protograph._internal.errors import unknown_name as unknown_name
from protograph._internal.progress import Progress
from protograph.cli.display import ShownProgress, measures_table, reported, show
from protograph.cli.options import AsJson, Device, Plugins, Root, find_device, find_precision, load_plugins
from protograph.data import Dataset, open_dataset
from protograph.data.kept_split import with_kept_split
from protograph.device import PRECISIONS
from protograph.evaluation.metrics import EvaluationSizes, choose_bias, evaluate, measures_as_json
from protograph.evaluation.unknown import evaluate_unknown
from protograph.training.run_folder import Run
from protograph.training.setup import trained_model


@reported
def evaluate_command(
    run: Annotated[Path, typer.Argument(help="Run folder that `protograph train` made.")],
    root: Root = None,
    shots: Annotated[int | None, typer.Option(help="Examples of each novel class. (default: as trained)")] = None,
    ways: Annotated[int | None, typer.Option(help="Novel classes of an episode. (default: as trained)")] = None,
    queries: Annotated[int | None, typer.Option(help="Queries of each novel class. (default: as trained)")] = None,
    episodes: Annotated[int, typer.Option(help="How many episodes, always the same ones.", min=1)] = 600,
    split: Annotated[str, typer.Option(help="test or validation.")] = "test",
    epoch: Annotated[str, typer.Option(help="Weights of the best or the last epoch.")] = "best",
    device: Device = "auto",
    precision: Annotated[
        str, typer.Option(help="Of the backbone: auto, float32 or bfloat16; auto takes what it was trained in, where it can.")
    ] = "auto",
    unknown: Annotated[
        bool,
        typer.Option("--unknown", help="Also measure the AUROC of the episode's images against images of other classes."),
    ] = False,
    balance: Annotated[
        bool,
        typer.Option("--balance", help="Also measure with a bias on novel classes that is chosen on the validation classes."),
    ] = False,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Measure a trained run: six accuracies with 95 % intervals over fixed test episodes.

    Examples:
        protograph evaluate runs/letters/1-shot/gcgpn-aux/demo-0 --unknown
        protograph evaluate runs/letters/1-shot/gcgpn-aux/demo-0 --shots 5 --balance
    """
    for kind, value, known in (("split", split, ("test", "validation")), ("epoch", epoch, ("best", "last"))):
        if value not in known:
            raise unknown_name(kind, value, known)
    if balance and split != "test":
        raise InputError("--balance is chosen on the validation classes: measure it on --split test")
    place = find_device(device)
    chosen = find_precision(precision, place)
    opened = Run.open(run)
    load_plugins(plugin, [opened])
    config = opened.config
    progress = ShownProgress(quiet=as_json)
    data = dataset_of(opened, root, progress)
    model = trained_model(opened, data, epoch)
    model.precision = PRECISIONS["float32" if precision == "auto" and config.precision == "float32" else chosen]
    sizes = EvaluationSizes(
        config.shots if shots is None else shots,
        config.recipe.ways if ways is None else ways,
        config.recipe.test_queries if queries is None else queries,
        episodes,
    )
    model.to(place)
    measures = measures_as_json(evaluate(model, data, sizes, split, progress))
    result: dict[str, Any] = {"run": str(run), "split": split, "episodes": episodes, "epoch": epoch, "measures": measures}
    rows = {config.variant: measures}
    if balance:
        bias = choose_bias(model, data, sizes, progress)
        balanced = measures_as_json(evaluate(model, data, sizes, split, progress, bias))
        result["balanced"] = {"bias": round(bias, 4), "measures": balanced}
        rows[f"with bias {bias:+.2f}"] = balanced
    if unknown:
        separation = evaluate_unknown(model, data, sizes, split, progress)
        result["unknown"] = measures_as_json({"auroc": separation})
    title = f"{config.dataset}, {sizes.shots}-shot, {episodes} {split} episodes, {epoch} epoch"
    show(result, measures_table(rows, title), as_json)
    if unknown and not as_json:
        print(f"AUROC of known against unknown images: {separation}")


def dataset_of(run: Run, root: Path | None, progress: Progress) -> Dataset:
    """Return the dataset that a run was trained on, with the split it was trained on."""
    dataset = open_dataset(run.config.dataset, root, progress, skip_bad=True)
    return with_kept_split(dataset, run.folder, run.config.fingerprint, progress)
