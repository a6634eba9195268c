import math

import numpy as np
import torch
from torch import Tensor

from protograph.nn.operators import Context, Mapped, MappedTogether, SideInformation


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def some_context() -> Context:
    mask = torch.tensor([[[True, True], [True, False]], [[True, True], [False, False]]])
    classes = torch.tensor([[0, 2, 4, 5, 1, 3], [4, 1, 0, 5, 3, 2]])
    return Context(rand(2, 6, 3), rand(2, 2, 2, 3), mask, classes, 4)


def test_one_relation_is_a_mapped_operator() -> None:
    similarities, context = rand(6, 6, seed=3), some_context()
    together = MappedTogether([SideInformation(similarities)], kappa=2.0, ridge=0.5)
    alone = Mapped(SideInformation(similarities), kappa=2.0, ridge=0.5)
    (left,), (right,) = together.weights(context), alone.weights(context)
    torch.testing.assert_close(left.dense(6), right.dense(6), atol=1e-5, rtol=1e-5)


def test_relations_make_one_ridge_regression_by_their_weights() -> None:
    matrices, context = [rand(6, 6, seed=4), 100 * rand(6, 6, seed=5)], some_context()
    operator = MappedTogether([SideInformation(matrix) for matrix in matrices], kappa=1.5, ridge=0.4)
    operator.logits.data.copy_(torch.tensor([0.3, -0.9]))
    (weights,) = operator.weights(context)
    dense = weights.dense(6).detach().double().numpy()
    total = math.exp(0.3) + math.exp(-0.9)
    shares = [math.exp(0.3) / total, math.exp(-0.9) / total]
    for episode, ids in enumerate(context.classes.tolist()):
        blocks = []
        for matrix, share in zip(matrices, shares, strict=True):
            rows = matrix.double().numpy()[np.ix_(ids, ids[:4])]
            rows = rows - rows[:4].mean(0)
            length = sum(float(row @ row) for row in rows[:4]) / 4
            blocks.append(rows * math.sqrt(share / length))
        vectors = np.concatenate(blocks, 1)
        known, new = vectors[:4], vectors[4:]
        scale = sum(float(row @ row) for row in known) / 4
        prototypes = np.random.default_rng(0).normal(size=(4, 7))
        middle = prototypes.mean(0)
        inverse = np.linalg.inv(known.T @ known + 0.4 * scale * np.eye(8))
        predicted = new @ inverse @ known.T @ (prototypes - middle) + middle
        for position, count in enumerate(context.mask[episode].sum(1).tolist()):
            mixed = dense[episode, 4 + position]
            share = count / (count + 1.5)
            np.testing.assert_allclose(mixed[:4] @ prototypes, (1 - share) * predicted[position], atol=1e-4)
            assert abs(mixed[4 + position] - share) < 1e-6
        np.testing.assert_array_equal(dense[episode, :4], np.eye(6)[:4])


def test_the_weights_of_relations_are_learned() -> None:
    context = some_context()
    operator = MappedTogether([SideInformation(rand(6, 6, seed=seed)) for seed in (6, 7)])
    (weights,) = operator.weights(context)
    (weights.dense(6) @ rand(6, 3, seed=8)).square().sum().backward()
    assert operator.logits.grad is not None
    assert bool((operator.logits.grad != 0).all())
    assert bool((operator.logarithms.grad != 0).all())
