"""The images that make an episode: pure functions of a specification, a seed and an index. They see no pixels and no model.

Shapes: E episodes, S seen, N novel, V = S + N, K shots, Q queries; M images of a class at the most.

Guarantees, each a property test:
* support and query images of an episode never overlap, and no image is a query twice;
* a class acting as novel is not among the episode's seen rows;
* every image comes from the pool of its class, and every target is the row of its class;
* images of one class are drawn without replacement; the class of a seen query uniformly with replacement;
* the same (specification, seed, index) gives the same episode, however many are drawn together.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal

import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph.data.dataset import Pool

QueryScheme = Literal["total", "per-class"]


@dataclass(frozen=True)
class EpisodeSpec:
    """The contents of an episode: its pools and sizes.

    Attributes:
        seen: The pool of seen classes.
        novel: The pool that novel classes are drawn from; None in training, where N of the seen classes act as novel.
        ways: Number N of novel classes.
        shots: Number K of examples of each novel class.
        novel_queries: Queries of each novel class.
        seen_queries: Queries of all seen classes together (scheme "total") or of each of them (scheme "per-class").
        scheme: "total" or "per-class".
        fewest_shots: If given, each novel class gets between so many and K examples.
        names: Class names by class id, for messages.
        scarce: Whether a single class has too few images to answer all seen queries.
    """

    seen: Pool
    novel: Pool | None
    ways: int
    shots: int
    novel_queries: int
    seen_queries: int
    scheme: QueryScheme = "total"
    fewest_shots: int | None = None
    names: tuple[str, ...] = ()
    scarce: bool = field(init=False)

    def __post_init__(self) -> None:
        source, kind = (self.seen, "seen") if self.novel is None else (self.novel, "novel")
        for name, least in (("ways", 1), ("shots", 1), ("novel_queries", 1), ("seen_queries", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name.replace('_', ' ')} must be at least {least}, not {getattr(self, name)}")
        if self.ways > len(source) - (self.novel is None):
            remedy = "--set training_ways=N" if self.novel is None else "--set ways=N; of `evaluate` --ways"
            raise InputError(
                f"an episode cannot have {self.ways} ways of {len(source)} {kind} classes: use fewer ways ({remedy})"
            )
        fewest, needed = int(source.counts.min()), self.shots + self.novel_queries
        if needed > fewest:
            class_id = int(source.classes[source.counts.argmin()])
            raise InputError(
                f"{self.shots} shots + {self.novel_queries} queries need {needed} images of every {kind} class, "
                f"but class '{self.names[class_id] if self.names else class_id}' has {fewest}: use fewer shots (--shots) or "
                f"queries (--set {'novel_queries=N' if self.novel is None else 'test_queries=N; of `evaluate` --queries'})"
            )
        fewest = int(self.seen.counts.min())
        if self.scheme == "per-class" and self.seen_queries > fewest:
            raise InputError(
                f"an episode has {self.seen_queries} queries of each seen class, but one class has {fewest} images: use fewer"
            )
        supply = int(self.seen.counts.sort().values[: len(self.seen) - (self.ways if self.novel is None else 0)].sum())
        if self.scheme == "total" and (self.seen_queries > supply or fewest < 1):
            if self.novel is None:
                raise InputError(
                    f"a training episode has {self.seen_queries} seen queries, but beside {self.ways} classes acting as "
                    f"novel the others may have only {supply} images: --set seen_queries=N or training_ways=N"
                )
            raise InputError(
                f"a held-out episode has {self.seen_queries} seen queries (ways x test queries), but the seen classes "
                f"hold out only {supply} images: --set test_queries=N or ways=N; of `evaluate` --queries or --ways"
            )
        if self.fewest_shots is not None and not 1 <= self.fewest_shots <= self.shots:
            raise InputError(f"the fewest shots must lie between 1 and {self.shots}, not {self.fewest_shots}")
        object.__setattr__(self, "scarce", fewest < self.seen_queries)

    def to(self, device: torch.device) -> "EpisodeSpec":
        """Return the same specification with its pools on a device."""
        return replace(self, seen=self.seen.to(device), novel=None if self.novel is None else self.novel.to(device))


@dataclass(frozen=True)
class Episodes:
    """E episodes as indices.

    Attributes:
        classes: Class id of every row of the joint label space [E, V], the S seen ones first.
        support: Image indices of the examples [E, N, K]; padding repeats the first.
        mask: Whether an entry of `support` is an example and no padding [E, N, K].
        queries: Image indices of the queries [E, Q], those of seen classes first.
        targets: Rows of the queries' classes [E, Q].
        seen: Number S of seen classes.
    """

    classes: Tensor
    support: Tensor
    mask: Tensor
    queries: Tensor
    targets: Tensor
    seen: int

    def __len__(self) -> int:
        return len(self.classes)

    def slice(self, start: int, stop: int) -> "Episodes":
        """Return the episodes from `start` to `stop` - 1."""
        return replace(self, **{name: getattr(self, name)[start:stop] for name in _TENSORS})

    def without_seen(self) -> "Episodes":
        """Return the same episodes without their seen classes, and with the queries of novel classes alone.

        Each episode must have as many of these, behind all others, as held-out and few-shot episodes have.
        """
        first = int((self.targets[0] < self.seen).sum())
        queries, targets = self.queries[:, first:].contiguous(), self.targets[:, first:] - self.seen
        return replace(self, classes=self.classes[:, self.seen :], queries=queries, targets=targets, seen=0)

    def images(self) -> Tensor:
        """Return every image index that occurs, ascending."""
        occurring: Tensor = torch.unique(torch.cat([self.support.flatten(), self.queries.flatten()]))
        return occurring

    @cached_property
    def compact(self) -> tuple[Tensor, "Episodes"]:
        """The image indices that occur, and the same episodes by positions among these: only their features are computed."""
        images = self.images()
        return images, self.among(images)

    def among(self, images: Tensor) -> "Episodes":
        """Return the same episodes with each image index replaced by its position in `images` (ascending)."""
        support, queries = (torch.searchsorted(images, indices) for indices in (self.support, self.queries))
        return replace(self, support=support, queries=queries)

    def to(self, device: torch.device) -> "Episodes":
        """Return the same episodes on a device."""
        return replace(self, **{name: getattr(self, name).to(device) for name in _TENSORS})


_TENSORS = ("classes", "support", "mask", "queries", "targets")


def seeded(seed: int, *path: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a separate generator for every (seed, path), such as (seed, "train", step)."""
    return torch.Generator(device).manual_seed(_number(seed, *path))


def step_seed(seed: int, step: int) -> int:
    """Return the seed of a training step's generator."""
    return _number(seed, "train", step)


def _number(seed: int, *path: int | str) -> int:
    digest = blake2b(repr((seed, *path)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def sample(spec: EpisodeSpec, seed: int, index: int) -> Episodes:
    """Return episode number `index` of a seed as a batch of one. It is drawn on the CPU, and so equal on every machine."""
    return draw(spec, 1, seeded(seed, "episode", index))


def fixed_episodes(spec: EpisodeSpec, seed: int, count: int) -> Episodes:
    """Return episodes 0 .. count - 1 of a seed, such as those of validation and test."""
    drawn = [sample(spec, seed, index) for index in range(count)]
    together: dict[str, Any] = {name: torch.cat([getattr(episode, name) for episode in drawn]) for name in _TENSORS}
    return replace(drawn[0], **together)


def draw(spec: EpisodeSpec, count: int, generator: torch.Generator) -> Episodes:
    """Return `count` episodes drawn at once, on the generator's device, on which the pools must be too."""
    novel_pool = spec.seen if spec.novel is None else spec.novel
    order = _shuffled(count, len(novel_pool), generator)  # [E, C]
    novel = order[:, : spec.ways]  # rows of the novel pool
    if spec.novel is None:
        seen = order[:, spec.ways :].sort(dim=1).values
    else:
        seen = torch.arange(len(spec.seen), device=order.device).expand(count, -1)

    images = _images(novel_pool, novel, spec.shots + spec.novel_queries, generator)  # [E, N, K + q]
    support, novel_queries = images[..., : spec.shots], images[..., spec.shots :]
    mask = torch.ones_like(support, dtype=torch.bool)
    if spec.fewest_shots is not None:
        shots = torch.randint(
            spec.fewest_shots, spec.shots + 1, (count, spec.ways, 1), generator=generator, device=order.device
        )
        mask = torch.arange(spec.shots, device=order.device) < shots
        support = torch.where(mask, support, support[..., :1])

    if not spec.seen_queries:
        seen_rows = seen_queries = novel[:, :0]
    elif spec.scheme == "total":
        seen_rows, seen_queries = _uniform_queries(spec, seen, generator)
    else:
        seen_queries = _images(spec.seen, seen, spec.seen_queries, generator).flatten(1)
        seen_rows = torch.arange(seen.shape[1], device=seen.device).repeat_interleave(spec.seen_queries).expand(count, -1)
    novel_rows = seen.shape[1] + torch.arange(spec.ways, device=seen.device).repeat_interleave(spec.novel_queries)
    return Episodes(
        classes=torch.cat([spec.seen.classes[seen], novel_pool.classes[novel]], 1),
        support=support,
        mask=mask,
        queries=torch.cat([seen_queries, novel_queries.flatten(1)], 1),
        targets=torch.cat([seen_rows, novel_rows.expand(count, -1)], 1),
        seen=seen.shape[1],
    )


@dataclass(frozen=True)
class Batch:
    """Single images and their classes.

    Attributes:
        images: Image indices [n].
        targets: Rows of their classes in the pool that they were drawn from [n].
    """

    images: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def slice(self, start: int, stop: int) -> "Batch":
        """Return the images from `start` to `stop` - 1."""
        return Batch(self.images[start:stop], self.targets[start:stop])


def draw_batch(pool: Pool, count: int, generator: torch.Generator) -> Batch:
    """Return `count` images drawn on the generator's device, on which the pool must be too: first the class, then the image."""
    rows = torch.randint(0, len(pool), (count,), generator=generator, device=generator.device)
    positions = torch.rand(count, generator=generator, device=generator.device) * pool.counts[rows]
    # A product that rounds up to the count itself would be the position behind the last image.
    positions = positions.long().minimum(pool.counts[rows] - 1)
    return Batch(pool.images[rows, positions], rows)


def _shuffled(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Return random orders [count, size] of 0 .. size - 1."""
    keys = torch.rand(count, size, generator=generator, device=generator.device)
    return keys.argsort(dim=1, stable=True)


def _images(pool: Pool, rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return `count` different images [..., count] of each of the pool's `rows` [...]."""
    keys = torch.rand(*rows.shape, pool.images.shape[1], generator=generator, device=rows.device)
    keys = keys.masked_fill(pool.images[rows] < 0, 2.0)  # padding sorts behind every image
    chosen = keys.argsort(dim=-1, stable=True)[..., :count]
    return pool.images[rows].gather(-1, chosen)


def _uniform_queries(spec: EpisodeSpec, seen: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return rows and images [E, q] of seen queries: the class uniformly with replacement, images without.

    The second query of a class takes the second image of the same random order, and so on, so that one random order per
    query suffices whatever the number of seen classes. A class that is drawn more often than it has images gives the
    surplus to the next class that is not yet exhausted.
    """
    count, queries = len(seen), spec.seen_queries
    rows = torch.randint(0, seen.shape[1], (count, queries), generator=generator, device=seen.device)
    if spec.scarce:
        rows = _within_supply(rows, spec.seen.counts[seen])
    same = rows[:, :, None] == rows[:, None, :]  # [E, q, q]
    first = same.int().argmax(dim=2)  # the first query of the same class
    position = torch.arange(queries, device=seen.device)
    rank = (same & (position[:, None] > position)).sum(dim=2)  # how many before this one
    pool_rows = seen.gather(1, rows)
    orders = _images(spec.seen, pool_rows, spec.seen.images.shape[1], generator)  # [E, q, M]
    picked = orders.gather(1, first[:, :, None].expand_as(orders)).gather(2, rank[:, :, None])[:, :, 0]
    return rows, picked


def _within_supply(rows: Tensor, supply: Tensor) -> Tensor:
    """Move queries [E, q] of classes drawn more often than they have images (`supply` [E, S]) to the next class with some."""
    moved, left = rows.tolist(), supply.tolist()
    for drawn, remaining in zip(moved, left, strict=True):
        for query, row in enumerate(drawn):
            while remaining[row] == 0:
                row = (row + 1) % len(remaining)
            remaining[row] -= 1
            drawn[query] = row
    return torch.tensor(moved, device=rows.device)
