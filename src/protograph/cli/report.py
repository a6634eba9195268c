"""protograph report"""

from pathlib import Path
from typing import Annotated

import typer

from protograph._internal.errors import InputError
from protograph._internal.files import write_atomically
from protograph._internal.progress import Progress
from protograph.cli.display import ShownProgress, reported, show
from protograph.cli.evaluate import dataset_of
from protograph.cli.options import AsJson, Device, Plugins, Root, find_device, load_plugins
from protograph.evaluation.confusions import collect, related_labels
from protograph.evaluation.metrics import evaluation_spec
from protograph.nn.model import GraphPrototypeNetwork
from protograph.paper.page import results_document
from protograph.report.document import Block, as_html
from protograph.report.run_page import run_document
from protograph.training.run_folder import Run
from protograph.training.setup import trained_model


@reported
def report_command(
    source: Annotated[
        Path, typer.Argument(metavar="RUN|RESULTS", help="A run folder, or the folder of a ledger that `reproduce` fills.")
    ],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
    root: Root = None,
    episodes: Annotated[
        int | None,
        typer.Option(help="For a run, the number of test episodes to evaluate. (default: 600)", min=1, show_default=False),
    ] = None,
    device: Device = "auto",
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Write an HTML page about a run or about all results.

    The page is one file and needs no network. For a run, it shows the measures, the training curves, the confusions of
    classes, and the relations behind right and wrong answers. For results, it shows RESULTS.md and the paper's figures.

    Examples:
        protograph report runs/letters/1-shot/gcgpn-aux/demo-0
        protograph report results --out results.html
    """
    if out.suffix not in (".html", ".htm"):
        raise InputError(f"cannot write {out}: give a name that ends in .html")
    progress = ShownProgress(quiet=as_json)
    if (source / "config.json").exists():
        title, blocks = page_of_run(Run.open(source), root, episodes or 600, device, plugin, progress)
    elif any(source.glob("*/*-shot")):
        if episodes or device != "auto" or plugin:
            raise InputError("--episodes, --device and --plugin are for a run and would be ignored for results: leave them out")
        title, blocks = "Results", results_document(source, root, progress)
    else:
        raise InputError(f"{source} is neither a run folder nor a ledger: name a folder that `train` or `reproduce` wrote")
    write_atomically(out, as_html(f"Protograph: {title}", blocks).encode())
    show({"page": str(out)}, None, True) if as_json else print(out)


def page_of_run(
    run: Run, root: Path | None, episodes: int, device: str, plugins: list[Path] | None, progress: Progress
) -> tuple[str, list[Block]]:
    """Return the title and the contents of the page on a run."""
    load_plugins(plugins, [run])
    measures = run.measures
    if measures is None:
        raise InputError(f"{run.folder} is not finished: repeat its training command, then this one")
    chosen = find_device(device)
    dataset = dataset_of(run, root, progress)
    model = trained_model(run, dataset)
    spec = evaluation_spec(dataset, "test", run.config.recipe.ways, run.config.shots, run.config.recipe.test_queries)
    answers, related = None, tuple[str, ...]()
    if isinstance(model, GraphPrototypeNetwork):
        answers = collect(model.to(chosen), dataset, spec, episodes, progress)
        related = tuple(related_labels(model))
    title = f"{run.config.variant}, {run.config.dataset}, {run.config.shots}-shot"
    return title, run_document(run, measures, dataset, answers, list(related))
