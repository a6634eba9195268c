"""The verb fit."""

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

import protograph as pg
from protograph._internal.errors import InputError
from protograph._internal.progress import Progress
from protograph._internal.wording import counted
from protograph.classifier.file_measures import FileMeasures, measure_files
from protograph.classifier.fitting import choose_variant, small_recipe
from protograph.classifier.gaussian_space import GaussianSpace
from protograph.classifier.inputs import find_test_files, holds_features, read_training_files
from protograph.cli.classifier import (
    as_percent,
    classifier_summary,
    parse_prior,
    related_by,
    summary_line,
    taken_for,
    tell,
    warnings_as,
)
from protograph.cli.display import ShownProgress, reported
from protograph.cli.options import (
    RECIPE_SETTINGS_HELP,
    AsJson,
    Device,
    Plugins,
    SkipBad,
    find_device,
    find_precision,
    load_plugins,
    parse_changes,
)
from protograph.cli.train import run_training
from protograph.data import open_dataset
from protograph.data.feature_shards import is_feature_folder, read_manifest
from protograph.data.labelled_images import is_table
from protograph.encoders import BACKBONE_NAMES, STRONG_NAME, ImageEncoder, check_trainable, open_encoder, strongest_backbone
from protograph.encoders.efficientnet_lite import RELEASES
from protograph.encoders.registry import SHIPPED_NAME
from protograph.nn.backbones import BACKBONES
from protograph.training.recipes import stage_before
from protograph.training.run_config import configure

if TYPE_CHECKING:
    from protograph.classifier.estimator import Classifier

MOST_SENSES = 20  # meanings of class names that are listed
LITTLE = 0.01  # share of a new class's prototype below which `explain` shows next to nothing of relations
MOST_OPERATIONS = 1_000_000_000  # in which all classes act as new in turn: about ten seconds
KEPT_TITLES = {"features": "features of the images", "thumbnails": "thumbnails"}
TRAINABLE_BACKBONES = [name for name in BACKBONES if name != "identity"]


@reported
def fit_command(
    images: Annotated[
        Path,
        typer.Argument(
            metavar="IMAGES",
            help="A folder with a folder of images for each class, with a metadata.csv or .jsonl, or with such folders named "
            "train and test; a .csv or .jsonl of paths and labels; a file of features (.npz, .safetensors or .parquet with "
            "vectors and labels); or a folder of features that `embed` made.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Model file to write, such as birds.pg.", show_default=False)],
    relations: Annotated[
        list[str] | None,
        typer.Option(
            help="How classes relate: wordnet, names, attributes:FILE, embeddings:FILE, edges:FILE, or a .csv/.npz similarity "
            "matrix; repeatable. (default: as alike as their prototypes are)",
            show_default=False,
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help=f"Frozen network for the images: {BACKBONE_NAMES}. With --train-backbone, one of "
            f"{', '.join(TRAINABLE_BACKBONES)}. (default: efficientnet-lite0)",
            show_default=False,
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            help="Edge in pixels of the images that EfficientNet-Lite sees: 128 takes a third of the time of 224 and finds "
            "less. (default: 224 for lite0, 260 for lite2)",
            show_default=False,
        ),
    ] = None,
    copies: Annotated[
        int | None,
        typer.Option(
            help="With --variant, augmented copies of each image to train on as well; each takes as long as the images do. "
            "(default: 4 with conv4, 0 with networks trained on more)",
            min=0,
            show_default=False,
        ),
    ] = None,
    train_backbone: Annotated[
        bool,
        typer.Option(
            "--train-backbone",
            help="Also train the network, in a run folder beside --out. Some classes are held out to choose the best epoch, "
            "and then added. Slow without a GPU.",
        ),
    ] = False,
    variant: Annotated[
        str | None,
        typer.Option(
            help="Train a model of the paper's kind instead, see `protograph variants`. (default: the Gaussian model; with "
            "--train-backbone, gcgpn-aux with relations, gcgpn-cos-aux without)",
            show_default=False,
        ),
    ] = None,
    update: Annotated[
        str, typer.Option(help="Prototypes that an added class changes: all, or, with novel, only its own.")
    ] = "all",
    unknown: Annotated[
        float | None,
        typer.Option(
            help="Share of known images that may be answered 'unknown', such as 0.05. (default: none)",
            show_default=False,
        ),
    ] = None,
    prior: Annotated[
        str,
        typer.Option(
            help="How likely classes are: uniform (all alike), half (half of the images are of added classes), or numbers, "
            'such as "sparrow=3,owl=0.5"; a class not named counts 1.'
        ),
    ] = "uniform",
    keep_features: Annotated[
        bool,
        typer.Option(
            "--keep-features",
            help="Keep the features of the images in the file, so that `protograph refit` can fit it anew, and `check` and "
            "corrections cover these classes too. The output says how large they are.",
        ),
    ] = False,
    thumbnails: Annotated[
        bool,
        typer.Option(
            "--thumbnails",
            help="Keep a small JPEG of each example in the file, for people to look at, also of examples that are added "
            "later. The output says how large they are.",
        ),
    ] = False,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="With --train-backbone, change a setting of the recipe, such as --set epochs=5; repeatable. "
            + RECIPE_SETTINGS_HELP,
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything that is drawn.")] = 0,
    plugin: Plugins = None,
    skip_bad: SkipBad = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Fit a classifier on your own images and save it as one file.

    This takes seconds to minutes on a laptop: the images pass through a frozen network once, and their features are cached.
    Afterwards `predict`, `add-class` and `explain` need only the file.

    Examples:
        protograph fit birds --out birds.pg
        protograph fit birds --out birds.pg --relations wordnet --unknown 0.05
        protograph fit birds --out birds.pg --backbone timm:resnet50
    """
    check_out(out)
    plugins = load_plugins(plugin)
    progress = ShownProgress(quiet=as_json)
    settings: dict[str, Any] = {"variant": variant, "update": update, "unknown": unknown, "seed": seed}
    settings |= {"prior": parse_prior(prior), "keep_features": keep_features, "thumbnails": thumbnails}
    if change and not train_backbone:
        raise InputError(f"--set {change[0]} would be ignored without --train-backbone: leave it out")
    for option, value in (("--size", size), ("--copies", copies)):
        if value is not None and train_backbone:
            raise InputError(f"{option} {value} would be ignored with --train-backbone: leave it out")
    with warnings_as(notes := []):
        if train_backbone:
            classifier, count = fit_end_to_end(
                images, out, relations, backbone, settings, change, plugins, skip_bad, device, progress
            )
        else:
            settings["copies"] = copies
            classifier, count = fit_frozen(images, relations, backbone, size, settings, skip_bad, device, progress)
        classifier.save(out)
    if not (train_backbone or backbone or holds_features(images)) and strongest_backbone() != STRONG_NAME:
        notes.append(f"for better answers, pip install {RELEASES[STRONG_NAME].package}, then fit again")
    lines, shares = [f"wrote {out}, fitted on {counted(count, 'example')}: {summary_line(classifier)}"], None
    if len(classifier.classes_) == 1:
        notes.append(
            f"there is one class alone, '{classifier.classes_[0]}': every image will be taken for it, until you add others"
        )
    sizes = kept_bytes(classifier, out)
    if keep_features or thumbnails:
        lines.append(size_line(sizes))
    accuracy = held_out_accuracy(classifier)
    if accuracy is not None:
        lines.append(f"held-out images of these classes: {as_percent(accuracy)} right, the mean over classes")
    tested = None if train_backbone else measure_test_part(classifier, images, skip_bad, progress)
    if tested is not None:
        lines.append(tested_line(tested))
        if tested.strangers:
            notes.append(f"the test images of {', '.join(tested.strangers[:MOST_SENSES])} were not measured: train has none")
    senses = taken_for(classifier, len(classifier.classes_), "another folder name, such as crane.n.05, names another sense")
    notes += senses[:MOST_SENSES]
    if len(senses) > MOST_SENSES:
        notes.append(f"{len(senses) - MOST_SENSES} more names were looked up likewise: `protograph relations` lists them")
    if classifier.space_.relations:
        shares = shares_as_new(classifier, progress)
        lines.append(shares_line(classifier, shares))
        if median(shares) < LITTLE:
            notes.append(little_note(classifier))
    for note in notes:
        progress.say(f"note: {note}")
    result = {"file": str(out), "images": count, "classes": len(classifier.classes_), **classifier_summary(classifier)}
    result["bytes"] = sizes
    result["held_out_accuracy"] = accuracy
    if tested is not None and tested.answers is not None:
        result["test"] = {"images": tested.answers.images, "accuracy": tested.answers.joint}
    result["relation_share"] = shares and {"median": median(shares), "least": min(shares), "most": max(shares)}
    tell({**result, "notes": notes}, "\n".join(lines), as_json)


def measure_test_part(classifier: "Classifier", source: Path, skip_bad: bool, progress: Progress) -> FileMeasures | None:
    """Return the measures on the images for test, if the source has some."""
    files = find_test_files(source, skip_bad, progress)
    return None if files is None else measure_files(classifier, files, progress)


def tested_line(tested: FileMeasures) -> str:
    """Return the accuracy on the images for test, in one line."""
    if tested.answers is None:
        return "test images: none is of a fitted class"
    return f"{tested.answers.images} test images: {as_percent(tested.answers.joint)} right, the mean over classes"


def held_out_accuracy(classifier: "Classifier") -> float | None:
    """Return the accuracy about held-out images of the fitted classes, if it was measured."""
    return classifier.space_.settings.accuracy if isinstance(classifier.space_, GaussianSpace) else None


def kept_bytes(classifier: "Classifier", out: Path) -> dict[str, int]:
    """Return the size of a model file, and how much of it features of images and thumbnails take."""
    features = sum(part.nbytes for part in classifier.kept_.values())
    return {"file": out.stat().st_size, "features": features, "thumbnails": classifier.thumbnail_bytes}


def size_line(sizes: Mapping[str, int]) -> str:
    """Return the size of a model file in one line, with the parts that the user asked for."""
    parts = [f"{sizes[part] / 1e6:.1f} MB are {title}" for part, title in KEPT_TITLES.items() if sizes[part]]
    return f"the file has {sizes['file'] / 1e6:.1f} MB, of which {' and '.join(parts)}"


def check_out(out: Path) -> None:
    """Raise an `InputError` if a path holds anything but a model file without added classes."""
    if out.is_dir():
        raise InputError(f"{out} is a folder: name a file, such as {out / 'classes.pg'}")
    if not out.exists():
        return
    try:
        added = len(pg.Classifier.load(out).space_.support)
    except InputError as error:
        raise InputError(f"{out} exists and is not a complete model file: choose another --out, or remove it") from error
    if added:
        raise InputError(f"{out} has {added} added classes, which would be lost: choose another --out, or remove it")


def shares_as_new(classifier: "Classifier", progress: Progress) -> list[float]:
    """Return the share that relations bring into the prototypes of classes that act as new in turn: all, or some of many."""
    count = len(classifier.classes_)
    step = math.ceil(
        count**2 * (count + classifier.n_features_in_) / MOST_OPERATIONS
    )  # one class needs all pairs and all prototypes
    acting, shares = classifier.classes_[::step], []
    with progress.task("weigh relations", len(acting), "classes") as advance:
        for label in acting:
            shares.append(classifier.relation_share(label))
            advance(1)
    return shares


def shares_line(classifier: "Classifier", shares: list[float]) -> str:
    """Return the shares in one line."""
    middle, lowest, highest = map(as_percent, (median(shares), min(shares), max(shares)))
    acting = f"{len(shares)} of these classes" if len(shares) < len(classifier.classes_) else f"these {len(shares)} classes"
    return (
        f"relations: {middle} of a new class's prototype comes from other classes by {related_by(classifier)} "
        f"(median of {acting}, each as if it were new; from {lowest} to {highest})"
    )


def little_note(classifier: "Classifier") -> str:
    """Return a note for relations that bring next to nothing to most new classes, with a remedy."""
    count = len(classifier.classes_)
    return (
        f"these relations contribute almost nothing to most new classes. Perhaps {count} classes are too few, or too "
        f"dissimilar by {related_by(classifier)}: fit on more classes, or say what a new one is like (add-class --like "
        "CLASS=0.8). A class added without an image is still placed by its relations"
    )


def fit_frozen(
    images: Path,
    relations: list[str] | None,
    backbone: str | None,
    size: int | None,
    settings: dict[str, Any],
    skip_bad: bool,
    device: str,
    progress: ShownProgress,
) -> tuple["Classifier", int]:
    """Return a classifier on the features of a frozen network or of a file, and the number of examples."""
    if holds_features(images):
        sharded = is_feature_folder(images)
        for option, value in (
            ("--backbone", None if sharded else backbone),
            ("--size", size),
            ("--copies", settings["copies"]),
        ):
            if value is not None:
                raise InputError(f"{images} holds features: leave out {option} {value}")
        encoder = encoder_of_shards(images, backbone, device) if sharded else None
    else:  # before the images are looked through
        encoder = open_encoder(backbone or strongest_backbone(), device=find_device(device), size=size)
    files = read_training_files(images, skip_bad, progress)
    classifier = pg.Classifier(encoder, **settings)
    classifier.fit(files.inputs, np.array(files.labels), relations, progress)
    return classifier, len(files.labels)


def encoder_of_shards(folder: Path, backbone: str | None, device: str) -> ImageEncoder | None:
    """Return the encoder that made the features in a folder, so that the model takes images, too; None where it is not here.

    Args:
        folder: The folder of shards.
        backbone: The encoder as the user names it. A folder may come from anyone, so of the names in there, only those of
            encoders that installed packages bring are opened.
        device: The device by the name a user gives.

    Raises:
        InputError: The user names another encoder than the one that made the features.

    """
    notes = read_manifest(folder).encoder
    if backbone is None and notes.name not in (SHIPPED_NAME, *RELEASES):
        return None
    name = backbone or notes.name
    try:
        encoder = open_encoder(
            name, device=find_device(device), size=notes.size if name in RELEASES and name == notes.name else None
        )
    except InputError:
        if backbone is not None:
            raise
        return None
    if encoder.digest() == notes.digest:
        return encoder
    if backbone is not None:
        raise InputError(f"the features in {folder} are by {notes.name}, not by this {backbone}: leave out --backbone")
    return None


def fit_end_to_end(
    images: Path,
    out: Path,
    relations: list[str] | None,
    backbone: str | None,
    settings: dict[str, Any],
    change: list[str] | None,
    plugins: tuple[str, ...],
    skip_bad: bool,
    device: str,
    progress: ShownProgress,
) -> tuple["Classifier", int]:
    """Return a classifier whose network was trained on these images, with the held-out classes added, and their number."""
    settings = dict(settings)
    for option in ("keep_features", "thumbnails"):
        if settings.pop(option):
            raise InputError(f"--{option.replace('_', '-')} would be ignored with --train-backbone: leave it out")
    variant, seed = choose_variant(settings.pop("variant"), bool(relations)), settings.pop("seed")
    settings["variant"] = variant.name
    if backbone is not None:
        check_trainable(backbone)
    draft = pg.Classifier(**settings)
    draft.check()
    data = open_dataset("folder", images, progress, skip_bad)
    assert data.images is not None
    draft.check(data.classes)
    changes = {**small_recipe(data), **parse_changes(change)}
    config = configure(
        data,
        variant.name,
        seed=seed,
        backbone=backbone,
        relations=relations,
        changes=changes,
        plugins=plugins,
        precision=find_precision("auto", find_device(device)),
    )
    folder = out.with_suffix(".run")
    start = out.with_suffix(".start") if stage_before(variant, config.recipe) else None
    run_training(config, data, folder, device, progress, start, changes)
    settings.pop("variant")
    classifier = pg.Classifier.from_run(folder, data, progress, **settings).add_held_out(
        data, images.parent if is_table(images) else images, progress
    )
    return classifier, len(data.images.names) - len(data.images.errors)
