"""The drawing of a heatmap: an image, and beside it which of its parts spoke for a class."""

import textwrap
from pathlib import Path

import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from torch.nn.functional import interpolate

from protograph.classifier.explanation import Heatmap
from protograph.report.figures import SMALL, save

BLUE_TO_RED = "RdBu_r"  # red speaks for the class, blue against it
FAINTEST, STRONGEST = 0.15, 0.8  # opacity of the colours over the image, by their strength
WIDTH = 46  # characters of a title over one image


def draw_heatmap(heatmap: Heatmap, path: Path, title: str = "") -> None:
    """Draw an image as the network sees it, and beside it the scores of its positions over the image in grey.

    Args:
        heatmap: The heatmap.
        path: The file to write.
        title: What the image is called.

    """
    save(heatmap_figure(heatmap, title), path)


def heatmap_figure(heatmap: Heatmap, title: str = "") -> Figure:
    """Return the figure that `draw_heatmap` writes."""
    image = heatmap.pixels.permute(1, 2, 0).numpy().repeat(3 // heatmap.pixels.shape[0], axis=2)
    height, width = image.shape[:2]
    edge = 3.4
    figure, (left, right) = plt.subplots(1, 2, figsize=(2 * edge + 1.1, edge * height / width + 0.62), layout="constrained")
    left.imshow(image)
    left.set_title(_wrapped(title), fontsize=SMALL + 2)
    grey = image.astype(float).mean(2)
    right.imshow(grey, cmap="gray", vmin=-80, vmax=300)  # faint, so that the colours show
    scores = heatmap.scores.numpy()
    limit = max(abs(scores).max(), 1e-9)
    smooth = interpolate(torch.from_numpy(scores)[None, None], (height, width), mode="bicubic", align_corners=False)[0, 0]
    strength = (smooth.abs() / limit).clamp(0, 1).numpy()
    norm = TwoSlopeNorm(0, -limit, limit)
    right.imshow(smooth.numpy(), cmap=BLUE_TO_RED, norm=norm, alpha=FAINTEST + (STRONGEST - FAINTEST) * strength)
    rival = heatmap.against or "the mean of all other classes"
    right.set_title(_wrapped(f"{heatmap.name} against {rival}: {heatmap.score:+z.2f}"), fontsize=SMALL + 2)
    for axes in (left, right):
        axes.set_axis_off()
    bar = figure.colorbar(plt.cm.ScalarMappable(norm, BLUE_TO_RED), ax=right, shrink=0.85, pad=0.02)
    bar.set_ticks(np.linspace(-limit, limit, 5).tolist())
    bar.ax.yaxis.set_major_formatter(lambda value, position: f"{value:+z.2f}" if round(value, 2) else "0")
    bar.ax.tick_params(labelsize=SMALL)
    bar.set_label(f"what each of {scores.shape[0]} x {scores.shape[1]} positions adds to the logit", fontsize=SMALL)
    return figure


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, WIDTH, break_on_hyphens=False))
