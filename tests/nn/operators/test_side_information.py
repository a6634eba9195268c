import pytest
import torch
from naive import close, full_graph, graph, naive_pairs, rand

from protograph.nn.operators import (
    Edges,
    SideInformation,
    Softmax,
)


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
