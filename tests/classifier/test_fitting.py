import pytest
import torch

from protograph.classifier.fitting import episode_spec, fitting_recipe, hold_out_share
from protograph.training.recipes import FROZEN


def members(*counts: int) -> dict[int, list[int]]:
    starts = [sum(counts[:place]) for place in range(len(counts))]
    return {place: list(range(start, start + count)) for place, (start, count) in enumerate(zip(starts, counts, strict=True))}


def test_a_fifth_of_every_class_is_held_out_and_two_always_stay() -> None:
    given = members(20, 10, 3, 2, 1)
    train, held = hold_out_share(given, seed=0)
    assert [len(rows) for rows in held.values()] == [4, 2, 1, 0, 0]
    for class_id, rows in given.items():
        assert sorted(train[class_id] + held[class_id]) == rows
    assert hold_out_share(given, seed=0) == (train, held)
    assert hold_out_share(given, seed=1) != (train, held)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((20,) * 12, (5, 5, 3, 12)),
        ((20,) * 4, (2, 5, 3, 4)),
        ((6,) * 6, (3, 3, 3, 6)),
        ((3, 2, 2), (1, 1, 1, 3)),
        ((20, 20, 20, 1, 1), (1, 5, 3, 3)),
    ],
)
def test_episodes_fit_the_images(counts: tuple[int, ...], expected: tuple[int, ...]) -> None:
    spec = episode_spec(members(*counts), FROZEN, (1, 5))
    assert spec is not None
    assert (spec.ways, spec.shots, spec.novel_queries, len(spec.seen)) == expected


@pytest.mark.parametrize("counts", [(50, 50), (1, 1, 1, 1), (9, 9, 1, 1, 1, 1)])
def test_too_few_classes_or_images_allow_none(counts: tuple[int, ...]) -> None:
    assert episode_spec(members(*counts), FROZEN, (1, 5)) is None


def test_shots_are_kept_to() -> None:
    spec = episode_spec(members(*[30] * 6), FROZEN, (2, 3))
    assert spec is not None
    assert (spec.fewest_shots, spec.shots) == (2, 3)
    assert torch.equal(spec.seen.classes, torch.arange(6))


@pytest.mark.parametrize(
    ("classes", "steps", "expected"), [(2, None, 50), (40, None, 80), (1000, None, 300), (40, 7, 7), (40, 0, 1)]
)
def test_more_classes_are_trained_for_more_steps(classes: int, steps: int | None, expected: int) -> None:
    recipe = fitting_recipe(classes, steps, 0.3)
    assert (recipe.steps, recipe.learning_rate) == (expected, 0.3)
