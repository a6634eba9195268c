import math
from dataclasses import replace

import pytest
import torch
from naive import close, rand

from protograph.nn.classify import CosineClassifier
from protograph.nn.graph import GraphBlock, GraphLayer
from protograph.nn.operators import Blocks, Identity, PrototypeSimilarity, SideInformation, Softmax, Weights

LABELS = ("whole", "shared", "lower", "aux")


@pytest.fixture
def operators():
    """One operator of every form, as `Weights` and as the full matrices [E, V, V] they stand for; E 2, S 4, V 7."""
    whole, shared, lower = rand(2, 7, 7), rand(7, 7, seed=1), rand(2, 3, 4, seed=2)
    novel, seen = slice(4, 7), slice(0, 4)
    weights = [Weights.full(whole, 7), Weights.full(shared, 7), Weights(lower, novel, seen), Weights(None, seen, seen)]
    full = [whole, shared.expand(2, 7, 7), torch.zeros(2, 7, 7).double(), torch.zeros(2, 7, 7).double()]
    full[2][:, novel, seen] = lower
    full[3][:, seen, seen] = torch.eye(4).double()
    return weights, full


def unit(row):
    length = math.hypot(*row)
    return [x / length if length else 0.0 for x in row]


def full_theta(layer, label, features):
    if label not in layer.thetas:
        return torch.eye(features)
    theta = layer.thetas[label]
    return theta if theta.ndim == 2 else torch.diag(theta)


def naive_layer(layer, prototypes, matrices, relu):
    """The paper's equation, one episode, one operator and one class at a time."""
    episodes, classes, features = prototypes.shape
    answer = torch.zeros_like(prototypes)
    for e in range(episodes):
        rows = [unit(row) if layer.normalise_inputs else row for row in prototypes[e].tolist()]
        for label, matrix, scale in zip(LABELS, matrices, layer.scales.tolist(), strict=True):
            theta = full_theta(layer, label, features).tolist()
            for m in range(classes):
                gathered = [sum(matrix[e, m, n].item() * rows[n][d] for n in range(classes)) for d in range(features)]
                moved = [sum(gathered[i] * theta[i][d] for i in range(features)) for d in range(features)]
                moved = unit(moved) if layer.normalise_outputs else moved
                for d in range(features):
                    answer[e, m, d] += scale * moved[d]
    return torch.where(answer > 0, answer, 0) if relu else answer


def randomise(module):
    with torch.no_grad():
        for seed, parameter in enumerate(module.double().parameters()):
            parameter.add_(rand(*parameter.shape, seed=seed))
    return module


@pytest.mark.parametrize("theta", ["diagonal", "full", "identity"])
@pytest.mark.parametrize("layers", [1, 2])
def test_block_is_the_papers_equation(operators, theta, layers):
    weights, matrices = operators
    block = randomise(GraphBlock(LABELS, 5, layers, theta=theta))
    expected = prototypes = rand(2, 7, 5, seed=3)
    for position, layer in enumerate(block.layers):
        expected = naive_layer(layer, expected, matrices, relu=position < layers - 1)
    close(block(prototypes, weights), expected)


@pytest.mark.parametrize("normalise_inputs", [True, False])
@pytest.mark.parametrize("normalise_outputs", [True, False])
def test_both_normalisations_can_be_switched(operators, normalise_inputs, normalise_outputs):
    weights, matrices = operators
    layer = randomise(
        GraphLayer(LABELS, 5, normalise_inputs=normalise_inputs, normalise_outputs=normalise_outputs),
    )
    prototypes = rand(2, 7, 5, seed=3)
    close(layer(prototypes, weights), naive_layer(layer, prototypes, matrices, relu=False))


def test_fixed_operators_keep_the_identity_as_theta(operators):
    weights, matrices = operators
    layer = randomise(GraphLayer(LABELS, 5, fixed=("aux", "lower")))
    prototypes = rand(2, 7, 5, seed=3)
    assert sorted(layer.thetas.keys()) == ["shared", "whole"]
    close(layer(prototypes, weights), naive_layer(layer, prototypes, matrices, relu=False))


@pytest.mark.parametrize("theta", ["diagonal", "full", "identity"])
def test_fresh_layer_only_adds_up_its_operators(operators, theta):
    weights, matrices = operators
    layer = GraphLayer(LABELS, 5, theta=theta, normalise_inputs=False, normalise_outputs=False).double()
    prototypes = rand(2, 7, 5, seed=3)
    close(layer(prototypes, weights), sum(matrices) @ prototypes)


def test_scales_are_learned_only_if_asked_for():
    assert GraphLayer(LABELS, 5).scales.requires_grad
    assert not GraphLayer(LABELS, 5, scales=False).scales.requires_grad


def test_relu_stands_between_layers_and_not_after_the_last(operators):
    weights, _ = operators
    block = GraphBlock(LABELS, 5, 3).double()
    first = block.layers[0](rand(2, 7, 5, seed=3), weights)
    second = block.layers[1](first, weights)
    last = block.layers[2](second, weights)
    assert first.min() == second.min() == 0
    assert last.min() < 0


@pytest.mark.parametrize("permutation", [[2, 0, 3, 1, 4, 5, 6], [0, 1, 2, 3, 6, 4, 5], [3, 1, 0, 2, 5, 6, 4]])
def test_order_of_seen_and_of_novel_classes_does_not_matter(context, permutation):
    kinds = [Blocks(Softmax(SideInformation(rand(9, 9)), "relation")), Softmax(PrototypeSimilarity(), "cos")]
    kinds.append(Blocks(Identity(), ("ss", "nn")))
    block = randomise(GraphBlock([label for kind in kinds for label in kind.labels], 5, 2))

    def updated(context):
        return block(context.prototypes, [weights for kind in kinds for weights in kind.weights(context)])

    permuted = replace(context, prototypes=context.prototypes[:, permutation], classes=context.classes[:, permutation])
    close(updated(permuted), updated(context)[:, permutation])


def test_rows_an_operator_leaves_at_zero_stay_zero_with_finite_gradient():
    layer = randomise(GraphLayer(("lower",), 5))
    prototypes = rand(2, 7, 5).requires_grad_()
    updated = layer(prototypes, [Weights(rand(2, 3, 4), slice(4, 7), slice(0, 4))])
    updated.square().sum().backward()
    assert not updated[:, :4].any()
    assert updated[:, 4:].all()
    for leaf in (prototypes, *layer.parameters()):
        assert leaf.grad.isfinite().all()


def test_prototype_of_zeros_stays_finite_through_every_operator(operators):
    prototypes = rand(2, 7, 5)
    prototypes[:, 0] = 0
    prototypes.requires_grad_()
    block = GraphBlock(("aux",), 5, 2).double()
    updated = block(prototypes, [Weights(None, slice(0, 4), slice(0, 4))])
    updated.sum().backward()
    assert not updated[:, 0].any()
    assert prototypes.grad.isfinite().all()


@pytest.mark.parametrize("theta", ["diagonal", "full"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_everything_learns_from_the_nearly_uniform_start(context, theta, dtype):
    similarities = 0.1 + 0.02 * rand(9, 9).abs() + 0.9 * torch.eye(9)
    kinds = [Blocks(Softmax(SideInformation(similarities), "relation")), Blocks(Identity(), ("ss", "nn"))]
    block = GraphBlock([label for kind in kinds for label in kind.labels], 5, 1, theta=theta)
    model = torch.nn.ModuleList([*kinds, block, CosineClassifier()]).to(dtype)
    prototypes = context.prototypes.detach().to(dtype).requires_grad_()
    context = replace(context, prototypes=prototypes)
    updated = block(prototypes, [weights for kind in kinds for weights in kind.weights(context)])
    logits = model[-1](rand(2, 7, 5, seed=4).to(dtype), updated)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.arange(7).repeat(2)).backward()
    for name, parameter in (*model.named_parameters(), ("prototypes", prototypes)):
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 1e-6, name


def test_labels_may_be_any_words():
    labels = ("keys", "values", "type", "wordnet-3.0", "cos^2")
    layer = GraphLayer(labels, 5)
    assert layer(torch.ones(1, 7, 5), [Weights.full(None, 7)] * len(labels)).shape == (1, 7, 5)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="different labels"):
        GraphLayer(("a", "a"), 5)
    with pytest.raises(ValueError, match="called b"):
        GraphLayer(("a",), 5, fixed=("b",))
    with pytest.raises(ValueError, match="not 0"):
        GraphBlock(("a",), 5, 0)


def test_number_of_operators_must_fit_the_labels():
    with pytest.raises(ValueError, match="zip"):
        GraphLayer(("a", "b"), 5)(torch.ones(1, 7, 5), [Weights.full(None, 7)])
