import torch
from torch import Tensor

from nn.few_shot.episodes import episode_by_episode, random_episodes, small_model
from protograph.nn.few_shot import FewShotModel


def cosine(left: Tensor, right: Tensor) -> Tensor:
    return (left @ right) / (left.norm() * right.norm())


def naive(model: FewShotModel, support: Tensor, queries: Tensor) -> Tensor:
    """The logarithm of the attention that each class gets, up to a constant: of a softmax over all examples."""
    rows = []
    for query in queries:
        attention = [[cosine(query, example).exp() for example in examples] for examples in support]
        rows.append(torch.stack([torch.stack(of_class).sum().log() for of_class in attention]))
    return torch.stack(rows)


def test_logits_equal_a_loop_over_episodes() -> None:
    model = small_model("matching-networks")
    episodes = random_episodes(model)
    torch.testing.assert_close(model.method(*episodes[:3]), episode_by_episode(model, episodes, naive))


def test_probabilities_are_sums_of_attention() -> None:
    model = small_model("matching-networks")
    support, mask, queries, _ = random_episodes(model, count=1)
    attention = torch.stack([cosine(queries[0, 0], example) for example in support[0].flatten(0, 1)]).softmax(0)
    torch.testing.assert_close(
        model.method(support, mask, queries).softmax(-1)[0, 0], attention.view(support.shape[1:3]).sum(1)
    )


def test_examples_that_do_not_exist_get_no_attention() -> None:
    model = small_model("matching-networks")
    support, mask, queries, _ = random_episodes(model)
    mask[:, 1, 1] = False
    changed = support.clone()
    changed[:, 1, 1] = 99
    torch.testing.assert_close(model.method(support, mask, queries), model.method(changed, mask, queries))
