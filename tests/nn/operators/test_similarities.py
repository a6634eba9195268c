from dataclasses import replace

import pytest
import torch
from naive import close, naive_pairs, naive_score, unit

from protograph.nn.operators import (
    DifferenceSimilarity,
    PrototypeSimilarity,
    TransformedSimilarity,
    pairwise,
)

MEASURES = ("cosine", "l2")


@pytest.mark.parametrize("measure", MEASURES)
def test_prototype_similarity_is_the_measure_between_normalised_prototypes(context, measure):
    rows = unit(context)
    expected = naive_pairs(context, lambda e, m, n: naive_score(rows[e][m], rows[e][n], measure))
    close(PrototypeSimilarity(measure)(context).dense(7), expected)


@pytest.mark.parametrize("width", [None, 3])
@pytest.mark.parametrize("measure", MEASURES)
def test_transformed_similarity_is_the_measure_in_the_learned_space(context, measure, width):
    similarity = TransformedSimilarity(5, width, measure).double()
    matrix = similarity.transform.weight.tolist()
    moved = [[[sum(w * x for w, x in zip(line, c, strict=True)) for line in matrix] for c in rows] for rows in unit(context)]
    expected = naive_pairs(context, lambda e, m, n: naive_score(moved[e][m], moved[e][n], measure))
    close(similarity(context).dense(7), expected)


@pytest.mark.parametrize("measure", MEASURES)
def test_transformed_similarity_starts_as_the_measure_itself(context, measure):
    start, itself = TransformedSimilarity(5, None, measure).double(), PrototypeSimilarity(measure)
    torch.testing.assert_close(start(context).dense(7), itself(context).dense(7), rtol=0, atol=1e-5)


def test_difference_similarity_transforms_absolute_differences(context):
    similarity = DifferenceSimilarity(5, hidden=4).double()
    first, second = similarity.layers[0], similarity.layers[2]
    rows = unit(context)

    def score(e, m, n):
        difference = [abs(a - b) for a, b in zip(rows[e][m], rows[e][n], strict=True)]
        total = 0.0
        for line, bias, weight in zip(first.weight.tolist(), first.bias.tolist(), second.weight[0].tolist(), strict=True):
            total += weight * max(0.0, bias + sum(w * x for w, x in zip(line, difference, strict=True)))
        return total

    close(similarity(context).dense(7), naive_pairs(context, score))


@pytest.mark.parametrize("measure", MEASURES)
def test_prototype_similarity_in_sn_answers_novel_rows_and_seen_columns_only(context, measure):
    scores = PrototypeSimilarity(measure, "sn")(context)
    assert (scores.rows, scores.columns) == (slice(4, 7), slice(0, 4))
    close(scores.values, PrototypeSimilarity(measure)(context).dense(7)[:, 4:, :4])


def test_unknown_measure_is_named():
    with pytest.raises(ValueError, match="'manhattan'"):
        pairwise(torch.zeros(1, 1), torch.zeros(1, 1), "manhattan")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_l2_of_identical_prototypes_is_zero_with_finite_gradient(context, dtype):
    prototypes = torch.ones(2, 7, 5, dtype=dtype, requires_grad=True)
    scores = PrototypeSimilarity("l2")(replace(context, prototypes=prototypes)).dense(7)
    scores.sum().backward()
    torch.testing.assert_close(scores, torch.zeros_like(scores), rtol=0, atol=1e-3)
    assert prototypes.grad.isfinite().all()
