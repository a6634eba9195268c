from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from protograph.classifier.inputs import as_images, as_table

GREY, COLOUR = np.zeros((4, 6), np.uint8), np.zeros((4, 6, 3), np.uint8)


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ("a.png", 1),
        (Path("a.png"), 1),
        (Image.new("L", (4, 4)), 1),
        (GREY, 1),
        (COLOUR, 1),
        (torch.zeros(3, 4, 4), 1),
        (["a.png", Path("b.png"), GREY, COLOUR, torch.zeros(1, 4, 4)], 5),
        (np.zeros((7, 4, 6), np.uint8), 7),
        (np.zeros((7, 4, 6, 3), np.uint8), 7),
        (torch.zeros(7, 3, 4, 4), 7),
        (np.array(["a.png", "b.png"], object), 2),
        (np.array(["a.png", "b.png"]), 2),
    ],
    ids=["name", "path", "PIL", "grey", "colour", "tensor", "mixed", "greys", "colours", "tensors", "names", "texts"],
)
def test_images_are_told_from_features(given: Any, count: int) -> None:
    images = as_images(given)
    assert images is not None
    assert len(images) == count


@pytest.mark.parametrize(
    "given", [np.zeros((7, 5)), torch.zeros(7, 5), [[0.0, 1.0]], [torch.zeros(5)], np.zeros((7, 5), np.int64), []]
)
def test_tables_of_numbers_are_features(given: Any) -> None:
    assert as_images(given) is None


def test_tensors_become_arrays() -> None:
    assert as_table([torch.ones(3), torch.zeros(3)]).tolist() == [[1.0] * 3, [0.0] * 3]
    assert as_table(torch.ones(2, requires_grad=True)).tolist() == [1.0, 1.0]
    assert as_table("words") == "words"
