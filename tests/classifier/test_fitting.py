from typing import Any

import pytest
import torch
from torch import Tensor

from protograph._internal.errors import InputError
from protograph._internal.progress import Silent
from protograph.classifier import fitting
from protograph.classifier.fitting import Fit, episode_spec, fitting_recipe, hold_out_share
from protograph.data import FeatureStore
from protograph.episodes import EpisodeSpec
from protograph.training.recipes import FROZEN
from protograph.variants import find_variant


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


IMAGES = 20


def clouds(classes: int, spread: float = 1.0) -> Tensor:
    """Features around one centre per class, all of them far from zero; those of a class lie one after another."""
    generator = torch.Generator().manual_seed(1)
    centres = torch.randn(classes, 16, generator=generator)
    return 5 + centres.repeat_interleave(IMAGES, 0) + spread * torch.randn(classes * IMAGES, 16, generator=generator)


def fit(trained: bool = True) -> Fit:
    return Fit(find_variant("gcgpn-cos-aux"), {}, fitting_recipe(10, 20, 0.2), trained, (1, 3), seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("trained", [True, False])
def test_a_model_is_fitted_as_if_classes_that_are_away_were_not_there(trained: bool) -> None:
    one, rows = clouds(6), members(*[IMAGES] * 6)
    other = one.clone()
    other[rows[2]] += torch.linspace(-3, 3, 16)
    away = [fit(trained).model(FeatureStore(features), rows, Silent(), away=[2]).state_dict() for features in (one, other)]
    there = fit(trained).model(FeatureStore(other), rows, Silent()).state_dict()
    unasked = [state.pop("prototypes") for state in away]
    assert not torch.equal(*(prototypes[2] for prototypes in unasked)), "which takes part in no episode"
    assert torch.equal(*(prototypes[[0, 1, 3, 4, 5]] for prototypes in unasked))
    assert all(torch.equal(value, away[1][name]) for name, value in away[0].items())
    assert not torch.equal(there["backbone.centre"], away[0]["backbone.centre"])


@pytest.mark.slow
def test_a_bias_is_that_of_the_best_harmonic_mean_for_classes_the_model_was_not_fitted_to() -> None:
    features, rows = clouds(10, spread=1.5), members(*[IMAGES] * 10)
    found = fit().bias(FeatureStore(features), rows, Silent())
    assert fit().bias(FeatureStore(features), rows, Silent()) == found
    # What all features share makes no difference: they are centred.
    assert fit().bias(FeatureStore(features + 3), rows, Silent()) == pytest.approx(found, abs=0.02)
    assert abs(found) < 3, "of a model trained for the joint space, with temperature 10"


def test_what_chooses_a_bias_is_not_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted: list[int] = []
    asked: list[EpisodeSpec] = []
    train, draw = fitting.train_model, fitting.fixed_episodes

    def training(model: Any, store: Any, members: dict[int, list[int]], *rest: Any) -> None:
        fitted.extend(row for rows in members.values() for row in rows)
        train(model, store, members, *rest)

    def drawing(spec: EpisodeSpec, *rest: Any) -> Any:
        asked.append(spec)
        return draw(spec, *rest)

    monkeypatch.setattr(fitting, "train_model", training)
    monkeypatch.setattr(fitting, "fixed_episodes", drawing)
    fit().bias(FeatureStore(clouds(10)), members(1, 1, *[IMAGES] * 8), Silent())
    (spec,) = asked
    assert spec.novel is not None
    known, new = set(spec.seen.all_images().tolist()), set(spec.novel.all_images().tolist())
    assert len(known) == 6 * IMAGES / 5, "a fifth of those that stay"
    assert len(new) == 2 * IMAGES, "two classes, though not of those with a single image"
    assert len(fitted) == 2 + 6 * IMAGES * 4 / 5
    assert not set(fitted) & (known | new)


@pytest.mark.parametrize("counts", [(9,) * 7, (1,) * 9, (2,) * 9])
def test_too_few_classes_or_images_choose_no_bias(counts: tuple[int, ...]) -> None:
    features = clouds(10)[: sum(counts)]
    with pytest.raises(InputError, match="too few images to balance"):
        fit().bias(FeatureStore(features), members(*counts), Silent())
