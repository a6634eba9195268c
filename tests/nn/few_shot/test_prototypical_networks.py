import torch
from torch import Tensor

from nn.few_shot.episodes import check_outer_gradients, episode_by_episode, random_episodes, small_model
from protograph.nn.few_shot import FewShotModel


def naive(model: FewShotModel, support: Tensor, queries: Tensor) -> Tensor:
    means = [sum(examples) / len(examples) for examples in support]
    return torch.stack([torch.stack([-((query - mean) ** 2).sum() for mean in means]) for query in queries])


def test_logits_equal_a_loop_over_episodes() -> None:
    model = small_model("prototypical-networks")
    episodes = random_episodes(model)
    torch.testing.assert_close(model.method(*episodes[:3]), episode_by_episode(model, episodes, naive))


def test_outer_gradients_are_those_of_finite_differences() -> None:
    model = small_model("prototypical-networks").train()
    images = torch.randn(4, 1, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def loss() -> Tensor:
        features = model.embed(images) / 10
        support, queries = features[:2].view(1, 2, 1, -1), features[2:].view(1, 2, -1)
        mask = torch.ones(1, 2, 1, dtype=torch.bool)
        return model.loss(support, mask, queries, torch.tensor([[0, 1]]), torch.Generator())

    check_outer_gradients(model, loss)
