from dataclasses import replace

import pytest
import torch

from protograph.data.augmentation import Augmentation, Drawing, erased, recoloured, warped
from protograph.data.store import ImageStore, Normalisation
from protograph.episodes import seeded

pytestmark = pytest.mark.gpu


@pytest.mark.slow
@pytest.mark.kernel
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(("channels", "height", "width"), [(3, 84, 84), (1, 16, 16), (2, 6, 9), (3, 33, 40)])
def test_the_kernel_crops_flips_and_normalises_as_the_store_does(
    kernels: torch.device, channels: int, height: int, width: int, flip: bool
) -> None:
    from protograph.kernels.crop import crop

    device, count, pad = kernels, 20, 4
    pixels = torch.randint(0, 256, (7, channels, height, width), dtype=torch.uint8, generator=seeded(0))
    normalisation = Normalisation((0.2, 0.5, 0.4)[:channels], (0.3, 0.9, 0.2)[:channels])
    store = ImageStore(pixels, normalisation).to(device)
    indices = torch.randint(0, 7, (count,), generator=seeded(1)).to(device)
    offsets = (torch.randint(0, 2 * pad + 1, (2, count), generator=seeded(2)) - pad).to(device)
    flips = torch.randint(0, 2, (count,), generator=seeded(3)).bool().to(device) & flip
    found = crop(store.pixels, indices, offsets, flips, store._scale.flatten(), store._shift.flatten())
    expected = store._normalised(store._cropped(indices, offsets, flips))
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


WARPS = (
    Augmentation(3, flip=True, zoom=1.5, stretch=1.3, colour=0.4, erase=0.6),
    Augmentation(0, zoom=2.0, colour=0.3),
    Augmentation(2, flip=True, stretch=1.2, erase=0.9),
    Augmentation(40, flip=True, zoom=6.0, stretch=2.0),  # mirrored more than once
    Augmentation(flip=True, crop=0.3, stretch=1.3, image_size=11, colour=0.2, erase=0.5),
)


@pytest.mark.slow
@pytest.mark.kernel
@pytest.mark.parametrize("change", WARPS)
@pytest.mark.parametrize(("channels", "height", "width"), [(3, 84, 84), (1, 16, 16), (2, 6, 9), (3, 33, 40)])
def test_the_kernel_warps_recolours_and_erases_as_the_functions_do(
    kernels: torch.device, channels: int, height: int, width: int, change: Augmentation
) -> None:
    from protograph.kernels.crop import warp

    device, count = kernels, 6
    pixels = torch.randint(0, 256, (7, channels, height, width), dtype=torch.uint8, generator=seeded(0))
    normalisation = Normalisation((0.2, 0.5, 0.4)[:channels], (0.3, 0.9, 0.2)[:channels])
    store = ImageStore(pixels, normalisation).to(device)
    indices = torch.randint(0, 7, (count,), generator=seeded(1)).to(device)
    drawing = Drawing(count, height, width, device, seeded(2, device=device.type))
    size = (change.image_size or height, change.image_size or width)
    drawn = replace(drawing, height=size[0], width=size[1])
    maps, colours, squares = drawing.maps(change), drawn.colours(change), drawn.squares(change)
    found = warp(store.pixels, indices, maps, colours, squares, store._scale.flatten(), store._shift.flatten(), size)
    assert found.is_contiguous(memory_format=torch.channels_last)
    expected = warped(store.gather(indices), maps, size)
    expected = expected if colours is None else recoloured(expected, colours)
    expected = expected if squares is None else erased(expected, squares)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("change", [Augmentation(3, flip=True), *WARPS])
def test_gathering_on_a_gpu_takes_the_kernel(monkeypatch: pytest.MonkeyPatch, change: Augmentation) -> None:
    pixels = torch.randint(0, 256, (5, 3, 12, 10), dtype=torch.uint8, generator=seeded(0))
    store = ImageStore(pixels, Normalisation((0.5,) * 3, (0.25,) * 3)).to(torch.device("cuda"))
    indices = torch.arange(5, device="cuda").repeat(4)
    fused = store.gather(indices, change, seeded(1, device="cuda"))
    monkeypatch.setattr("protograph.data.store.TRITON", False)
    apart = store.gather(indices, change, seeded(1, device="cuda"))
    near = 2e-3 if change.warps else 1e-5  # between pixels, where a place that is a little off counts
    torch.testing.assert_close(fused, apart, rtol=near, atol=near)
