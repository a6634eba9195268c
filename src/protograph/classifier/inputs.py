"""The inputs of a classifier: images or features in memory, and files of either.

Shapes: n images, D features.
"""

from collections import Counter
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
from protograph._internal.files import is_folder
from protograph._internal.progress import Progress, Silent
from protograph._internal.wording import counted
from protograph.data.datasets.features import FEATURE_PARTS, READERS, bad_rows, read_features, read_vectors
from protograph.data.feature_shards import is_feature_folder, read_manifest
from protograph.data.labelled_images import LabelledImages, find_labelled_images, list_class_folders
from protograph.data.reading import SUFFIXES, count_other_files, find_all_folders, find_names
from protograph.encoders import Encoder, ImageEncoder
from protograph.encoders.base import KeptEncoder
from protograph.encoders.preparation import unreadable

KINDS_NAMED = 5  # of the files that are left out
PART_TITLES = {"train": "training", "validation": "validation", "test": "test"}  # of parts


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
class LabelledFiles:
    """Images or vectors with their classes, read from a folder, a table of images or a file of features.

    Attributes:
        inputs: Paths of images, or vectors [n, D].
        labels: The class of each.
        features: Whether the inputs are vectors.

    """

    inputs: Any
    labels: list[str]
    features: bool


def holds_features(source: Path) -> bool:
    """Return whether a path names a file of features or a folder of shards, not a folder of images."""
    return is_feature_folder(source) if is_folder(source) else source.suffix in READERS


def check_encoder_of(source: Path, encoder: Encoder | None, features: int) -> None:
    """Raise an `InputError` unless a classifier can be asked about the features in a folder of shards.

    Args:
        source: The folder.
        encoder: The encoder of the classifier, which must be the one that made the features; None where it has none.
        features: The number of features D that it was fitted on.

    """
    notes = read_manifest(source).encoder
    if encoder is None:
        if notes.features != features:
            raise InputError(f"{source} has vectors of {notes.features} numbers, but the model was fitted on {features}")
        return
    opened = encoder.opened() if isinstance(encoder, KeptEncoder) else encoder
    if not isinstance(opened, ImageEncoder) or opened.digest() != notes.digest:
        raise InputError(
            f"{source} has features by {notes.name} at {notes.size} pixels, which is not the network that the model was fitted "
            "with: embed the images with that one, or give the images"
        )


def read_training_files(source: Path, skip_bad: bool, progress: Progress) -> LabelledFiles:
    """Return what to fit on: all there is or, where it comes in parts, the part for training.

    Args:
        source: A folder or table of images, in a form that `labelled_images` knows, or a file of features.
        skip_bad: Whether what cannot be read is left out instead of refused.
        progress: Is told what is left out.

    Raises:
        InputError: There is nothing to fit on, or something cannot be read and `skip_bad` is not set.

    """
    return _read_labelled_files(source, ("train",), "fit on", skip_bad, progress)


def read_test_files(source: Path, skip_bad: bool, progress: Progress) -> LabelledFiles:
    """Return what to measure on: the part for test or else for validation or, where there are no parts, all there is.

    The arguments and errors are those of `read_training_files`.
    """
    return _read_labelled_files(source, ("test", "validation", "train"), "measure on", skip_bad, progress)


def find_test_files(source: Path, skip_bad: bool, progress: Progress) -> LabelledFiles | None:
    """Return the part for test; None where there is none, or where the source is no folder or table of images."""
    if holds_features(source) or "test" not in find_labelled_images(source, skip_bad, Silent()).parts.values():
        return None
    return read_test_files(source, skip_bad, progress)


def _read_labelled_files(
    source: Path, wanted: Sequence[str], purpose: str, skip_bad: bool, progress: Progress
) -> LabelledFiles:
    """Return the first of the wanted parts that there is, or everything where there are no parts."""
    if holds_features(source):
        vectors, labels, parts = read_features(source)
        bad = bad_rows(vectors, labels, source, skip_bad, progress)
        rows = [row for row in range(len(labels)) if row not in bad]
        if parts is not None:
            part = next((name for name in wanted if FEATURE_PARTS[name] in parts), wanted[-1])
            rows = [row for row in rows if parts[row] == FEATURE_PARTS[part]]
            progress.say(f"{len(rows)} of {len(labels)} vectors are for {PART_TITLES[part]}, as the file says")
        inputs: Any = vectors[rows]
    else:
        found = find_labelled_images(source, skip_bad, progress)
        if found.parts:
            part = next((name for name in wanted if name in found.parts.values()), wanted[-1])
            counts = Counter(found.parts.values())
            others = "".join(
                f", {counts[other]} for {PART_TITLES[other]}" for other in PART_TITLES if other != part and counts[other]
            )
            progress.say(f"{counts[part]} images in {source} are for {PART_TITLES[part]}{others}")
            found = found.of_part(part)
        files, labels = _listed(found, progress)
        rows = readable_rows(files, skip_bad, progress)
        inputs = [files[row] for row in rows]
    if not rows:
        raise InputError(f"there is nothing in {source} to {purpose}")
    return LabelledFiles(inputs, [labels[row] for row in rows], holds_features(source))


def list_labelled_images(root: Path, progress: Progress) -> tuple[list[Path], list[str]]:
    """Return the images in a folder of class folders and the class of each; class folders without images are reported."""
    listed = list_class_folders(root)
    files = {name: [f"{name}/{file}" for file in files] for name, files in listed.items()}
    return _listed(LabelledImages(root, files, folders=[*listed]), progress)


def _listed(images: LabelledImages, progress: Progress) -> tuple[list[Path], list[str]]:
    """Return the files of images and the class of each, and tell what class folders hold beside images."""
    if empty := [name for name, files in images.files.items() if not files]:
        suffixes = ", ".join(sorted(SUFFIXES))
        progress.say(f"left out {', '.join(empty)}: no images directly in the folder (files whose names end in {suffixes})")
    if counts := count_other_files([images.root / name for name in images.folders]):
        kinds = ", ".join(f"{kind} ({count})" for kind, count in counts.most_common(KINDS_NAMED))
        progress.say(f"files in the class folders that are no images and were left out: {kinds}")
    pairs = [(images.root / file, name) for name, files in images.files.items() for file in files]
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
    folders = [file for file in files if is_feature_folder(file)]
    if encoder is None or (folders and len(folders) == len(files)):
        for folder in folders:
            check_encoder_of(folder, encoder, features)
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
        file_names, vectors = read_vectors(file, skip_bad, progress)
        if vectors.shape[1] != features:
            raise InputError(f"{file} has vectors of {vectors.shape[1]} numbers, but the model was fitted on {features}")
        names += file_names
        tables.append(torch.from_numpy(vectors))
    return names, torch.cat(tables)


def list_files(paths: Sequence[Path], progress: Progress | None = None) -> list[Path]:
    """Return files, each folder replaced by the images in it; with `progress`, also by those of all folders inside."""
    files: list[Path] = []
    for path in paths:
        if not is_folder(path):
            files.append(path)
            continue
        folders = [path] if progress is None else find_all_folders(path)
        images = [folder / name for folder in folders for name in find_names(folder)]
        if not images:
            raise InputError(f"folder {path} holds no images: give one that does, or images")
        if progress is not None:
            inside = len({image.parent for image in images} - {path})
            progress.say(
                f"{counted(len(images), 'image')} in {path}" + (f" and {counted(inside, 'folder')} inside" if inside else "")
            )
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
