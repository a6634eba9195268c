"""The inputs of a classifier: images or features in memory, and files of either.

Shapes: n images, D features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from protograph._internal.errors import InputError
from protograph._internal.progress import Progress
from protograph.data.datasets.features import READERS, bad_rows, read_features, read_vectors
from protograph.data.datasets.folder import list_images
from protograph.data.reading import SUFFIXES, count_other_files, find_all_folders, find_names
from protograph.encoders import Encoder
from protograph.encoders.preparation import unreadable

KINDS_NAMED = 5  # of the files that are left out


def as_images(inputs: Any) -> Sequence[Any] | None:
    """Return inputs as a list of images; None where they are features: a table of numbers, or one vector."""
    if isinstance(inputs, str | PathLike | bytes | Image.Image):
        return [inputs]
    if isinstance(inputs, np.ndarray) and inputs.dtype == np.uint8 and inputs.ndim > 1:
        return [inputs] if inputs.ndim == 2 or (inputs.ndim == 3 and inputs.shape[2] == 3) else list(inputs)
    if isinstance(inputs, Tensor) and inputs.ndim >= 3:
        return [inputs] if inputs.ndim == 3 else list(inputs)
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind in "OU":
        inputs = inputs.tolist()
    if isinstance(inputs, list | tuple) and len(inputs) and _is_image(inputs[0]):
        return list(inputs)
    return None


def _is_image(element: Any) -> bool:
    if isinstance(element, str | PathLike | bytes | Image.Image):
        return True
    return isinstance(element, np.ndarray | Tensor) and element.ndim >= 2


def as_array(inputs: Any) -> Any:
    """Return features as something that scikit-learn checks: tensors become arrays, the rest stays as it is."""
    if isinstance(inputs, Tensor):
        return inputs.detach().cpu().numpy()
    if isinstance(inputs, list | tuple) and len(inputs) and all(isinstance(row, Tensor) for row in inputs):
        return torch.stack([row.detach().cpu() for row in inputs]).numpy()
    return inputs


@dataclass(frozen=True)
class TrainingFiles:
    """What `fit` learns from, read from a folder of class folders or from a file of features.

    Attributes:
        inputs: Paths of images, or vectors [n, D].
        labels: The class of each.
        features: Whether the inputs are vectors.

    """

    inputs: Any
    labels: list[str]
    features: bool


def holds_features(source: Path) -> bool:
    """Return whether a path names a file of features, not a folder of images."""
    return source.suffix in READERS and not source.is_dir()


def read_training_files(source: Path, skip_bad: bool, progress: Progress) -> TrainingFiles:
    """Return the inputs and labels in a folder of class folders, or in a file of features.

    Of a file that divides its vectors into parts, those for training are taken.

    Raises:
        InputError: There is nothing to fit on, or something cannot be read and `skip_bad` is not set.

    """
    if holds_features(source):
        vectors, labels, parts = read_features(source)
        bad = bad_rows(vectors, labels, source, skip_bad, progress)
        rows = [row for row in range(len(labels)) if row not in bad and (parts is None or parts[row] == "train")]
        if parts is not None:
            progress.say(f"{len(rows)} of {len(labels)} vectors are for training, as the file says")
        inputs: Any = vectors[rows]
    else:
        files, labels = list_labelled_images(source, progress)
        rows = readable_rows(files, skip_bad, progress)
        inputs = [files[row] for row in rows]
    if not rows:
        raise InputError(f"there is nothing in {source} to fit on")
    return TrainingFiles(inputs, [labels[row] for row in rows], holds_features(source))


def list_labelled_images(root: Path, progress: Progress) -> tuple[list[Path], list[str]]:
    """Return the images in a folder of class folders and the class of each; class folders without images are reported."""
    listed = list_images(root)
    if empty := [name for name, files in listed.items() if not files]:
        suffixes = ", ".join(sorted(SUFFIXES))
        progress.say(f"left out {', '.join(empty)}: no images directly in the folder (files whose names end in {suffixes})")
    if counts := count_other_files([root / name for name in listed]):
        kinds = ", ".join(f"{kind} ({count})" for kind, count in counts.most_common(KINDS_NAMED))
        progress.say(f"files in the class folders that are no images and were left out: {kinds}")
    pairs = [(root / name / file, name) for name, files in listed.items() for file in files]
    return [file for file, _ in pairs], [name for _, name in pairs]


def encode_files(
    files: Sequence[Path], encoder: Encoder | None, features: int, skip_bad: bool, progress: Progress, recursive: bool = False
) -> tuple[list[str], Tensor]:
    """Return the names of images, or of vectors, and their features [n, D].

    Args:
        files: Images and folders of images; files of features where there is no encoder.
        encoder: What makes features of images.
        features: The number of features D that vectors must have.
        skip_bad: Whether images that cannot be read are left out instead of refused.
        progress: What shows how far the encoding is.
        recursive: Whether images are also taken from the folders in a folder; then a line says how many there are.

    """
    if encoder is None:
        return _read_vector_files(files, features, skip_bad, progress)
    images = readable_images(files, skip_bad, progress, recursive)
    return [str(file) for file in images], encoder.encode(images, progress)


def readable_images(paths: Sequence[Path], skip_bad: bool, progress: Progress, recursive: bool = False) -> list[Path]:
    """Return images, each folder replaced by those in it; the arguments are those of `encode_files`."""
    listed = list_files(paths, progress if recursive else None)
    images = [listed[row] for row in readable_rows(listed, skip_bad, progress)]
    if not images:
        raise InputError("none of the images can be read: give others")
    return images


def _read_vector_files(files: Sequence[Path], features: int, skip_bad: bool, progress: Progress) -> tuple[list[str], Tensor]:
    names: list[str] = []
    tables: list[Tensor] = []
    for file in files:
        rows, vectors = read_vectors(file, skip_bad, progress)
        if vectors.shape[1] != features:
            raise InputError(f"{file} has vectors of {vectors.shape[1]} numbers, but the model was fitted on {features}")
        names += [f"{file}[{row}]" for row in rows]
        tables.append(torch.from_numpy(vectors))
    return names, torch.cat(tables)


def list_files(paths: Sequence[Path], progress: Progress | None = None) -> list[Path]:
    """Return files, each folder replaced by the images in it; with `progress`, also by those of all folders inside."""
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        folders = [path] if progress is None else find_all_folders(path)
        images = [folder / name for folder in folders for name in find_names(folder)]
        if not images:
            raise InputError(f"folder {path} holds no images: give one that does, or images")
        if progress is not None:
            inside = len({image.parent for image in images} - {path})
            progress.say(f"{len(images)} images in {path}" + (f" and {inside} folders inside" if inside else ""))
        files += images
    return files


def readable_rows(files: Sequence[Path], skip_bad: bool, progress: Progress) -> list[int]:
    """Return the indices of the files that can be read as images; without `skip_bad`, of all files."""
    if not skip_bad:
        return list(range(len(files)))
    bad = unreadable(files)
    if bad:
        progress.say(f"left out {len(bad)} of {len(files)} images that cannot be read: {next(iter(bad.values()))}")
    return [row for row in range(len(files)) if row not in bad]
