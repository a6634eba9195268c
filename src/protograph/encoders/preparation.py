"""Any image -> pixels of the size a network takes."""

import hashlib
import os
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from protograph._internal.errors import InputError, unknown_name
from protograph.data.datasets.items import to_image
from protograph.data.decode import FORMATS, MissingDecoderError, check_pixels, draft, open_image, read_content, upright_rgb
from protograph.data.store import Normalisation

DATASET_MARGIN = 2  # of `decode`, which reads the images that networks of this package are trained on
INTERPOLATIONS = {method.name.lower(): method for method in Image.Resampling}


@dataclass(frozen=True)
class Preparation:
    """How an image becomes pixels [C, H, W]: it is resized, then its centre is cropped.

    Attributes:
        shape: C, H, W; C is 3 for colour, 1 for grey.
        mean: The mean of pixels / 255, by channel.
        std: Their standard deviation, by channel. The network's input is (pixels / 255 - mean) / std.
        resize: The size (H, W) of the resized image, or the length of its shorter edge.
        interpolation: How it is resized.
        margin: A large JPEG is decoded at a fraction of its size, which is never below this many times the size it is resized
            to. Of other formats all pixels are decoded, so the same pixels give slightly other features. For photographs of 12
            million pixels and EfficientNet-Lite0, their cosine is 0.9989 at 2 and 0.9996 at 4; decoding takes 34 and 46 ms,
            and 97 ms in full.

    """

    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: tuple[int, int] | int
    interpolation: str = "bilinear"
    margin: int = 4

    def __post_init__(self) -> None:
        if self.interpolation not in INTERPOLATIONS:
            raise unknown_name("interpolation", self.interpolation, INTERPOLATIONS)
        channels, height, width = self.shape
        if channels not in (1, 3) or len(self.mean) != channels or len(self.std) != channels:
            raise InputError(f"images have 1 or 3 channels, with a mean and a std each, not {channels}")
        edges = (self.resize, self.resize) if isinstance(self.resize, int) else self.resize
        if edges[0] < height or edges[1] < width:
            raise InputError(f"{height} x {width} pixels cannot be cut out of an image resized to {self.resize}")

    @classmethod
    def whole(cls, shape: tuple[int, int, int], normalisation: Normalisation) -> "Preparation":
        """Return the preparation of the datasets: the image is resized and not cropped."""
        return cls(shape, normalisation.mean, normalisation.std, shape[1:], margin=DATASET_MARGIN)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Preparation":
        """Return the preparation with these values, which may come from JSON. Older descriptions have no margin."""
        plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        return cls(**{"margin": DATASET_MARGIN, **plain})

    def to_dict(self) -> dict[str, Any]:
        """Return the preparation as plain values."""
        return asdict(self)

    @property
    def normalisation(self) -> Normalisation:
        """The mean and std."""
        return Normalisation(self.mean, self.std)

    def read(self, image: Any, name: str) -> Tensor:
        """Return the pixels of an image, uint8 [C, H, W].

        Raises:
            InputError: The image cannot be read; the error names it and the reason.

        """
        try:
            if not is_file(image):
                opened = to_image(image, name)
                check_pixels(opened)
                return self.pixels(opened)
            return self.read_content(read_file(image, name), name)
        except InputError:
            raise
        except Exception as error:  # a damaged image can raise anything
            raise unreadable_image(name, error) from error

    def read_content(self, content: bytes, name: str) -> Tensor:
        """Return the pixels of the contents of an image file, uint8 [C, H, W].

        Raises:
            InputError: The contents cannot be read; the error names them and the reason.

        """
        try:
            with open_image(content) as opened:
                edge = max(self.resize) if isinstance(self.resize, tuple) else self.resize
                draft(opened, self.margin * edge)
                return self.pixels(opened)
        except Exception as error:  # a damaged image can raise anything
            raise unreadable_image(name, error) from error

    def pixels(self, image: Image.Image) -> Tensor:
        """Return the pixels of an opened image, uint8 [C, H, W]. Only the crop is resized, however long the image is."""
        channels, height, width = self.shape
        rgb = upright_rgb(image)
        tall, wide = self._resized(rgb.height, rgb.width)
        if not (rgb.height, rgb.width) == (tall, wide) == (height, width):
            top, left = round((tall - height) / 2), round((wide - width) / 2)
            down, right = rgb.height / tall, rgb.width / wide  # pixels of the image for one of the resized one
            box = (left * right, top * down, min((left + width) * right, rgb.width), min((top + height) * down, rgb.height))
            rgb = rgb.resize((width, height), INTERPOLATIONS[self.interpolation], box=box)
        array = np.asarray(rgb if channels == 3 else rgb.convert("L")).reshape(height, width, channels)
        return torch.from_numpy(array.transpose(2, 0, 1).copy())

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width after resizing and before cropping."""
        if isinstance(self.resize, tuple):
            return self.resize
        short = min(height, width)
        return int(self.resize * height / short), int(self.resize * width / short)


def unreadable_image(name: str, error: Exception) -> InputError:
    """Return the error about an image that cannot be read, from what was raised."""
    if isinstance(error, UnidentifiedImageError):
        return InputError(f"{name} cannot be read: it is not one of {', '.join(FORMATS)}")
    if isinstance(error, MissingDecoderError):
        return InputError(f"{name} cannot be read: {error}, or leave it out")
    reason = " ".join(str(error).split()) or type(error).__name__
    return InputError(f"{name} cannot be read ({reason}): repair it or leave it out")


def is_file(image: Any) -> bool:
    """Return whether an image is given by its path."""
    return isinstance(image, str | os.PathLike)


def read_file(path: str | os.PathLike[str], name: str) -> bytes:
    """Return the contents of a file.

    Raises:
        InputError: The file is missing, empty, or cannot be read.

    """
    try:
        content = read_content(os.fspath(path))
    except FileNotFoundError as error:
        raise InputError(f"{name} is not there") from error
    except IsADirectoryError as error:
        raise InputError(f"{name} is a folder: give the images in it") from error
    except OSError as error:
        raise InputError(f"{name} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise InputError(f"{name} cannot be read ({error}): leave it out") from error
    if not content:
        raise InputError(f"{name} is an empty file: fetch it again or leave it out")
    return content


def file_digest(path: str | os.PathLike[str], name: str) -> str:
    """Return the digest of a file's contents, 64 hexadecimal digits."""
    return hashlib.sha256(read_file(path, name)).hexdigest()


def image_names(images: Sequence[Any]) -> list[str]:
    """Return names of images for error messages: by path, or by index."""
    return [f"image {os.fspath(image) if is_file(image) else index}" for index, image in enumerate(images)]


def unreadable(files: Sequence[str | os.PathLike[str]]) -> dict[int, str]:
    """Return the error of each file that cannot be read as an image, by index."""
    small = Preparation((3, 8, 8), (0.0,) * 3, (1.0,) * 3, (8, 8))

    def problem(file: str | os.PathLike[str], name: str) -> str | None:
        try:
            small.read(file, name)
        except InputError as error:
            return str(error)
        return None

    with warnings.catch_warnings(), ThreadPoolExecutor() as threads:
        warnings.simplefilter("ignore")
        reasons = threads.map(problem, files, image_names(files))
        return {index: reason for index, reason in enumerate(reasons) if reason}
