"""protograph datasets, protograph datasets check"""

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from protograph.cli.display import ShownProgress, reported, show
from protograph.cli.options import AsJson, Root
from protograph.data import DATASETS, find_source, open_dataset
from protograph.data.check import Inspection, inspect_dataset
from protograph.data.splits import DATASET_PARTS

EXAMPLES = 8  # duplicates and unreadable images shown by name

datasets_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@datasets_app.callback(invoke_without_command=True)
@reported
def datasets_command(context: typer.Context, as_json: AsJson = False) -> None:
    """List the datasets by name, or check one."""
    if context.invoked_subcommand:
        return
    table = Table("dataset", "backbone", "recipe", "what it is")
    for name, source in DATASETS.items():
        table.add_row(name, source.backbone_for(source.recipe), source.recipe, source.summary)
    rows = {
        name: {"backbone": source.backbone_for(source.recipe), "recipe": source.recipe, "summary": source.summary}
        for name, source in DATASETS.items()
    }
    show(rows, table, as_json)


@datasets_app.command("check")
@reported
def check_command(
    name: Annotated[str, typer.Argument(help="Dataset, see `protograph datasets`.")],
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Say what is in a dataset: counts, sizes, unreadable and duplicate images, and whether it is the one the paper used."""
    source = find_source(name)
    dataset = open_dataset(name, root, ShownProgress(quiet=as_json), skip_bad=True)
    findings = inspect_dataset(dataset)
    verdict = source.verdict(dataset) if source.verdict else None
    show(findings.as_dict() | {"verdict": verdict}, _table(findings, verdict), as_json)


def _table(findings: Inspection, verdict: str | None) -> Table:
    table = Table(title=f"{findings.dataset}, fingerprint {findings.fingerprint}", title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_row("classes", str(findings.classes))
    table.add_row("images", f"{findings.images}, used at {' x '.join(map(str, findings.image_shape))}")
    for part in DATASET_PARTS:
        of = findings.parts[part]
        each = f"{of['fewest']}" if of["fewest"] == of["most"] else f"{of['fewest']} to {of['most']}"
        table.add_row(part.replace("_", " "), f"{of['classes']} classes, {of['images']} images, {each} of each")
    if findings.sizes:
        table.add_row("sizes", ", ".join(f"{axis} {low} to {high}" for axis, (low, high) in findings.sizes.items()))
    table.add_row("greyscale", str(findings.greyscale))
    for relation, summary in findings.relations.items():
        table.add_row("relation", f"{relation}: {summary}")
    table.add_row("unreadable", _listed([f"{name} ({error})" for name, error in findings.unreadable.items()]))
    table.add_row("duplicates", _listed([" = ".join(names) for names in findings.duplicates]))
    table.add_row("across parts", _listed([" = ".join(names) for names in findings.crossing]))
    if verdict:
        table.add_section()
        table.add_row("verdict", verdict)
    return table


def _listed(lines: list[str]) -> str:
    """How many, and the first of them."""
    if not lines:
        return "none"
    more = [f"and {len(lines) - EXAMPLES} more"] if len(lines) > EXAMPLES else []
    return escape("\n".join([str(len(lines)), *lines[:EXAMPLES], *more]))
