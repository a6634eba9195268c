"""The command: one file per verb; exit codes 0 done, 1 a defect of ours, 2 bad input or a full disk, 130 interrupted.

The modules of verbs import PyTorch, which takes a second, so each is imported once its verb is named. The overview needs only
this file.
"""

import gc
import io
import sys
from functools import cache
from pkgutil import resolve_name
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from protograph._version import __version__
from protograph.cli.jobs import end_with_parent

PANELS = {  # the verbs by panel of the overview: where each is, and the first line of its help
    "Use: a classifier on your own images": {
        "fit": ("fit:fit_command", "Fit a classifier on your own images and save it as one file."),
        "predict": ("predicting:predict_command", "Predict the classes of images."),
        "add-class": ("classifier:add_class_command", "Add a class from a few images, without training."),
        "serve": ("serve:serve_command", "Teach and ask a classifier in a browser, or over HTTP."),
        "explain": (
            "classifier:explain_command",
            "Show the classes nearest to an image, and what their examples and related classes contribute.",
        ),
        "classes": (
            "classifier:classes_command",
            "List the classes of a model file, with its backbone, variant and relations.",
        ),
        "inspect": ("inspection:inspect_command", "Show what a model file says of itself, without loading it."),
        "rename-class": ("classifier:rename_class_command", "Rename a class, in place."),
        "add-classes": ("growing:add_classes_command", "Add a class from each folder of images, with one update for all."),
        "check": (
            "teaching:check_command",
            "Tell whether a model file was taught enough: per class, what it confuses, and what to add.",
        ),
        "correct": (
            "teaching:correct_command",
            "Correct wrong answers: images become examples of the right class, new or old.",
        ),
        "relate": ("teaching:relate_command", "Say anew how a class relates to others, or list what it is likely to be like."),
        "add-examples": ("growing:add_examples_command", "Add more images of a class that exists, fitted or added."),
        "refit": ("growing:refit_command", "Fit a model file anew, on its kept images and those of added classes."),
        "history": ("history:history_command", "List the changes of a model file that can be undone or redone."),
        "undo": ("history:undo_command", "Take back the last change of a model file."),
        "redo": ("history:redo_command", "Make the change of a model file that was undone last once more."),
        "remove-examples": ("teaching:remove_examples_command", "Remove some examples of a class."),
        "remove-class": ("classifier:remove_class_command", "Remove a fitted or added class, in place."),
        "export": ("classifier:export_command", "Write a model as ONNX."),
        "embed": ("embed:embed_command", "Turn any number of images into features, in shards that others read."),
        "relations": (
            "relations:relations_command",
            "Show how similar classes are by a relation, and save or draw the matrix.",
        ),
    },
    "Train: models of the paper and your own": {
        "demo": (
            "demo:demo_command",
            "Train two models on the built-in letters, without and with relations: a few minutes on a laptop.",
        ),
        "train": ("train:train_command", "Train a model and test it."),
        "evaluate": (
            "evaluate:evaluate_command",
            "Measure a trained run over fixed test episodes, or a model file on a folder of images.",
        ),
        "compare": ("compare:compare_command", "Compare runs on the validation classes, with what each changes of its recipe."),
        "variants": ("variants:variants_command", "List the models by name, with the operators that make them."),
        "recipes": ("recipes:recipes_command", "List the recipes, or show the settings that a run would use."),
        "datasets": ("datasets:datasets_app", "List the datasets, or check one."),
    },
    "Reproduce: the paper's tables and figures": {
        "reproduce": (
            "reproduce:reproduce_command",
            "Train the paper's tables, or a part of them, and compare the measures with the published ones.",
        ),
        "figures": (
            "figures:figures_command",
            "Draw the paper's figures from the ledger, and name the cells that are missing.",
        ),
        "report": ("report:report_command", "Write an HTML page about a run or about all results."),
    },
}
VERBS = {name: verb for verbs in PANELS.values() for name, verb in verbs.items()}


class Verbs(TyperGroup):
    """The verbs, known by their summaries until one is named."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command. Characters that the encoding of the output lacks are shown by their numbers."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        return super().main(*args, **kwargs)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the verb that is named, with all its options."""
        name, summarised, rest = super().resolve_command(ctx, args)
        return name, find_verb(name) if name else summarised, rest


def find_verb(name: str) -> Any:
    """Return the verb of that name as its module declares it."""
    declared = _declared(VERBS[name][0])
    if isinstance(declared, typer.Typer):
        return get_command(declared)
    group = typer.Typer(add_completion=False)
    group.command(name)(declared)
    return get_command(group)


@cache
def _declared(path: str) -> Any:
    """Return an object of a module. All that it imports stays; searching that for garbage would take half a second."""
    gc.disable()
    try:
        return resolve_name(f"protograph.cli.{path}")
    finally:
        gc.enable()
        gc.freeze()


app = typer.Typer(cls=Verbs, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for panel, verbs in PANELS.items():
    for name, (_, summary) in verbs.items():
        app.command(name, help=summary, rich_help_panel=panel)(lambda: None)


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Classify images of many classes, and add a class from one to five images without retraining.

    Start with `protograph fit` on a folder that has a folder of images for each class, or with `protograph demo`.
    """
    end_with_parent()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that a terminal cannot show ends no command
    if version:
        print(__version__)
        raise typer.Exit
