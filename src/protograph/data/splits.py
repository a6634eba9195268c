"""Splits of classes and images, by rules that need no random numbers and so are the same everywhere.

Where something has to be drawn, values are ordered by a hash of the seed and their names, and the first are taken. So a class
that is added moves at most one other class out of each novel part. Datasets whose published splits were drawn by positions
instead of names are drawn by `draw_by_index`.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from protograph._internal.errors import InputError, unknown_name

_T = TypeVar("_T")

DATASET_PARTS = ("train", "seen_validation", "seen_test", "novel_validation", "novel_test")
CLASS_ROLES = ("seen", "novel-validation", "novel-test")
NOVEL_VALIDATION_SHARE, NOVEL_TEST_SHARE = 0.16, 0.20  # of the classes, as in miniImageNet
SEEN_VALIDATION_SHARE, SEEN_TEST_SHARE = 0.10, 0.20  # of the images of a seen class
FEWEST_SPLIT_CLASSES = 8
FEWEST_IMAGES = 6  # of a class; fewer cannot be divided
AMPLE_IMAGES = 20  # images with which a class can be novel: five shots and fifteen queries

ImagesByClass = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Split:
    """Image indices by class name, for each part of a dataset.

    The first three parts have the same classes; the classes of the last two occur in no other part.
    """

    train: ImagesByClass
    seen_validation: ImagesByClass
    seen_test: ImagesByClass
    novel_validation: ImagesByClass
    novel_test: ImagesByClass

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the seen classes, then of the novel ones for validation, then of those for test."""
        return (*self.train, *self.novel_validation, *self.novel_test)

    def counts(self) -> str:
        """Return the numbers of classes and images in one line."""
        seen = [sum(map(len, getattr(self, part).values())) for part in DATASET_PARTS[:3]]
        return (
            f"{len(self.train)} seen classes ({seen[0]} images for training, {seen[1]} for validation, {seen[2]} for test), "
            f"{len(self.novel_validation)} novel classes for validation, {len(self.novel_test)} for test"
        )

    def without(self, images: set[int]) -> "Split":
        """Return the same split without these images."""
        if not images:
            return self
        return Split(
            *(
                {name: [image for image in members if image not in images] for name, members in getattr(self, part).items()}
                for part in DATASET_PARTS
            )
        )


def draw_by_name(values: Sequence[_T], names: Iterable[object], count: int, seed: int, *scope: object) -> list[_T]:
    """Draw values by the hash of seed, scope and their names.

    A value that is added puts at most one other out, and the order of `values` does not matter to which are drawn.

    Args:
        values: What is drawn from.
        names: One distinct name for each value.
        count: How many are drawn; all where there are fewer.
        seed: Another seed draws others.
        scope: What is drawn, such as ("novel-test",): another scope draws others.

    Returns:
        The drawn values, in the order of `values`.

    """

    def digest(name: object) -> bytes:
        return hashlib.sha256("/".join(map(str, (seed, *scope, name))).encode(errors="surrogateescape")).digest()

    digests = [digest(name) for name in names]
    chosen = sorted(range(len(values)), key=digests.__getitem__)[:count]
    return [values[index] for index in sorted(chosen)]


def draw_by_index(values: Sequence[_T], count: int, seed: int, *scope: object) -> list[_T]:
    """Draw values by the hash of seed, scope and their positions in the list: a value that is added changes many."""
    return draw_by_name(values, range(len(values)), count, seed, *scope)


def divide_images(
    images: Sequence[int], class_name: str, validation: int, test: int, seed: int = 0, names: Sequence[str] | None = None
) -> tuple[list[int], list[int], list[int]]:
    """Divide the images of a seen class into those for training, validation and test.

    Args:
        images: Image indices of the class.
        class_name: The class.
        validation: How many images are held out for validation.
        test: How many images are held out for test.
        seed: Another seed holds out others.
        names: Names of all images by image index; without them, images are drawn by their positions in `images`.

    """

    def draw(pool: list[int], count: int, part: str) -> list[int]:
        keys: Iterable[object] = range(len(pool)) if names is None else (names[image] for image in pool)
        return draw_by_name(pool, keys, count, seed, class_name, part)

    held = draw([*images], test, "test")
    rest = _without(images, held)
    validated = draw(rest, validation, "validation")
    return _without(rest, validated), validated, held


def _without(images: Sequence[int], held: Sequence[int]) -> list[int]:
    absent = set(held)
    return [image for image in images if image not in absent]


def split_seen(
    members: ImagesByClass,
    validation: float = SEEN_VALIDATION_SHARE,
    test: float = SEEN_TEST_SHARE,
    seed: int = 0,
    names: Sequence[str] | None = None,
) -> tuple[ImagesByClass, ImagesByClass, ImagesByClass]:
    """Divide the images of every seen class by shares, with at least one image for each part.

    Args:
        members: Image indices by class name.
        validation: Share of a class's images that is held out for validation.
        test: Share that is held out for test.
        seed: Another seed holds out others.
        names: Names of all images by image index; see `divide_images`.

    """
    parts: tuple[dict[str, list[int]], ...] = ({}, {}, {})
    for class_name, images in members.items():
        validation_count, test_count = (max(1, round(share * len(images))) for share in (validation, test))
        divided = divide_images(images, class_name, validation_count, test_count, seed, names)
        for part, chosen in zip(parts, divided, strict=True):
            part[class_name] = chosen
    return parts[0], parts[1], parts[2]


def split_by_parts(
    members: ImagesByClass,
    parts: Sequence[str],
    names: Sequence[str],
    roles: Mapping[str, str] | None = None,
    source: str = "",
    seed: int = 0,
) -> Split:
    """Split a dataset whose images come in parts for training, validation and test, which seen classes keep.

    Classes are drawn as in `split_freely`. All images of a novel class stay together, whatever their part. Where there is no
    part for validation or for test, a share of the images for training is held out for it, as in `split_freely`.

    Args:
        members: Image indices by class name.
        parts: "train", "validation" or "test" by image index.
        names: Names of all images by image index; see `divide_images`.
        roles: One of `CLASS_ROLES` by class name; drawn as `draw_roles` states if not given.
        source: Folder that is named in the message.
        seed: Another seed draws another split.

    Raises:
        InputError: A seen class has no image in one of the parts.

    """
    role_of = draw_roles(members, seed) if roles is None else roles
    seen, *novel = ({name: images for name, images in members.items() if role_of[name] == role} for role in CLASS_ROLES)
    divided: dict[str, dict[str, list[int]]] = {part: {} for part in ("train", "validation", "test")}
    for name, images in seen.items():
        for part, of_part in divided.items():
            of_part[name] = [image for image in images if parts[image] == part]
    shares = {"validation": SEEN_VALIDATION_SHARE, "test": SEEN_TEST_SHARE}
    drawn = [part for part in shares if part not in parts]
    for name, images in divided["train"].items():
        counts = [max(1, round(share * len(images))) if part in drawn else 0 for part, share in shares.items()]
        divided["train"][name], *held = divide_images(images, name, counts[0], counts[1], seed, names)
        for part, chosen in zip(shares, held, strict=True):
            if part in drawn:
                divided[part][name] = chosen
    for part, of_part in divided.items():
        if lacking := [name for name, images in of_part.items() if not images]:
            raise InputError(
                f"class '{lacking[0]}' has no image for {part} in {source}: give it some there, or divide no class into parts"
            )
    return Split(divided["train"], divided["validation"], divided["test"], *novel)


def check_sizes(members: ImagesByClass, unit: str, source: str = "") -> None:
    """Refuse classes that are too small to be divided.

    Args:
        members: Image indices by class name.
        unit: What the indices count, such as "images" or "vectors".
        source: File or folder that is named in the message.

    Raises:
        InputError: A class has fewer than `FEWEST_IMAGES`.

    """
    for name, images in members.items():
        if len(images) < FEWEST_IMAGES:
            where = f" of {source}" if source else ""
            raise InputError(f"class '{name}'{where} has {len(images)} {unit}: give every class at least {FEWEST_IMAGES}")


def check_roles(roles: Mapping[str, str], names: Iterable[str], source: str) -> None:
    """Refuse roles that do not fit the classes.

    Args:
        roles: One of `CLASS_ROLES` by class name.
        names: The classes that need a role.
        source: Where the roles come from, for the message.

    Raises:
        InputError: A role is unknown or unused, a class has none, or a role is given to a class without images.

    """
    for name, role in roles.items():
        if role not in CLASS_ROLES:
            raise unknown_name(f"split of class '{name}' in {source}", role, CLASS_ROLES)
    for name in names:
        if name not in roles:
            raise InputError(f"{source} does not assign class '{name}': give it one of {', '.join(CLASS_ROLES)}")
    if absent := roles.keys() - set(names):
        raise InputError(f"{source} names class '{min(absent)}', which has no images: remove it there")
    for role in CLASS_ROLES:
        if role not in roles.values():
            raise InputError(f"{source} has no class for '{role}': give each of {', '.join(CLASS_ROLES)} at least one")


def draw_roles(members: ImagesByClass, seed: int = 0, by_index: bool = False) -> dict[str, str]:
    """Draw which classes are novel.

    20 % of the classes become novel for test and 16 % novel for validation, at least five each where there are twenty classes.
    They are drawn among the classes with at least twenty images or, where these are too few, among the largest.

    Args:
        members: Image indices by class name.
        seed: Another seed draws others.
        by_index: Draw by positions in the sorted list of classes, as earlier versions did.

    Returns:
        One of `CLASS_ROLES` by class name.

    Raises:
        InputError: There are fewer than eight classes.

    """
    if len(members) < FEWEST_SPLIT_CLASSES:
        raise InputError(
            f"{len(members)} classes are too few to hold some out: give at least {FEWEST_SPLIT_CLASSES}, better 20; "
            "`protograph fit` on a trained backbone takes fewer"
        )
    counts = {
        role: max(round(share * len(members)), min(5, len(members) // 4))
        for role, share in (("novel-test", NOVEL_TEST_SHARE), ("novel-validation", NOVEL_VALIDATION_SHARE))
    }
    by_size = sorted(members, key=lambda name: (-len(members[name]), name))
    novel = sum(counts.values())
    rest = sorted(name for rank, name in enumerate(by_size) if len(members[name]) >= AMPLE_IMAGES or rank < novel)
    roles = dict.fromkeys(members, "seen")
    for role, count in counts.items():
        chosen = draw_by_index(rest, count, seed, role) if by_index else draw_by_name(rest, rest, count, seed, role)
        roles |= dict.fromkeys(chosen, role)
        rest = [name for name in rest if roles[name] == "seen"]
    return roles


def split_freely(
    members: ImagesByClass, roles: Mapping[str, str] | None = None, seed: int = 0, names: Sequence[str] | None = None
) -> Split:
    """Split a dataset that comes without a split.

    Seen classes hold out 20 % of their images for test and 10 % for validation; the images of novel classes stay together.

    Args:
        members: Image indices by class name.
        roles: One of `CLASS_ROLES` by class name; drawn as `draw_roles` states if not given.
        seed: Another seed draws another split.
        names: Names of all images by image index; see `divide_images`.

    """
    role_of = draw_roles(members, seed) if roles is None else roles
    seen, *novel = ({name: images for name, images in members.items() if role_of[name] == role} for role in CLASS_ROLES)
    return Split(*split_seen(seen, seed=seed, names=names), *novel)
