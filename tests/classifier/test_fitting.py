import sys

import pytest
import torch

from kept import blobs
from protograph import Classifier
from protograph._internal.errors import InputError
from protograph.classifier import fitting
from protograph.classifier.fitting import episode_spec, fitting_recipe, hold_out_share, sample_classes
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


def test_many_classes_are_trained_a_sample_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "MOST_TRAINED", 10)
    monkeypatch.setattr(fitting, "SAMPLED", 8)
    monkeypatch.setattr(fitting, "NEIGHBOURS", 3)
    monkeypatch.setattr(fitting, "STEPS_OF_ROUND", 2)
    features, labels = blobs(classes=30, images=10, size=6)
    before = Classifier(variant="gcgpn-key", steps=0).fit(features, labels).space_.model
    once = Classifier(variant="gcgpn-key", steps=2).fit(features, labels).space_.model
    changed = (once.prototypes != before.prototypes).any(1)
    keys = [dict(model.named_parameters())["operators.0.similarity.keys"] for model in (before, once)]
    assert torch.equal((keys[0] != keys[1]).any(1), changed)
    assert changed.sum() == 8, "what a round does not draw stays as it is"
    assert not torch.equal(once.graph.layers[0].scales, before.graph.layers[0].scales)
    more = Classifier(variant="gcgpn-key", steps=12).fit(features, labels)
    assert (more.space_.model.prototypes != before.prototypes).any(1).sum() > 8
    assert more.score(features, labels) > 0.9


def test_a_round_draws_classes_with_what_is_near_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "SAMPLED", 6)
    monkeypatch.setattr(fitting, "NEIGHBOURS", 2)
    model = Classifier(variant="aux-only", steps=0).fit(*blobs(classes=30)).space_.model
    prototypes = torch.nn.functional.normalize(model.learned(), dim=1)
    chosen = sample_classes(model, {}, torch.Generator().manual_seed(0))
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    assert len(chosen) == 6
    near = [set((prototypes @ prototypes[row]).topk(3).indices.tolist()) <= set(chosen.tolist()) for row in chosen.tolist()]
    assert sum(near) >= 2
    edges = torch.sparse_coo_tensor([[*range(30)], [*range(1, 30), 0]], torch.ones(30), (30, 30), check_invariants=True)
    chosen = sample_classes(model, {"ring": edges.coalesce()}, torch.Generator().manual_seed(0)).tolist()
    assert sum((row + 1) % 30 in chosen for row in chosen) >= 2


def test_too_little_memory_is_said_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protograph._internal.memory.available_memory", lambda: 1000)
    with pytest.raises(InputError, match=r"fitting 6 classes takes about 0.0 GB of memory, and 0.0 GB are free: use a larger"):
        Classifier(variant="aux-only", steps=1).fit(*blobs(size=50))


def test_a_missing_index_is_said_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "usearch.index", None)
    monkeypatch.setattr("protograph.nn.neighbours.MOST_EXACT", 5)
    with pytest.raises(InputError, match=r"the nearest of 6 classes are found by an index, which needs usearch"):
        Classifier(variant="gcgpn-cos-aux").fit(*blobs())
    Classifier(variant="aux-only", steps=1).fit(*blobs())
