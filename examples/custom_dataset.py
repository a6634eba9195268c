"""A dataset of your own: gratings of twelve angles and three widths, drawn here, with a relation between nearby classes.

protograph train --dataset gratings --plugin examples/custom_dataset.py --set ways=3 --set epochs=2
protograph evaluate RUN --plugin examples/custom_dataset.py
protograph datasets check gratings --plugin examples/custom_dataset.py
"""

from pathlib import Path

import numpy as np
import torch

import protograph as pg

ANGLES, WIDTHS, IMAGES, SIZE = range(0, 180, 15), (3, 5, 8), 30, 28
CLASSES = [(angle, width) for angle in ANGLES for width in WIDTHS]
NAMES = [f"{angle} degrees, {width} pixels" for angle, width in CLASSES]


def draw_grating(angle: int, width: int, random: np.random.Generator) -> np.ndarray:
    """Return a noisy grating [H, W, 3] of dark and light stripes."""
    direction = np.deg2rad(angle + random.normal(0, 3))
    rows, columns = np.mgrid[:SIZE, :SIZE]
    across = columns * np.cos(direction) + rows * np.sin(direction)
    grey = 127 + 90 * np.sin(np.pi * across / width + random.uniform(0, 6)) + random.normal(0, 30, (SIZE, SIZE))
    return np.repeat(grey.clip(0, 255).astype(np.uint8)[:, :, None], 3, axis=2)


def relate_classes() -> pg.MatrixRelation:
    """Return similarities that fall with the difference of angles, for classes of the same width."""
    turns = np.array([[abs(a - b) for b, _ in CLASSES] for a, _ in CLASSES])
    nearness = np.exp(-np.minimum(turns, 180 - turns) / 20) * [[v == w for _, w in CLASSES] for _, v in CLASSES]
    return pg.MatrixRelation(torch.tensor(nearness, dtype=torch.float32), NAMES, "angle")


def open_gratings(root: Path, progress: object, skip_bad: bool) -> pg.Dataset:
    """Return the dataset; `root` is for datasets that read files, `skip_bad` for those whose files may be damaged."""
    random = np.random.default_rng(0)
    items = [(draw_grating(*kind, random), name) for kind, name in zip(CLASSES, NAMES, strict=True) for _ in range(IMAGES)]
    return pg.from_items(items, relations={"angle": relate_classes()}, size=SIZE)


pg.register_dataset(
    "gratings", pg.DatasetSource(open_gratings, backbone="conv4-32", summary="stripes of 12 angles and 3 widths", built_in=True)
)
