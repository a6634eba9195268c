import math

import pytest
import torch
from naive import (
    close,
    full_graph,
    graph,
    naive_key_pairs,
    naive_pairs,
    naive_softmax,
    rand,
    randomised_keys,
)

from protograph.nn.operators import (
    Edges,
    PrototypeSimilarity,
    SideInformation,
    Softmax,
    sparsify,
)


def test_softmax_normalises_every_row_at_its_temperature(context):
    scores = PrototypeSimilarity()(context).dense(7)
    weights = Softmax(PrototypeSimilarity(), "cos", temperature=3.5)(context)
    close(weights.dense(7), naive_softmax(scores, 3.5))


def test_softmax_of_a_block_sums_to_one_over_the_blocks_columns(context):
    similarity = randomised_keys("sn")
    weights = Softmax(similarity, "keys", temperature=10.0)(context)
    expected = torch.zeros(2, 7, 7, dtype=torch.float64)
    expected[:, 4:, :4] = naive_softmax(naive_key_pairs(similarity, context)[:, 4:, :4], 10.0)
    close(weights.dense(7), expected)


def test_edge_softmax_takes_in_edges_only_and_leaves_a_class_without_edges_a_zero_row(context):
    pairs, values = [(0, 3), (0, 8), (0, 2), (3, 3), (8, 1), (8, 7), (8, 0)], [0.3, -2.0, 900.0, 5.0, 1.0, 1.5, 0.0]
    known = dict(zip(pairs, values, strict=True))

    def score(e, m, n):
        return known.get((context.classes[e, m].item(), context.classes[e, n].item()), -math.inf)

    expected = naive_softmax(naive_pairs(context, score), 0.5)
    weights = Softmax(SideInformation(graph(pairs, values, 9)), "graph", temperature=0.5)(context).dense(7)
    close(weights, expected)
    assert not weights[0, 2].any()


def test_edge_softmax_does_not_overflow(context):
    weights = Softmax(SideInformation(graph([(0, 3), (0, 1)], [2000.0, 1999.0], 9)), "graph")(context).dense(7)
    close(weights[0, 0, [1, 3]], torch.tensor([1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1))], dtype=torch.float64))


def test_sparse_path_equals_dense_path_when_all_edges_are_present(context):
    matrix, inputs = rand(9, 9), rand(2, 7, 5)
    dense = Softmax(SideInformation(matrix), "dense", 2.0)(context)
    sparse = Softmax(SideInformation(full_graph(matrix)), "sparse", 2.0)(context)
    assert isinstance(sparse.values, Edges)
    close(sparse.dense(7), dense.dense(7))
    close(sparse.times(inputs), dense.times(inputs))


def naive_threshold(scores, top, above):
    scores = scores.clone()
    for row in scores.view(-1, scores.shape[-1]):
        strongest = sorted(row.tolist(), reverse=True)[:top]
        for n, score in enumerate(row.tolist()):
            if (above is not None and score <= above) or score not in strongest:
                row[n] = -math.inf
    return scores


@pytest.mark.parametrize(("top", "above"), [(2, None), (None, 0.1), (3, 0.2), (100, None), (None, 0.999999)])
def test_thresholded_softmax_counts_weaker_scores_as_absent(context, top, above):
    scores = naive_threshold(PrototypeSimilarity()(context).dense(7).detach(), top, above)
    weights = Softmax(PrototypeSimilarity(), "cos", 2.0, top, above).double()(context)
    close(weights.dense(7), naive_softmax(scores, 2.0))


def test_row_whose_scores_all_fall_below_the_bound_is_zero_with_finite_gradient(context):
    operator = Softmax(PrototypeSimilarity(), "cos", above=2.0).double()
    weights = operator(context).dense(7)
    weights.sum().backward()
    assert not weights.any()
    assert not operator.temperature.grad.any()
    assert not context.prototypes.grad.any()


@pytest.mark.parametrize(("top", "above"), [(2, None), (None, 0.1), (2, 0.1)])
def test_thresholds_hold_for_sparse_similarities_too(context, top, above):
    matrix = rand(9, 9)
    dense = Softmax(SideInformation(matrix), "dense", 1.0, top, above)(context)
    sparse = Softmax(SideInformation(full_graph(matrix)), "sparse", 1.0, top, above)(context)
    close(sparse.dense(7), dense.dense(7))


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
@pytest.mark.parametrize(("top", "above"), [(2, None), (None, 0.3), (3, -0.5), (None, None)])
def test_sparsify_keeps_the_strongest_of_a_row(top, above):
    matrix = rand(6, 6)
    kept = naive_threshold(matrix, top, above)
    sparse = sparsify(matrix, top, above)
    assert sparse.layout == torch.sparse_coo
    close(sparse.to_dense(), kept.masked_fill(kept == -math.inf, 0))
    assert sparse.values().numel() == kept.isfinite().sum()


def test_sparsify_gives_the_user_no_warning():
    torch.set_warn_always(True)
    try:
        sparsify(rand(3, 3), top=1)
    finally:
        torch.set_warn_always(False)
