import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from nn.few_shot.episodes import (
    adapted,
    check_outer_gradients,
    episode_by_episode,
    forward_of,
    labels_of,
    random_episodes,
    small_model,
)
from protograph.nn.few_shot import OF_SUPPORT, FewShotModel


def count_of(model: FewShotModel) -> int:
    return len(list(model.method.network.parameters()))


def test_one_inner_step_equals_one_by_hand() -> None:
    model = small_model("maml", steps=1, test_steps=1, rate=0.4).eval()
    episodes = random_episodes(model, count=1)
    support, mask, queries, _ = episodes
    network = model.method.network
    loss = cross_entropy(forward_of(network, support[0].flatten(0, 1)), labels_of(support[0]))
    loss.backward()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter -= 0.4 * parameter.grad
        expected = forward_of(network, queries[0])
        for parameter in network.parameters():
            parameter += 0.4 * parameter.grad
    torch.testing.assert_close(model.method(support, mask, queries)[0], expected)


@pytest.mark.parametrize("training", [True, False])
def test_logits_equal_a_loop_over_episodes(training: bool) -> None:
    model = small_model("maml", steps=2, test_steps=3, rate=0.3).train(training)
    episodes = random_episodes(model)

    def naive(model: FewShotModel, support: Tensor, queries: Tensor) -> Tensor:
        network = adapted(model, support, [0.3] * count_of(model), 2 if training else 3)
        return forward_of(network, queries)

    torch.testing.assert_close(model.method(*episodes[:3]), episode_by_episode(model, episodes, naive))


def test_with_the_supports_statistics_a_query_is_answered_alone() -> None:
    model = small_model("maml", test_steps=1, rate=0.3).eval()
    episodes = random_episodes(model)

    def naive(model: FewShotModel, support: Tensor, queries: Tensor) -> Tensor:
        network = adapted(model, support, [0.3] * count_of(model), 1)
        return torch.cat([forward_of(network, query[None], support.flatten(0, 1)) for query in queries])

    with model.using(OF_SUPPORT):
        logits = model.method(*episodes[:3])
    torch.testing.assert_close(logits, episode_by_episode(model, episodes, naive))
    assert not torch.allclose(model.method(*episodes[:3]), logits)


def test_outer_gradients_are_those_of_finite_differences() -> None:
    model = small_model("maml", steps=2, rate=0.3).train()
    support, mask, queries, targets = random_episodes(model, count=2)
    check_outer_gradients(model, lambda: model.loss(support, mask, queries, targets, torch.Generator()))


def test_in_first_order_the_outer_gradient_is_that_at_the_adapted_weights() -> None:
    model = small_model("maml-first-order", steps=2, rate=0.3).train()
    support, mask, queries, targets = random_episodes(model)
    model.loss(support, mask, queries, targets, torch.Generator()).backward()
    sums = [torch.zeros_like(parameter) for parameter in model.method.network.parameters()]
    for of_episode, asked, right in zip(support, queries, targets, strict=True):
        network = adapted(model, of_episode, [0.3] * count_of(model), 2)
        loss = cross_entropy(forward_of(network, asked), right)
        for total, gradient in zip(sums, torch.autograd.grad(loss, list(network.parameters())), strict=True):
            total += gradient / len(support)
    for parameter, expected in zip(model.method.network.parameters(), sums, strict=True):
        torch.testing.assert_close(parameter.grad, expected)


def test_examples_that_do_not_exist_have_no_share_in_the_loss() -> None:
    model = small_model("maml", test_steps=1, rate=0.3).eval()
    support, mask, queries, _ = random_episodes(model)
    mask[:, :, 1] = False
    weights = {name: value.detach() for name, value in model.method.initial().items()}
    images, labels = support[0].flatten(0, 1), labels_of(support[0])
    shares = torch.tensor([1.0, 0.0] * len(support[0])).double() / len(support[0])
    single = cross_entropy(forward_of(model.method.network, images)[::2], labels[::2])
    torch.testing.assert_close(model.method.support_loss(weights, images, labels, shares), single)
    assert not torch.allclose(model.method(support, mask, queries), model.method(support, mask.new_ones(mask.shape), queries))
