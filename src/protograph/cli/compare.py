"""protograph compare"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from protograph._internal.errors import InputError
from protograph.cli.display import add_measures, escape, fit_terminal, reported, show, stacked
from protograph.cli.options import AsJson, Plugins, load_plugins
from protograph.evaluation.metrics import PAPER_MEASURES, Measures, measures_as_json
from protograph.paper.trials import Trial, trial_of, write_trials
from protograph.training.run_folder import Run


@reported
def compare_command(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders that `protograph train` wrote, finished or not.", metavar="RUN")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="A CSV file to add the runs to, such as results/trials.csv.", show_default=False),
    ] = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs on the validation classes, with what each changes of its recipe.

    Choose settings by these measures: they do not use the test classes. They are of the last finished epoch.

    Examples:
        protograph compare runs/one runs/other
        protograph compare runs/one --out results/trials.csv
    """
    if out is not None and out.suffix != ".csv":
        raise InputError(f"cannot write {out}: give a name that ends in .csv")
    opened = [Run.open(folder) for folder in runs]
    load_plugins(plugin, opened)
    trials = [(str(run.folder), *trial_of(run)) for run in opened]
    if out is not None:
        write_trials(out, ((trial, measures) for _, trial, measures in trials))
    answers = [{"run": folder, **vars(trial), "validation": measures_as_json(of_run)} for folder, trial, of_run in trials]
    show(answers, comparison_of_runs(trials), as_json)


def comparison_of_runs(trials: Sequence[tuple[str, Trial, Measures]]) -> Table:
    """Return a table with a row for each run; what all of them have in common is in the title.

    Args:
        trials: The folder, the trial and the validation measures of each run.

    """
    cells = [f"{trial}{f' with {trial.relations}' if trial.relations else ''}, {trial.recipe}" for _, trial, _ in trials]
    same = len(set(cells)) == 1
    title = "Validation classes, last finished epoch" + (f": {cells[0]}" if same else "")
    columns = ["run", *([] if same else ["cell"]), "changes", "seed", "epoch"]

    def table_of(narrow: bool) -> Table:
        table = Table(title=title, title_justify="left")
        for name in ["run"] if narrow else columns:
            table.add_column(name, overflow="fold")
        add_measures(table, PAPER_MEASURES, narrow)
        for cell, (folder, trial, measures) in zip(cells, trials, strict=True):
            words = [folder, *([] if same else [cell]), trial.changes, str(trial.seed), str(trial.epoch)]
            if narrow:  # everything that names a run in one column
                names = [word for word in words[1:-2] if word]
                words = ["\n".join([folder, *names, f"seed {trial.seed}, epoch {trial.epoch}"])]
            table.add_row(
                *map(escape, words),
                *stacked((str(measures.get(name, "")) for name in PAPER_MEASURES), narrow),
                end_section=narrow,
            )
        return table

    return fit_terminal(table_of)
