"""Decoding of image files to uint8 pixels, as a worker process.

It is run as a script and imports nothing else of the package, so that a worker starts quickly. Each line on its standard input
is a job, [target, first row, size, [file, ...]]. The worker writes the pixels of every file into the array `target`
[P, 3, size, size] and answers a line with an [error, width, height, greyscale, sha256] per file.
"""

import errno
import hashlib
import io
import json
import os
import signal
import stat
import sys
import warnings
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM", "WEBP", "TIFF", "JPEG2000")  # some others start programs to be decoded
HEIC_OR_AVIF = frozenset((".heic", ".heif", ".hif", ".avif"))  # suffixes of formats that not every installation can read
LONGEST_BRANDS = 256  # bytes at the start of a HEIC or AVIF file that are looked through
MAX_IMAGE_BYTES = 256_000_000  # of an image file
MAX_PIXELS = 64_000_000  # a larger image is a mistake or an attack; a photograph has a third


def decode(content: bytes, size: int) -> tuple[NDArray[np.uint8], int, int, bool]:
    """Return an image as RGB resized to [3, size, size], its width and height, and whether it is greyscale.

    The image is turned upright as its metadata says. Transparent parts become white.
    """
    with open_image(content) as image:
        width, height = image.size
        draft(image, 2 * size)
        rgb = np.frombuffer(to_rgb(image, size).tobytes(), np.uint8).reshape(size, size, 3)
        return rgb.transpose(2, 0, 1), width, height, is_grey(image)


def read_content(file: str) -> bytes:
    """Return the contents of an image file. A pipe, a device or too large a file is refused before it is opened."""
    status = os.stat(file)  # noqa: PTH116 - a Path costs as much as opening the file
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), file)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is a pipe or a device, not a file")
    if status.st_size > MAX_IMAGE_BYTES:
        raise ValueError(f"its {status.st_size:,} bytes are more than {MAX_IMAGE_BYTES:,}")
    with open(file, "rb") as opened:  # noqa: PTH123
        return opened.read()


class MissingDecoderError(ValueError):
    """An image in a format for which no decoder is installed."""


def open_image(content: bytes, most_pixels: int = MAX_PIXELS) -> Image.Image:
    """Return the contents of a file as an image with pixels not decoded yet; too large an image is refused."""
    if content[8:12] == b"WEBP":  # Pillow takes memory for all of its pixels as it opens one
        check_pixel_count(*webp_size(content), most_pixels)
    image = Image.open(io.BytesIO(content), formats=_formats(content))
    check_pixels(image, most_pixels)
    return image


def webp_size(content: bytes) -> tuple[int, int]:
    """Return the width and height that the header of a WebP file states, 0 where it states none."""
    head = content[:30].ljust(30, b"\0")
    if head[12:16] == b"VP8X":
        return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
    if head[12:16] == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if head[12:16] == b"VP8 ":
        return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF
    return 0, 0


def _formats(content: bytes) -> tuple[str, ...]:
    """Return the formats that a file may have. The decoder of HEIC is imported when the first such file comes."""
    if content[4:8] != b"ftyp":  # HEIC and AVIF begin with the size of a list of brands, this word, and the list
        return FORMATS
    brands = content[8 : min(int.from_bytes(content[:4]), LONGEST_BRANDS)]
    if b"avif" in brands or b"avis" in brands:
        if not has_avif():
            raise MissingDecoderError("it is AVIF, which needs Pillow 11.3 or newer: pip install --upgrade pillow")
        return ("AVIF",)
    try:
        import pillow_heif
    except ImportError:
        raise MissingDecoderError('it is HEIC, which needs pillow-heif: pip install "protograph[heic]"') from None
    pillow_heif.register_heif_opener()
    return ("HEIF",)


def has_avif() -> bool:
    """Return whether Pillow reads AVIF."""
    try:
        from PIL import AvifImagePlugin
    except ImportError:
        return False
    return bool(AvifImagePlugin.SUPPORTED)


def installed_decoders() -> list[str]:
    """Return which of the formats that not every installation can read are read by this one."""
    return ["AVIF"] * has_avif() + ["HEIC"] * (find_spec("pillow_heif") is not None)


def draft(image: Image.Image, edge: int) -> None:
    """Let a large JPEG be decoded at a fraction of its size, at which no edge is shorter than `edge`."""
    if image.format != "HEIF":  # which would answer with a thumbnail
        image.draft("RGB", (edge, edge))


def check_pixels(image: Image.Image, most: int = MAX_PIXELS) -> None:
    """Refuse an image with too many pixels."""
    check_pixel_count(image.width, image.height, most)


def check_pixel_count(width: int, height: int, most: int) -> None:
    """Refuse the width and height of an image with too many pixels."""
    if width * height > most:
        limit = f"{most // 10**6} million" if most >= 10**6 else str(most)
        raise ValueError(f"{width} x {height} pixels are more than {limit}")


def to_rgb(image: Image.Image, size: int) -> Image.Image:
    """Return any image as RGB of size x size."""
    image = upright_rgb(image)
    return image if image.size == (size, size) else image.resize((size, size), Image.Resampling.BILINEAR)


def upright_rgb(image: Image.Image) -> Image.Image:
    """Return any image as RGB: upright as its metadata says, transparent parts white, of 16 bits the upper eight.

    Some programs save greyscale as fractions: if none is larger than 1, 1 is white, and otherwise 255.
    """
    if "exif" in image.info:
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16") or image.mode == "I":
        image = Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    if image.mode == "F":
        values = np.nan_to_num(np.asarray(image))
        image = Image.fromarray((values * (255 if values.max() <= 1 else 1)).clip(0, 255).astype(np.uint8))
    if "A" in image.mode or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def is_grey(image: Image.Image) -> bool:
    """Return whether an image has no colours."""
    return image.mode in ("1", "L", "LA", "I", "F") or image.mode.startswith("I;16")


def decode_files(target: str, first: int, size: int, files: list[str]) -> list[list[Any]]:
    """Decode files into rows `first`, `first` + 1, ... of the array at `target`; a row that cannot be read stays black."""
    pixels = np.zeros((len(files), 3, size, size), np.uint8)
    answers: list[list[Any]] = []
    for row, file in enumerate(files):
        try:
            content = read_content(file)
            pixels[row], width, height, grey = decode(content, size)
            answers.append([None, width, height, grey, hashlib.sha256(content).hexdigest()])
        except UnidentifiedImageError:
            answers.append([f"not one of {', '.join(FORMATS)}", 0, 0, False, ""])
        except Exception as error:  # a damaged image can raise anything
            answers.append([" ".join(str(error).split()) or type(error).__name__, 0, 0, False, ""])
    begin = np.lib.format.open_memmap(target, mode="r").offset
    with open(target, "r+b") as pixel_file:  # noqa: PTH123 - written at once: through the map, every page would fault
        pixel_file.seek(begin + first * 3 * size * size)
        pixel_file.write(pixels.data)
    return answers


def serve_jobs() -> None:
    """Answer jobs until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process, which then ends the input
    warnings.simplefilter("ignore")  # from Pillow, about metadata
    Image.MAX_IMAGE_PIXELS = None  # `decode` has its own limit
    for line in sys.stdin:
        print(json.dumps(decode_files(*json.loads(line))), flush=True)


if __name__ == "__main__":
    serve_jobs()
