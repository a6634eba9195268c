"""protograph demo"""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from protograph._internal.errors import InputError
from protograph.cli.display import ShownProgress, measures_table, reported, show
from protograph.cli.options import AsJson, Device, find_device
from protograph.cli.train import run_training
from protograph.data import open_dataset
from protograph.device import best_precision
from protograph.evaluation.metrics import nearness
from protograph.nn.few_shot import FEW_SHOT_METHODS
from protograph.nn.model import GraphPrototypeNetwork
from protograph.report.figures import draw_curves
from protograph.training.recipes import stage_before
from protograph.training.run_config import configure
from protograph.training.run_folder import Run
from protograph.training.setup import trained_model
from protograph.variants import find_variant

COMPARED = ("aux-only", "gcgpn-aux")
FEW_SHOT = tuple(method.name for method in FEW_SHOT_METHODS)
ALL = ("pn+", "dfslwof-att", "aux-only", "gcgpn-cos-aux", "gcgpn-aux")


@reported
def demo_command(
    everything: Annotated[
        bool, typer.Option("--all", help="Also train the baselines PN+ and DFSLwoF, and relations by cosine; some ten minutes.")
    ] = False,
    few_shot: Annotated[
        bool, typer.Option("--few-shot", help="Train all few-shot methods in their place; some ten minutes on two cores.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the runs and the images.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of weights and training episodes.")] = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Train two models on the built-in letters, without and with relations: a few minutes on a laptop.

    Both models have the same recipe, steps and seed. `aux-only` knows a new letter by its one example. `gcgpn-aux` also uses
    what Unicode says of its base letter and its accents. --all adds PN+, DFSLwoF and a model whose relations are cosines of
    prototypes, and explains why PN+ fails in the joint label space. --few-shot trains the classics of few-shot learning, and
    says which of them also know the seen classes.

    Examples:
        protograph demo
        protograph demo --all --out runs/all
        protograph demo --few-shot
    """
    if everything and few_shot:
        raise InputError("--all and --few-shot train different models: give one of them")
    progress = ShownProgress(quiet=as_json)
    dataset = open_dataset("letters", progress=progress)
    precision = best_precision(find_device(device))
    results: dict[str, dict[str, Any]] = {}
    histories = {}
    for variant in FEW_SHOT if few_shot else ALL if everything else COMPARED:
        folder = out / variant
        progress.say(f"{variant}: {find_variant(variant).summary}")
        config = configure(dataset, variant, shots=1, seed=seed, precision=precision)
        before = stage_before(find_variant(variant), config.recipe)
        start = out / before.name if before else None
        results[variant] = run_training(config, dataset, folder, device, progress, start)
        histories[variant] = Run.open(folder).history
    draw_curves(histories, out / "curves.png")
    if few_shot:
        title = f"letters: 5 novel classes from 1 example each; % over 600 test episodes, seed {seed}"
        show(results, few_shot_demo_table(results, title), as_json)
        if not as_json:
            print(joint_sentence(results))
        return
    title = f"letters: {dataset.seen} seen classes + 5 novel ones from 1 example each; % over 600 test episodes ± 95 % interval"
    if everything:
        pn = trained_model(Run.open(out / "pn+"), dataset)
        assert isinstance(pn, GraphPrototypeNetwork), "pn+ has prototypes"
        results["pn+"] |= {"nearness": nearness(pn, dataset)}
    show(results, measures_table({name: result["measures"] for name, result in results.items()}, title), as_json)
    if everything and not as_json:
        print(joint_space(results["pn+"], results["aux-only"], int(dataset.train.counts.min())))
    progress.say(f"images: {out / 'curves.png'}, {out}/*/episode.png, {out / COMPARED[1] / 'operator.png'}")


def few_shot_demo_table(results: dict[str, dict[str, Any]], title: str) -> Table:
    """Return a line for each few-shot method, with batch norm by its usual statistics and by others."""
    table = Table(title=title, title_justify="left")
    for heading in ("method", "Novel-Novel", "other batch norm", "H-Mean", "seconds"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for name, result in results.items():
        measures = result["measures"]
        others = [other["measures"]["novel_novel"] for other in result.get("other_statistics", {}).values()]
        texts = [f"{measure['mean']:.2f} ± {measure['ci95']:.2f}" for measure in (measures["novel_novel"], *others)]
        joint = f"{measures['h_mean']['mean']:.2f}" if "h_mean" in measures else ""
        table.add_row(name, texts[0], texts[1] if others else "", joint, f"{result['training_seconds']:.0f}")
    return table


def joint_sentence(results: dict[str, dict[str, Any]]) -> str:
    """Return which of the methods know the seen classes too."""
    joint = [name for name, result in results.items() if "h_mean" in result["measures"]]
    alone = [name for name in results if name not in joint]
    return (
        f"{', '.join(joint)} compare queries with any number of classes, so they classify seen and novel classes together.\n"
        f"{', '.join(alone)} adapt a last layer with one row for each novel class, so they have no place for the seen ones."
    )


def joint_space(pn: dict[str, Any], other: dict[str, Any], images: int) -> str:
    """What becomes of `pn+` in the joint label space beside another variant, told by what was measured."""
    kept, others = (
        100 * run["measures"]["novel_joint"]["mean"] / max(run["measures"]["novel_novel"]["mean"], 1e-9) for run in (pn, other)
    )
    where = pn["nearness"]
    short, near = where["seen_norm"] < where["novel_norm"], where["to_nearest_seen"] < where["to_own"]
    # |q - p|^2 = |q|^2 - 2 q p + |p|^2
    nearer = f", which alone brings it {where['novel_norm'] - where['seen_norm']:.3g} nearer to everything" if short else ""
    return (
        f"pn+ {'collapses' if kept < 50 else 'does not collapse'} in the joint label space: Novel-Joint is {kept:.0f} % of its "
        f"Novel-Novel ({others:.0f} % for {other['variant']}), and {where['taken_for_seen']:.0f} % of the novel queries lie "
        f"nearest to a seen class.\nThe prototype of a seen class, a mean of {images} images, is "
        f"{'shorter' if short else 'not shorter'} than that of a novel one, a single image: squared length per feature "
        f"{where['seen_norm']:.3g} against {where['novel_norm']:.3g}{nearer}.\nA novel query lies on average "
        f"{'nearer to' if near else 'farther from'} some seen prototype than its own: squared distance per feature "
        f"{where['to_nearest_seen']:.3g} against {where['to_own']:.3g}."
    )
