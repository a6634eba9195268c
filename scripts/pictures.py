"""Make every picture of README.md and the documentation by real commands: `make pictures`, some minutes on two CPU cores.

docs/images/add-class.png    the quick start: images of a class that was added, and what the classifier answers
docs/images/episode.png      `protograph demo`: a test episode of the letters
docs/images/curves.png       `protograph demo`: learning curves without and with relations
docs/images/operator.png     `protograph demo`: the relation of base letters as an operator
docs/images/shots-cub.png    `protograph figures shots`: Joint-Joint against the number of shots on CUB, from the ledger
"""

import contextlib
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from pages import QUICK_START, ROOT, blocks, command, run_block
from PIL import Image

from protograph import Classifier

IMAGES = ROOT / "docs" / "images"
SHOWN = 14  # images of the added class
RIGHT, WRONG, FAINT = "#009e73", "#d55e00", "0.45"  # as in the pictures of a run


def add_class_figure() -> Figure:
    """Draw the known digits, the five images of the added one, and the answers for images that the classifier was not shown."""
    first = next(blocks(QUICK_START.read_text(encoding="utf-8")))
    run_block(first, {})
    command(["protograph", "fit", "digits", "--out", "digits.pg", "--backbone", "conv4"])
    command(["protograph", "add-class", "digits.pg", "3", "threes"])
    queries = sorted(Path("queries").glob("*.png"), key=lambda file: int(file.stem))[-SHOWN:]
    others = [sorted(folder.glob("*.png"))[-1] for folder in sorted(Path("digits").iterdir())]
    classifier = Classifier.load("digits.pg")
    answers = zip(queries, classifier.predict(queries), classifier.predict_proba(queries).max(1), strict=True)
    figure, axes = plt.subplots(3, SHOWN, figsize=(10.5, 4.2))
    figure.subplots_adjust(left=0.01, right=0.99, top=0.9, bottom=0.07, hspace=0.75, wspace=0.15)
    for axis in axes.flat:
        axis.set_axis_off()
    titles = ("fit: images of nine digits", "add-class 3: five images, no training", "predict: images that it was not shown")
    for row, title in zip(axes, titles, strict=True):
        row[0].text(0, 1.2, title, transform=row[0].transAxes, fontsize=12)
    for axis, file in zip(axes[0], others, strict=False):
        _draw(axis, file, file.parent.name, FAINT)
    for axis, file in zip(axes[1], sorted(Path("threes").glob("*.png")), strict=False):
        _draw(axis, file, "3", FAINT)
    for axis, (file, label, probability) in zip(axes[2], answers, strict=True):
        _draw(axis, file, f"{label}   {100 * probability:.0f} %", RIGHT if label == "3" else WRONG)
    return figure


def _draw(axis: plt.Axes, file: Path, text: str, colour: str) -> None:
    axis.imshow(Image.open(file), cmap="gray")
    axis.text(0.5, -0.05, text, transform=axis.transAxes, ha="center", va="top", fontsize=9, color=colour)


def main() -> None:
    """Make all pictures."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        add_class_figure().savefig(IMAGES / "add-class.png", dpi=110)
        command(["protograph", "figures", "shots", "--results", str(ROOT / "results"), "--out", "figures"])
        command(["protograph", "demo", "--out", "demo"])
        made = {
            "shots-cub.png": Path("figures", "shots-cub.png"),
            "episode.png": Path("demo", "gcgpn-aux", "episode.png"),
            "curves.png": Path("demo", "curves.png"),
            "operator.png": Path("demo", "gcgpn-aux", "operator.png"),
        }
        for name, path in made.items():
            Image.open(path).convert("RGB").quantize(128).save(IMAGES / name, optimize=True)
    sys.stdout.write(f"wrote {IMAGES.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
