"""protograph report"""

from pathlib import Path
from typing import Annotated

import typer

from protograph._internal.errors import InputError
from protograph._internal.files import write_atomically
from protograph._internal.progress import Progress
from protograph.cli.display import ShownProgress, reported, show
from protograph.cli.evaluate import dataset_of
from protograph.cli.options import AsJson, Device, Root, find_device
from protograph.evaluation.confusions import collect, related_labels
from protograph.evaluation.metrics import evaluation_spec
from protograph.paper.page import results_document
from protograph.report.document import Block, as_html
from protograph.report.run_page import run_document
from protograph.training.loop import trained_model
from protograph.training.run import Run


@reported
def report_command(
    source: Annotated[Path, typer.Argument(metavar="RUN|RESULTS", help="A run folder, or a ledger that `reproduce` filled.")],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    root: Root = None,
    episodes: Annotated[
        int | None, typer.Option(help="Of a run, how many test episodes to look at. (default: 600)", min=1, show_default=False)
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Write one page of HTML on a run or on all results: tables, images, and what is behind them.

    It needs nothing beside it: no network, no other file. Of a run it shows the measures, the curves, what was taken for what,
    and which relations were behind right and wrong answers; of results the paper's numbers beside ours, the conclusions, the
    figures, and the cells that fall short.
    """
    if out.suffix not in (".html", ".htm"):
        raise InputError(f"cannot write {out}: give a name that ends in .html")
    progress = ShownProgress(quiet=as_json)
    if (source / "config.json").exists():
        title, blocks = of_run(source, root, episodes or 600, device, progress)
    elif any(source.glob("*/*-shot")):
        if episodes or device != "auto":
            raise InputError("--episodes and --device are for a run and would be ignored for results: leave them out")
        title, blocks = "Results", results_document(source, root, progress)
    else:
        raise InputError(f"{source} is neither a run folder nor a ledger: name what `train` or `reproduce` left behind")
    write_atomically(out, as_html(f"Protograph: {title}", blocks).encode())
    show({"page": str(out)}, None, True) if as_json else print(out)


def of_run(folder: Path, root: Path | None, episodes: int, device: str, progress: Progress) -> tuple[str, list[Block]]:
    """Title and contents of the page on a run."""
    run = Run.open(folder)
    measured = run.measures
    if measured is None:
        raise InputError(f"{folder} is not finished: give its training command again, then this one")
    place = find_device(device)
    dataset = dataset_of(run, root, progress)
    model = trained_model(run, dataset)
    spec = evaluation_spec(dataset, "test", run.config.recipe.ways, run.config.shots, run.config.recipe.test_queries)
    answers = collect(model.to(place), dataset, spec, episodes, progress)
    title = f"{run.config.variant}, {run.config.dataset}, {run.config.shots}-shot"
    return title, run_document(run, measured, dataset, answers, list(related_labels(model)))
