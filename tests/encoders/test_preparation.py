import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest
import torch
from PIL import Image

from data.layouts import blocks
from encoders.images import NORMAL, animated, bomb, rotated
from protograph._internal.errors import InputError
from protograph.data import decode
from protograph.data.store import Normalisation
from protograph.encoders import preparation as preparation_module
from protograph.encoders.preparation import Preparation, read_file

SIZE = 20
WHOLE = Preparation.whole((3, SIZE, SIZE), NORMAL)
BLACK = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)


def slope(height: int, width: int) -> Image.Image:
    """A slope of colours, which compression changes little."""
    down, right = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    return Image.fromarray((255 * np.stack([down, right, 1 - down * right], 2)).round().astype(np.uint8))


def resized(image: Image.Image) -> np.ndarray[Any, Any]:
    """[3, H, W] by Pillow alone."""
    return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)).transpose(2, 0, 1)


@pytest.mark.parametrize("shape", [(30, 24), (20, 20), (300, 17), (1, 1)])
def test_a_whole_image_is_what_a_dataset_makes_of_it(shape: tuple[int, int], tmp_path: Path) -> None:
    Image.fromarray(blocks(*shape, 1)).save(tmp_path / "one.png")
    expected = decode.decode((tmp_path / "one.png").read_bytes(), SIZE)[0]
    assert np.array_equal(WHOLE.read(tmp_path / "one.png", "one"), expected)


def test_the_contents_of_a_file_are_read_as_the_file_is(tmp_path: Path) -> None:
    path = rotated(tmp_path / "one.jpg")
    assert torch.equal(WHOLE.read_content(path.read_bytes(), "one"), WHOLE.read(path, "one"))
    with pytest.raises(InputError, match="upload cannot be read: it is not one of JPEG"):
        WHOLE.read_content(b"no image", "upload")


def test_every_way_to_hand_over_a_image_gives_the_same(tmp_path: Path) -> None:
    array = blocks(30, 24, 2)
    path = tmp_path / "one.png"
    Image.fromarray(array).save(path)
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    given = [path, str(path), path.read_bytes(), Image.fromarray(array), array, tensor, tensor / 255]
    for one in given:
        assert np.array_equal(WHOLE.read(one, "one"), resized(Image.fromarray(array)))


@pytest.mark.parametrize(
    "array",
    [
        blocks(30, 24, 3)[:, :, 0],
        blocks(30, 24, 3)[:, :, :1],
        blocks(30, 24, 3)[:, :, 0].astype(np.uint16) << 8,
        torch.from_numpy(blocks(30, 24, 3)[:, :, :1]).permute(2, 0, 1),
    ],
    ids=["HxW", "HxWx1", "16 bits", "1xHxW"],
)
def test_grey_arrays_become_what_they_show(array: Any) -> None:
    assert np.array_equal(WHOLE.read(array, "one"), resized(Image.fromarray(blocks(30, 24, 3)[:, :, 0])))


def test_a_grey_network_gets_grey_pixels() -> None:
    grey = Preparation((1, 30, 24), (0.5,), (0.5,), (30, 24))
    array = blocks(30, 24, 4)
    assert np.array_equal(grey.read(array[:, :, 0], "one")[0], array[:, :, 0])
    assert np.array_equal(grey.read(array, "one")[0], np.asarray(Image.fromarray(array).convert("L")))


def test_the_first_frame_of_an_animation_counts(tmp_path: Path) -> None:
    pixels = WHOLE.read(animated(tmp_path / "a.gif"), "a")
    assert pixels.flatten(1).float().mean(1).tolist() == [255, 0, 0]


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_a_photograph_is_turned_upright(suffix: str, tmp_path: Path) -> None:
    options = {"quality": 95, "subsampling": 0} if suffix == "jpg" else {}
    pixels = WHOLE.read(rotated(tmp_path / f"a.{suffix}", **options), "a")
    apart = np.abs(pixels.numpy().astype(int) - resized(Image.fromarray(blocks(30, 24, 5))))
    assert apart.max() <= (0 if suffix == "png" else 40)
    assert apart.mean() < 4


def test_cmyk_and_sixteen_bits_are_read(tmp_path: Path) -> None:
    slope = np.linspace(0, 255, 30 * 24).reshape(30, 24)
    Image.fromarray(slope.astype(np.uint8)).convert("CMYK").save(tmp_path / "a.jpg", quality=95)
    Image.fromarray((257 * slope).astype(np.uint16)).save(tmp_path / "b.png")
    expected = resized(Image.fromarray(slope.astype(np.uint8)))
    for name in ("a.jpg", "b.png"):
        assert np.abs(WHOLE.read(tmp_path / name, name).numpy().astype(int) - expected).max() <= 6


def test_what_is_transparent_becomes_white() -> None:
    seen_through = np.dstack([blocks(SIZE, SIZE, 6), np.zeros((SIZE, SIZE), np.uint8)])
    assert (WHOLE.read(seen_through, "one") == 255).all()


@pytest.mark.parametrize(
    ("name", "make", "named"),
    [
        ("bomb.png", bomb, "10000 x 10000 pixels are more than 64 million"),
        ("folder", Path.mkdir, "is a folder: give the images in it"),
        ("zero.jpg", Path.touch, "is an empty file"),
        ("text.jpg", lambda path: path.write_text("no image"), "cannot be read: it is not one of JPEG"),
        ("cut.png", lambda path: path.write_bytes(_png()[:60]), "cannot be read"),
        ("absent.png", lambda path: None, "is not there"),
    ],
)
@pytest.mark.filterwarnings("ignore:Image size:PIL.Image.DecompressionBombWarning")
def test_what_cannot_be_read_is_named(name: str, make: Any, named: str, tmp_path: Path) -> None:
    make(tmp_path / name)
    with pytest.raises(InputError) as error:
        WHOLE.read(tmp_path / name, f"image {name}")
    assert str(error.value).startswith(f"image {name} ")
    assert named in str(error.value)


def _png() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(blocks(30, 24, 1)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "thing", [3, None, np.zeros((0, 5), np.uint8), np.zeros(7, np.uint8), np.zeros((5, 5, 2), np.uint8), np.zeros((5, 5))]
)
def test_what_is_no_image_is_named(thing: Any) -> None:
    with pytest.raises(InputError, match=r"image 3 is a \w+ that cannot be read as one"):
        WHOLE.read(thing, "image 3")


def test_a_bomb_in_memory_is_refused() -> None:
    with pytest.raises(InputError, match="more than 64 million"):
        WHOLE.read(Image.new("1", (10_000, 10_000)), "image 0")


def test_a_caller_may_allow_fewer_pixels() -> None:
    file = io.BytesIO()
    Image.new("L", (40, 30)).save(file, "PNG")
    assert WHOLE.read_content(file.getvalue(), "upload", 1200).shape == (3, SIZE, SIZE)
    with pytest.raises(InputError, match=r"upload cannot be read \(40 x 30 pixels are more than 1199\)"):
        WHOLE.read_content(file.getvalue(), "upload", 1199)


def test_a_image_handed_over_is_left_as_it_was(tmp_path: Path) -> None:
    Image.fromarray(blocks(600, 400, 1)).save(tmp_path / "a.jpg")
    with Image.open(tmp_path / "a.jpg") as image:
        WHOLE.read(image, "a")
        assert image.size == (400, 600)


@pytest.mark.parametrize("shape", [(300, 200), (200, 301), (64, 64), (57, 90)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_the_middle_is_cut_out_as_if_the_whole_were_resized_first(shape: tuple[int, int], interpolation: str) -> None:
    edge, size = 48, 40
    image = Image.fromarray(blocks(*shape, 8))
    preparation = Preparation((3, size, size), *BLACK, edge, interpolation)
    tall, wide = (int(edge * side / min(shape)) for side in shape)
    whole = np.asarray(image.resize((wide, tall), Image.Resampling[interpolation.upper()]))
    top, left = round((tall - size) / 2), round((wide - size) / 2)
    expected = whole[top : top + size, left : left + size].transpose(2, 0, 1)
    assert np.abs(preparation.pixels(image).numpy().astype(int) - expected).max() <= 1


def test_a_ribbon_is_not_resized_as_a_whole() -> None:
    """Its shorter edge made 224 long would be an image of 11 billion pixels."""
    ribbon = Image.new("L", (1_000_000, 1), 77)
    pixels = Preparation((3, 224, 224), *BLACK, 224).pixels(ribbon)
    assert (pixels == 77).all()


@pytest.mark.parametrize("shape", [(300, 200), (200, 301), (64, 64), (57, 90)])
def test_the_part_that_is_seen_is_told(shape: tuple[int, int]) -> None:
    """An image that is white in that part and black elsewhere is all white to the network, and just so."""
    preparation = Preparation((3, 40, 40), *BLACK, 48)
    shares = preparation.shown(*shape)
    left, top, right, bottom = (round(share * shape[1 - index % 2]) for index, share in enumerate(shares))
    image = np.zeros((*shape, 3), np.uint8)
    image[max(0, top - 1) : bottom + 1, max(0, left - 1) : right + 1] = 255
    assert preparation.pixels(Image.fromarray(image)).float().mean() > 250
    image[:] = 0
    image[top + 3 : bottom - 3, left + 3 : right - 3] = 255
    assert preparation.pixels(Image.fromarray(image))[:, [0, -1]].float().mean() < 100
    assert Preparation((3, 40, 40), *BLACK, (40, 40)).shown(*shape) == (0, 0, 1, 1)


def test_squashed_then_cut() -> None:
    image = Image.fromarray(blocks(60, 90, 9))
    expected = np.asarray(image.resize((30, 30), Image.Resampling.BILINEAR))[5:25, 5:25].transpose(2, 0, 1)
    pixels = Preparation((3, 20, 20), *BLACK, (30, 30)).pixels(image)
    assert np.abs(pixels.numpy().astype(int) - expected).max() <= 1


@pytest.mark.parametrize("preparation", [WHOLE, Preparation((1, 8, 8), (0.5,), (0.5,), 9, "bicubic")])
def test_it_survives_json(preparation: Preparation) -> None:
    assert Preparation.from_dict(json.loads(json.dumps(preparation.to_dict()))) == preparation


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"interpolation": "cubic"}, "unknown interpolation 'cubic': did you mean bicubic"),
        ({"resize": 19}, "20 x 20 pixels cannot be cut out"),
        ({"resize": (20, 19)}, "20 x 20 pixels cannot be cut out"),
        ({"shape": (2, 20, 20)}, "1 or 3 channels"),
        ({"mean": (0.5,)}, "1 or 3 channels"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        Preparation.from_dict(WHOLE.to_dict() | changes)


@pytest.mark.parametrize("margin", [2, 4])
def test_a_large_jpeg_is_decoded_at_a_fraction_that_is_large_enough(margin: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow decodes at 1/2, 1/4 or 1/8; the same pixels as PNG are decoded whole."""
    image = slope(600, 800)
    jpeg, png = io.BytesIO(), io.BytesIO()
    image.save(jpeg, "JPEG", quality=95)
    Image.open(jpeg).save(png, "PNG")
    preparation = Preparation((3, 40, 40), *BLACK, 40, margin=margin)
    sizes = []
    upright = preparation_module.upright_rgb
    monkeypatch.setattr(preparation_module, "upright_rgb", lambda opened: sizes.append(opened.size) or upright(opened))
    pixels = [preparation.read_content(file.getvalue(), "one").int() for file in (jpeg, png)]
    assert sizes == [{2: (200, 150), 4: (400, 300)}[margin], (800, 600)]
    assert margin * 40 <= sizes[0][1] < 2 * margin * 40, "the next fraction would be too small"
    assert (pixels[0] - pixels[1]).abs().max() <= 3


def test_descriptions_of_before_decode_as_they_did() -> None:
    values = {name: value for name, value in Preparation((3, 8, 8), *BLACK, 8).to_dict().items() if name != "margin"}
    assert Preparation.from_dict(values).margin == 2
    assert Preparation.whole((3, 8, 8), Normalisation(*BLACK)).margin == 2, "as the images of datasets are decoded"


@pytest.mark.parametrize("kind", ["HEIF", "AVIF"])
def test_photographs_of_telephones_are_read(kind: str, tmp_path: Path) -> None:
    pillow_heif.register_heif_opener()
    image = slope(60, 80)
    image.save(tmp_path / "one", kind, quality=95)
    apart = np.abs(WHOLE.read(tmp_path / "one", "one").numpy().astype(int) - resized(image))
    assert apart.max() < 8


def test_a_missing_decoder_is_named_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    (tmp_path / "one.heic").write_bytes(b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic" + bytes(50))
    with pytest.raises(InputError, match=r'one cannot be read: it is HEIC, which needs pillow-heif: pip install "protograph'):
        WHOLE.read(tmp_path / "one.heic", "one")


def test_a_pipe_among_the_images_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(InputError, match=r"image 0 cannot be read \(it is a pipe or a device, not a file\): leave it out"):
        read_file(tmp_path / "pipe.jpg", "image 0")
