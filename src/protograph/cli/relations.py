"""The command `protograph relations`."""

import io
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.table import Table
from torch import Tensor

from protograph._internal.errors import InputError, unknown_name
from protograph._internal.files import write_atomically
from protograph.cli.display import ShownProgress, escape, reported, show
from protograph.cli.options import AsJson, Plugins, Root, SkipBad, load_plugins
from protograph.data import Dataset, open_dataset
from protograph.relations import MatrixRelation, MissingClassesError, Relation, RelationSpec, check_similarities, named_kinds
from protograph.relations.base import NAMES_LISTED

STRONGEST, WEAKEST = 10, 5


@reported
def relations_command(
    relation: Annotated[
        str,
        typer.Argument(
            metavar="SPEC",
            help="A relation of the dataset, a .csv/.npz similarity matrix, or one of: "
            + "; ".join(kind.help for kind in named_kinds().values())
            + ".",
        ),
    ],
    dataset: Annotated[
        str | None, typer.Option(help="Dataset whose classes to relate, see `protograph datasets`.", show_default=False)
    ] = None,
    root: Root = None,
    names: Annotated[
        str | None, typer.Option(help="Class names with commas between, instead of a dataset.", show_default=False)
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
    plugin: Plugins = None,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Show how similar classes are by a relation, and save or draw the matrix.

    Classes that the relation does not know are named and left out.

    Examples:
        protograph relations wordnet --names "robin,crane.n.05"
        protograph relations attributes --dataset cub --root DATA
        protograph relations attributes:table.csv --out own.npz --image own.png
    """
    load_plugins(plugin)
    check_relation_options(out, image, dataset, {"--names": names}, {"--skip-bad": skip_bad, "--root": root})
    progress = ShownProgress(quiet=as_json)
    data = open_dataset(dataset, root, progress, skip_bad) if dataset else None
    settings = {"centred": centred or None, "measure": measure, "power": power}
    source = open_source(relation, data, settings)
    classes = find_classes(source, relation, data, names)
    if chosen is not None and chosen not in classes:
        raise unknown_name("class", chosen, classes)
    first_novel, all_titles = (data.seen, data.titles) if data else (len(classes), {})
    similarities, lacking = similarities_of_known(source, classes, chosen)
    seen = sum(name not in lacking for name in classes[:first_novel])
    classes = [name for name in classes if name not in lacking]
    if lacking:
        listed = ", ".join(lacking[:NAMES_LISTED]) + (", ..." if len(lacking) > NAMES_LISTED else "")
        count = len(classes) + len(lacking)
        progress.say(f"note: relation '{relation}' lacks {listed} ({len(lacking)} of {count} classes), left out here")
    chosen = chosen or classes[seen if seen < len(classes) else 0]
    matrix = check_similarities(similarities, classes, relation)
    result: dict[str, Any] = {"relation": relation, "classes": len(classes), "seen": seen if data else None, "class": chosen}
    result["lacking"] = list(lacking)
    result |= neighbours(matrix, classes, chosen) | {"statistics": statistics(matrix)}
    if senses := source.senses(classes):
        result["senses"] = [
            {"name": sense.name, "by": sense.by, "id": sense.id, "sense": sense.sense, "gloss": sense.gloss} for sense in senses
        ]
    titles = [all_titles.get(name, name) for name in classes]
    if out:
        write_matrix(matrix, classes, relation, out)
    if image:
        from protograph.report.figures import draw_similarities  # matplotlib takes a third of a second

        dataset_name = f" of {data.name}" if data else ""
        draw_similarities(matrix, titles, seen, image, f"relation '{relation}'{dataset_name}, similar classes side by side")
    if as_json:
        show(result, None, as_json)
        return
    titled = dict(zip(classes, titles, strict=True))
    for table in (senses_table(relation, result.get("senses", [])), neighbours_table(result, titled)):
        if table.row_count:
            show(result, table, as_json)
    for path in filter(None, (out, image)):
        progress.say(f"wrote {path}")


def check_relation_options(
    out: Path | None, image: Path | None, dataset: str | None, without: dict[str, Any], needing: dict[str, Any]
) -> None:
    """Raise an `InputError` for options that cannot be followed.

    Args:
        out: The matrix to write.
        image: The image to draw.
        dataset: The name of the dataset, if any.
        without: Options that a dataset leaves without effect.
        needing: Options that have an effect on a dataset only.

    """
    for path, suffix in ((out, ".npz"), (image, ".png")):
        if path and path.suffix != suffix:
            raise InputError(f"cannot write {path}: give a name that ends in {suffix}")
    for option, value in without.items():
        if dataset and value:
            raise InputError(f"{option} would be ignored beside --dataset: give one of them")
    for option, value in needing.items():
        if value and not dataset:
            raise InputError(f"{option} would be ignored without --dataset: name the dataset")


def write_matrix(matrix: Tensor, classes: list[str], relation: str, out: Path) -> None:
    """Write similarities [V, V] as a .npz file that `MatrixRelation.read` reads."""
    content = io.BytesIO()
    np.savez_compressed(content, **MatrixRelation(matrix, classes, relation).arrays())  # type: ignore[arg-type]
    write_atomically(out, content.getvalue())


def open_source(name: str, dataset: Dataset | None, settings: dict[str, Any]) -> Relation:
    """Return a relation of the dataset, or the one that the name specifies."""
    if dataset and name in dataset.relations:
        for setting, value in settings.items():
            if value is not None:
                raise InputError(f"relation '{name}' of {dataset.name} has no setting '{setting}': leave it out")
        return dataset.relations[name]
    spec = RelationSpec.parse(name, dataset.relations if dataset else ())
    return spec.open(dataset.titles if dataset else None, **settings)


def find_classes(source: Relation, name: str, dataset: Dataset | None, names: str | None) -> list[str]:
    """Return the classes to relate: those of the dataset, those of --names, or all of the relation."""
    if dataset:
        return list(dataset.classes)
    if names is not None:
        classes = [part.strip() for part in names.split(",") if part.strip()]
        if len(set(classes)) != len(classes) or not classes:
            raise InputError(f"--names takes different class names with commas between, not '{names}'")
        return classes
    if source.classes is not None:
        return list(source.classes)
    raise InputError(f"relation '{name}' cannot list its classes: give --dataset or --names")


def similarities_of_known(source: Relation, classes: list[str], chosen: str | None) -> tuple[Tensor, tuple[str, ...]]:
    """Return the similarities of the classes that a relation knows, and the names of those that it lacks.

    Raises:
        MissingClassesError: It knows none of them, or not the chosen one.

    """
    try:
        return source.similarities(classes), ()
    except MissingClassesError as error:
        lacking = set(error.missing)
        known = [name for name in classes if name not in lacking]
        if not (lacking and known) or chosen in lacking:
            raise
        return source.similarities(known), error.missing


def neighbours(matrix: Tensor, classes: list[str], chosen: str) -> dict[str, list[dict[str, Any]]]:
    """Return the classes that mean most and least to the chosen class."""
    index = classes.index(chosen)
    row = matrix.index_select(0, torch.tensor([index])).to_dense()[0]
    order = [column for column in row.argsort(descending=True, stable=True).tolist() if column != index]
    pairs = [{"class": classes[column], "similarity": round(float(row[column]), 6)} for column in order]
    strongest = pairs[:STRONGEST]
    return {"strongest": strongest, "weakest": pairs[len(strongest) :][-WEAKEST:]}


def statistics(matrix: Tensor) -> dict[str, float | None]:
    """Return the lowest, median and highest similarity of two classes, and the effective neighbours at temperature 1.

    Effective neighbours are the mean perplexity of a softmax over each row: V where all classes count equally. In a sparse
    graph only the edges count, as in the model.
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
    lowest, median, highest = (float(value) for value in (off_diagonal.min(), off_diagonal.median(), off_diagonal.max()))
    return {"min": lowest, "median": median, "max": highest, "effective_neighbours": round(float(effective), 3)}


def neighbours_table(result: dict[str, Any], titles: dict[str, str]) -> Table:
    """Return a table of the strongest and weakest relations of a class, with statistics of all."""
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


def senses_table(relation: str, senses: list[dict[str, str]]) -> Table:
    """Return a table of the meanings of all classes that are not given by an id."""
    table = Table(title=escape(f"{relation}: the meanings it takes the names for"), title_justify="left")
    for heading in ("class", "found by", "id", "sense", "which is"):
        table.add_column(heading, no_wrap=heading != "which is")
    for sense in senses:
        if sense["by"] != "id":
            cells = (sense["name"], sense["by"], sense["id"], sense["sense"], shorten(sense["gloss"], 56, placeholder=" …"))
            table.add_row(*map(escape, cells))
    return table
