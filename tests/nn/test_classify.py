import math

import pytest
import torch
from naive import LargestTensor

from protograph.nn.classify import CosineClassifier, SquaredDistance, normalise


def rows(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_normalise_gives_every_row_unit_length():
    inputs = rows(2, 3, 4)
    expected = [[[x / math.hypot(*row) for x in row] for row in matrix] for matrix in inputs.tolist()]
    torch.testing.assert_close(normalise(inputs), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-10)


def test_normalise_leaves_a_zero_row_zero_with_zero_gradient():
    inputs = rows(3, 4)
    inputs[1] = 0
    inputs.requires_grad_()
    outputs = normalise(inputs)
    outputs.sum().backward()
    assert not outputs[1].any()
    assert not inputs.grad[1].any()
    assert inputs.grad.isfinite().all()
    assert inputs.grad[0].any()


@pytest.mark.parametrize("scale", [1e-15, 1e15])
def test_normalise_holds_for_very_short_and_very_long_rows(scale):
    inputs = rows(3, 4).float()
    torch.testing.assert_close(normalise(scale * inputs), normalise(inputs))


def test_cosine_classifier_scales_the_cosine_of_query_and_prototype():
    queries, prototypes = rows(2, 3, 4), rows(2, 5, 4, seed=1)
    expected = torch.zeros(2, 3, 5, dtype=torch.float64)
    for e in range(2):
        for q, query in enumerate(queries[e].tolist()):
            for n, prototype in enumerate(prototypes[e].tolist()):
                dot = sum(a * b for a, b in zip(query, prototype, strict=True))
                expected[e, q, n] = 7 * dot / math.hypot(*query) / math.hypot(*prototype)
    torch.testing.assert_close(CosineClassifier(7.0)(queries, prototypes), expected, rtol=0, atol=1e-10)


def test_cosine_classifier_starts_at_ten_and_learns_its_temperature():
    classifier = CosineClassifier()
    assert classifier.temperature.item() == 10
    classifier(rows(1, 3, 4), rows(1, 5, 4, seed=1)).square().sum().backward()
    assert classifier.temperature.grad.item() > 0


def test_zero_prototype_or_query_has_logit_zero_and_finite_gradient():
    queries, prototypes = rows(1, 3, 4), rows(1, 5, 4, seed=1)
    queries[0, 0], prototypes[0, 2] = 0, 0
    prototypes.requires_grad_()
    logits = CosineClassifier()(queries, prototypes)
    logits.logsumexp(-1).sum().backward()
    assert not logits[0, 0].any()
    assert not logits[0, :, 2].any()
    assert prototypes.grad.isfinite().all()


def test_squared_distance_classifier_scales_minus_the_squared_distance_per_feature():
    queries, prototypes = rows(2, 3, 4), rows(2, 5, 4, seed=1)
    expected = torch.zeros(2, 3, 5, dtype=torch.float64)
    for e in range(2):
        for q, query in enumerate(queries[e].tolist()):
            for n, prototype in enumerate(prototypes[e].tolist()):
                expected[e, q, n] = -3 * math.dist(query, prototype) ** 2 / 4
    torch.testing.assert_close(SquaredDistance(3.0)(queries, prototypes), expected, rtol=0, atol=1e-10)


def test_squared_distance_classifier_starts_at_one_and_learns_its_scale():
    classifier = SquaredDistance()
    assert classifier.scale.item() == 1
    classifier(rows(1, 3, 4), rows(1, 5, 4, seed=1)).sum().backward()
    assert classifier.scale.grad.item() < 0


def test_squared_distances_make_nothing_that_grows_with_queries_times_prototypes_times_features():
    with LargestTensor() as largest:
        SquaredDistance()(rows(2, 30, 50), rows(2, 40, 50))
    assert largest.numbers <= 2 * 40 * 50
