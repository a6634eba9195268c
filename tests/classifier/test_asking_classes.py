from dataclasses import replace

import numpy as np
import pytest
import torch

from kept import blobs
from protograph import Classifier
from protograph._internal.errors import InputError
from protograph._internal.rows import Rows
from protograph.classifier import gaussian_space, joint_space
from protograph.classifier.asking import Linear, find_best
from protograph.nn import neighbours


@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("count", [1, 3, 50])
def test_the_best_of_blocks_are_the_best_of_all(count: int, offset: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(23, 5, generator=generator, dtype=torch.float64)
    moved = torch.randn(23, generator=generator, dtype=torch.float64) if offset else None
    queries = torch.randn(9, 5, generator=generator, dtype=torch.float64)
    linear = Linear(Rows([weights[:1], weights[1:10], weights[10:]]), moved)
    best = find_best(linear, queries, count, True, lambda logits, start, images: logits - start)
    logits = queries @ weights.T + (0 if moved is None else moved)
    for row, expected in enumerate(logits.tolist()):
        order = sorted(range(23), key=lambda index, scores=expected: -scores[index])[:count]
        assert best.classes[row].tolist() == order
        torch.testing.assert_close(best.logits[row], logits[row, order])
    assert best.total is not None
    assert best.likeness is not None
    torch.testing.assert_close(best.total, logits.logsumexp(1))
    starts = torch.tensor([0] + [1] * 9 + [10] * 13)
    torch.testing.assert_close(best.likeness, (logits - starts).amax(1))


@pytest.mark.parametrize("prior", ["uniform", "half"])
@pytest.mark.parametrize("variant", [None, "aux-only"])
def test_the_most_probable_classes_are_those_of_all_probabilities(variant: str | None, prior: str) -> None:
    features, labels = blobs(images=30)
    known = Classifier(variant=variant, prior=prior, unknown=0.2, steps=None if variant is None else 3).fit(features, labels)
    if variant is None:
        known.space_.settings = replace(known.space_.settings, tempering=0.4)
    known.add_class("new", features[:3] + 1)
    known.threshold_ += 1e-4  # it is the likeness of an image, which is rounded in several ways
    everything, top = known.predictions(features), known.top(features, 4)
    order = np.argsort(-everything.probabilities, kind="stable")[:, :4]
    np.testing.assert_allclose(top.probabilities, np.take_along_axis(everything.probabilities, order, 1), atol=1e-9)
    assert top.nearest.tolist() == everything.classes[order].tolist()
    assert top.labels.tolist() == everything.labels.tolist()
    np.testing.assert_allclose(top.likeness, everything.likeness, atol=1e-9)
    with pytest.raises(InputError, match="the number of classes to name must be a positive whole number, not 0"):
        known.top(features, 0)


@pytest.mark.parametrize("variant", [None, "aux-only"])
def test_an_index_answers_as_all_classes_do_and_follows_changes(variant: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("usearch")
    for module in (gaussian_space, joint_space):
        monkeypatch.setattr(module, "MOST_IN_DOUBLE", 3)
    monkeypatch.setattr(gaussian_space, "MOST_REWHITENED", 3)
    monkeypatch.setattr(neighbours, "MOST_DENSE", 3)
    features, labels = blobs(classes=20, images=6, size=8)
    known = Classifier(variant=variant, steps=None if variant is None else 2, update="novel").fit(features, labels)
    assert known.index_recall(features) == 1
    index = known.space_._index
    known.add_class("new", -features[:2]).remove_class("c").add_class("newer", 2 - features[7:9])
    known.add_examples("new", -features[2:3])
    assert known.space_._index is not None
    assert known.space_._index.vectors is index.vectors, "it is not made anew"
    asked = np.concatenate([features, -features, 2 - features])
    assert known.predict(asked, index=True).tolist() == known.predict(asked).tolist()
    assert {"new", "newer"} <= set(known.predict(asked, index=True).tolist())
    both = known.top(asked, 3), known.top(asked, 3, index=True)
    assert both[0].nearest.tolist() == both[1].nearest.tolist()
    np.testing.assert_allclose(both[0].likeness, both[1].likeness, atol=1e-4)


def test_predictions_of_many_classes_agree_with_those_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = blobs(images=30)
    known = Classifier(variant="aux-only", steps=3, unknown=0.3).fit(features, labels)
    known.threshold_ += 1e-4  # it is the likeness of an image
    expected = known.top(features, 3)
    monkeypatch.setattr(joint_space, "MOST_IN_DOUBLE", 3)
    found = known.top(features, 3)
    assert found.labels.tolist() == expected.labels.tolist()
    np.testing.assert_allclose(found.probabilities, expected.probabilities, atol=1e-5)
    np.testing.assert_allclose(found.likeness, expected.likeness, atol=1e-5)
