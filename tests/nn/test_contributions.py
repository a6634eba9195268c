"""What prototypes are made of, against the graph layer's own outcome and loops."""

import pytest
import torch

from protograph.nn.contributions import class_factors, contribution_lengths
from protograph.nn.graph import GraphLayer

V, D = 5, 4


def layer_and_rows(normalise: bool) -> tuple[GraphLayer, torch.Tensor, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    layer = GraphLayer(("one", "two"), D, normalise_outputs=normalise).double()
    with torch.no_grad():
        layer.scales.copy_(torch.tensor([0.3, -1.7]))
        layer.thetas["two"].copy_(torch.randn(D, generator=generator))
    inputs = layer.rows(torch.randn(V, D, generator=generator, dtype=torch.float64))
    rows = list(torch.rand(2, V, V, generator=generator, dtype=torch.float64))
    rows[1][2] = 0  # a prototype that the second operator does not reach
    return layer, inputs, rows


@pytest.mark.parametrize("normalise", [True, False])
@torch.no_grad()
def test_factors_make_the_prototypes_of_the_layer(normalise: bool) -> None:
    layer, inputs, rows = layer_and_rows(normalise)
    total = torch.zeros(V, D, dtype=torch.float64)
    for label, factors in class_factors(layer, inputs, rows).items():
        total += layer.transformed(label, factors @ inputs)
    expected = torch.zeros(V, D, dtype=torch.float64)
    for label, matrix, scale in zip(layer.labels, rows, layer.scales, strict=True):
        product = layer.transformed(label, matrix @ inputs)
        lengths = product.norm(dim=1, keepdim=True)
        expected += scale * (product / lengths.where(lengths > 0, torch.ones(())) if normalise else product)
    torch.testing.assert_close(total, expected)
    for row in range(V):
        single = class_factors(layer, inputs, [matrix[row] for matrix in rows])
        for label, factors in class_factors(layer, inputs, rows).items():
            torch.testing.assert_close(single[label], factors[row])


@pytest.mark.parametrize("normalise", [True, False])
@torch.no_grad()
def test_lengths_are_those_of_every_term(normalise: bool) -> None:
    layer, inputs, rows = layer_and_rows(normalise)
    factors, lengths = class_factors(layer, inputs, rows), contribution_lengths(layer, inputs, rows)
    for n in range(V):
        for m in range(V):
            terms = [layer.transformed(label, factor[n, m] * inputs[m]).norm() for label, factor in factors.items()]
            assert lengths[n, m].item() == pytest.approx(sum(term.item() for term in terms))
