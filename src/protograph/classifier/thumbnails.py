"""Thumbnails: small images of examples, as JPEG, for people to look at."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from torch import Tensor

from protograph._internal.errors import InputError
from protograph._internal.progress import Progress
from protograph.data.datasets.items import to_image
from protograph.data.decode import check_pixels, draft, open_image, upright_rgb
from protograph.encoders.preparation import image_names, is_file, read_file, unreadable_image
from protograph.encoders.workers import cpu_workers, ordered_results

LONGEST_EDGE = 96  # pixels of a thumbnail
QUALITY = 80  # of its JPEG
MOST_BYTES = 2**16  # of a thumbnail; usual ones have 3,000
BEGIN, END = b"\xff\xd8\xff", b"\xff\xd9"  # of a JPEG
NO_SIZE = (0xC4, 0xC8, 0xCC)  # markers among those from 0xC0 to 0xCF behind which there is no size
THUMBNAILS_AT_ONCE = 64  # images that a worker takes

Thumbnails = tuple[bytes | None, ...]


@dataclass(frozen=True)
class Examples:
    """Examples of a class, ready to be added.

    Attributes:
        features: The features [K, D].
        thumbnails: For each, a JPEG whose longest edge has 96 pixels, or None.

    """

    features: Tensor
    thumbnails: Thumbnails

    def __post_init__(self) -> None:
        if len(self.features) != len(self.thumbnails):
            raise InputError(f"{len(self.features)} examples have {len(self.thumbnails)} thumbnails: give one each, or None")
        for content in self.thumbnails:
            try:
                check_thumbnail(content)
            except ValueError as error:
                raise InputError(f"{error}: make thumbnails by encode_examples") from error

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, rows: Sequence[int]) -> "Examples":
        return Examples(self.features[list(rows)], tuple(self.thumbnails[row] for row in rows))


def make_thumbnails(images: Sequence[Any], progress: Progress) -> Thumbnails:
    """Return a thumbnail of each image.

    Raises:
        InputError: An image cannot be read.

    """
    names = image_names(images)
    parts = [range(start, min(start + THUMBNAILS_AT_ONCE, len(images))) for start in range(0, len(images), THUMBNAILS_AT_ONCE)]

    def work(rows: range) -> list[bytes]:
        return [make_thumbnail(images[row], names[row]) for row in rows]

    made: list[bytes] = []
    with progress.task("thumbnails", len(images), "images") as advance:
        for part in ordered_results(work, parts, cpu_workers()[0]):
            made += part
            advance(len(part))
    return tuple(made)


def make_thumbnail(image: Any, name: str) -> bytes:
    """Return the thumbnail of an image, which holds its pixels and nothing else; `name` stands for it in error messages."""
    try:
        if is_file(image) or isinstance(image, bytes):
            opened = open_image(image if isinstance(image, bytes) else read_file(image, name))
            draft(opened, 2 * LONGEST_EDGE)
        else:
            opened = to_image(image, name)
            check_pixels(opened)
        small = upright_rgb(opened)
    except InputError:
        raise
    except Exception as error:  # a damaged image can raise anything
        raise unreadable_image(name, error) from error
    small.thumbnail((LONGEST_EDGE, LONGEST_EDGE))
    small.info = {}  # Pillow writes a comment into the file
    content = BytesIO()
    small.save(content, "JPEG", quality=QUALITY)
    return content.getvalue()


def check_thumbnail(content: bytes | None) -> None:
    """Raise a `ValueError` unless bytes begin and end as a JPEG of a small size does."""
    if content is None:
        return
    if len(content) > MOST_BYTES:
        raise ValueError(f"a thumbnail has {len(content):,} bytes, more than {MOST_BYTES:,}")
    width, height = jpeg_size(content)
    if not (1 <= width <= LONGEST_EDGE and 1 <= height <= LONGEST_EDGE):
        raise ValueError(f"a thumbnail has {width} x {height} pixels, not 1 to {LONGEST_EDGE}")


def jpeg_size(content: bytes) -> tuple[int, int]:
    """Return width and height that the head of a JPEG names; its pixels are not decoded.

    Raises:
        ValueError: It is no JPEG.

    """
    if content[:3] != BEGIN or content[-2:] != END:
        raise ValueError("a thumbnail is no JPEG")
    at = 2
    while at + 9 <= len(content) and content[at] == 0xFF:
        marker = content[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in NO_SIZE:
            return content[at + 7] << 8 | content[at + 8], content[at + 5] << 8 | content[at + 6]
        at += 2 + (content[at + 2] << 8 | content[at + 3])
    raise ValueError("a thumbnail is a JPEG of no size")


def count_bytes(thumbnails: Mapping[str, Iterable[bytes | None]]) -> int:
    """Return how many bytes thumbnails have."""
    return sum(len(content or b"") for part in thumbnails.values() for content in part)
