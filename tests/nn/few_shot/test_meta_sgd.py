import torch
from torch import Tensor

from nn.few_shot.episodes import (
    adapted,
    check_outer_gradients,
    episode_by_episode,
    forward_of,
    random_episodes,
    small_model,
)
from protograph.nn.few_shot import FewShotModel
from protograph.nn.few_shot.meta_sgd import FASTEST, SLOWEST


def test_logits_equal_a_loop_over_episodes_with_a_rate_for_each_weight() -> None:
    model = small_model("meta-sgd").eval()
    episodes = random_episodes(model)

    def naive(model: FewShotModel, support: Tensor, queries: Tensor) -> Tensor:
        return forward_of(adapted(model, support, list(model.method.rates), 1), queries)

    torch.testing.assert_close(model.method(*episodes[:3]), episode_by_episode(model, episodes, naive))


def test_outer_gradients_of_weights_and_rates_are_those_of_finite_differences() -> None:
    model = small_model("meta-sgd").train()
    support, mask, queries, targets = random_episodes(model, count=2)
    check_outer_gradients(model, lambda: model.loss(support, mask, queries, targets, torch.Generator()))


def test_rates_start_between_the_published_bounds() -> None:
    rates = torch.cat([rate[rate > 0].flatten() for rate in small_model("meta-sgd").method.rates if rate.ndim > 1])
    assert SLOWEST <= rates.min() < 0.02 < 0.09 < rates.max() <= FASTEST
