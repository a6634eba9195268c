"""The verbs that ask and mend what a model file was taught: check and correct."""

from rich.table import Table

import protograph as pg
from protograph.classifier.checking import ExampleCheck
from protograph.cli.classifier import Model
from protograph.cli.display import ShownProgress, escape, reported, show, visible
from protograph.cli.options import AsJson, Plugins, load_plugins


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
