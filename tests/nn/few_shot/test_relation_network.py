import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d

from nn.few_shot.episodes import check_outer_gradients, episode_by_episode, random_episodes, small_model
from protograph.nn.few_shot import FewShotModel, relation_network
from protograph.nn.few_shot.relation_network import RelationNetwork


def naive(model: FewShotModel, support: Tensor, queries: Tensor) -> Tensor:
    """Each pair of a query and a class alone: their maps side by side, then the module."""
    method = model.method
    shape = (method.channels, *method.size)
    scores = torch.zeros(len(queries), len(support), dtype=torch.float64)
    for row, query in enumerate(queries):
        for column, examples in enumerate(support):
            pair = torch.cat([(sum(examples) / len(examples)).view(shape), query.view(shape)])
            maps = method.first(conv2d(pair[None], method.compare.weight, padding="same"))
            scores[row, column] = method.score(method.second(maps)).item()
    return scores


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 5)])
def test_logits_equal_a_loop_over_pairs(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relation_network, "OUTPUTS_AT_ONCE", 1)  # query by query
    model = small_model("relation-network")
    with torch.random.fork_rng():
        model.method = RelationNetwork(4, size).double().eval()
    model.method.first[0].running_mean.normal_(generator=torch.Generator().manual_seed(2))
    support, queries = (torch.randn(*shape, 4 * size[0] * size[1]).double() for shape in ((2, 3, 2), (2, 4)))
    episodes = support, torch.ones(2, 3, 2, dtype=torch.bool), queries, torch.zeros(2, 4)
    torch.testing.assert_close(model.method(*episodes[:3]), episode_by_episode(model, episodes, naive))


def test_the_loss_is_the_squared_error_of_scores_between_0_and_1() -> None:
    model = small_model("relation-network").train()
    support, mask, queries, targets = random_episodes(model)
    scores = torch.sigmoid(model.method(support, mask, queries))
    total = 0.0
    for episode in range(len(scores)):
        for query in range(scores.shape[1]):
            for column in range(scores.shape[2]):
                total += (scores[episode, query, column].item() - (targets[episode, query].item() == column)) ** 2
    loss = model.loss(support, mask, queries, targets, torch.Generator())
    assert loss.item() == pytest.approx(total / scores.numel())


def test_gradients_are_those_of_finite_differences() -> None:
    model = small_model("relation-network").train()
    support, mask, queries, targets = random_episodes(model, count=2)
    check_outer_gradients(model, lambda: model.loss(support, mask, queries, targets, torch.Generator()))
