"""protograph demo"""

from pathlib import Path
from typing import Annotated

import typer

from protograph.cli.display import ShownProgress, measures_table, reported, show
from protograph.cli.options import AsJson, Device
from protograph.cli.train import run_training
from protograph.data import open_dataset
from protograph.figures import draw_curves
from protograph.runs import Run
from protograph.training import configure

VARIANTS = ("aux-only", "gcgpn-aux")


@reported
def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for the two runs and the pictures.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of weights and training episodes.")] = 0,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Show what relations are worth: train without and with them on the built-in letters, a few minutes on a laptop.

    Both rows have the same recipe, steps and seed: `aux-only` knows a new letter by its one example alone, `gcgpn-aux` also
    by what Unicode says of its base letter, its accents and its case.
    """
    progress = ShownProgress(quiet=as_json)
    dataset = open_dataset("letters", progress=progress)
    results, histories = {}, {}
    for variant in VARIANTS:
        folder = out / variant
        config = configure(dataset, variant, shots=1, seed=seed)
        results[variant] = run_training(config, dataset, folder, device, progress)
        histories[variant] = Run.open(folder).history
    draw_curves(histories, out / "curves.png")
    title = f"letters: {dataset.seen} seen classes + 5 novel ones from 1 example each; % over 600 test episodes ± 95 % interval"
    show(results, measures_table({name: result["measures"] for name, result in results.items()}, title), as_json)
    progress.say(f"pictures: {out / 'curves.png'}, {out}/*/episode.png, {out / VARIANTS[1] / 'operator.png'}")
