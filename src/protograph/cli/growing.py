"""The verbs by which a model file grows: add-examples, add-classes and refit."""

from pathlib import Path
from typing import Annotated, Any

import typer

import protograph as pg
from protograph._internal.errors import InputError
from protograph._internal.wording import counted
from protograph.classifier.inputs import list_labelled_images, readable_rows
from protograph.classifier.labels import parse_label
from protograph.cli.classifier import Model, Name, refit_notes, summary_line, taken_for, tell, warnings_as
from protograph.cli.display import ShownProgress, reported
from protograph.cli.options import AsJson, BackboneWeights, Plugins, RelationFiles, SkipBad, load_plugins


@reported
def add_examples_command(
    model: Model,
    name: Name,
    files: Annotated[
        list[Path], typer.Argument(metavar="IMAGES", help="Images of it, or folders of them.", show_default=False)
    ],
    backbone_weights: BackboneWeights = None,
    plugin: Plugins = None,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Add more images of a class that exists, fitted or added.

    The file is changed in place, without training.

    Examples:
        protograph add-examples birds.pg Cardinal more-cardinals
    """
    progress = ShownProgress(quiet=as_json)
    load_plugins(plugin)
    with pg.Classifier.edit(model, backbone_weights=backbone_weights) as classifier:
        label = parse_label(name, classifier.classes_)
        classifier.space_.index(str(label))
        examples = classifier.read_examples(files, skip_bad, progress)[1]
        classifier.add_examples(label, examples)
        total = classifier.space_.examples(classifier.space_.index(str(label)))
        notes = refit_notes(classifier, model)
    for note in notes:
        progress.say(f"note: {note}")
    result = {"file": str(model), "class": name, "added": len(examples), "examples": total, "notes": notes}
    tell(result, f"added {counted(len(examples), 'example')} of '{name}', which has {total} now", as_json)


@reported
def add_classes_command(
    model: Model,
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="A folder with a folder of images for each new class.", show_default=False),
    ],
    backbone_weights: BackboneWeights = None,
    relations: RelationFiles = None,
    plugin: Plugins = None,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Add a class from each folder of images, with one update for all.

    The file is changed in place, without training. If a class cannot be added, none is.

    Examples:
        protograph add-classes birds.pg new-birds
    """
    progress = ShownProgress(quiet=as_json)
    load_plugins(plugin)
    with pg.Classifier.edit(model, backbone_weights=backbone_weights, relations=relations or ()) as classifier:
        if classifier.encoder_ is None:
            raise InputError(f"{model} was fitted on features: add its classes one by one, with add-class")
        files, names = list_labelled_images(folder, progress)
        rows = readable_rows(files, skip_bad, progress)
        labels = {name: parse_label(name, classifier.classes_) for name in dict.fromkeys(names[row] for row in rows)}
        taken = {str(label) for label in classifier.classes_}
        if known := [name for name in labels if name in taken]:
            raise InputError(f"there is a class '{known[0]}' already: leave its folder out, or give its images to add-examples")
        given = classifier.encode_examples([files[row] for row in rows], progress)
        chosen = [names[row] for row in rows]
        examples = {
            label: given[[index for index, other in enumerate(chosen) if other == name]] for name, label in labels.items()
        }
        with warnings_as(notes := []):
            classifier.add_classes(examples)
        notes += [*taken_for(classifier, len(examples)), *refit_notes(classifier, model)]
    for note in notes:
        progress.say(f"note: {note}")
    count = len(classifier.classes_)
    result: dict[str, Any] = {
        "file": str(model),
        "added": {name: len(examples[label]) for name, label in labels.items()},
        "classes": count,
        "notes": notes,
    }
    done = (
        f"added {counted(len(labels), 'class')} from {counted(len(rows), 'example')}: {model} knows {counted(count, 'class')}"
    )
    tell(result, done, as_json)


@reported
def refit_command(model: Model, plugin: Plugins = None, as_json: AsJson = False) -> None:
    """Fit a model file anew, on its kept images and those of added classes.

    Added classes then count as fitted. The file keeps the features of its images where `fit --keep-features` made it.

    Examples:
        protograph refit birds.pg
    """
    progress = ShownProgress(quiet=as_json)
    load_plugins(plugin)
    with pg.Classifier.edit(model) as classifier:
        added = len(classifier.space_.support)
        notes: list[str] = []
        with warnings_as(notes):
            classifier.refit(progress)
    for note in notes:
        progress.say(f"note: {note}")
    result = {"file": str(model), "classes": len(classifier.classes_), "were_added": added, "notes": notes}
    tell(
        result,
        f"fitted {model} anew, with {counted(added, 'added class')} among the others: {summary_line(classifier)}",
        as_json,
    )
