from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from PIL import Image

from data.layouts import blocks
from protograph.classifier.explanation import Heatmap
from protograph.report.heatmap import draw_heatmap, heatmap_figure


def heatmap(channels: int = 3, height: int = 24, width: int = 24) -> Heatmap:
    pixels = torch.from_numpy(blocks(height, width, 1)).permute(2, 0, 1)[:channels].contiguous()
    scores = torch.zeros(3, 3, dtype=torch.float64)
    scores[0, 2], scores[2, 0] = 2.0, -1.0
    return Heatmap("crow", None, 1.0, scores, pixels)


def test_the_image_stands_beside_the_colours_of_its_positions() -> None:
    figure = heatmap_figure(heatmap(), "crow.jpg")
    image, overlay, bar = figure.axes
    assert image.get_title() == "crow.jpg"
    assert overlay.get_title().replace("\n", " ") == "crow against the mean of all other classes: +1.00"
    assert np.array_equal(image.images[0].get_array(), blocks(24, 24, 1))
    colours = overlay.images[1]
    values, opacity = np.asarray(colours.get_array()), np.asarray(colours.get_alpha())
    assert values.shape == opacity.shape == (24, 24)
    assert values[:8, 16:].mean() > 1 > 0 > values[16:, :8].mean()
    assert abs(values[:8, :8].mean()) < 0.2
    assert opacity[:8, 16:].mean() > opacity[16:, :8].mean() > opacity[:8, :8].mean()
    assert colours.get_clim() == (-2.0, 2.0), "white is nothing, whatever the scores are"
    assert [label.get_text() for label in bar.get_yticklabels()] == ["-2.00", "-1.00", "0", "+1.00", "+2.00"]
    assert "3 x 3 positions" in bar.get_ylabel()
    plt.close(figure)


@pytest.mark.parametrize("shape", [(1, 24, 24), (3, 20, 30)])
def test_grey_and_oblong_images_are_drawn_too(shape: tuple[int, int, int], tmp_path: Path) -> None:
    draw_heatmap(
        heatmap(*shape), tmp_path / "heat.png", "a name of a file that is far too long for a single line of a title.jpg"
    )
    with Image.open(tmp_path / "heat.png") as drawn:
        assert drawn.size[0] > drawn.size[1] > 200


def test_no_evidence_at_all_is_drawn_without_colours() -> None:
    figure = heatmap_figure(Heatmap("crow", "gull", 0.0, torch.zeros(3, 3), heatmap().pixels))
    colours = figure.axes[1].images[1]
    assert not np.asarray(colours.get_array()).any()
    assert np.asarray(colours.get_alpha()).max() < 0.2
    assert "crow against gull: +0.00" in figure.axes[1].get_title().replace("\n", " ")
    plt.close(figure)
