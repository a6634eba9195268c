import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from nn.few_shot.episodes import check_outer_gradients, episode_by_episode, random_episodes, small_model
from protograph.nn.few_shot import FewShotModel


def unit(row: Tensor) -> Tensor:
    return row / row.norm()


def naive(model: FewShotModel, support: Tensor, queries: Tensor) -> Tensor:
    weights = [model.method.map.weight @ (sum(unit(one) for one in examples) / len(examples)) for examples in support]
    return torch.stack([torch.stack([weight @ unit(query) for weight in weights]) for query in queries])


def test_logits_equal_a_loop_over_episodes() -> None:
    model = small_model("parameter-prediction")
    model.method.map.weight.data += 0.3 * torch.randn(model.method.map.weight.shape, generator=torch.Generator().manual_seed(1))
    episodes = random_episodes(model)
    torch.testing.assert_close(model.method(*episodes[:3]), episode_by_episode(model, episodes, naive))


def test_the_map_alone_is_trained_by_the_joint_loss() -> None:
    model = small_model("parameter-prediction").train()
    assert {name for name, value in model.named_parameters() if value.requires_grad} == {"method.map.weight"}
    support, mask, queries, targets = random_episodes(model, count=2)
    classes = torch.tensor([[0, 1, 2, 3, 4], [2, 3, 0, 1, 4]])
    model.prototypes.data.normal_(generator=torch.Generator().manual_seed(0))

    def loss() -> Tensor:
        return cross_entropy(model(support, mask, queries, classes, 2).flatten(0, 1), (targets + 2).flatten())

    check_outer_gradients(model, loss)
