from dataclasses import replace

import pytest
import torch
from naive import LargestTensor, graph, rand

from protograph.nn.operators import (
    Blocks,
    DifferenceSimilarity,
    Identity,
    KeySimilarity,
    Power,
    PrototypeSimilarity,
    SideInformation,
    Softmax,
    TransformedSimilarity,
    sparsify,
)


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
