"""The verbs that ask and mend what a model file was taught: check, correct, relate and remove-examples."""

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.table import Table
from torch import Tensor

import protograph as pg
from protograph._internal.errors import InputError
from protograph._internal.wording import counted
from protograph.classifier.checking import ExampleCheck
from protograph.classifier.gaussian_space import GaussianSpace
from protograph.classifier.labels import parse_label
from protograph.classifier.naming import LEAST_ALIKE
from protograph.cli.classifier import (
    Model,
    Name,
    as_percent,
    parse_like,
    refit_notes,
    related_by,
    taken_for,
    tell,
    warnings_as,
)
from protograph.cli.display import ShownProgress, escape, reported, show, visible
from protograph.cli.options import AsJson, BackboneWeights, Plugins, RelationFiles, SkipBad, load_plugins

if TYPE_CHECKING:
    from protograph.classifier.estimator import Classifier


@reported
def check_command(model: Model, plugin: Plugins = None, as_json: AsJson = False) -> None:
    """Tell whether a model file was taught enough: per class, what it confuses, and what to add.

    Each image that the file keeps is asked as if it had not been an example. Those of added classes are always kept, as
    features; those of fitted classes with `fit --keep-features`. The file stays as it is.

    Examples:
        protograph check birds.pg
    """
    progress = ShownProgress(quiet=as_json)
    load_plugins(plugin)
    check = pg.Classifier.load(model).check_examples(progress)
    if as_json:
        show({"file": str(model), **check.as_json()}, None, as_json)
        return
    show(None, check_table(check, str(model)), as_json)
    print(visible(check.verdict()))
    for line in check.advice():
        print(visible(f"- {line}"))
    for note in check.notes():
        progress.say(f"note: {note}")


def check_table(check: ExampleCheck, name: str) -> Table:
    """Return the table of a check, one row per class, those with the fewest right answers first."""
    asked = sum(part.asked for part in check.classes)
    share = "" if check.accuracy is None else f", {100 * check.accuracy:.1f} % right in the mean over classes"
    title = f"{name}: {asked} images, each asked as if it had not been an example{share}"
    table = Table(title=escape(title), title_justify="left", min_width=min(100, len(title)))
    for heading in ("class", "examples", "right", "taken for", "verdict"):
        table.add_column(heading, justify="right" if heading in ("examples", "right") else "left")
    for part in sorted(check.covered, key=lambda part: (part.accuracy is None, part.accuracy)):
        right = "" if part.accuracy is None else f"{part.right} of {part.asked}"
        taken = ", ".join(f"{answer}: {times}" for answer, times in part.taken_for)
        examples = "" if part.examples is None else str(part.examples)
        table.add_row(*map(escape, (str(part.label), examples, right, taken, part.verdict)))
    return table


@reported
def correct_command(
    model: Model,
    files: Annotated[
        list[Path],
        typer.Argument(metavar="IMAGES", help="Images that were answered wrongly, or folders of them.", show_default=False),
    ],
    name: Annotated[str, typer.Argument(metavar="CLASS", help="Their right class, new or old.", show_default=False)],
    backbone_weights: BackboneWeights = None,
    relations: RelationFiles = None,
    plugin: Plugins = None,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Correct wrong answers: images become examples of the right class, new or old.

    The file is changed in place, without training. It says what was answered before, and what is answered now; `undo` takes it
    back.

    Examples:
        protograph correct birds.pg photo.jpg Cardinal
        protograph correct birds.pg one.jpg two.jpg Cardinal
    """
    progress = ShownProgress(quiet=as_json)
    load_plugins(plugin)
    images, examples = pg.Classifier.load(model, backbone_weights).read_examples(files, skip_bad, progress)
    notes: list[str] = []
    change = f"corrected {counted(len(images), 'image')} to '{name}'"
    with pg.Classifier.edit(model, change, backbone_weights, relations or ()) as classifier:
        label = parse_label(name, classifier.classes_)
        before, known = answers(classifier, examples.features), [str(other) for other in classifier.classes_]
        new = str(label) not in known
        with warnings_as(notes):
            (classifier.add_class if new else classifier.add_examples)(label, examples)
        after = answers(classifier, examples.features)
        total = classifier.space_.examples(classifier.space_.index(str(label)))
        notes += [
            *(taken_for(classifier, row=classifier.space_.index(str(label))) if new else ()),
            *refit_notes(classifier, model),
        ]
    if new and (alike := get_close_matches(name, known, 1, LEAST_ALIKE)):
        notes.append(f"'{name}' is a new class beside '{alike[0]}': if that one was meant, `protograph undo {model}`")
    if wrong := sum(answer["class"] != label for answer in after if answer):
        verb = "is" if wrong == 1 else "are"
        notes.append(
            f"{wrong} of {counted(len(images), 'image')} {verb} still answered otherwise: '{name}' needs more examples"
        )
    shown = list(zip(images, before, after, strict=True))
    for note in notes:
        progress.say(f"note: {note}")
    rows = [{"file": file, "before": earlier, "now": now} for file, earlier, now in shown]
    result = {"file": str(model), "class": name, "new": new, "examples": total, "images": rows, "notes": notes}
    lines = [f"{file}: {answered(earlier)} before, {answered(now)} now" for file, earlier, now in shown]
    has = f"has {counted(total or 0, 'example')} now" if not new else "is a new class"
    tell(result, "\n".join([*lines, f"corrected {counted(len(rows), 'image')} to '{name}', which {has}"]), as_json)


def answers(classifier: "Classifier", features: Tensor) -> list[dict[str, Any] | None]:
    """Return the answer about each image [n, D] with the probability of the most probable class; None without a class."""
    if not len(classifier.classes_):
        return [None] * len(features)
    predictions = classifier.predictions(features)
    largest = torch.from_numpy(predictions.probabilities).max(1).values.tolist()
    return [
        {"class": answer, "probability": probability}
        for answer, probability in zip(predictions.labels.tolist(), largest, strict=True)
    ]


def answered(answer: dict[str, Any] | None) -> str:
    """Return an answer in a line."""
    return "no class" if answer is None else f"'{answer['class']}' ({100 * answer['probability']:.0f} %)"


@reported
def relate_command(
    model: Model,
    name: Name,
    like: Annotated[
        list[str] | None,
        typer.Option(
            help='How similar it is to other classes, such as "sparrow=0.8,finch=0.6"; or the name by which the relation knows '
            "it, such as crane.n.05. (default: list the classes that it is likely to be similar to, and change nothing)",
            show_default=False,
        ),
    ] = None,
    relations: RelationFiles = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Say anew how a class relates to others, or list what it is likely to be like.

    What was said before is forgotten. A model that was fitted without relations begins with what it is told here.

    Examples:
        protograph relate birds.pg Cardinal
        protograph relate birds.pg Cardinal --like House_Finch=0.8
        protograph relate birds.pg Cardinal --like cardinal.n.04
    """
    progress = ShownProgress(quiet=as_json)
    load_plugins(plugin)
    told = parse_like(like)
    if told is None:
        show_suggestions(pg.Classifier.load(model), model, name, as_json)
        return
    with pg.Classifier.edit(model, relations=relations or ()) as classifier, warnings_as(notes := []):
        label = parse_label(name, classifier.classes_)
        classifier.relate(label, told)
    notes += taken_for(classifier, row=classifier.space_.index(str(label)))
    share = classifier.relation_share(label)
    if not share and isinstance(classifier.space_, GaussianSpace):
        rest = f", until `protograph refit {model}` finds that they help others, too" if classifier.kept_ else ""
        notes.append(f"relations place classes without examples only{rest}: '{name}' is answered as before")
    for note in notes:
        progress.say(f"note: {note}")
    result = {"file": str(model), "class": name, "relation_share": share, "notes": notes}
    by = related_by(classifier)
    tell(result, f"told how '{name}' relates: {as_percent(share)} of its prototype comes from other classes by {by}", as_json)


def show_suggestions(classifier: "Classifier", model: Path, name: str, as_json: bool) -> None:
    """Print the classes that a class is likely to be similar to."""
    suggested = classifier.suggest_relations(parse_label(name, classifier.classes_))
    rows = [{"class": one.label, "similarity": one.similarity, "source": one.source} for one in suggested]
    title = f"{model}: classes that '{name}' is likely to be similar to"
    table = Table(title=escape(title), title_justify="left", min_width=min(100, len(title)))
    for heading in ("class", "similarity", "source"):
        table.add_column(heading, justify="right" if heading == "similarity" else "left")
    for one in suggested:
        table.add_row(escape(str(one.label)), f"{one.similarity:.2f}", escape(one.source))
    if rows or as_json:
        show({"file": str(model), "class": name, "suggestions": rows}, table, as_json)
    else:
        print(visible(f"nothing is known of what '{name}' is like: say it by --like CLASS=NUMBER"))


@reported
def remove_examples_command(
    model: Model,
    name: Name,
    numbers: Annotated[
        list[int],
        typer.Argument(metavar="NUMBERS", help="Which examples, from 1 on, as `check` names them.", show_default=False),
    ],
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Remove some examples of a class.

    The file is changed in place. Images that a class was fitted on can be removed where `fit --keep-features` kept them; what
    they taught of the others stays until `refit`.

    Examples:
        protograph remove-examples birds.pg Cardinal 3 5
    """
    load_plugins(plugin)
    with pg.Classifier.edit(model) as classifier:
        label = parse_label(name, classifier.classes_)
        total = classifier.space_.examples(classifier.space_.index(str(label)))
        if wrong := [number for number in numbers if not 1 <= number <= (total or number)]:
            raise InputError(f"class '{name}' has no example {wrong[0]}: give numbers from 1 to {total}")
        classifier.remove_examples(label, [number - 1 for number in numbers])
    total = classifier.space_.examples(classifier.space_.index(str(label)))
    removed = len(set(numbers))
    result = {"file": str(model), "class": name, "removed": removed, "examples": total}
    tell(result, f"removed {counted(removed, 'example')} of '{name}', which has {total} now", as_json)
