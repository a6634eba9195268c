import pytest
import torch
from naive import close, full_graph, naive_softmax, rand, randomised_keys

from protograph.nn.classify import normalise
from protograph.nn.operators import (
    BLOCKS,
    Blocks,
    Identity,
    Operator,
    Power,
    PrototypeSimilarity,
    SideInformation,
    Softmax,
    Weights,
)


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
