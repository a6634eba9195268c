"""The command: one file per verb; exit codes 0 done, 1 a defect of ours, 2 bad input or a full disk, 130 interrupted."""

from typing import Annotated

import typer

from protograph import __version__
from protograph.cli.classifier import (
    add_class_command,
    classes_command,
    explain_command,
    export_command,
    predict_command,
    remove_class_command,
    rename_class_command,
)
from protograph.cli.compare import compare_command
from protograph.cli.datasets import datasets_app
from protograph.cli.demo import demo_command
from protograph.cli.evaluate import evaluate_command
from protograph.cli.figures import figures_command
from protograph.cli.fit import fit_command
from protograph.cli.jobs import end_with_parent
from protograph.cli.relations import relations_command
from protograph.cli.report import report_command
from protograph.cli.reproduce import reproduce_command
from protograph.cli.train import train_command
from protograph.cli.variants import variants_command

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for name, command in (
    ("train", train_command),
    ("evaluate", evaluate_command),
    ("compare", compare_command),
    ("demo", demo_command),
    ("variants", variants_command),
    ("relations", relations_command),
    ("reproduce", reproduce_command),
    ("figures", figures_command),
    ("report", report_command),
    ("fit", fit_command),
    ("predict", predict_command),
    ("add-class", add_class_command),
    ("remove-class", remove_class_command),
    ("rename-class", rename_class_command),
    ("classes", classes_command),
    ("explain", explain_command),
    ("export", export_command),
):
    app.command(name)(command)
app.add_typer(datasets_app, name="datasets")


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Protograph: relational generalized few-shot learning.

    A classifier that knows many classes takes in new ones from one to five pictures, and uses what is known about how classes
    relate. Start with `protograph demo`.
    """
    end_with_parent()
    if version:
        print(__version__)
        raise typer.Exit
