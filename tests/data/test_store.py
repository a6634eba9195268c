from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from protograph.data.augmentation import Augmentation, Drawing, erased, recoloured, warped
from protograph.data.store import FeatureStore, ImageStore, Normalisation
from protograph.episodes import seeded

MEAN, STD = (0.2, 0.5), (0.3, 0.9)


@pytest.fixture
def store() -> ImageStore:
    """Two channels and images that are not square, so that no axis can be mistaken for another."""
    pixels = torch.randint(1, 256, (5, 2, 6, 9), dtype=torch.uint8, generator=seeded(0))
    return ImageStore(pixels, Normalisation(MEAN, STD))


def normalised(image: Tensor) -> Tensor:
    channels = [(image[channel].float() / 255 - MEAN[channel]) / STD[channel] for channel in range(2)]
    return torch.stack(channels)


def shifted(image: Tensor, down: int, right: int, flip: bool) -> Tensor:
    """The crop at (down, right) of an image on black ground, pixel by pixel."""
    _, height, width = image.shape
    crop = torch.zeros_like(image)
    for y in range(height):
        for x in range(width):
            across = width - 1 - x if flip else x
            if 0 <= y + down < height and 0 <= across + right < width:
                crop[:, y, x] = image[:, y + down, across + right]
    return crop


def test_gather_normalises_the_images_asked_for(store: ImageStore) -> None:
    gathered = store.gather(torch.tensor([3, 0, 3]))
    assert gathered.dtype == torch.float32
    for image, index in zip(gathered, (3, 0, 3), strict=True):
        torch.testing.assert_close(image, normalised(store.pixels[index]), atol=1e-6, rtol=1e-5)


def test_gathering_leaves_the_images_as_they_are(store: ImageStore) -> None:
    before = store.pixels.clone()
    store.gather(torch.arange(5))
    store.gather(torch.arange(5), Augmentation(2, flip=True), seeded(0))
    assert torch.equal(store.pixels, before)


@pytest.mark.parametrize("flip", [False, True])
def test_augmentation_is_a_crop_of_the_padded_image_and_every_crop_occurs(store: ImageStore, flip: bool) -> None:
    pad, times = 2, 600
    offsets, flips = range(-pad, pad + 1), (False, True) if flip else (False,)
    crops = {(down, right, turned): normalised(shifted(store.pixels[1], down, right, turned))
             for down in offsets for right in offsets for turned in flips}  # fmt: skip
    possible = torch.stack(list(crops.values()))  # [n, C, H, W]
    gathered = store.gather(torch.full((times,), 1), Augmentation(pad, flip), seeded(3))
    apart = (gathered[:, None] - possible).abs().amax((2, 3, 4))  # [times, n]
    assert (apart.amin(1) < 1e-5).all(), "an augmented image is no crop of the padded one"
    assert set(apart.argmin(1).tolist()) == set(range(len(crops)))


def test_each_image_is_augmented_as_itself(store: ImageStore) -> None:
    indices = torch.arange(5).repeat(8)
    gathered = store.gather(indices, Augmentation(1), seeded(4))
    for image, index in zip(gathered, indices.tolist(), strict=True):
        crops = [normalised(shifted(store.pixels[index], y, x, False)) for y in (-1, 0, 1) for x in (-1, 0, 1)]
        assert any(torch.allclose(image, crop, atol=1e-5) for crop in crops)


def test_padding_is_black_in_pixels_not_in_normalised_values() -> None:
    white = ImageStore(torch.full((1, 2, 4, 4), 255, dtype=torch.uint8), Normalisation(MEAN, STD))
    gathered = white.gather(torch.zeros(60, dtype=torch.long), Augmentation(1), seeded(0))
    for channel in range(2):
        black, full = (0 - MEAN[channel]) / STD[channel], (1 - MEAN[channel]) / STD[channel]
        values = gathered[:, channel].flatten()
        assert ((values - black).abs() < 1e-5).any()
        assert (((values - black).abs() < 1e-5) | ((values - full).abs() < 1e-5)).all()


def test_the_same_generator_gives_the_same_crops(store: ImageStore) -> None:
    indices, change = torch.arange(5).repeat(4), Augmentation(2, flip=True)
    assert torch.equal(store.gather(indices, change, seeded(1)), store.gather(indices, change, seeded(1)))
    assert not torch.equal(store.gather(indices, change, seeded(1)), store.gather(indices, change, seeded(2)))


def changed(images: Tensor, change: Augmentation, drawing: Drawing) -> Tensor:
    """Images recoloured, then erased."""
    colours = drawing.colours(change)
    squares = drawing.squares(change)
    assert colours is not None
    assert squares is not None
    return erased(recoloured(images, colours), squares)


def test_gathering_warps_then_recolours_then_erases(store: ImageStore) -> None:
    indices = torch.arange(5)
    change = Augmentation(2, flip=True, zoom=1.5, stretch=1.2, colour=0.3, erase=0.5)
    drawing = Drawing(5, 6, 9, store.device, seeded(1))
    expected = changed(warped(store.gather(indices), drawing.maps(change)), change, drawing)
    assert torch.equal(store.gather(indices, change, seeded(1)), expected)


def test_without_zoom_and_stretch_images_are_cropped_and_then_changed(store: ImageStore) -> None:
    indices, generator = torch.arange(5), seeded(1)
    change = Augmentation(2, flip=True, colour=0.3, erase=0.5)
    cropped = store.gather(indices, Augmentation(2, flip=True), generator)
    expected = changed(cropped, change, Drawing(5, 6, 9, store.device, generator))
    assert torch.equal(store.gather(indices, change, seeded(1)), expected)


@pytest.mark.parametrize("neutral", [{}, {"zoom": 1.0, "stretch": 1.0, "colour": 0.0, "erase": 0.0}])
def test_what_is_not_changed_draws_nothing(store: ImageStore, neutral: dict[str, float]) -> None:
    """Naively, by the draws that crop and flip always took, in their order; what is drawn next is the same, too."""
    indices, generator, again = torch.arange(5).repeat(3), seeded(5), seeded(5)
    found = store.gather(indices, Augmentation(2, flip=True, **neutral), generator)  # type: ignore[arg-type]
    offsets = torch.randint(0, 5, (2, 15), generator=again) - 2
    flips = torch.randint(0, 2, (15,), generator=again).bool()
    for n, index in enumerate(indices.tolist()):
        crop = shifted(store.pixels[index], int(offsets[0, n]), int(offsets[1, n]), bool(flips[n]))
        torch.testing.assert_close(found[n], normalised(crop), atol=1e-5, rtol=1e-5)
    assert torch.equal(torch.rand(3, generator=generator), torch.rand(3, generator=again))


CHANGED = (
    Augmentation(2, flip=True, zoom=1.5, stretch=1.2, colour=0.3, erase=0.5),
    Augmentation(zoom=1.2),
    Augmentation(stretch=1.2),
    Augmentation(colour=0.3),
    Augmentation(erase=0.9),
)


@pytest.mark.parametrize("change", CHANGED)
def test_the_same_generator_gives_the_same_changes(store: ImageStore, change: Augmentation) -> None:
    indices, before = torch.arange(5).repeat(4), store.pixels.clone()
    found = store.gather(indices, change, seeded(1))
    assert found.dtype == torch.float32
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found, store.gather(indices, change, seeded(1)))
    assert not torch.equal(found, store.gather(indices, change, seeded(2)))
    assert not torch.equal(found[:5], found[5:10])
    assert torch.equal(store.pixels, before)


def test_an_empty_augmentation_changes_nothing(store: ImageStore) -> None:
    assert torch.equal(store.gather(torch.arange(5), Augmentation()), store.gather(torch.arange(5)))


def test_a_stored_array_is_opened_as_it_was_saved(store: ImageStore, tmp_path: Path) -> None:
    np.save(tmp_path / "pixels.npy", store.pixels.numpy())
    opened = ImageStore.open(tmp_path / "pixels.npy", store.normalisation)
    assert (len(opened), opened.image_shape) == (5, (2, 6, 9))
    assert torch.equal(opened.pixels, store.pixels)


@pytest.mark.parametrize("pixels", [torch.zeros(3, 2, 4, 4), torch.zeros(3, 4, 4, dtype=torch.uint8)])
def test_images_of_another_type_or_shape_are_refused(pixels: Tensor) -> None:
    with pytest.raises(ValueError, match="uint8"):
        ImageStore(pixels, Normalisation(MEAN, STD))


def test_images_whose_channels_came_last_are_laid_out_anew(store: ImageStore) -> None:
    turned = store.pixels.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert not turned.is_contiguous()
    laid = ImageStore(turned, store.normalisation)
    assert laid.pixels.is_contiguous()
    assert torch.equal(laid.pixels, store.pixels)


def test_means_and_stds_must_fit_the_channels() -> None:
    with pytest.raises(ValueError, match="2 channels"):
        ImageStore(torch.zeros(1, 2, 4, 4, dtype=torch.uint8), Normalisation((0.5,), (0.5, 0.5)))


@pytest.mark.parametrize("augmentation", [None, Augmentation(2, flip=True), *CHANGED])
def test_images_fetched_from_elsewhere_are_the_same(store: ImageStore, augmentation: Augmentation | None) -> None:
    streamed = ImageStore(store.pixels, store.normalisation, torch.device("cpu"))
    indices = torch.tensor([4, 0, 0, 2])
    expected = store.gather(indices, augmentation, seeded(1))
    assert torch.equal(streamed.gather(indices, augmentation, seeded(1)), expected)
    assert streamed.device == torch.device("cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("augmentation", [None, Augmentation(2, flip=True), *CHANGED])
def test_images_that_do_not_fit_a_gpu_are_streamed_to_it(
    store: ImageStore, monkeypatch: pytest.MonkeyPatch, augmentation: Augmentation | None
) -> None:
    device = torch.device("cuda")
    resident = store.to(device)
    monkeypatch.setattr("protograph.data.store.MEMORY_SHARE", 0.0)
    streamed = store.to(device)
    assert (resident.pixels.device.type, streamed.pixels.device.type) == ("cuda", "cpu")
    assert resident.device == streamed.device == device
    indices = torch.tensor([4, 0, 0, 2], device=device)
    generators = (seeded(1, device=device), seeded(1, device=device))
    one, other = (
        store.gather(indices, augmentation, generator)
        for store, generator in zip((resident, streamed), generators, strict=True)
    )
    assert one.device.type == "cuda"
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("free", "resident"), [(10_000, True), (600, False)])
def test_images_become_resident_only_where_they_fit(
    store: ImageStore, monkeypatch: pytest.MonkeyPatch, free: int, resident: bool
) -> None:
    """540 bytes of images, of which four fifths of the free memory must not be less."""
    moved = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 10**9))
    monkeypatch.setattr(Tensor, "to", lambda pixels, *_, **__: moved.append(pixels) or pixels)
    monkeypatch.setattr(ImageStore, "__init__", lambda *_: None)
    assert store.pixels.nbytes == 540
    store.to(torch.device("cuda"))
    assert bool(moved) == resident


def test_a_mapped_store_does_not_change_its_file(store: ImageStore, tmp_path: Path) -> None:
    np.save(tmp_path / "pixels.npy", store.pixels.numpy())
    before = (tmp_path / "pixels.npy").read_bytes()
    opened = ImageStore.open(tmp_path / "pixels.npy", store.normalisation)
    opened.pixels[0] = 0
    assert (tmp_path / "pixels.npy").read_bytes() == before


def test_features_are_gathered_as_they_are() -> None:
    features = torch.randn(6, 4, generator=seeded(2))
    store = FeatureStore(features)
    assert (len(store), store.image_shape, store.device) == (6, (4,), torch.device("cpu"))
    indices = torch.tensor([5, 1, 1])
    for gathered in (store.gather(indices), store.gather(indices, Augmentation(2, flip=True), seeded(0))):
        assert torch.equal(gathered, torch.stack([features[5], features[1], features[1]]))
    assert torch.equal(store.to(torch.device("cpu")).features, features)


@pytest.mark.parametrize("features", [torch.zeros(3, 2, 4), torch.zeros(3, 4, dtype=torch.long), torch.zeros(3)])
def test_features_of_another_type_or_shape_are_refused(features: Tensor) -> None:
    with pytest.raises(ValueError, match=r"floats \[P, D\]"):
        FeatureStore(features)


def test_copies_of_features_are_drawn_at_random_in_training_only():
    features, copies = torch.arange(6.0).view(3, 2), torch.arange(24.0).view(3, 4, 2) + 100
    store = FeatureStore(features, copies).to(torch.device("cpu"))
    indices = torch.tensor([2, 0, 2] * 50)
    assert torch.equal(store.gather(indices), features[indices])
    drawn = store.gather(indices, Augmentation(), torch.Generator().manual_seed(0))
    for index, row in zip(indices.tolist(), drawn.tolist(), strict=True):
        assert row in copies[index].tolist()
    assert len({tuple(row) for row in drawn.tolist()}) == 8
    assert torch.equal(drawn, store.gather(indices, Augmentation(), torch.Generator().manual_seed(0)))
    with pytest.raises(ValueError, match=r"must be \[P, R, D\]"):
        FeatureStore(features, copies[:2])
