"""A dataset of noisy patterns, for trainings that take no time."""

import torch

from protograph.data import Augmentation, Dataset, ImageStore, Normalisation, Pool
from protograph.relations import MatrixRelation

SEEN, NOVEL_VALIDATION, NOVEL_TEST, IMAGES = 12, 6, 7, 12


def make_toy() -> Dataset:
    """Noisy patterns, one pattern per class: small enough to train on in a blink, and not hopeless."""
    generator = torch.Generator().manual_seed(0)
    pixels: list[torch.Tensor] = []
    classes = SEEN + NOVEL_VALIDATION + NOVEL_TEST
    patterns = torch.randint(0, 156, (classes, 1, 1, 16, 16), generator=generator)

    def pool(first: int, stop: int) -> Pool:
        members = {}
        for class_id in range(first, stop):
            start = IMAGES * len(pixels)
            members[class_id] = list(range(start, start + IMAGES))
            noise = torch.randint(0, 100, (IMAGES, 1, 16, 16), generator=generator)
            pixels.append((patterns[class_id] + noise).to(torch.uint8))
        return Pool.from_members(members)

    train, seen_validation, seen_test = (pool(0, SEEN) for _ in range(3))
    novel_validation = pool(SEEN, SEEN + NOVEL_VALIDATION)
    novel_test = pool(SEEN + NOVEL_VALIDATION, classes)
    names = tuple(f"class-{class_id:02d}" for class_id in range(classes))
    similarities = torch.rand(classes, classes, generator=generator).fill_diagonal_(1)
    return Dataset(
        name="toy",
        classes=names,
        store=ImageStore(torch.cat(pixels), Normalisation((0.5,), (0.25,))),
        train=train,
        seen_validation=seen_validation,
        novel_validation=novel_validation,
        seen_test=seen_test,
        novel_test=novel_test,
        augmentation=Augmentation(pad=2),
        relations={"kinship": MatrixRelation(similarities, names, "kinship")},
        fingerprint="toy-1",
    )
