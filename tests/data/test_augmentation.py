import math

import pytest
import torch
from torch import Tensor

from protograph.data.augmentation import Augmentation, Drawing, erased, recoloured, warped
from protograph.episodes import seeded


def images_of(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(0), dtype=torch.float64)


def evenly(*shape: int) -> Tensor:
    """What changes draw from the generator of seed 1, between -1 and 1."""
    return 2 * torch.rand(*shape, generator=seeded(1), dtype=torch.float64) - 1


def drawing(images: Tensor) -> Drawing:
    count, _, height, width = images.shape
    return Drawing(count, height, width, images.device, seeded(1), torch.float64)


def colours(images: Tensor, most: float) -> Tensor:
    found = drawing(images).colours(Augmentation(colour=most))
    assert found is not None
    return found


def squares(images: Tensor, most: float) -> Tensor:
    found = drawing(images).squares(Augmentation(erase=most))
    assert found is not None
    return found


def weight(distance: float) -> float:
    """Of a pixel in bicubic sampling, with A = -0.75, by its distance."""
    a, d = -0.75, abs(distance)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * (d**3 - 5 * d**2 + 8 * d - 4) if d < 2 else 0.0


def mirrored(place: int, size: int) -> int:
    """A pixel beyond the edges is the one as far within, the pixel at the edge being its own neighbour."""
    while not 0 <= place < size:
        place = -1 - place if place < 0 else 2 * size - 1 - place
    return place


def sampled(image: Tensor, y: float, x: float) -> Tensor:
    """The colours [C] of an image between its pixels, from the sixteen around."""
    _, height, width = image.shape
    found = torch.zeros(len(image), dtype=image.dtype)
    for row in range(math.floor(y) - 1, math.floor(y) + 3):
        for column in range(math.floor(x) - 1, math.floor(x) + 3):
            pixel = image[:, mirrored(row, height), mirrored(column, width)]
            found += weight(y - row) * weight(x - column) * pixel
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        Augmentation(2, flip=True, zoom=1.5, stretch=1.3),
        Augmentation(3, zoom=2.0),
        Augmentation(0, flip=True, stretch=1.4),
        Augmentation(20, flip=True, zoom=6.0, stretch=2.0),  # mirrored more than once
    ],
)
@pytest.mark.parametrize("size", [(6, 9), (9, 6)])
def test_images_are_warped_as_their_draws_say(change: Augmentation, size: tuple[int, int]) -> None:
    height, width = size
    images, draws = images_of(4, 2, height, width), evenly(5, 4)
    found = warped(images, drawing(images).maps(change))
    assert found.is_contiguous(memory_format=torch.channels_last)
    for n in range(4):
        zoom, stretch, right, down, side = draws[:, n].tolist()
        scale, ratio = change.zoom**zoom, change.stretch ** (stretch / 2)
        assert 1 / change.zoom <= scale <= change.zoom
        wide, high = scale * ratio, scale / ratio  # how many times as wide and as high a thing is shown
        assert 1 / change.stretch <= wide / high <= change.stretch
        for row in range(height):
            for column in range(width):
                across = (column + 0.5 - width / 2) / wide * (-1 if change.flip and side < 0 else 1)
                along = (row + 0.5 - height / 2) / high
                x, y = across + width / 2 - 0.5 + change.pad * right, along + height / 2 - 0.5 + change.pad * down
                torch.testing.assert_close(found[n, :, row, column], sampled(images[n], y, x), atol=1e-9, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("change", [Augmentation(9, flip=True, crop=0.2, stretch=1.8), Augmentation(crop=0.9, image_size=5)])
def test_random_parts_of_images_are_shown_as_their_draws_say(change: Augmentation) -> None:
    images, draws = images_of(6, 2, 7, 9), evenly(5, 6)
    height, width = (change.image_size, change.image_size) if change.image_size else (7, 9)
    shown = warped(images, drawing(images).maps(change), (height, width))
    assert shown.shape == (6, 2, height, width)
    for n in range(6):
        share, stretch, right, down, side = draws[:, n].tolist()
        area, ratio = change.crop + (1 - change.crop) * (share + 1) / 2, change.stretch ** (stretch / 2)
        wide, high = min(1.0, math.sqrt(area) / ratio), min(1.0, math.sqrt(area) * ratio)  # shares of width and height
        left, top = (1 - wide) * (1 + right) / 2 * 9, (1 - high) * (1 + down) / 2 * 7  # the corner of the part, in pixels
        assert 0 <= left <= left + 9 * wide <= 9 + 1e-9
        assert 0 <= top <= top + 7 * high <= 7 + 1e-9
        for row in range(height):
            for column in range(width):
                across = (column + 0.5) / width
                across = 1 - across if change.flip and side < 0 else across
                x, y = left + across * wide * 9 - 0.5, top + (row + 0.5) / height * high * 7 - 0.5
                torch.testing.assert_close(shown[n, :, row, column], sampled(images[n], y, x), atol=1e-9, rtol=1e-9)


def test_a_warp_that_does_nothing_changes_nothing_and_one_that_flips_only_flips() -> None:
    images = images_of(5, 2, 6, 9)
    torch.testing.assert_close(warped(images, drawing(images).maps(Augmentation())), images)
    flips = evenly(5, 5)[4] < 0
    assert 0 < flips.sum() < 5
    expected = torch.where(flips[:, None, None, None], images.flip(3), images)
    torch.testing.assert_close(warped(images, drawing(images).maps(Augmentation(flip=True))), expected)


def test_colours_change_as_their_draws_say() -> None:
    images, draws = images_of(4, 3, 5, 6), 0.4 * evenly(3, 4)
    before = images.clone()
    found = recoloured(images, colours(images, 0.4))
    for n in range(4):
        saturation, contrast, brightness = 1 + draws[0, n].item(), 1 + draws[1, n].item(), draws[2, n].item()
        assert 0.6 <= saturation <= 1.4
        for channel in range(3):
            grey = (before[n, 0] + before[n, 1] + before[n, 2]) / 3
            expected = contrast * (saturation * before[n, channel] + (1 - saturation) * grey) + brightness
            torch.testing.assert_close(found[n, channel], expected)
    assert torch.equal(images, before)


def test_a_grey_image_has_no_saturation_to_change() -> None:
    images, draws = images_of(4, 1, 5, 6), 0.9 * evenly(3, 4, 1, 1, 1)
    torch.testing.assert_close(recoloured(images, colours(images, 0.9)), images * (1 + draws[1]) + draws[2])


@pytest.mark.parametrize("size", [(6, 9), (9, 6)])
def test_a_square_is_erased_where_its_draws_say(size: tuple[int, int]) -> None:
    height, width = size
    images, draws = images_of(40, 2, height, width), torch.rand(3, 40, generator=seeded(1), dtype=torch.float64)
    before = images.clone()
    found = erased(images, squares(images, 0.8))
    for n in range(40):
        half = 0.8 * 6 * draws[0, n].item() / 2
        for row in range(height):
            for column in range(width):
                down, right = row + 0.5 - height * draws[1, n].item(), column + 0.5 - width * draws[2, n].item()
                expected = torch.zeros(2) if abs(down) < half and abs(right) < half else before[n, :, row, column]
                assert torch.equal(found[n, :, row, column], expected.double())
        rows, columns = (found[n, 0] == 0).nonzero(as_tuple=True)
        for lines in (rows.unique(), columns.unique()):  # never more than the square's longest side
            assert len(lines) <= math.ceil(0.8 * 6)
    assert torch.equal(images, before)
    many = torch.ones(1000, 1, height, width, dtype=torch.float64)
    assert (erased(many, squares(many, 0.8)) == 0).any(dim=0).all(), "some pixels are never erased"


def test_a_description_names_the_changes_there_are() -> None:
    """Those of crop and flip alone stand in model files, and in the names of caches, as they did before there were others."""
    assert Augmentation(8, flip=True).to_dict() == {"pad": 8, "flip": True}
    assert Augmentation().to_dict() == {"pad": 0, "flip": False}
    changed = (
        Augmentation(2, flip=True, zoom=1.5, stretch=1.2, colour=0.3, erase=0.5),
        *(Augmentation(**{name: 1.5}) for name in ("zoom", "stretch")),  # type: ignore[arg-type]
        *(Augmentation(**{name: 0.5}) for name in ("colour", "erase")),  # type: ignore[arg-type]
    )
    for change in changed:
        assert Augmentation(**change.to_dict()) == change
        assert len(change.to_dict()) in (3, 6)
