"""The verb predict."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import protograph as pg
from protograph._internal.wording import counted
from protograph.classifier.answer_file import Answer
from protograph.classifier.bulk import BulkResult, answers_of, predict_files, recall_line
from protograph.cli.classifier import Model, tell
from protograph.cli.display import ShownProgress, escape, reported, show
from protograph.cli.options import AsJson, BackboneWeights, Plugins, SkipBad, load_plugins

CLASSES_NAMED = 8  # in the line about a table


@reported
def predict_command(
    model: Model,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES",
            help="Images, or folders, with all folders inside; files of features, where the model was fitted on features; "
            "what `embed` made with the network of the model.",
            show_default=False,
        ),
    ],
    top: Annotated[int, typer.Option(help="How many classes to show for each.", min=1)] = 3,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="ANSWERS.csv",
            help="Write the answers into a new .csv or .jsonl file as they come, instead of printing them. The same command "
            "continues after a kill.",
            show_default=False,
        ),
    ] = None,
    sort_into: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Copy each image into the folder of its class there; nothing is overwritten. Without --out, the answers are "
            "in DIR/answers.csv.",
            show_default=False,
        ),
    ] = None,
    index: Annotated[
        bool,
        typer.Option("--index", help="of very many classes, compare with those alone that an index names (protograph[ann])"),
    ] = False,
    backbone_weights: BackboneWeights = None,
    plugin: Plugins = None,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Predict the classes of images.

    With --out or --sort-into, any number of images is answered in bounded memory.

    Examples:
        protograph predict birds.pg photo.jpg
        protograph predict birds.pg photos --top 1 --json
        protograph predict birds.pg photos --out answers.csv --sort-into sorted
    """
    progress = ShownProgress(quiet=as_json)
    plugins = load_plugins(plugin)
    classifier = pg.Classifier.load(model, backbone_weights)
    if out is not None or sort_into is not None:
        done = predict_files(classifier, model, files, out, sort_into, top, skip_bad, progress, plugins, index)
        tell(bulk_summary(done, sort_into), bulk_line(done, sort_into), as_json)
        return
    names, features = classifier.encode_files(files, skip_bad, progress, recursive=True)
    if index:
        progress.say(recall_line(classifier, features))
    found = answers_of(classifier.top(features, top, index))
    answers = [Answer(name, *answer) for name, answer in zip(names, found, strict=True)]
    show([answer.as_json() for answer in answers], predictions_table(answers), as_json)


def bulk_summary(done: BulkResult, sorted_into: Path | None) -> dict[str, Any]:
    """Return what was done with many images, as plain values."""
    return {
        "file": str(done.table),
        "images": done.images,
        "continued": done.continued,
        "unreadable": done.unreadable,
        "classes": done.classes,
        "sorted_into": None if sorted_into is None else str(sorted_into),
    }


def bulk_line(done: BulkResult, sorted_into: Path | None) -> str:
    """Return what was done with many images, in one line."""
    named = [f"{name}: {count}" for name, count in [*done.classes.items()][:CLASSES_NAMED]]
    rest = [f"{len(done.classes) - CLASSES_NAMED} more classes"] if len(done.classes) > CLASSES_NAMED else []
    copies = "" if sorted_into is None else f", with copies in {sorted_into}"
    bad = f"; {counted(done.unreadable, 'image')} cannot be read" if done.unreadable else ""
    return f"wrote {done.table}: {counted(done.images, 'image')}{copies}{bad}; {', '.join(named + rest)}"


def predictions_table(answers: Sequence[Answer]) -> Table:
    """Return the table of answers, one row per image."""
    table = Table()
    for heading in ("file", "class", "nearest"):
        table.add_column(heading, overflow="fold")
    table.add_column("likeness", justify="right")
    for answer in answers:
        nearest = ", ".join(f"{label}: {100 * probability:.0f} %" for label, probability in answer.nearest)
        table.add_row(*map(escape, (answer.file, str(answer.label), nearest, f"{answer.likeness:.3f}")))
    return table
