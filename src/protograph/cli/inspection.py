"""The verb inspect."""

from collections import Counter
from dataclasses import asdict

from rich.table import Table

from protograph._internal.wording import counted
from protograph.classifier.inspection import Inspection, inspect_model
from protograph.cli.classifier import Model
from protograph.cli.display import escape, reported, show, visible
from protograph.cli.options import AsJson

MOST_TENSORS = 12  # of a part, which are listed one by one


@reported
def inspect_command(model: Model, as_json: AsJson = False) -> None:
    """Show what a model file says of itself, without loading it.

    Only its header is read. It says which tensors there are, and what would be opened beside the file. Whether it is true is
    checked where the file is loaded. Of a large file, to which changes are appended, each is listed.

    Examples:
        protograph inspect birds.pg
    """
    found = inspect_model(model)
    if as_json:
        show({"file": str(model), **asdict(found)}, None, as_json)
        return
    tables = (summary_table(found, str(model)), tensors_table(found), *([segments_table(found)] if found.segments else []))
    for table in tables:
        show(None, table, as_json)
    if found.unfinished:
        print(f"its last {counted(found.unfinished, 'byte')} are no finished change: the next one overwrites them")
    print("beside the file, nothing would be opened" if not found.opens else "beside the file, this would be opened:")
    for line in found.opens:
        print(visible(f"- {line}"))


def summary_table(found: Inspection, name: str) -> Table:
    """Return the table of what a file says, one row per part."""
    table = Table(title=escape(f"{name}: {found.size:,} bytes, as its header says"), title_justify="left", min_width=80)
    table.add_column("part")
    table.add_column("value", overflow="fold")
    for part, value in {**found.metadata, **found.parts}.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
        if text:
            table.add_row(escape(part), escape(text))
    return table


def tensors_table(found: Inspection) -> Table:
    """Return the table of tensors; of a part with many, such as the encoder's, their number and size."""
    parts = Counter(tensor.name.partition(".")[0] for tensor in found.tensors)
    table = Table(title=f"{len(found.tensors)} tensors", title_justify="left", min_width=80)
    for heading in ("tensor", "type", "shape", "bytes"):
        table.add_column(heading, justify="right" if heading == "bytes" else "left", overflow="fold")
    for tensor in found.tensors:
        if parts[tensor.name.partition(".")[0]] <= MOST_TENSORS:
            table.add_row(escape(tensor.name), escape(tensor.dtype), " x ".join(map(str, tensor.shape)), f"{tensor.size:,}")
    for part, count in parts.items():
        if count > MOST_TENSORS:
            size = sum(tensor.size for tensor in found.tensors if tensor.name.partition(".")[0] == part)
            table.add_row(escape(f"{part}.*"), "", counted(count, "tensor"), f"{size:,}")
    return table


def segments_table(found: Inspection) -> Table:
    """Return the table of the segments of a large file."""
    table = Table(title=f"{counted(len(found.segments), 'segment')}", title_justify="left", min_width=80)
    for heading in ("segment", "what", "state", "", "bytes"):
        table.add_column(heading, justify="right" if heading == "bytes" else "left", overflow="fold")
    for segment in found.segments:
        left_out = "" if segment.present or segment.kind == "return" else "undone"
        table.add_row(segment.kind, escape(visible(segment.what)), segment.digest[:12], left_out, f"{segment.size:,}")
    return table
