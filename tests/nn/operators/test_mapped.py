import numpy as np
import pytest
import torch
from torch import Tensor

from protograph.nn.operators import Context, Mapped, SideInformation, mapped, mapped_weights
from protograph.variants import build, find_variant


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def regressed(known: np.ndarray, new: np.ndarray, ridge: float, prototypes: np.ndarray) -> np.ndarray:
    """Ridge regression in the primal form, on centred vectors and prototypes."""
    mean, middle = known.mean(0), prototypes.mean(0)
    vectors = known - mean
    scale = sum(float(row @ row) for row in vectors) / len(vectors)
    inverse = np.linalg.inv(vectors.T @ vectors + ridge * scale * np.eye(known.shape[1]))
    linear_map = inverse @ vectors.T @ (prototypes - middle)
    return np.stack([(row - mean) @ linear_map + middle for row in new])


@pytest.mark.parametrize("columns", [6, 9, 4])
@pytest.mark.parametrize("by_gradients", [False, True])
def test_the_weights_are_those_of_ridge_regression(columns: int, by_gradients: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if by_gradients:
        monkeypatch.setattr("protograph.nn.operators.mapped.LARGEST_SOLVED", 2)
    known, new, prototypes = rand(6, columns), rand(3, columns, seed=1), rand(6, 5, seed=2)
    weights = mapped_weights(known, new, 0.3)
    expected = regressed(known.numpy(), new.numpy(), 0.3, prototypes.numpy())
    np.testing.assert_allclose((weights @ prototypes).numpy(), expected, atol=1e-5)
    torch.testing.assert_close(weights.sum(1), torch.ones(3).double())
    torch.testing.assert_close(mapped_weights(known.to_sparse_coo(), new, 0.3), weights, atol=1e-5, rtol=1e-5)


def test_classes_of_which_nothing_is_known_are_the_mean() -> None:
    same = torch.full((4, 4), 0.5).double()
    torch.testing.assert_close(mapped_weights(same, same[:2], 0.1), torch.full((2, 4), 0.25).double())


def test_examples_count_the_more_the_more_there_are() -> None:
    similarities = rand(5, 5, seed=3).float()
    operator = Mapped(SideInformation(similarities), kappa=2.0, ridge=0.5)
    mask = torch.tensor([[[True, True, True], [True, False, False]], [[True, True, False], [False, False, False]]])
    classes = torch.tensor([[0, 2, 4, 1, 3], [4, 1, 0, 3, 2]])
    context = Context(rand(2, 5, 3).float(), rand(2, 2, 3, 3).float(), mask, classes, 3)
    (weights,) = operator.weights(context)
    matrix = weights.dense(5).detach()
    for episode, ids in enumerate(classes.tolist()):
        vectors = similarities[ids][:, ids[:3]].double()
        for row in range(3):
            assert matrix[episode, row].tolist() == [float(column == row) for column in range(5)]
        for new, count in enumerate(mask[episode].sum(1).tolist()):
            share = count / (count + 2.0)
            expected = torch.zeros(5).double()
            expected[:3] = (1 - share) * mapped_weights(vectors[:3], vectors[3 + new : 4 + new], 0.5)[0]
            expected[3 + new] = share
            torch.testing.assert_close(matrix[episode, 3 + new].double(), expected, atol=1e-5, rtol=1e-5)


def test_the_variant_learns_how_much_relations_count() -> None:
    similarities = {"likeness": rand(6, 6, seed=4).float()}
    model = build(find_variant("gcgpn-mapped"), torch.nn.Identity(), (3,), 4, similarities)
    support, mask = rand(1, 2, 2, 3).float(), torch.ones(1, 2, 2, dtype=torch.bool)
    logits = model(support, mask, rand(1, 5, 3, seed=1).float(), torch.tensor([[0, 1, 2, 3, 4, 5]]), 4)
    assert logits.shape == (1, 5, 6)
    logits.square().sum().backward()
    (operator,) = model.operators
    assert isinstance(operator, mapped.Mapped)
    assert operator.logarithms.grad is not None
    assert bool((operator.logarithms.grad != 0).all())
