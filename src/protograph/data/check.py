"""What is in a dataset, and what is wrong with it."""

from dataclasses import asdict, dataclass
from typing import Any

from protograph.data.dataset import Dataset
from protograph.data.splits import DATASET_PARTS


@dataclass(frozen=True)
class Inspection:
    """The facts about a dataset that a user should know before training on it.

    parts:      part -> classes, images, fewest and most images of a class
    sizes:      smallest and largest width and height before resizing
    duplicates: groups of images with identical contents
    crossing:   those groups of which the images serve for different parts
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
        """As plain JSON values."""
        return asdict(self)


def inspect_dataset(dataset: Dataset) -> Inspection:
    """Count and compare everything in a dataset that was opened."""
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
    return Inspection(
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
