"""The verbs of a model file: add-class, remove-class, rename-class, classes, explain and export."""

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

import protograph as pg
from protograph._internal.errors import InputError
from protograph._internal.wording import counted
from protograph.classifier.explanation import CONSTANT, EARLIER, Heatmap, Nearest
from protograph.classifier.gaussian_space import GaussianSpace
from protograph.classifier.labels import parse_label
from protograph.classifier.onnx import export_onnx, write_classes
from protograph.cli.display import ShownProgress, escape, reported, show, visible
from protograph.cli.options import AsJson, BackboneWeights, Plugins, RelationFiles, SkipBad, load_plugins
from protograph.encoders import backbone_title

if TYPE_CHECKING:
    from protograph.classifier.estimator import Classifier

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Model file that `protograph fit` made.", show_default=False)]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The class.", show_default=False)]
HEATMAP_SUFFIXES = (".png", ".pdf", ".svg")
SHOWN = 3  # related classes per row of a table
REFIT_CLASSES, REFIT_EXAMPLES = (
    5,
    5,
)  # added classes for each fitted one, with so many examples each: from there, refitting pays
LEAST = 0.0005  # contribution that is shown: a smaller one would read 0.000


@reported
def add_class_command(
    model: Model,
    name: Name,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="IMAGES",
            help="Images of it, or folders of them; none, where it is known how it relates.",
            show_default=False,
        ),
    ] = None,
    like: Annotated[
        list[str] | None,
        typer.Option(
            help='How similar it is to other classes, such as "sparrow=0.8,finch=0.6"; or the name by which the relation knows '
            "it, such as crane.n.05. (default: the relation is asked for its name)",
            show_default=False,
        ),
    ] = None,
    update: Annotated[
        str | None,
        typer.Option(help="all: update every prototype; novel: leave all others as they are. (default: as fitted)"),
    ] = None,
    backbone_weights: BackboneWeights = None,
    relations: RelationFiles = None,
    plugin: Plugins = None,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Add a class from a few images, without training.

    The file is changed in place: readers see either the old file or the new one. Commands that change it wait for one another.

    Examples:
        protograph add-class birds.pg Cardinal cardinals
        protograph add-class birds.pg Cardinal one.jpg --like House_Finch=0.8
        protograph add-class birds.pg Cardinal --like cardinal.n.04
    """
    progress = ShownProgress(quiet=as_json)
    load_plugins(plugin)
    hints = parse_like(like)
    with pg.Classifier.edit(model, backbone_weights=backbone_weights, relations=relations or ()) as classifier:
        examples = classifier.read_examples(files, skip_bad, progress)[1] if files else ()
        usual = classifier.update
        classifier.set_params(update=update or usual)
        label = parse_label(name, classifier.classes_)
        with warnings_as(notes := []):
            classifier.add_class(label, examples, hints)
        classifier.set_params(update=usual)
    notes += [*taken_for(classifier), *refit_notes(classifier, model)]
    for note in notes:
        progress.say(f"note: {note}")
    count = len(classifier.classes_)
    share = classifier.relation_share(label) if classifier.space_.relations else None
    result = {"file": str(model), "added": name, "examples": len(examples), "classes": count, "relation_share": share}
    done = f"added '{name}' from {counted(len(examples), 'example')}: {model} knows {counted(count, 'class')}"
    if share is not None:
        done += f"; {as_percent(share)} of its prototype comes from other classes by {related_by(classifier)}"
    tell({**result, "notes": notes}, done, as_json)


@reported
def remove_class_command(model: Model, name: Name, plugin: Plugins = None, as_json: AsJson = False) -> None:
    """Remove a fitted or added class, in place.

    Examples:
        protograph remove-class birds.pg Cardinal
    """
    load_plugins(plugin)
    with pg.Classifier.edit(model) as classifier:
        classifier.remove_class(parse_label(name, classifier.classes_))
    count = len(classifier.classes_)
    result = {"file": str(model), "removed": name, "classes": count}
    tell(result, f"removed '{name}': {model} knows {counted(count, 'class')}", as_json)


@reported
def rename_class_command(
    model: Model,
    name: Name,
    new: Annotated[str, typer.Argument(metavar="NEW", help="Its new name.", show_default=False)],
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Rename a class, in place.

    Examples:
        protograph rename-class birds.pg Cardinal Northern_Cardinal
    """
    load_plugins(plugin)
    with pg.Classifier.edit(model) as classifier:
        classifier.rename_class(parse_label(name, classifier.classes_), parse_label(new, classifier.classes_))
    result = {"file": str(model), "renamed": name, "to": new, "classes": len(classifier.classes_)}
    tell(result, f"renamed '{name}' to '{new}' in {model}", as_json)


@reported
def classes_command(model: Model, plugin: Plugins = None, as_json: AsJson = False) -> None:
    """List the classes of a model file, with its backbone, variant and relations.

    Examples:
        protograph classes birds.pg
    """
    load_plugins(plugin)
    classifier = pg.Classifier.load(model)
    space = classifier.space_
    counts = [space.examples(row) for row in range(len(space.names))]
    classes: list[dict[str, Any]] = [
        {"class": _plain(label), "added": bool(row >= space.seen), "examples": counts[row]}
        for label, row in zip(classifier.classes_, classifier.order_, strict=True)
    ]
    result = {"file": str(model), **classifier_summary(classifier), "classes": classes}
    title = escape(f"{model}: {summary_line(classifier)}")
    table = Table(title=title, title_justify="left", min_width=90)  # room for the title
    table.add_column("class")
    table.add_column("from")
    for row in classes:
        parts = [] if row["added"] else ["fit"]
        if row["examples"] is not None:
            parts.append(counted(row["examples"], "example"))
        table.add_row(escape(str(row["class"])), ", ".join(parts))
    show(result, table, as_json)


@reported
def explain_command(
    model: Model,
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="The image to explain.", show_default=False)],
    top: Annotated[int, typer.Option(help="How many classes to show.", min=1)] = 5,
    heatmap: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.png",
            help="Draw which parts of the image spoke for the most probable class, and which against it. (.png, .pdf or .svg)",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="CLASS",
            help="The class that the heatmap compares the most probable one with. (default: the mean of all others)",
            show_default=False,
        ),
    ] = None,
    backbone_weights: BackboneWeights = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Show the classes nearest to an image, and what their examples and related classes contribute.

    Examples:
        protograph explain birds.pg photo.jpg
        protograph explain birds.pg photo.jpg --heatmap heatmap.png
    """
    check_heatmap(heatmap, against)
    progress = ShownProgress(quiet=as_json)
    load_plugins(plugin)
    classifier = pg.Classifier.load(model, backbone_weights)
    _, features = classifier.encode_files([image], progress=progress)
    nearest = classifier.explain(features, top)
    result = [
        {
            "class": prototype.name,
            "probability": prototype.probability,
            "logit": prototype.logit,
            "score": prototype.score,
            "own": prototype.own,
            "parts": [{"class": part.name, "operator": part.operator, "value": part.value} for part in prototype.parts],
        }
        for prototype in nearest
    ]
    if heatmap is None:
        show(result, explanation_table(nearest, image), as_json)
        return
    rival = None if against is None else parse_label(against, classifier.classes_)
    parts = classifier.heatmap(image, against=rival)
    from protograph.report.heatmap import draw_heatmap  # imports Matplotlib

    draw_heatmap(parts, heatmap, image.name)
    drawn: dict[str, Any] = {"file": str(heatmap), "class": parts.name, "against": parts.against, "score": parts.score}
    drawn["scores"] = parts.scores.tolist()
    show({"nearest": result, "heatmap": drawn}, explanation_table(nearest, image), as_json)
    if not as_json:
        print(visible(f"wrote {heatmap}: {heatmap_line(parts)}"))


def check_heatmap(out: Path | None, against: str | None) -> None:
    """Raise an `InputError` if a heatmap cannot be written there, or if its options would be ignored."""
    if out is None:
        if against is not None:
            raise InputError(f"--against {against} would be ignored without --heatmap: leave it out")
    elif out.suffix not in HEATMAP_SUFFIXES:
        raise InputError(f"cannot draw {out}: give a name that ends in {' or '.join(HEATMAP_SUFFIXES)}")


def heatmap_line(heatmap: Heatmap) -> str:
    """Return what a heatmap shows, in one line."""
    scores, rival = heatmap.scores, heatmap.against or "the mean of all others"
    return (
        f"'{heatmap.name}' is {heatmap.score:+.2f} in logits against {rival}: {scores.clamp(min=0).sum().item():+z.2f} from "
        f"{int((scores > 0).sum())} of {scores.numel()} positions, {scores.clamp(max=0).sum().item():+z.2f} from the others"
    )


@reported
def export_command(
    model: Model,
    out: Annotated[
        Path,
        typer.Option(
            help="Where to write: a name that ends in .onnx, for the network and its classes beside it, or in .npz, for the "
            "classes alone once they have changed.",
            show_default=False,
        ),
    ],
    backbone_weights: BackboneWeights = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Write a model as ONNX.

    The network takes pixels and prototypes as inputs, so it serves any classes: after `add-class`, only the .npz file beside
    it changes, which holds `prototypes`, `bias` and `classes`.

    Examples:
        protograph export birds.pg --out birds.onnx
        protograph export birds.pg --out birds.npz
    """
    if out.suffix not in (".onnx", ".npz"):
        raise InputError(f"cannot write {out}: give a name that ends in .onnx, or in .npz for the classes alone")
    progress = ShownProgress(quiet=as_json)
    load_plugins(plugin)
    classifier = pg.Classifier.load(model, backbone_weights)
    if out.suffix == ".npz":
        written = [write_classes(classifier, out)]
    else:
        with progress.task("export", 1, "networks") as advance:
            written = [out, export_onnx(classifier, out)]
            advance(1)
    count = len(classifier.classes_)
    result = {"file": str(model), "written": [str(path) for path in written], "classes": count}
    tell(result, f"wrote {' and '.join(map(str, written))}, with {counted(count, 'class')}", as_json)


@contextmanager
def warnings_as(notes: list[str]) -> Iterator[None]:
    """Add each `UserWarning` of the block to the notes, once; other warnings are issued as usual."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    notes += dict.fromkeys(str(warning.message) for warning in caught if warning.category is UserWarning)
    for warning in caught:
        if warning.category is not UserWarning:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def parse_like(values: Sequence[str] | None) -> dict[str, float] | str | None:
    """Return the similarities by class, or the name, that --like gives. Class names may contain commas."""
    if not values:
        return None
    text = ",".join(values)
    if "=" not in text:
        return text
    similarities: dict[str, float] = {}
    parts = re.findall(r".*?=[^,]*(?:,|$)", text)
    if rest := text[sum(map(len, parts)) :].strip():
        raise InputError(f"--like takes \"CLASS=NUMBER,CLASS=NUMBER\", but '{rest}' has no number: give it one")
    for part in parts:
        name, _, number = part.rstrip(",").rpartition("=")
        try:
            value = float(number)
        except ValueError:
            raise InputError(f"--like takes \"CLASS=NUMBER,CLASS=NUMBER\", but {name.strip()} is given '{number}'") from None
        if not 0 <= value <= 1:
            raise InputError(f"--like takes numbers from 0 (not alike) to 1 (the same), but {name.strip()} is given {number}")
        similarities[name.strip()] = value
    return similarities


def parse_prior(text: str) -> str | dict[str, float]:
    """Return the prior that --prior names: uniform, half, or numbers by class."""
    if "=" not in text:
        return text
    numbers: dict[str, float] = {}
    for part in re.findall(r".*?=[^,]*(?:,|$)", text):
        name, _, number = part.rstrip(",").rpartition("=")
        try:
            numbers[name.strip()] = float(number)
        except ValueError:
            raise InputError(f"--prior takes \"CLASS=NUMBER,CLASS=NUMBER\", but {name.strip()} is given '{number}'") from None
    return numbers


def taken_for(
    classifier: "Classifier", count: int = 1, hint: str = "--like names another sense", row: int | None = None
) -> list[str]:
    """Return notes on the meanings for which relations took the classes that came last, or one class.

    Args:
        classifier: The classifier.
        count: The number of these classes.
        hint: What a user can do where a name may mean something else.
        row: The index of the one class.

    """
    notes = []
    for label, relation in classifier.space_.relations.items():
        asked = relation.known[-count:] if row is None else relation.known[row : row + 1]
        keys = [key for key in asked if key is not None]
        if not keys or relation.source is None:  # it was not asked, and its files may be elsewhere
            continue
        for sense in relation.source.senses(keys):
            if sense.by != "id":
                way_out = "" if sense.name == sense.sense else f"; {hint}"
                notes.append(f"relation '{label}' takes '{sense.name}' for {sense.sense} ({sense.gloss}){way_out}")
    return notes


def refit_notes(classifier: "Classifier", model: Path) -> list[str]:
    """Return a note that says how to fit anew, where added classes are so many that it pays.

    On CUB's training classes, joint accuracy rises by a point in the mean from five added classes for each fitted one on, and
    does not rise where they are fewer, whatever the number of examples.
    """
    space = classifier.space_
    if not isinstance(space, GaussianSpace):
        return []
    added = sum(len(examples) >= REFIT_EXAMPLES for examples in space.support)
    if added < REFIT_CLASSES * space.seen:
        return []
    way = f"protograph refit {model}" if classifier.kept_ else "protograph fit, on the images of all classes"
    return [f"{added} added classes outnumber the {space.seen} fitted ones: fitting anew pays ({way})"]


def classifier_summary(classifier: "Classifier") -> dict[str, Any]:
    """Return the parts of a classifier, as plain values."""
    described = {} if classifier.encoder_ is None else classifier.encoder_.description()
    return {
        "backbone": backbone_title(described) if described else None,
        "size": described["preparation"]["shape"][1:] if described else None,
        "features": classifier.n_features_in_,
        "variant": classifier.space_.summary,
        "relations": list(classifier.space_.relations),
        "threshold": classifier.threshold_,
        "bias": classifier.bias_,
    }


def summary_line(classifier: "Classifier") -> str:
    """Return the summary of a classifier in one line."""
    parts = classifier_summary(classifier)
    source = f"features, {parts['features']} numbers"
    if parts["backbone"]:
        height, width = parts["size"]
        source = f"{parts['backbone']}, {height} x {width} pixels to {parts['features']} numbers"
    related = f", related by {related_by(classifier)}" if parts["relations"] else ""
    limit = "" if parts["threshold"] is None else f", unknown below {parts['threshold']:.3f}"
    return f"{counted(len(classifier.classes_), 'class')}; {source}; {parts['variant']}{related}{limit}"


def related_by(classifier: "Classifier") -> str:
    """Return the names of a classifier's relations."""
    return " and ".join(classifier.space_.relations)


def as_percent(share: float) -> str:
    """Return a share as a percentage."""
    return f"{100 * share:.1f} %"


def tell(result: dict[str, Any], line: str, as_json: bool) -> None:
    """Print a result as JSON, or as one line."""
    if as_json:
        show(result, None, as_json)
    else:
        print(visible(line))


def explanation_table(nearest: Sequence[Nearest], image: Path) -> Table:
    """Return the table of an explanation, one row per class, with its own contribution and those of related classes."""
    gaussian = any(part.operator == CONSTANT for row in nearest for part in row.parts)
    score = "logit" if gaussian else "cosine"
    title = f"{image}: the nearest classes, and the parts of the {score}; a negative part speaks against the class"
    table = Table(title=escape(title), title_justify="left")
    table.add_column("class")
    for heading in ("probability", score, "its own", *(["constant"] if gaussian else [])):
        table.add_column(heading, justify="right")
    related_of = [[part for part in row.parts if part.name != row.name or part.operator == EARLIER] for row in nearest]
    if any(related_of):
        table.add_column("from related classes")
    for row, related in zip(nearest, related_of, strict=True):
        constant = [f"{sum(part.value for part in row.parts if part.operator == CONSTANT):+.3f}"] if gaussian else []
        named = [part for part in related[:SHOWN] if abs(part.value) >= LEAST]
        shown = [f"{part.name} {part.value:+z.3f} ({part.operator})" for part in named]
        if rest := related[len(named) :]:
            count = f"{len(rest)} more" if named else counted(len(rest), "other")
            shown.append(f"{count} {sum(part.value for part in rest):+z.3f}")
        numbers = (f"{100 * row.probability:.1f} %", f"{row.score:.3f}", f"{row.own:+z.3f}", *constant)
        cells = (row.name, *numbers, *([", ".join(shown)] if any(related_of) else []))
        table.add_row(*map(escape, cells))
    return table


def _plain(label: Any) -> Any:
    return label.item() if hasattr(label, "item") else label
