"""Every guarantee in the docstring of `episodes`, checked naively, episode by episode."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protograph._internal.errors import InputError
from protograph.data import Pool
from protograph.episodes import Episodes, EpisodeSpec, draw, fixed_episodes, sample, seeded

SEEDS = st.integers(0, 2**32)


def make_pool(counts: list[int], first_class: int = 0, first_image: int = 0) -> Pool:
    """Classes with so many images each, their indices neither ascending nor contiguous."""
    total = sum(counts)
    indices = (first_image + torch.randperm(2 * total, generator=seeded(total))[:total]).tolist()
    members = {}
    for class_id, count in enumerate(counts, first_class):
        members[class_id], indices = indices[:count], indices[count:]
    return Pool.from_members(members)


@st.composite
def specs(draw: Any) -> EpisodeSpec:
    """Valid specifications of every kind, many of them with too few images of a seen class for all seen queries."""
    ways, shots, novel_queries = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    enough = st.integers(shots + novel_queries, shots + novel_queries + 3)
    if draw(st.booleans()):
        counts = draw(st.lists(enough, min_size=ways + 1, max_size=ways + 5))
        seen, novel, supply = make_pool(counts), None, sum(sorted(counts)[: len(counts) - ways])
    else:
        counts = draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
        more = draw(st.lists(enough, min_size=ways, max_size=ways + 4))
        seen, novel, supply = make_pool(counts), make_pool(more, len(counts), 2 * sum(counts)), sum(counts)
    scheme = draw(st.sampled_from(["total", "per-class"]))
    seen_queries = draw(st.integers(0, supply if scheme == "total" else min(counts)))
    fewest_shots = draw(st.none() | st.integers(1, shots))
    return EpisodeSpec(seen, novel, ways, shots, novel_queries, seen_queries, scheme, fewest_shots)


def members(pool: Pool) -> dict[int, set[int]]:
    return {
        int(class_id): set(images[: int(count)].tolist())
        for class_id, images, count in zip(pool.classes, pool.images, pool.counts, strict=True)
    }


def check_guarantees(spec: EpisodeSpec, episodes: Episodes) -> None:
    seen_pool = members(spec.seen)
    novel_pool = seen_pool if spec.novel is None else members(spec.novel)
    for number in range(len(episodes)):
        classes, targets, queries = (part[number].tolist() for part in (episodes.classes, episodes.targets, episodes.queries))
        seen, novel = classes[: episodes.seen], classes[episodes.seen :]
        assert len(novel) == spec.ways
        assert len(set(classes)) == len(classes), "a class acting as novel is among the seen rows"
        assert set(novel) <= set(novel_pool)
        assert set(seen) == (set(seen_pool) - set(novel) if spec.novel is None else set(seen_pool))
        assert seen == sorted(seen)

        support: list[int] = []
        for class_id, images, mask in zip(novel, episodes.support[number], episodes.mask[number], strict=True):
            shown = images[mask].tolist()
            assert (spec.fewest_shots or spec.shots) <= len(shown) <= spec.shots
            assert mask[: len(shown)].all()
            assert (images[~mask] == images[0]).all(), "padding repeats the first image"
            assert set(shown) <= novel_pool[class_id]
            support += shown

        assert len(set(support)) == len(support)
        assert len(set(queries)) == len(queries), "an image is a query twice"
        assert not set(support) & set(queries), "support and queries overlap"
        for image, row in zip(queries, targets, strict=True):
            assert image in (seen_pool if row < episodes.seen else novel_pool)[classes[row]]

        per_row = [targets.count(row) for row in range(len(classes))]
        assert per_row[episodes.seen :] == [spec.novel_queries] * spec.ways
        if spec.scheme == "total":
            assert sum(per_row[: episodes.seen]) == spec.seen_queries
        else:
            assert per_row[: episodes.seen] == [spec.seen_queries] * episodes.seen
        first_novel = sum(per_row[: episodes.seen])
        assert all(row < episodes.seen for row in targets[:first_novel]), "seen queries come first"


@pytest.mark.slow
@given(specs(), SEEDS, st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_every_episode_keeps_the_guarantees(spec: EpisodeSpec, seed: int, index: int) -> None:
    check_guarantees(spec, sample(spec, seed, index))


@given(specs(), SEEDS, st.integers(2, 6))
@settings(max_examples=100, deadline=None)
def test_episodes_drawn_together_keep_the_guarantees(spec: EpisodeSpec, seed: int, count: int) -> None:
    episodes = draw(spec, count, seeded(seed))
    assert len(episodes) == count
    check_guarantees(spec, episodes)


def test_a_scarce_seen_pool_is_used_up_to_its_last_image() -> None:
    spec = EpisodeSpec(make_pool([1, 4, 2]), make_pool([3, 3], 3, 20), 2, 1, 2, 7)
    episode = sample(spec, 0, 0)
    check_guarantees(spec, episode)
    assert set(episode.queries[0, :7].tolist()) == set(spec.seen.all_images().tolist())


def same(one: Episodes, other: Episodes) -> bool:
    parts = ("classes", "support", "mask", "queries", "targets")
    return one.seen == other.seen and all(torch.equal(getattr(one, part), getattr(other, part)) for part in parts)


@given(specs(), SEEDS, st.integers(1, 5), st.integers(0, 4))
@settings(max_examples=50, deadline=None)
def test_an_episode_does_not_depend_on_how_many_are_drawn(spec: EpisodeSpec, seed: int, count: int, more: int) -> None:
    few, many = fixed_episodes(spec, seed, count), fixed_episodes(spec, seed, count + more)
    assert same(few, many.slice(0, count))
    assert same(sample(spec, seed, count - 1), few.slice(count - 1, count))


def test_an_episode_does_not_depend_on_the_global_random_state() -> None:
    spec = EpisodeSpec(make_pool([9] * 8), None, 2, 2, 2, 5)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        one = sample(spec, 5, 7)
        torch.manual_seed(2)
        assert same(one, sample(spec, 5, 7))


def test_seeds_and_indices_give_different_episodes() -> None:
    spec = EpisodeSpec(make_pool([9] * 8), None, 2, 2, 2, 5)
    drawn = [sample(spec, seed, index) for seed in range(3) for index in range(3)]
    assert not any(same(one, other) for at, one in enumerate(drawn) for other in drawn[:at])


def test_every_path_has_a_generator_of_its_own() -> None:
    paths: list[tuple[Any, ...]] = [
        (1, 11),
        (11, 1),
        (111,),
        (1, "train", 1),
        (1, "train", 11),
        (1, "episode", 1),
        (1, "train1"),
    ]
    numbers = [torch.randint(2**62, (), generator=seeded(*path)).item() for path in paths]
    assert len(set(numbers)) == len(paths)


SEEN_COUNTS = [6, 9, 7, 12, 6, 8]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("scheme", ["total", "per-class"])
def test_every_class_and_image_is_reached(training: bool, scheme: Any) -> None:
    seen = make_pool(SEEN_COUNTS)
    spec = EpisodeSpec(seen, None if training else make_pool([6, 8, 7], 6, 200), 2, 2, 2, 3, scheme)
    episodes = draw(spec, 800, seeded(0))
    source = seen if spec.novel is None else spec.novel
    assert set(episodes.classes[:, episodes.seen :].flatten().tolist()) == set(source.classes.tolist())
    assert set(episodes.classes[:, : episodes.seen].flatten().tolist()) == set(seen.classes.tolist())
    assert set(episodes.support.flatten().tolist()) == set(source.all_images().tolist())
    first_novel = episodes.queries.shape[1] - spec.ways * spec.novel_queries
    assert set(episodes.queries[:, :first_novel].flatten().tolist()) == set(seen.all_images().tolist())
    assert set(episodes.queries[:, first_novel:].flatten().tolist()) == set(source.all_images().tolist())


def evenly_spread(counts: list[int], places: int) -> bool:
    """Whether counts differ from their mean by no more than five standard deviations of a binomial."""
    mean = sum(counts) / places
    spread = (mean * (1 - 1 / places)) ** 0.5
    return len(counts) == places and all(abs(count - mean) < 5 * spread for count in counts)


@pytest.mark.parametrize("together", [True, False])
def test_seen_queries_are_uniform_over_classes_however_many_images_these_have(together: bool) -> None:
    spec = EpisodeSpec(make_pool(SEEN_COUNTS), make_pool([6, 8, 7], 6, 200), 2, 2, 2, 5)
    count = 600
    episodes = draw(spec, count, seeded(1)) if together else fixed_episodes(spec, 1, count)
    rows = episodes.targets[:, :5]
    assert evenly_spread(rows.flatten().bincount(minlength=6).tolist(), 6)
    # With replacement: two queries of an episode share their class as often as two dice show the same.
    shared = int((rows[:, 0] == rows[:, 1]).sum())
    assert abs(shared - count / 6) < 5 * (count * 5 / 36) ** 0.5


def test_novel_classes_and_their_images_are_uniform() -> None:
    spec = EpisodeSpec(make_pool(SEEN_COUNTS), make_pool([6, 8, 7], 6, 200), 1, 1, 1, 1)
    assert spec.novel is not None
    episodes = draw(spec, 3000, seeded(2))
    assert evenly_spread((episodes.classes[:, -1] - 6).bincount(minlength=3).tolist(), 3)
    shown = [int((episodes.support == image).sum()) for image in spec.novel.images[1, :8]]
    assert evenly_spread(shown, 8)
    assert evenly_spread([int((episodes.queries[:, 1] == image).sum()) for image in spec.novel.images[1, :8]], 8)


def test_unequal_shots_take_every_allowed_number() -> None:
    spec = EpisodeSpec(make_pool([9] * 6), None, 2, 4, 1, 3, fewest_shots=2)
    assert set(draw(spec, 200, seeded(0)).mask.sum(-1).flatten().tolist()) == {2, 3, 4}


@given(specs(), SEEDS)
@settings(max_examples=30, deadline=None)
def test_reindexed_episodes_point_at_the_same_images(spec: EpisodeSpec, seed: int) -> None:
    episodes = fixed_episodes(spec, seed, 3)
    images = episodes.images()
    assert images.tolist() == sorted({*episodes.support.flatten().tolist(), *episodes.queries.flatten().tolist()})
    moved = episodes.among(images)
    assert torch.equal(images[moved.support], episodes.support)
    assert torch.equal(images[moved.queries], episodes.queries)
    assert torch.equal(moved.targets, episodes.targets)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"shots": 5, "novel_queries": 4}, ["5 shots", "4 queries", "9", "8", "class '3'"]),
        ({"ways": 6}, ["6 ways", "6 seen"]),
        ({"seen_queries": 9, "scheme": "per-class"}, ["9 queries", "8"]),
        ({"seen_queries": 100}, ["100", "44"]),
        ({"fewest_shots": 3}, ["3", "between 1 and 2"]),
        ({"shots": 0}, ["at least 1"]),
    ],
)
def test_an_impossible_specification_is_refused_with_its_numbers(changes: dict[str, Any], named: list[str]) -> None:
    asked: dict[str, Any] = {"ways": 1, "shots": 2, "novel_queries": 2, "seen_queries": 3, **changes}
    with pytest.raises(InputError) as refusal:
        EpisodeSpec(make_pool([9, 9, 9, 8, 9, 9]), None, **asked)
    for words in named:
        assert words in str(refusal.value)


def test_more_ways_than_novel_classes_are_refused_with_both_numbers() -> None:
    with pytest.raises(InputError, match="4 ways of 3 novel classes"):
        EpisodeSpec(make_pool([9] * 6), make_pool([9] * 3, 6, 200), 4, 1, 1, 1)
