"""The command: one file per verb; exit codes 0 done, 1 a defect of ours, 2 bad input or a full disk, 130 interrupted.

The modules of verbs take PyTorch along, which takes a second to import, so each is imported once its verb is named. The
overview of all does with what stands here.
"""

import gc
from functools import cache
from pkgutil import resolve_name
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from protograph._version import __version__
from protograph.cli.jobs import end_with_parent

VERBS = {  # where each is, and the first line of its help
    "train": ("train:train_command", "Train a model and test it."),
    "evaluate": (
        "evaluate:evaluate_command",
        "Measure a trained run: six accuracies with 95 % intervals over fixed episodes.",
    ),
    "compare": (
        "compare:compare_command",
        "Compare runs on the validation classes: what each changes of its recipe, and what that brought.",
    ),
    "demo": (
        "demo:demo_command",
        "Show what relations are worth: train without and with them on the built-in letters, a few minutes on a laptop.",
    ),
    "recipes": ("recipes:recipes_command", "List the recipes, or show the settings that a run would use."),
    "variants": ("variants:variants_command", "List the models by name, with the operators that make them."),
    "relations": ("relations:relations_command", "Show how similar classes are by a relation, and write or draw the matrix."),
    "reproduce": (
        "reproduce:reproduce_command",
        "Train the paper's tables, or a part of them, and compare the measures with the published ones.",
    ),
    "figures": (
        "figures:figures_command",
        "Draw the paper's figures from the ledger, and name the cells that are missing.",
    ),
    "report": (
        "report:report_command",
        "Write an HTML page on a run or on all results.",
    ),
    "fit": ("fit:fit_command", "Fit a classifier on your own images, and keep it in one file."),
    "predict": ("classifier:predict_command", "Predict the classes of images."),
    "add-class": ("classifier:add_class_command", "Add a class from a few images, without training."),
    "remove-class": ("classifier:remove_class_command", "Remove a class, fitted or added. The file is changed in place."),
    "rename-class": ("classifier:rename_class_command", "Rename a class. The file is changed in place."),
    "classes": ("classifier:classes_command", "List the classes of a model file, with its backbone, variant and relations."),
    "explain": (
        "classifier:explain_command",
        "Show the classes nearest to an image, with the contributions of their examples and of related classes.",
    ),
    "export": ("classifier:export_command", "Write a model as ONNX."),
    "datasets": ("datasets:datasets_app", "List the datasets, or check one."),
}


class Verbs(TyperGroup):
    """The verbs, known by their summaries until one is named."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The verb that is named, with all its options."""
        name, summarised, rest = super().resolve_command(ctx, args)
        return name, find_verb(name) if name else summarised, rest


def find_verb(name: str) -> Any:
    """The verb of that name as its module declares it."""
    found = _declared(VERBS[name][0])
    if isinstance(found, typer.Typer):
        return get_command(found)
    alone = typer.Typer(add_completion=False)
    alone.command(name)(found)
    return get_command(alone)


@cache
def _declared(place: str) -> Any:
    """What is there. All that it imports stays, and to search that for garbage, now and at exit, takes half a second."""
    gc.disable()
    try:
        return resolve_name(f"protograph.cli.{place}")
    finally:
        gc.enable()
        gc.freeze()


app = typer.Typer(cls=Verbs, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for name, (_, summary) in VERBS.items():
    app.command(name, help=summary)(lambda: None)


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Protograph: relational generalized few-shot learning.

    A classifier that knows many classes takes in new ones from one to five images, and uses how classes relate.

    Start with `protograph demo`.
    """
    end_with_parent()
    if version:
        print(__version__)
        raise typer.Exit
