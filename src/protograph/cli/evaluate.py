"""protograph evaluate"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from protograph._internal.errors import InputError
from protograph._internal.errors import unknown_name as unknown_name
from protograph._internal.progress import Progress
from protograph._internal.wording import counted
from protograph.classifier.estimator import Classifier
from protograph.classifier.file_measures import measure_files
from protograph.classifier.inputs import check_encoder_of, read_test_files
from protograph.classifier.measures import AnswerMeasures
from protograph.cli.display import ShownProgress, escape, measures_table, reported, show
from protograph.cli.options import (
    AsJson,
    BackboneWeights,
    Device,
    Plugins,
    Root,
    find_device,
    find_precision,
    load_plugins,
)
from protograph.data import Dataset, open_dataset
from protograph.data.feature_shards import is_feature_folder
from protograph.data.kept_split import with_kept_split
from protograph.device import PRECISIONS
from protograph.evaluation.metrics import ALONE_BECAUSE, EvaluationSizes, choose_bias, evaluate, measures_as_json
from protograph.evaluation.unknown import evaluate_unknown
from protograph.training.run_folder import Run
from protograph.training.setup import trained_model


@reported
def evaluate_command(
    run: Annotated[Path, typer.Argument(help="Run folder that `protograph train` made, or a model file that `fit` made.")],
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="For a model file: a folder with a folder of images for each class, or another form that `fit` takes; of "
            "train and test folders, test.",
            show_default=False,
        ),
    ] = None,
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
    backbone_weights: BackboneWeights = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Measure a trained run over fixed test episodes, or a model file on a folder of images.

    Of a run: six accuracies with 95 % intervals. Of a model file: joint accuracy (the mean over classes), each class, the most
    frequent confusions, the share of unknown answers, and how far probabilities are from the share of right answers. Give it
    images that the file was not fitted on: those it was fitted on are answered better than any others. A note says so where the
    file keeps the features of its examples.

    Examples:
        protograph evaluate birds.pg more-birds
        protograph evaluate runs/letters/1-shot/gcgpn-aux/demo-0 --unknown
        protograph evaluate runs/letters/1-shot/gcgpn-aux/demo-0 --shots 5 --balance
    """
    if folder is not None:
        load_plugins(plugin)
        evaluate_model(run, folder, backbone_weights, as_json)
        return
    if backbone_weights is not None:
        raise InputError(f"--backbone-weights {backbone_weights} would be ignored for a run: leave it out")
    if run.is_file():
        raise InputError(f"{run} is a model file: give a folder of images to measure it on")
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
    for option, given in (("balance", balance), ("unknown", unknown)):
        if given and not model.joint:
            raise InputError(f"variant '{config.variant}' {ALONE_BECAUSE}: leave out --{option}")
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


def evaluate_model(model: Path, folder: Path, backbone_weights: Path | None, as_json: bool) -> None:
    """Measure a model file on a folder of images, a table of images, a file of features or a folder of shards."""
    progress = ShownProgress(quiet=as_json)
    classifier = Classifier.load(model, backbone_weights)
    if is_feature_folder(folder):
        check_encoder_of(folder, classifier.encoder_, classifier.n_features_in_)
    files = read_test_files(folder, False, progress)
    if not is_feature_folder(folder) and files.features != (classifier.encoder_ is None):
        raise InputError(f"{model} was fitted on {'images' if files.features else 'features'}: give some of these")
    measured = measure_files(classifier, files, progress)
    notes = []
    if measured.strangers:
        names = ", ".join(measured.strangers[:5]) + (" ..." if len(measured.strangers) > 5 else "")
        notes.append(f"{model} does not know {names}: only 'unknown' is no wrong answer")
    if measured.examples:
        notes.append(
            f"{measured.examples} of these {len(files.labels)} images are examples that {model} was given: new images are "
            "harder, so measure on images that it was not given"
        )
    for note in notes:
        progress.say(f"note: {note}")
    measures = measured.answers
    if measures is None:
        raise InputError(f"none of the classes in {folder} is known to {model}: give others")
    result: dict[str, Any] = {"model": str(model), "folder": str(folder), **asdict(measures)}
    result["by_class"] = {str(name): {"images": count, "accuracy": share} for name, (count, share) in measures.by_class.items()}
    if measured.strangers_unknown is not None:
        result["strangers_unknown"] = measured.strangers_unknown
    show({**result, "notes": notes}, answers_table(measures, measured.strangers_unknown), as_json)


def answers_table(measures: AnswerMeasures, strangers: float | None) -> Table:
    """Return the table of a model file's measures."""
    title = (
        f"{counted(measures.images, 'image')}: joint accuracy {100 * measures.joint:.1f} % "
        f"(mean over {counted(len(measures.by_class), 'class')}), "
        f"unknown {100 * measures.unknown:.1f} %, calibration error {100 * measures.calibration_error:.1f} %"
    )
    if strangers is not None:
        title += f"; images of unknown classes answered as unknown: {100 * strangers:.1f} %"
    table = Table(title=escape(title), title_justify="left", min_width=80)
    for heading in ("class", "images", "right", "most often taken for"):
        table.add_column(heading, justify="right" if heading in ("images", "right") else "left")
    for name, (count, share) in sorted(measures.by_class.items(), key=lambda item: item[1][1]):
        taken = [f"{answer} {wrong}" for label, answer, wrong in measures.confusions if label == name]
        table.add_row(escape(str(name)), str(count), f"{100 * share:.1f} %", escape(", ".join(taken)))
    return table


def dataset_of(run: Run, root: Path | None, progress: Progress) -> Dataset:
    """Return the dataset that a run was trained on, with the split it was trained on."""
    dataset = open_dataset(run.config.dataset, root, progress, skip_bad=True)
    return with_kept_split(dataset, run.folder, run.config.fingerprint, progress)
