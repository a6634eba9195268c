"""Your images: a folder of class folders, or one of the other forms of `labelled_images`.

An optional split.csv, in that folder or beside the table, with the columns `class` and `split` assigns each class to seen,
novel-validation or novel-test. Without it, classes are split as `splits.split_freely` states. Images that come in parts for
training and test are divided as `splits.split_by_parts` states.
"""

from itertools import islice
from pathlib import Path
from typing import TypeVar

from protograph._internal.errors import InputError
from protograph._internal.progress import Progress
from protograph.data.augmentation import Augmentation
from protograph.data.dataset import Dataset, assemble, report_bad
from protograph.data.images import IMAGE_NORMALISATION, IMAGE_SIZE
from protograph.data.labelled_images import find_labelled_images
from protograph.data.reading import read_columns, read_images
from protograph.data.splits import FEWEST_IMAGES, check_roles, split_by_parts, split_freely

_T = TypeVar("_T")

NAMED = 12  # novel classes named when a folder is opened


def open_folder(root: Path, progress: Progress, skip_bad: bool) -> Dataset:
    """Return the images of a folder of class folders, or of a table of images, resized to 84 x 84."""
    found = find_labelled_images(root, skip_bad, progress)
    table = found.root / "split.csv"
    assigned = _assigned(table, found.files)
    listed = _large_enough(found.files, root, skip_bad, progress)
    names = [name for class_files in listed.values() for name in class_files]
    images = read_images(found.root, names, IMAGE_SIZE, IMAGE_NORMALISATION, progress)
    rows = iter(range(len(names)))
    members = {
        name: [row for row in islice(rows, len(class_files)) if row not in images.errors]
        for name, class_files in listed.items()
    }
    report_bad(images, skip_bad, progress)
    left = _large_enough(members, root, skip_bad, progress)
    if assigned:
        check_roles({name: assigned[name] for name in left}, left, f"{table}, of the classes with enough images,")
    if found.parts:
        split = split_by_parts(left, [found.parts[name] for name in names], names, assigned, str(root))
    else:
        split = split_freely(left, assigned, names=images.names)
    rule = "as split.csv says" if assigned else "drawn by rule; to choose, write a split.csv with the columns class and split"
    novel = [*split.novel_validation, *split.novel_test]
    shown = ", ".join(novel[:NAMED]) + (", ..." if len(novel) > NAMED else "")
    progress.say(f"{root}: {split.counts()} ({shown}); {rule}")
    titles = {name: name.replace("_", " ") for name in split.classes}
    return assemble("folder", split, images, Augmentation(pad=8, flip=True), {}, titles, drawn_split=True)


def _large_enough(listed: dict[str, list[_T]], root: Path, skip_bad: bool, progress: Progress) -> dict[str, list[_T]]:
    small = [name for name, images in listed.items() if len(images) < FEWEST_IMAGES]
    if not small:
        return listed
    first = f"class '{small[0]}' has {len(listed[small[0]])} images"
    if not skip_bad:
        rest = f" and {len(small) - 1} more have too few" if len(small) > 1 else ""
        raise InputError(
            f"{first}{rest} in {root}: give every class at least {FEWEST_IMAGES}, or leave such classes out with --skip-bad"
        )
    progress.say(f"left out {len(small)} of {len(listed)} classes with fewer than {FEWEST_IMAGES} images: {first}")
    return {name: images for name, images in listed.items() if name not in small}


def _assigned(path: Path, listed: dict[str, list[str]]) -> dict[str, str] | None:
    if not path.is_file():
        return None
    assigned: dict[str, str] = {}
    for row in read_columns(path, "class", "split"):
        name, kind = str(row["class"]), str(row["split"])
        if assigned.setdefault(name, kind) != kind:
            raise InputError(f"{path} gives class '{name}' to two splits: keep one row")
    check_roles(assigned, listed, str(path))
    return assigned
