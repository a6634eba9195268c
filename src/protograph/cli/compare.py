"""protograph compare"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from protograph._internal.errors import InputError
from protograph.cli.display import add_measures, fitting, reported, show, stacked
from protograph.cli.options import AsJson, load_plugins
from protograph.evaluation.metrics import Measures
from protograph.paper.trials import Try, trial_of, write_trials
from protograph.training.loop import as_json as measures_as_json
from protograph.training.run import Run


@reported
def compare_command(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders that `protograph train` made, finished or not.", metavar="RUN")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="A CSV file to write them down in, beside what it has; RESULTS.md shows what is in results/trials.csv.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs on the validation classes: what each changes of its recipe, and what that brought.

    This is what to choose settings by: test classes are not looked at. The numbers are those of the last finished epoch.
    """
    if out is not None and out.suffix != ".csv":
        raise InputError(f"cannot write {out}: give a name that ends in .csv")
    found = []
    for folder in runs:
        run = Run.open(folder)
        load_plugins(run.config.plugins)
        found.append((str(folder), *trial_of(run)))
    if out is not None:
        write_trials(out, ((tried, measures) for _, tried, measures in found))
    answers = [{"run": folder, **vars(tried), "validation": measures_as_json(own)} for folder, tried, own in found]
    show(answers, compared(found), as_json)


def compared(found: Sequence[tuple[str, Try, Measures]]) -> Table:
    """A row for each run; what all of them have in common stands above."""
    what = [f"{tried}{f' with {tried.relations}' if tried.relations else ''}, {tried.recipe}" for _, tried, _ in found]
    same = len(set(what)) == 1
    title = "Validation classes, last finished epoch" + (f": {what[0]}" if same else "")
    named = ["run", *([] if same else ["of"]), "changes", "seed", "epoch"]

    def made(narrow: bool) -> Table:
        table = Table(title=title, title_justify="left")
        for name in ["run"] if narrow else named:
            table.add_column(name, overflow="fold")
        add_measures(table, narrow)
        for own, (folder, tried, measures) in zip(what, found, strict=True):
            words = [folder, *([] if same else [own]), tried.changes, str(tried.seed), str(tried.epoch)]
            if narrow:  # all that names a run in one column
                said = [word for word in words[1:-2] if word]
                words = ["\n".join([folder, *said, f"seed {tried.seed}, epoch {tried.epoch}"])]
            table.add_row(*map(escape, words), *stacked(map(str, measures.values()), narrow), end_section=narrow)
        return table

    return fitting(made)
