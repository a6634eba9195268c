"""protograph relations"""

import io
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any, get_args

import numpy as np
import torch
import typer
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from protograph._internal.errors import InputError, unknown_name
from protograph._internal.files import write_atomically
from protograph.cli.display import ShownProgress, reported, show
from protograph.cli.options import AsJson, Root, SkipBad
from protograph.data import Dataset, open_dataset
from protograph.relations import (
    KINDS,
    AttributeRelation,
    MatrixRelation,
    Relation,
    RelationSpec,
    WordNetRelation,
    check_similarities,
)
from protograph.relations.edges import Measure

STRONGEST, WEAKEST = 10, 5


@reported
def relations_command(
    relation: Annotated[
        str,
        typer.Argument(
            metavar="SPEC",
            help="A relation of the dataset's, a .csv/.npz similarity matrix, or one of: " + "; ".join(KINDS.values()) + ".",
        ),
    ],
    dataset: Annotated[
        str | None, typer.Option(help="Dataset whose classes are related, see `protograph datasets`.", show_default=False)
    ] = None,
    root: Root = None,
    names: Annotated[
        str | None, typer.Option(help="Classes instead of a dataset's, with commas between.", show_default=False)
    ] = None,
    chosen: Annotated[
        str | None,
        typer.Option("--class", help="Class to show relations of. (default: the first novel one)", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the matrix as .npz, for `train --relations`.", show_default=False)
    ] = None,
    image: Annotated[Path | None, typer.Option(help="Draw the matrix as .png.", show_default=False)] = None,
    centred: Annotated[
        bool, typer.Option("--centred", help="Subtract column means first; for attributes and embeddings.")
    ] = False,
    measure: Annotated[
        str | None, typer.Option(help="path or adjacency, for edges. (default: path)", show_default=False)
    ] = None,
    power: Annotated[
        int | None, typer.Option(help="Steps of a walk, for edges with --measure adjacency. (default: 1)", show_default=False)
    ] = None,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Show what a relation says of classes, and write or draw it."""
    for path, suffix in ((out, ".npz"), (image, ".png")):
        if path and path.suffix != suffix:
            raise InputError(f"cannot write {path}: give a name that ends in {suffix}")
    if dataset and names:
        raise InputError("--names would be ignored beside --dataset: give one of them")
    if skip_bad and not dataset:
        raise InputError("--skip-bad would be ignored without --dataset: name the dataset")
    if root and not dataset:
        raise InputError("--root would be ignored without --dataset: name the dataset")
    data = open_dataset(dataset, root, ShownProgress(quiet=as_json), skip_bad) if dataset else None
    settings = {"centred": centred or None, "measure": measure, "power": power}
    source = open_source(relation, data, settings)
    classes = find_classes(source, relation, data, names)
    seen = data.seen if data else len(classes)
    chosen = chosen or classes[seen if seen < len(classes) else 0]
    if chosen not in classes:
        raise unknown_name("class", chosen, classes)
    matrix = check_similarities(source.similarities(classes), classes, relation)
    result: dict[str, Any] = {"relation": relation, "classes": len(classes), "seen": seen if data else None, "class": chosen}
    result |= neighbours(matrix, classes, chosen) | {"statistics": statistics(matrix)}
    if isinstance(source, WordNetRelation):
        result["senses"] = [
            {"name": sense.name, "by": sense.by, "id": sense.id, "sense": sense.sense, "gloss": sense.gloss}
            for sense in source.senses(classes)
        ]
    titles = [data.title(row) if data else name for row, name in enumerate(classes)]
    if out:
        content = io.BytesIO()
        np.savez_compressed(content, **MatrixRelation(matrix, classes, relation).arrays())  # type: ignore[arg-type]
        write_atomically(out, content.getvalue())
    if image:
        from protograph.report.figures import (
            draw_similarities,  # matplotlib takes a third of a second, and most calls do without
        )

        where = f" of {data.name}" if data else ""
        draw_similarities(matrix, titles, seen, image, f"relation '{relation}'{where}, similar classes side by side")
    if as_json:
        show(result, None, as_json)
        return
    titled = dict(zip(classes, titles, strict=True))
    for table in (senses_table(result.get("senses", [])), neighbours_table(result, titled)):
        if table.row_count:
            show(result, table, as_json)
    for written in filter(None, (out, image)):
        ShownProgress().say(f"wrote {written}")


def open_source(name: str, dataset: Dataset | None, settings: dict[str, Any]) -> Relation:
    """A dataset's own relation, or what the name specifies."""
    if dataset and name in dataset.relations:
        for setting, value in settings.items():
            if value is not None:
                raise InputError(f"relation '{name}' of {dataset.name} has no setting '{setting}': leave it out")
        return dataset.relations[name]
    if settings["measure"] not in (None, *get_args(Measure)):
        raise unknown_name("measure", settings["measure"], get_args(Measure))
    spec = RelationSpec.parse(name, dataset.relations if dataset else ())
    return spec.open(dataset.titles if dataset else None, **settings)


def find_classes(source: Relation, name: str, dataset: Dataset | None, names: str | None) -> list[str]:
    """The classes to relate: a dataset's, those given, or all that a table has rows for."""
    if dataset:
        return list(dataset.classes)
    if names is not None:
        given = [part.strip() for part in names.split(",") if part.strip()]
        if len(set(given)) != len(given) or not given:
            raise InputError(f"--names takes different class names with commas between, not '{names}'")
        return given
    if isinstance(source, MatrixRelation | AttributeRelation):
        return list(source.names)
    raise InputError(f"relation '{name}' answers for any classes: give --dataset or --names")


def neighbours(matrix: Tensor, classes: list[str], chosen: str) -> dict[str, list[dict[str, Any]]]:
    """What means most and least to the chosen class."""
    place = classes.index(chosen)
    row = matrix.index_select(0, torch.tensor([place])).to_dense()[0]
    order = [column for column in row.argsort(descending=True, stable=True).tolist() if column != place]
    pairs = [{"class": classes[column], "similarity": round(float(row[column]), 6)} for column in order]
    strongest = pairs[:STRONGEST]
    return {"strongest": strongest, "weakest": pairs[len(strongest) :][-WEAKEST:]}


def statistics(matrix: Tensor) -> dict[str, float | None]:
    """Least, median and greatest similarity of two classes, and effective neighbours at temperature 1.

    Effective neighbours are the perplexity of a softmax over a row, averaged: V where all classes count alike. Of a sparse
    graph only the edges take part, as in the model.
    """
    dense, classes = matrix.to_dense().double(), matrix.shape[0]
    off_diagonal = dense[~torch.eye(classes, dtype=torch.bool)]
    scores = dense
    if matrix.layout != torch.strided:
        absent = torch.full_like(dense, -torch.inf)
        scores = absent.index_put(tuple(matrix.indices()), matrix.values().double())
    shares = scores.softmax(1)
    effective = (-torch.special.xlogy(shares, shares).sum(1)).exp().mean()
    if not len(off_diagonal):
        return {"min": None, "median": None, "max": None, "effective_neighbours": float(effective)}
    least, median, greatest = (float(value) for value in (off_diagonal.min(), off_diagonal.median(), off_diagonal.max()))
    return {"min": least, "median": median, "max": greatest, "effective_neighbours": round(float(effective), 3)}


def neighbours_table(result: dict[str, Any], titles: dict[str, str]) -> Table:
    """Strongest and weakest relations of a class, and what holds of all of them."""
    numbers = result["statistics"]
    spread = "".join(f"{key} {numbers[key]:.4g}, " for key in ("min", "median", "max") if numbers[key] is not None)
    table = Table(
        title=escape(f"{result['relation']}: what other classes mean to {titles[result['class']]}"),
        caption=f"all {result['classes']} classes: {spread}{numbers['effective_neighbours']:.4g} effective neighbours",
        title_justify="left",
        caption_justify="left",
        min_width=90,  # room for title and caption
    )
    table.add_column("class")
    table.add_column("similarity", justify="right")
    for group in ("strongest", "weakest"):
        for pair in result[group]:
            table.add_row(escape(titles[pair["class"]]), f"{pair['similarity']:.4f}")
        table.add_section()
    return table


def senses_table(senses: list[dict[str, str]]) -> Table:
    """What every class that was not given by its id was taken as."""
    table = Table(title="what WordNet takes the names for", title_justify="left")
    for heading in ("class", "found by", "id", "sense", "which is"):
        table.add_column(heading, no_wrap=heading != "which is")
    for sense in senses:
        if sense["by"] != "id":
            cells = (sense["name"], sense["by"], sense["id"], sense["sense"], shorten(sense["gloss"], 56, placeholder=" …"))
            table.add_row(*map(escape, cells))
    return table
