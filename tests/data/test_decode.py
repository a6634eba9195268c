import io
import os
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest
from PIL import AvifImagePlugin, Image

from data.layouts import Pixels, blocks
from protograph.data import decode

SIZE = 84


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def decoded(content: bytes, size: int = SIZE) -> Pixels:
    """As [H, W, 3], like Pillow has it."""
    return decode.decode(content, size)[0].transpose(1, 2, 0)


def smooth(height: int, width: int) -> Image.Image:
    """A slope of colours, on which ways of resizing differ little."""
    down, right = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    return Image.fromarray((255 * np.stack([down, right, 1 - down * right], 2)).round().astype(np.uint8))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000"])
def test_a_image_of_the_right_size_is_decoded_untouched(kind: str) -> None:
    content = encoded(Image.fromarray(blocks(SIZE, SIZE, 1)), kind)
    with Image.open(io.BytesIO(content)) as image:
        assert np.array_equal(decoded(content), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("shape", [(200, 100), (50, 300), (84, 85), (1, 1), (640, 480)])
def test_a_image_of_another_size_is_resized_whole_by_pillow(shape: tuple[int, int]) -> None:
    image = Image.fromarray(blocks(*shape, 2))
    pixels, width, height, grey = decode.decode(encoded(image), SIZE)
    assert np.array_equal(pixels.transpose(1, 2, 0), image.resize((SIZE, SIZE), Image.Resampling.BILINEAR))
    assert ((height, width), grey) == (shape, False)


@pytest.mark.parametrize("shape", [(1200, 900), (337, 2000)])
def test_a_large_jpeg_decoded_at_a_fraction_looks_the_same(shape: tuple[int, int]) -> None:
    content = encoded(smooth(*shape), "JPEG", quality=95)
    pixels, width, height, _ = decode.decode(content, SIZE)
    assert (height, width) == shape, "the size before, not of the fraction"
    with Image.open(io.BytesIO(content)) as image:
        expected = np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR))
    apart = np.abs(pixels.transpose(1, 2, 0).astype(int) - expected)
    assert apart.max() <= 6
    assert apart.mean() < 1


@pytest.mark.parametrize(("largest", "factor"), [(1.0, 255), (0.5, 255), (255.0, 1), (1000.0, 1)])
def test_fractions_are_greys_up_to_1_or_up_to_255(largest: float, factor: int) -> None:
    values = np.linspace(0, largest, SIZE * SIZE, dtype=np.float32).reshape(SIZE, SIZE)
    values[0, 0] = np.nan
    pixels, _, _, grey = decode.decode(encoded(Image.fromarray(values), "TIFF"), SIZE)
    assert grey
    expected = np.clip(factor * np.nan_to_num(values), 0, 255).astype(np.uint8)
    assert (pixels == expected).all()


@pytest.mark.parametrize(("mode", "kind"), [("L", "PNG"), ("L", "JPEG"), ("LA", "PNG"), ("1", "PNG"), ("F", "TIFF")])
def test_greyscale_becomes_rgb_and_is_counted(mode: str, kind: str) -> None:
    image = Image.fromarray(blocks(30, 40, 3)).convert(mode)
    pixels, _, _, grey = decode.decode(encoded(image, kind), SIZE)
    assert grey
    assert pixels.shape == (3, SIZE, SIZE)
    assert (pixels[0] == pixels[1]).all()
    assert (pixels[0] == pixels[2]).all()


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize("order", ["<u2", ">u2"])
def test_sixteen_bits_keep_their_upper_eight(kind: str, order: str) -> None:
    values = np.arange(SIZE * SIZE, dtype=np.uint16).reshape(SIZE, SIZE) * 9
    content = encoded(Image.fromarray(values.astype(order)), kind)
    pixels, _, _, grey = decode.decode(content, SIZE)
    assert grey
    for channel in pixels:
        assert np.array_equal(channel, values >> 8)


def test_what_is_transparent_becomes_white() -> None:
    alpha = np.linspace(0, 255, SIZE * SIZE).round().astype(np.uint8).reshape(SIZE, SIZE)
    colours = blocks(SIZE, SIZE, 4)
    content = encoded(Image.fromarray(np.dstack([colours, alpha])))
    share = alpha[..., None] / 255
    expected = share * colours + (1 - share) * 255
    assert np.abs(decoded(content) - expected).max() <= 1


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_a_transparent_colour_of_a_palette_becomes_white(kind: str) -> None:
    places = (np.arange(SIZE * SIZE, dtype=np.uint8) % 3).reshape(SIZE, SIZE)
    palette = np.array([[200, 10, 20], [30, 220, 40], [50, 60, 240]], np.uint8)
    image = Image.frombytes("P", (SIZE, SIZE), places.tobytes())
    image.putpalette(palette.tobytes())
    shown = palette.copy()
    shown[1] = 255
    assert np.array_equal(decoded(encoded(image, kind, transparency=1)), shown[places])
    assert np.array_equal(decoded(encoded(image, kind)), palette[places])


def test_a_transparent_colour_without_a_palette_becomes_white() -> None:
    colours = blocks(SIZE, SIZE, 5)
    gone = tuple(int(value) for value in colours[0, 0])
    shown = np.where((colours == gone).all(2, keepdims=True), 255, colours)
    assert np.array_equal(decoded(encoded(Image.fromarray(colours), transparency=gone)), shown)


def test_cmyk_becomes_rgb() -> None:
    content = encoded(smooth(SIZE, SIZE).convert("CMYK"), "JPEG", quality=95)
    assert np.abs(decoded(content).astype(int) - np.asarray(smooth(SIZE, SIZE))).mean() < 4


TURNS = {
    1: lambda upright: upright, 2: np.fliplr, 3: lambda upright: np.rot90(upright, 2), 4: np.flipud,
    5: lambda upright: upright.transpose(1, 0, 2), 6: np.rot90, 7: lambda upright: np.rot90(upright, 2).transpose(1, 0, 2),
    8: lambda upright: np.rot90(upright, 3),
}  # fmt: skip


@pytest.mark.parametrize("orientation", TURNS)
@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_a_image_is_turned_upright_as_the_camera_says(orientation: int, kind: str) -> None:
    """The orientations of the Exif standard, from the turn the camera made."""
    upright = blocks(56, 84, 6)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    content = encoded(Image.fromarray(np.ascontiguousarray(TURNS[orientation](upright))), kind, exif=exif, **options)
    expected = Image.fromarray(upright).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    assert np.array_equal(decoded(content), expected)


def test_a_turned_large_jpeg_is_upright_too() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    content = encoded(smooth(1000, 700).transpose(Image.Transpose.ROTATE_90), "JPEG", exif=exif, quality=95)
    expected = np.asarray(smooth(1000, 700).resize((SIZE, SIZE), Image.Resampling.BILINEAR))
    assert np.abs(decoded(content).astype(int) - expected).mean() < 2


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")  # a worker switches Pillow's own limit off
def test_too_many_pixels_are_refused_before_they_are_decoded() -> None:
    content = encoded(Image.new("1", (10_000, 10_000)))
    assert len(content) < 100_000
    with pytest.raises(ValueError, match="10000 x 10000 pixels are more than 64 million"):
        decode.decode(content, SIZE)


def test_formats_that_no_suffix_promises_are_refused() -> None:
    """Pillow goes by the contents; it would start Ghostscript for this one."""
    with pytest.raises(OSError, match="cannot identify"):
        decode.decode(encoded(Image.fromarray(blocks(20, 20, 7)), "EPS"), SIZE)


@pytest.mark.parametrize("kind", ["HEIF", "AVIF"])
def test_photographs_of_telephones_are_decoded(kind: str) -> None:
    pillow_heif.register_heif_opener()
    content = encoded(smooth(200, 100), kind, quality=95)
    pixels, width, height, grey = decode.decode(content, SIZE)
    assert (height, width, grey) == (200, 100, False)
    expected = np.asarray(smooth(200, 100).resize((SIZE, SIZE), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(pixels.transpose(1, 2, 0) - expected).max() < 8


def test_no_thumbnail_stands_for_a_photograph() -> None:
    """A telephone writes a small copy into the file, which Pillow would decode instead."""
    pillow_heif.register_heif_opener()
    content = encoded(smooth(900, 900), "HEIF", quality=95, thumbnails=[256])
    with decode.open_image(content) as image:
        decode.draft(image, 100)
        assert image.size == (900, 900)


@pytest.mark.parametrize(("brand", "named"), [(b"heic", "needs pillow-heif: pip install"), (b"avif", "needs Pillow 11.3")])
def test_a_decoder_that_is_not_installed_is_named(brand: bytes, named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.setattr(AvifImagePlugin, "SUPPORTED", False)
    content = b"\x00\x00\x00\x18ftyp" + brand + bytes(4) + b"mif1miaf" + bytes(50)
    with pytest.raises(decode.MissingDecoderError, match=named):
        decode.open_image(content)


def test_work_names_what_is_wrong_and_goes_on(tmp_path: Path) -> None:
    good = encoded(Image.fromarray(blocks(SIZE, SIZE, 8)))
    contents = {"good": good, "cut": good[: len(good) // 2], "empty": b"", "text": b"hello", "again": good}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    names = [*contents, "absent", "."]
    target = tmp_path / "pixels.npy"
    np.save(target, np.zeros((10, 3, SIZE, SIZE), np.uint8))
    answers = decode.decode_files(str(target), 2, SIZE, [str(tmp_path / name) for name in names])
    pixels = np.load(target)
    for row, (name, (error, width, height, _, digest)) in enumerate(zip(names, answers, strict=True), 2):
        fine = name in ("good", "again")
        assert (error is None) == fine
        assert bool(digest) == bool(width) == bool(height) == bool(pixels[row].any()) == fine
        assert error is None or (error and "\n" not in error)
    assert not pixels[:2].any()
    assert not pixels[9:].any()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF", "PPM", "JPEG2000"])
def test_no_damage_stops_a_worker(tmp_path: Path, kind: str) -> None:
    whole = encoded(Image.fromarray(blocks(24, 20, 9)), kind)
    source, files = random.Random(0), []
    for number in range(40):
        damaged = bytearray(whole[: source.randrange(len(whole))] if number % 2 else whole)
        for _ in range(3):
            if damaged:
                damaged[source.randrange(len(damaged))] = source.randrange(256)
        files.append(tmp_path / str(number))
        files[-1].write_bytes(damaged)
    target = tmp_path / "pixels.npy"
    np.save(target, np.zeros((len(files), 3, 20, 20), np.uint8))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answers = decode.decode_files(str(target), 0, 20, [str(file) for file in files])
    assert len(answers) == len(files)
    assert any(error for error, *_ in answers)


def test_what_is_no_regular_file_is_refused_unopened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")  # opening it would wait for ever
    with (tmp_path / "large.jpg").open("wb") as file:
        file.truncate(5_000_000_000)  # without content on the disk
    for name, reason in (("pipe.jpg", "a pipe or a device"), ("large.jpg", "5,000,000,000 bytes are more than 256,000,000")):
        with pytest.raises(ValueError, match=reason):
            decode.read_content(str(tmp_path / name))
    with pytest.raises(ValueError, match="a pipe or a device"):
        decode.read_content("/dev/zero")
    with pytest.raises(IsADirectoryError):
        decode.read_content(str(tmp_path))


@pytest.mark.parametrize("options", [{}, {"lossless": True}, {"exact": True, "alpha": True}, {"animated": True}])
def test_the_header_of_a_webp_file_states_its_size(options: dict[str, bool]) -> None:
    image = Image.new("RGBA" if "alpha" in options else "RGB", (300, 2), (9, 8, 7, 100)[: 4 if "alpha" in options else 3])
    more: dict[str, Any] = {"save_all": True, "append_images": [Image.new("RGB", (300, 2))]} if "animated" in options else {}
    content = encoded(image, "WEBP", **more, **{name: True for name in options if name in ("lossless", "exact")})
    assert decode.webp_size(content) == (300, 2)
    assert content[12:16] == {"lossless": b"VP8L", "exact": b"VP8X", "animated": b"VP8X"}.get(next(iter(options), ""), b"VP8 ")
    for length in range(8, 30):
        decode.webp_size(content[:length])


@pytest.mark.parametrize(("lossless", "at"), [(False, 26), (True, 21)])
def test_a_webp_file_with_too_many_pixels_takes_no_memory(lossless: bool, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow would take 2 GB for these 16,383 x 16,383 pixels as it opens the file."""
    content = bytearray(encoded(Image.new("RGB", (8, 8)), "WEBP", lossless=lossless))
    content[at : at + 4] = b"\xfe\xbf\xff\x0f" if lossless else b"\xff\x3f\xff\x3f"
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("it was opened"))
    with pytest.raises(ValueError, match="16383 x 16383 pixels are more than 64 million"):
        decode.open_image(bytes(content))
