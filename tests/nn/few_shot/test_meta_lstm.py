import copy
import math
from unittest.mock import patch

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from nn.few_shot.episodes import (
    episode_by_episode,
    forward_of,
    labels_of,
    random_episodes,
    small_model,
)
from protograph.nn.few_shot import FewShotModel
from protograph.nn.few_shot.meta_lstm import compressed


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def inputs_of(value: float) -> list[float]:
    """Logarithm and sign of a number, or the number magnified."""
    return [math.log(abs(value)) / 10, math.copysign(1, value)] if abs(value) >= math.exp(-10) else [-1, math.exp(10) * value]


def test_numbers_of_any_size_are_compressed_to_similar_ones() -> None:
    values = [0.0, 1e-9, -1e-3, 4.0, -2e5]
    expected = torch.tensor([inputs_of(value) if value else [-1.0, 0.0] for value in values], dtype=torch.float64)
    torch.testing.assert_close(compressed(torch.tensor(values, dtype=torch.float64)), expected)


def naive_logits(model: FewShotModel, support: Tensor, queries: Tensor, steps: int = 2) -> Tensor:
    """One episode, weight by weight: LSTM, gates and update in Python numbers where that is bearable."""
    method, network = model.method, copy.deepcopy(model.method.network)
    parameters = list(network.parameters())
    hidden = method.hidden
    count = sum(parameter.numel() for parameter in parameters)
    states, cells = torch.zeros(count, hidden).double(), torch.zeros(count, hidden).double()
    gates = [[0.0, 0.0] for _ in range(count)]
    for _ in range(steps):
        loss = cross_entropy(forward_of(network, support.flatten(0, 1)), labels_of(support))
        gradients = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
        flat = torch.cat([parameter.detach().flatten() for parameter in parameters])
        moved = []
        for index in range(count):
            seen = torch.tensor(
                [*inputs_of(gradients[index].item()), *inputs_of(loss.item()), *states[index].tolist()]
            ).double()
            blocks = [method.inputs.weight[k * hidden : (k + 1) * hidden] @ seen for k in range(4)]
            biases = [method.inputs.bias[k * hidden : (k + 1) * hidden] for k in range(4)]
            let_in, keep, let_out, new = (block + bias for block, bias in zip(blocks, biases, strict=True))
            cells[index] = (keep.sigmoid() * cells[index] + let_in.sigmoid() * new.tanh()).detach()
            states[index] = (let_out.sigmoid() * cells[index].tanh()).detach()
            for kind, layer in enumerate((method.forget, method.learn)):
                weight = layer.weight[0].tolist()
                total = sum(w * s for w, s in zip(weight, states[index].tolist(), strict=False))
                total += weight[hidden] * flat[index].item() + weight[hidden + 1] * gates[index][kind] + layer.bias.item()
                gates[index][kind] = sigmoid(total)
            moved.append(gates[index][0] * flat[index].item() - gates[index][1] * gradients[index].item())
        with torch.no_grad():
            parts = torch.tensor(moved).double().split([parameter.numel() for parameter in parameters])
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.copy_(part.view_as(parameter))
    return torch.cat([forward_of(network, query[None], support.flatten(0, 1)) for query in queries])


def test_logits_equal_a_loop_over_episodes_and_weights() -> None:
    model = small_model("meta-lstm", steps=2, hidden=3).eval()
    for layer in (model.method.inputs, model.method.forget, model.method.learn):
        layer.weight.data *= 40
    episodes = random_episodes(model, count=2)
    found = model.method(*episodes[:3])
    torch.testing.assert_close(found, episode_by_episode(model, episodes, naive_logits), rtol=1e-6, atol=1e-8)


def test_the_first_update_by_hand_with_gates_that_only_have_biases() -> None:
    model = small_model("meta-lstm", steps=1, hidden=3).eval()
    support, mask, queries, _ = random_episodes(model, count=1)
    for layer in (model.method.forget, model.method.learn):
        layer.weight.data.zero_()
    keep, step = (sigmoid(layer.bias.item()) for layer in (model.method.forget, model.method.learn))
    network = copy.deepcopy(model.method.network)
    cross_entropy(forward_of(network, support[0].flatten(0, 1)), labels_of(support[0])).backward()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(keep * parameter - step * parameter.grad)
    torch.testing.assert_close(
        model.method(support, mask, queries)[0], forward_of(network, queries[0], support[0].flatten(0, 1))
    )


def test_outer_gradients_count_gradients_and_losses_as_constants() -> None:
    """So finite differences agree for the gates' own layers after one update, in which the inner gradient does not move."""
    model = small_model("meta-lstm", steps=1, hidden=3).train()
    support, mask, queries, targets = random_episodes(model, count=2)
    loss = model.loss(support, mask, queries, targets, torch.Generator())
    layer = model.method.learn
    gradient = torch.autograd.grad(loss, layer.bias)[0].item()
    values = []
    for moved in (1e-4, -2e-4):
        layer.bias.data += moved
        values.append(model.loss(support, mask, queries, targets, torch.Generator()).item())
    assert abs(gradient - (values[0] - values[1]) / 2e-4) < 1e-6 + 1e-4 * abs(gradient)


def loop_loss(model: FewShotModel, support: Tensor, queries: Tensor, targets: Tensor) -> Tensor:
    """The loss of one episode after two updates by plain autograd, in which inner gradients and losses have no graph."""
    method, network = model.method, model.method.network
    names, weights = zip(*network.named_parameters(), strict=True)
    flat = torch.cat([weight.flatten() for weight in weights])
    state = cell = flat.new_zeros(len(flat), method.hidden)
    forget = learn = flat.new_zeros(len(flat), 1)
    for _ in range(2):
        parts = [part.view_as(w) for part, w in zip(flat.split([w.numel() for w in weights]), weights, strict=True)]
        logits = functional_call(network, dict(zip(names, parts, strict=True)), (support.flatten(0, 1),))
        loss = cross_entropy(logits, labels_of(support))
        gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, parts)])
        seen = torch.tensor([[*inputs_of(value), *inputs_of(loss.item())] for value in gradient.tolist()]).double()
        let_in, keep, let_out, new = method.inputs(torch.cat([seen, state], 1)).chunk(4, 1)
        cell = keep.sigmoid() * cell + let_in.sigmoid() * new.tanh()
        state = let_out.sigmoid() * cell.tanh()
        forget = method.forget(torch.cat([state, flat[:, None], forget], 1)).sigmoid()
        learn = method.learn(torch.cat([state, flat[:, None], learn], 1)).sigmoid()
        flat = forget[:, 0] * flat - learn[:, 0] * gradient
    parts = [part.view_as(w) for part, w in zip(flat.split([w.numel() for w in weights]), weights, strict=True)]
    inputs, shots = torch.cat([support.flatten(0, 1), queries]), support.shape[0] * support.shape[1]
    logits = functional_call(network, dict(zip(names, parts, strict=True)), (inputs, shots))
    return cross_entropy(logits[shots:], targets)


def test_outer_gradients_of_two_updates_are_those_of_a_loop_without_second_derivatives() -> None:
    model = small_model("meta-lstm", steps=2, hidden=3).train()
    for layer in (model.method.inputs, model.method.forget, model.method.learn):
        layer.weight.data *= 40
    support, mask, queries, targets = random_episodes(model, count=2)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(model.loss(support, mask, queries, targets, torch.Generator()), parameters)
    loss = sum(loop_loss(model, *episode) for episode in zip(support, queries, targets, strict=True)) / 2
    assert isinstance(loss, Tensor)
    for gradient, expected in zip(found, torch.autograd.grad(loss, parameters), strict=True):
        torch.testing.assert_close(gradient, expected)


def test_the_number_of_updates_follows_the_shots_as_published() -> None:
    model = small_model("meta-lstm", hidden=2).eval()
    for shots, updates in ((1, 12), (5, 5)):
        with patch.object(model.method, "recur", wraps=model.method.recur) as recur:
            model.method(*random_episodes(model, count=1, shots=shots)[:3])
        assert recur.call_count == updates
