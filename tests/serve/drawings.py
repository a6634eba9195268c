"""Drawings of fruits, each another one: images that a test may make, and the documentation may show."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

FINE = 3  # pixels that are drawn for one of the image, along each edge
Colour = tuple[int, int, int]
GROUNDS: tuple[Colour, ...] = (
    (243, 236, 224),
    (222, 231, 234),
    (232, 226, 238),
    (214, 226, 210),
    (245, 222, 206),
    (206, 214, 224),
)


class Sheet:
    """A square sheet to draw on, in shares of its edge, turned and moved."""

    def __init__(self, random: np.random.Generator, size: int) -> None:
        self.random, self.edge = random, size * FINE
        ground = GROUNDS[random.integers(len(GROUNDS))]
        self.image = Image.new("RGB", (self.edge, self.edge), ground)
        self.draw = ImageDraw.Draw(self.image)
        low = random.uniform(0.66, 0.74) * self.edge
        self.draw.rectangle((0, low, self.edge, self.edge), fill=shaded(ground, 0.9))
        self.angle, self.scale = random.uniform(-0.35, 0.35), random.uniform(0.8, 1.1)
        self.middle = random.uniform(-0.07, 0.07, 2) + 0.5
        shadow = self.middle + np.array([0, 0.27 * self.scale])
        self._ellipse(shadow, 0.3 * self.scale, 0.06 * self.scale, shaded(ground, 0.75))

    def points(self, points: np.ndarray) -> list[tuple[float, float]]:
        """Turn, scale and move points about the middle."""
        cos, sin = math.cos(self.angle), math.sin(self.angle)
        turned = points @ np.array([[cos, sin], [-sin, cos]]) * self.scale + self.middle
        return [(x, y) for x, y in turned * self.edge]

    def shape(self, outline: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], colour: Colour) -> None:
        """Fill what a curve of the angle goes round, with a lighter part where the light falls."""
        around = np.linspace(0, 2 * math.pi, 181)
        curve = np.stack(outline(around), 1)
        self.draw.polygon(self.points(curve), fill=colour)
        self.draw.polygon(self.points(curve * 0.82 + (-0.012, -0.012)), fill=shaded(colour, 1.1))
        self.draw.polygon(self.points(curve * 0.5 + (-0.05, -0.05)), fill=shaded(colour, 1.2))

    def disc(self, x: float, y: float, radius: float, colour: Colour) -> None:
        """Fill a circle, with a lighter part."""
        for share, light in ((1.0, 1.0), (0.8, 1.1), (0.35, 1.35)):
            (at,) = self.points(np.array([[x - radius * (1 - share) * 0.4, y - radius * (1 - share) * 0.4]]))
            length = radius * share * self.scale
            self._ellipse(np.array(at) / self.edge, length, length, shaded(colour, light))

    def line(self, *points: tuple[float, float], width: float = 0.025, colour: Colour = (96, 66, 40)) -> None:
        """Draw a line through points."""
        self.draw.line(self.points(np.array(points)), fill=colour, width=int(width * self.scale * self.edge), joint="curve")

    def leaf(self, x: float, y: float, length: float = 0.16) -> None:
        """Draw a leaf that points to the upper right."""
        along = np.linspace(0, 1, 30)
        wide = 0.35 * length * np.sin(math.pi * along)
        edge = np.concatenate([np.stack([along * length, -wide], 1), np.stack([along * length, wide], 1)[::-1]])
        cos, sin = math.cos(0.5), math.sin(0.5)
        self.draw.polygon(self.points(edge @ np.array([[cos, -sin], [sin, cos]]) + (x, y)), fill=self.tint((92, 138, 62)))

    def tint(self, colour: Colour) -> Colour:
        """Return a colour that is a little different each time."""
        change = self.random.uniform(0.9, 1.08) + self.random.uniform(-0.03, 0.03, 3)
        return tuple(int(value) for value in np.clip(np.array(colour) * change, 0, 255))  # type: ignore[return-value]

    def _ellipse(self, middle: np.ndarray, wide: float, high: float, colour: Colour) -> None:
        (x, y), wide, high = middle * self.edge, wide * self.edge, high * self.edge
        self.draw.ellipse((x - wide, y - high, x + wide, y + high), fill=colour)


def shaded(colour: Colour, light: float) -> Colour:
    return tuple(min(255, int(value * light)) for value in colour)  # type: ignore[return-value]


def apple(sheet: Sheet) -> None:
    colour = sheet.tint((190, 42, 40))
    sheet.shape(lambda a: (0.29 * np.cos(a) * (1 - 0.08 * np.sin(a)), 0.27 * np.sin(a) + 0.05 * np.cos(2 * a) - 0.02), colour)
    sheet.line((0, -0.2), (0.02, -0.33))
    sheet.leaf(0.02, -0.27)


def pear(sheet: Sheet) -> None:
    colour = sheet.tint((172, 176, 62))
    sheet.shape(lambda a: ((0.17 + 0.085 * np.sin(a)) * np.cos(a), 0.33 * np.sin(a)), colour)
    sheet.line((0, -0.31), (0.03, -0.42))
    sheet.leaf(0.02, -0.37, 0.12)


def banana(sheet: Sheet) -> None:
    colour = sheet.tint((238, 200, 60))
    along = np.linspace(0.25, math.pi - 0.25, 60)
    outer = np.stack([0.36 * np.cos(along), 0.36 * np.sin(along) - 0.14], 1)
    inner = np.stack([0.36 * np.cos(along), 0.19 * np.sin(along) - 0.12], 1)[::-1]
    middle = np.stack([0.36 * np.cos(along), 0.27 * np.sin(along) - 0.13], 1)[::-1]
    sheet.draw.polygon(sheet.points(np.concatenate([outer, inner])), fill=shaded(colour, 0.92))
    sheet.draw.polygon(sheet.points(np.concatenate([outer, middle])[:120]), fill=shaded(colour, 1.07))
    sheet.line(*outer[:3], width=0.06, colour=(110, 84, 40))
    sheet.line(*outer[-3:], width=0.045, colour=(110, 84, 40))


def grapes(sheet: Sheet) -> None:
    colour = sheet.tint((98, 54, 122))
    sheet.line((0, -0.2), (0, -0.36))
    sheet.leaf(0.0, -0.26, 0.18)
    for row, count in enumerate((4, 5, 4, 3, 2, 1)):
        for place in range(count):
            sheet.disc(0.115 * (place - (count - 1) / 2), 0.095 * row - 0.2, 0.068, sheet.tint(colour))


def orange(sheet: Sheet) -> None:
    sheet.disc(0, 0.02, 0.29, sheet.tint((228, 130, 34)))
    sheet.disc(0.02, -0.24, 0.022, (84, 110, 50))
    sheet.leaf(0.03, -0.25, 0.12)


def cherries(sheet: Sheet) -> None:
    colour = sheet.tint((150, 18, 40))
    sheet.line((-0.15, 0.12), (-0.06, -0.12), (0.06, -0.34), width=0.018, colour=(92, 120, 60))
    sheet.line((0.16, 0.16), (0.12, -0.1), (0.06, -0.34), width=0.018, colour=(92, 120, 60))
    sheet.leaf(0.06, -0.34, 0.2)
    sheet.disc(-0.16, 0.16, 0.13, colour)
    sheet.disc(0.16, 0.2, 0.13, colour)


FRUITS: dict[str, Callable[[Sheet], None]] = {
    "apple": apple, "pear": pear, "banana": banana, "grapes": grapes, "orange": orange, "cherries": cherries,
}  # fmt: skip


def drawing(name: str, seed: int, size: int = 240) -> Image.Image:
    """Return a drawing of a fruit; each seed gives another one."""
    sheet = Sheet(np.random.default_rng((seed, *name.encode())), size)
    FRUITS[name](sheet)
    return sheet.image.resize((size, size), Image.Resampling.LANCZOS)


def write_drawings(folder: Path, name: str, seeds: range, size: int = 240) -> list[Path]:
    """Write drawings of a fruit as JPEG files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}-{seed}.jpg" for seed in seeds]
    for path, seed in zip(paths, seeds, strict=True):
        drawing(name, seed, size).save(path, quality=90)
    return paths
