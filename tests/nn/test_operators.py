import math
from dataclasses import replace

import pytest
import torch
from naive import LargestTensor, close, rand

from protograph.nn.classify import normalise
from protograph.nn.operators import (
    BLOCKS,
    Blocks,
    DifferenceSimilarity,
    Edges,
    Identity,
    KeySimilarity,
    Operator,
    Power,
    PrototypeSimilarity,
    ShotAttention,
    SideInformation,
    Softmax,
    TransformedSimilarity,
    Weights,
    mean_over_shots,
    pairwise,
    sparsify,
)

MEASURES = ("cosine", "l2")


def naive_score(a, b, measure):
    if measure == "cosine":
        return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)
    return -math.dist(a, b)


def naive_pairs(context, score):
    """score(e, m, n) of every pair of classes, one by one."""
    episodes, classes = context.classes.shape
    everything = range(classes)
    scores = [[[score(e, m, n) for n in everything] for m in everything] for e in range(episodes)]
    return torch.tensor(scores, dtype=torch.float64)


def naive_softmax(scores, temperature=1.0):
    """Every row for itself; a score of minus infinity is an absent edge."""
    weights = torch.zeros_like(scores)
    for e, rows in enumerate(scores.tolist()):
        for m, row in enumerate(rows):
            shares = [math.exp(temperature * score) for score in row]
            for n, share in enumerate(shares):
                weights[e, m, n] = share / sum(shares) if sum(shares) else 0
    return weights


def unit(context):
    return [[[x / math.hypot(*row) for x in row] for row in rows] for rows in context.prototypes.tolist()]


def graph(pairs, values, size):
    index = torch.tensor(pairs).T
    return torch.sparse_coo_tensor(index, values, (size, size), dtype=torch.float64, check_invariants=True)


def full_graph(matrix):
    index = torch.ones_like(matrix).nonzero().T
    return torch.sparse_coo_tensor(index, matrix.flatten(), matrix.shape, check_invariants=True)


# Similarities


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


def naive_key_pairs(similarity, context):
    weight, bias = similarity.query.weight.tolist(), similarity.query.bias.tolist()
    keys = []
    for rows, classes in zip(unit(context), context.classes.tolist(), strict=True):
        seen = [similarity.keys[name].tolist() for name in classes[:4]]
        novel = [
            [b + sum(w * x for w, x in zip(line, c, strict=True)) for line, b in zip(weight, bias, strict=True)]
            for c in rows[4:]
        ]
        keys.append(seen + novel)
    return naive_pairs(context, lambda e, m, n: naive_score(keys[e][m], keys[e][n], "cosine"))


def randomised_keys(block):
    similarity = KeySimilarity(6, 5, block).double()
    with torch.no_grad():
        similarity.query.weight.copy_(rand(5, 5))
        similarity.query.bias.copy_(rand(5))
    return similarity


def test_key_similarity_matches_learned_keys_with_queried_prototypes(context):
    similarity = randomised_keys(None)
    close(similarity(context).dense(7), naive_key_pairs(similarity, context))


def test_key_similarity_in_sn_answers_novel_rows_and_seen_columns_only(context):
    similarity = randomised_keys("sn")
    scores = similarity(context)
    assert (scores.rows, scores.columns) == (slice(4, 7), slice(0, 4))
    close(scores.values, naive_key_pairs(similarity, context)[:, 4:, :4])


@pytest.mark.parametrize("measure", MEASURES)
def test_prototype_similarity_in_sn_answers_novel_rows_and_seen_columns_only(context, measure):
    scores = PrototypeSimilarity(measure, "sn")(context)
    assert (scores.rows, scores.columns) == (slice(4, 7), slice(0, 4))
    close(scores.values, PrototypeSimilarity(measure)(context).dense(7)[:, 4:, :4])


def naive_attention(operator, context):
    """The share [E, N, S] that each seen class has in each novel one: per example, then averaged over those that are there."""
    weight, bias = operator.similarity.query.weight.tolist(), operator.similarity.query.bias.tolist()
    answer = torch.zeros(*context.mask.shape[:2], context.seen, dtype=torch.float64)
    for e, classes in enumerate(context.classes.tolist()):
        keys = [operator.similarity.keys[name].tolist() for name in classes[: context.seen]]
        for n, (shots, there) in enumerate(zip(context.support[e].tolist(), context.mask[e].tolist(), strict=True)):
            shots = [shot for shot, is_there in zip(shots, there, strict=True) if is_there]
            for shot in shots:
                shot = [x / math.hypot(*shot) for x in shot]
                asked = [b + sum(w * x for w, x in zip(line, shot, strict=True)) for line, b in zip(weight, bias, strict=True)]
                shares = [math.exp(operator.temperature.item() * naive_score(asked, key, "cosine")) for key in keys]
                for m, share in enumerate(shares):
                    answer[e, n, m] += share / sum(shares) / len(shots)
    return answer


@pytest.mark.parametrize("shots", [1, 5, "unequal"])
def test_shot_attention_asks_for_every_example_and_averages_the_answers(context, shots):
    count = 5 if shots == "unequal" else shots
    mask = torch.ones(2, 3, count, dtype=torch.bool)
    if shots == "unequal":
        mask = torch.tensor([[[1, 1, 0, 1, 0], [0, 1, 0, 0, 0], [1] * 5], [[0, 0, 0, 1, 1], [1] * 5, [1, 0, 0, 0, 0]]]).bool()
    context = replace(context, support=rand(2, 3, count, 5), mask=mask)
    operator = ShotAttention(6, 5, temperature=4.0).double()
    operator.similarity = randomised_keys("sn")
    (weights,) = operator.weights(context)
    assert (weights.rows, weights.columns) == (slice(4, 7), slice(0, 4))
    close(weights.values, naive_attention(operator, context))


def test_shot_attention_at_one_shot_is_a_softmax_of_keys(context):
    context = replace(context, support=context.support[:, :, :1], mask=context.mask[:, :, :1])
    prototypes = torch.cat([context.prototypes[:, :4], context.support[:, :, 0]], 1)
    operator = ShotAttention(6, 5).double()
    operator.similarity = randomised_keys("sn")
    alike = Softmax(operator.similarity, "keys", 10.0)
    close(operator(context).values, alike(replace(context, prototypes=prototypes)).values)


def test_keys_start_as_protocol_says():
    similarity = KeySimilarity(500, 200)
    assert similarity.keys.std().item() == pytest.approx(math.sqrt(2 / 200), rel=0.05)
    assert (similarity.query.weight - torch.eye(200)).std().item() == pytest.approx(0.001, rel=0.05)
    assert not similarity.query.bias.any()


def test_side_information_is_reindexed_for_every_episode_and_keeps_its_direction(context):
    matrix = rand(9, 9)
    expected = naive_pairs(context, lambda e, m, n: matrix[context.classes[e, m], context.classes[e, n]].item())
    assert not torch.equal(matrix, matrix.T)
    close(SideInformation(matrix)(context).dense(7), expected)


def test_sparse_side_information_has_only_the_edges_among_the_episodes_classes(context):
    pairs, values = [(0, 3), (3, 8), (8, 0), (1, 2), (2, 1), (7, 7), (4, 6)], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    scores = SideInformation(graph(pairs, values, 9))(context)
    known = dict(zip(pairs, values, strict=True))

    def score(e, m, n):
        return known.get((context.classes[e, m].item(), context.classes[e, n].item()), 0.0)

    expected = naive_pairs(context, score)
    assert scores.values.weight.numel() == expected.count_nonzero() == 10
    close(scores.dense(7), expected)


@pytest.mark.parametrize("layout", ["to_sparse_coo", "to_sparse_csr"])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
def test_any_sparse_layout_is_a_graph(context, layout):
    matrix = (rand(9, 9) > 0) * rand(9, 9, seed=1)
    scores = SideInformation(getattr(matrix, layout)())(context)
    assert isinstance(scores.values, Edges)
    close(scores.dense(7), SideInformation(matrix)(context).dense(7))


def test_unknown_measure_is_named():
    with pytest.raises(ValueError, match="'manhattan'"):
        pairwise(torch.zeros(1, 1), torch.zeros(1, 1), "manhattan")


# Softmax


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


# Identity, blocks, powers


def test_identity_changes_nothing_and_computes_nothing(context):
    (weights,) = Identity().weights(context)
    assert weights.values is None
    assert torch.equal(weights.times(context.prototypes), context.prototypes)
    assert torch.equal(weights.dense(7), torch.eye(7))


@pytest.mark.parametrize(
    ("block", "rows", "columns"),
    [
        ("ss", range(4), range(4)),
        ("sn", range(4, 7), range(4)),
        ("ns", range(4), range(4, 7)),
        ("nn", range(4, 7), range(4, 7)),
    ],
)
@pytest.mark.parametrize("kind", [torch.clone, full_graph])
def test_block_xy_goes_from_x_to_y_with_rows_y_and_columns_x(context, kind, block, rows, columns):
    matrix, inputs = rand(9, 9), rand(2, 7, 5)
    whole = naive_softmax(SideInformation(matrix)(context).dense(7))
    expected = torch.zeros_like(whole)
    for e in range(2):
        for m in rows:
            for n in columns:
                expected[e, m, n] = whole[e, m, n]
    split = Blocks(Softmax(SideInformation(kind(matrix)), "relation"), (block,))
    (weights,) = split.weights(context)
    assert split.labels == (f"relation-{block}",)
    close(weights.dense(7), expected)
    close(weights.times(inputs), (expected @ inputs)[:, weights.rows])


def test_blocks_of_an_operator_sum_up_to_it(context):
    operator = Softmax(PrototypeSimilarity(), "cos")
    parts = Blocks(operator).weights(context)
    close(sum(part.dense(7) for part in parts), operator(context).dense(7))


def test_auxiliary_pair_keeps_the_seen_rows_and_the_novel_rows_apart(context):
    pair = Blocks(Identity(), ("ss", "nn"))
    first, second = (weights.dense(7) for weights in pair.weights(context))
    assert pair.labels == ("identity-ss", "identity-nn")
    assert torch.equal(first, torch.diag(torch.tensor([1.0, 1, 1, 1, 0, 0, 0])))
    assert torch.equal(second, torch.diag(torch.tensor([0.0, 0, 0, 0, 1, 1, 1])))


def test_softmax_then_split_equals_split_then_softmax_after_rows_are_normalised(context):
    matrix, inputs = rand(9, 9), rand(2, 7, 5)
    scores = SideInformation(matrix)(context).dense(7)
    for block, weights in zip(BLOCKS, Blocks(Softmax(SideInformation(matrix), "x", 2.0)).weights(context), strict=True):
        inside = scores[:, weights.rows, weights.columns]
        alone = naive_softmax(inside, 2.0) @ inputs[:, weights.columns]
        assert not torch.allclose(weights.times(inputs), alone), block
        close(normalise(weights.times(inputs)), normalise(alone))


@pytest.mark.parametrize("kind", [torch.clone, full_graph])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_power_multiplies_the_matrix_by_itself(context, kind, order):
    matrix, inputs = rand(9, 9), rand(2, 7, 5)
    once = naive_softmax(SideInformation(matrix)(context).dense(7))
    expected = torch.eye(7, dtype=torch.float64).expand(2, 7, 7)
    for _ in range(order):
        expected = expected @ once
    operator = Power(Softmax(SideInformation(kind(matrix)), "relation"), order)
    (weights,) = operator.weights(context)
    assert operator.labels == (f"relation^{order}",)
    close(weights.dense(7), expected)
    close(weights.times(inputs), expected @ inputs)


@pytest.mark.parametrize("kind", [torch.clone, full_graph])
def test_block_of_a_power_takes_paths_through_all_classes(context, kind):
    matrix, inputs = rand(9, 9), rand(2, 7, 5)
    once = naive_softmax(SideInformation(matrix)(context).dense(7))
    (weights,) = Blocks(Power(Softmax(SideInformation(kind(matrix)), "relation"), 2), ("sn",)).weights(context)
    close(weights.times(inputs), (once @ once)[:, 4:, :4] @ inputs[:, :4])


@pytest.mark.parametrize("kind", [torch.clone, full_graph])
def test_power_of_a_block_takes_paths_inside_the_block(context, kind):
    matrix, inputs = rand(9, 9), rand(2, 7, 5)
    once = naive_softmax(SideInformation(matrix)(context).dense(7))[:, :4, :4]
    (weights,) = Power(Blocks(Softmax(SideInformation(kind(matrix)), "relation"), ("ss",)), 2).weights(context)
    close(weights.dense(7)[:, :4, :4], once @ once)
    close(weights.times(inputs), once @ once @ inputs[:, :4])


def test_power_of_the_identity_is_the_identity(context):
    assert torch.equal(Power(Identity(), 3).weights(context)[0].dense(7), torch.eye(7))


def test_what_cannot_be_split_or_raised_says_so(context):
    with pytest.raises(ValueError, match="one operator at a time"):
        Blocks(Blocks(Identity(), ("ss", "nn")))
    with pytest.raises(ValueError, match="'sn'"):
        Blocks(Identity(), ("sn",)).weights(context)
    with pytest.raises(ValueError, match="'xy'"):
        Blocks(Softmax(PrototypeSimilarity(), "cos"), ("xy",)).weights(context)
    with pytest.raises(ValueError, match="full matrix"):
        Blocks(Softmax(randomised_keys("sn"), "keys"), ("nn",)).weights(context)
    with pytest.raises(ValueError, match="not 0"):
        Power(Identity(), 0)
    with pytest.raises(ValueError, match="square"):
        Power(Softmax(randomised_keys("sn"), "keys"), 2).weights(context)


@pytest.mark.parametrize("shape", [(7, 7), (2, 7, 7)])
def test_own_operator_may_answer_a_plain_matrix(context, shape):
    class Own(Operator):
        def forward(self, context):
            return rand(*shape)

    (weights,) = Own().weights(context)
    assert isinstance(weights, Weights)
    close(weights.times(context.prototypes), rand(*shape) @ context.prototypes)


# Gradients and memory


@pytest.mark.parametrize("kind", [torch.clone, full_graph])
def test_gradient_of_side_information_is_that_of_the_naive_product(context, kind):
    matrix, slope = rand(9, 9), rand(2, 7, 5, seed=2)
    operator = Softmax(SideInformation(kind(matrix)), "relation", 2.0).double()
    (operator(context).times(context.prototypes) * slope).sum().backward()
    inputs = context.prototypes.detach().requires_grad_()
    temperature = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    scores = matrix[context.classes[:, :, None], context.classes[:, None, :]]
    ((temperature * scores).softmax(-1) @ inputs * slope).sum().backward()
    close(context.prototypes.grad, inputs.grad)
    close(operator.temperature.grad, temperature.grad)


@pytest.mark.parametrize(
    "similarity",
    [
        PrototypeSimilarity("cosine"),
        PrototypeSimilarity("l2"),
        TransformedSimilarity(5, 3, "cosine"),
        TransformedSimilarity(5, 3, "l2"),
        DifferenceSimilarity(5, 16),
        KeySimilarity(6, 5, "sn"),
        KeySimilarity(6, 5, None),
    ],
)
def test_gradient_flows_into_prototypes_temperature_and_parameters(context, similarity):
    operator = Softmax(similarity, "own").double()
    weights = operator(context)
    (weights.values * rand(*weights.values.shape)).sum().backward()
    for parameter in (context.prototypes, *operator.parameters()):
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_l2_of_identical_prototypes_is_zero_with_finite_gradient(context, dtype):
    prototypes = torch.ones(2, 7, 5, dtype=dtype, requires_grad=True)
    scores = PrototypeSimilarity("l2")(replace(context, prototypes=prototypes)).dense(7)
    scores.sum().backward()
    torch.testing.assert_close(scores, torch.zeros_like(scores), rtol=0, atol=1e-3)
    assert prototypes.grad.isfinite().all()


@pytest.fixture
def ring(context):
    """A graph of 400 classes and 1200 edges, and two episodes of all of them with two features."""
    size = 400
    pairs = [(m, (m + step) % size) for m in range(size) for step in (0, 1, 7)]
    similarity = SideInformation(graph(pairs, rand(len(pairs)).tolist(), size))
    classes = torch.stack([torch.arange(size), torch.arange(size).flip(0)])
    return similarity, replace(context, prototypes=rand(2, size, 2).requires_grad_(), classes=classes)


@pytest.mark.parametrize("wrap", [lambda operator: operator, lambda operator: Power(operator, 2), Blocks])
def test_sparse_product_makes_nothing_that_grows_with_the_square_of_the_classes(ring, wrap):
    similarity, context = ring
    with LargestTensor() as largest:
        answers = wrap(Softmax(similarity, "ring")).weights(context)
        products = [weights.times(context.prototypes) for weights in answers]
    assert all(weights.values.weight.shape == (2 * 1200,) for weights in answers)
    assert all(product.isfinite().all() for product in products)
    assert largest.numbers <= 4 * 2 * 1200


def test_gradient_of_a_sparse_product_makes_nothing_that_grows_with_the_square_of_the_classes(ring):
    similarity, context = ring
    operator = Softmax(similarity, "ring").double()
    loss = operator(context).times(context.prototypes).square().sum()
    with LargestTensor() as largest:
        loss.backward()
    assert operator.temperature.grad.isfinite()
    assert largest.numbers <= 4 * 2 * 1200


def test_one_row_is_the_row_of_the_whole_matrix(context):
    sparse = sparsify(rand(9, 9, seed=3).softmax(-1), top=4)
    operators = [
        Identity(),
        Blocks(Identity(), ("ss", "nn")),
        Softmax(PrototypeSimilarity(), "cos"),
        Blocks(Softmax(PrototypeSimilarity(), "cos")),
        Softmax(SideInformation(sparse), "edges"),
        Blocks(Softmax(SideInformation(sparse), "edges")),
        Power(Softmax(SideInformation(sparse), "edges"), 3),
        Softmax(KeySimilarity(6, 5).double(), "keys"),
    ]
    for operator in operators:
        for weights in operator.weights(context):
            whole = weights.dense(7)
            whole = whole[0] if whole.ndim == 3 else whole
            for row in range(7):
                torch.testing.assert_close(weights.row_of(row, 7).double(), whole[row].detach().double(), atol=1e-6, rtol=0)


def test_the_mean_of_no_shots_is_zero():
    values, mask = rand(1, 2, 3, 4), torch.tensor([[[True, True, False], [False, False, False]]])
    found = mean_over_shots(values, mask)
    close(found[0, 0], values[0, 0, :2].mean(0))
    assert found[0, 1].tolist() == [0.0] * 4
