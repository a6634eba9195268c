"""protograph datasets, protograph datasets check"""

from typing import Annotated

import typer
from rich.table import Table

from protograph.cli.display import ShownProgress, escape, reported, show
from protograph.cli.options import AsJson, Plugins, Root, load_plugins
from protograph.data import DATASETS, find_source, open_dataset
from protograph.data.check import DatasetCheck, inspect_dataset
from protograph.data.splits import DATASET_PARTS
from protograph.training.recipes import default_recipe_name

EXAMPLES_SHOWN = 8  # duplicates and unreadable images shown by name

datasets_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@datasets_app.callback(invoke_without_command=True)
@reported
def datasets_command(context: typer.Context, plugin: Plugins = None, as_json: AsJson = False) -> None:
    """List the datasets, or check one.

    Examples:
        protograph datasets
        protograph datasets check cub --root DATA
    """
    load_plugins(plugin)
    if context.invoked_subcommand:
        return
    rows = {
        name: {"backbone": source.backbone, "recipe": default_recipe_name(name), "summary": source.summary}
        for name, source in DATASETS.items()
    }
    table = Table("dataset", "backbone", "recipe", "contents")
    for name, row in rows.items():
        table.add_row(name, *row.values())
    show(rows, table, as_json)


@datasets_app.command("check")
@reported
def check_dataset_command(
    name: Annotated[str, typer.Argument(help="Dataset, see `protograph datasets`.")],
    root: Root = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Check a dataset: count its images, find unreadable and duplicate ones, and say whether the paper used it.

    Examples:
        protograph datasets check folder --root images
    """
    load_plugins(plugin)
    source = find_source(name)
    dataset = open_dataset(name, root, ShownProgress(quiet=as_json), skip_bad=True)
    inspection = inspect_dataset(dataset)
    verdict = source.verdict(dataset) if source.verdict else None
    show(inspection.as_dict() | {"verdict": verdict}, _inspection_table(inspection, verdict), as_json)


def _inspection_table(inspection: DatasetCheck, verdict: str | None) -> Table:
    title = f"{inspection.dataset}, fingerprint {inspection.fingerprint}"
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_row("classes", str(inspection.classes))
    table.add_row("images", f"{inspection.images}, used at {' x '.join(map(str, inspection.image_shape))}")
    for part in DATASET_PARTS:
        counts = inspection.parts[part]
        fewest, most = counts["fewest"], counts["most"]
        per_class = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        row = f"{counts['classes']} classes, {counts['images']} images, {per_class} of each"
        table.add_row(part.replace("_", " "), row)
    if inspection.sizes:
        table.add_row("sizes", ", ".join(f"{axis} {low} to {high}" for axis, (low, high) in inspection.sizes.items()))
    table.add_row("greyscale", str(inspection.greyscale))
    for relation, summary in inspection.relations.items():
        table.add_row("relation", f"{relation}: {summary}")
    table.add_row("unreadable", _count_with_examples([f"{name} ({error})" for name, error in inspection.unreadable.items()]))
    table.add_row("duplicates", _count_with_examples([" = ".join(names) for names in inspection.duplicates]))
    table.add_row("across parts", _count_with_examples([" = ".join(names) for names in inspection.crossing]))
    if verdict:
        table.add_section()
        table.add_row("verdict", verdict)
    return table


def _count_with_examples(lines: list[str]) -> str:
    """Return the number of lines, and the first of them below."""
    if not lines:
        return "none"
    rest = [f"and {len(lines) - EXAMPLES_SHOWN} more"] if len(lines) > EXAMPLES_SHOWN else []
    return escape("\n".join([str(len(lines)), *lines[:EXAMPLES_SHOWN], *rest]))
