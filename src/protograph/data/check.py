"""Inspection of a dataset: its contents and its faults."""

from dataclasses import asdict, dataclass
from typing import Any

from protograph.data.dataset import Dataset
from protograph.data.splits import DATASET_PARTS


@dataclass(frozen=True)
class DatasetCheck:
    """Facts that a user should know of a dataset before training on it.

    Attributes:
        dataset: Name of the dataset.
        fingerprint: A digest of the images and of what each is used for.
        classes: Number of classes.
        images: Number of images.
        parts: For each part, the numbers of classes and images, and the fewest and most images of a class.
        image_shape: Shape of an image as it is used.
        sizes: Smallest and largest width and height before resizing.
        greyscale: Number of greyscale images.
        unreadable: Why an image cannot be read, by its name.
        duplicates: Groups of images with identical contents.
        crossing: Those groups that have images in different parts.
        relations: What each relation contains, by its name.

    """

    dataset: str
    fingerprint: str
    classes: int
    images: int
    parts: dict[str, dict[str, int]]
    image_shape: tuple[int, ...]
    sizes: dict[str, tuple[int, int]] | None
    greyscale: int
    unreadable: dict[str, str]
    duplicates: list[list[str]]
    crossing: list[list[str]]
    relations: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """Return the values as plain JSON values."""
        return asdict(self)


def inspect_dataset(dataset: Dataset) -> DatasetCheck:
    """Return the counts and faults of an opened dataset."""
    parts: dict[str, dict[str, int]] = {}
    part_of: dict[int, str] = {}
    for part in DATASET_PARTS:
        pool = getattr(dataset, part)
        counts = pool.counts
        parts[part] = {
            "classes": len(pool),
            "images": int(counts.sum()),
            "fewest": int(counts.min()) if len(pool) else 0,
            "most": int(counts.max()) if len(pool) else 0,
        }
        for row in pool.all_images().tolist():
            assert row not in part_of, f"image {row} is in {part_of.get(row)} and in {part}"
            part_of[row] = part
    images = dataset.images
    groups = images.duplicates() if images else []
    names = images.names if images else []
    sizes = None
    if images is not None and (images.sizes[:, 0] > 0).any():
        read = images.sizes[images.sizes[:, 0] > 0]
        sizes = {label: (int(read[:, axis].min()), int(read[:, axis].max())) for axis, label in enumerate(("width", "height"))}
    crossing = [rows for rows in groups if len({part_of.get(row) for row in rows}) > 1]
    return DatasetCheck(
        dataset=dataset.name,
        fingerprint=dataset.fingerprint,
        classes=len(dataset.classes),
        images=len(dataset.store),
        parts=parts,
        image_shape=tuple(dataset.store.image_shape),
        sizes=sizes,
        greyscale=int(images.grey.sum()) if images else 0,
        unreadable={names[row]: error for row, error in images.errors.items()} if images else {},
        duplicates=[[names[row] for row in rows] for rows in groups],
        crossing=[[f"{names[row]} ({part_of.get(row, 'unused')})" for row in rows] for rows in crossing],
        relations={name: relation.summary for name, relation in dataset.relations.items()},
    )
