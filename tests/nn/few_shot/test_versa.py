import math

import torch
from torch import Tensor

from nn.few_shot.episodes import check_outer_gradients, episode_by_episode, random_episodes, small_model
from protograph.nn.few_shot import FewShotModel


def naive(model: FewShotModel, support: Tensor, queries: Tensor) -> Tensor:
    method = model.method
    rows = []
    for query in queries:
        logits = []
        for examples in support:
            mean = sum(method.project(example) for example in examples) / len(examples)
            logits.append(method.weight_mean(mean) @ method.project(query) + method.bias_mean(mean)[0])
        rows.append(torch.stack(logits))
    return torch.stack(rows)


def test_logits_equal_a_loop_over_episodes() -> None:
    model = small_model("versa", width=5)
    episodes = random_episodes(model)
    torch.testing.assert_close(model.method(*episodes[:3]), episode_by_episode(model, episodes, naive))


def test_the_loss_is_that_of_the_mean_likelihood_over_samples() -> None:
    model = small_model("versa", width=5, samples=4)
    method = model.method
    support, mask, queries, targets = random_episodes(model, count=2)
    loss = model.loss(support, mask, queries, targets, torch.Generator().manual_seed(9))
    shape = (4, 2, queries.shape[1], support.shape[1])
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    terms = []
    for episode in range(2):
        means = [sum(method.project(example) for example in examples) / len(examples) for examples in support[episode]]
        for row, query in enumerate(queries[episode]):
            asked = method.project(query)
            likelihoods = []
            for sample in range(4):
                logits = []
                for column, mean in enumerate(means):
                    variance = method.weight_variance(mean).exp() @ asked**2 + method.bias_variance(mean).exp()[0]
                    centre = method.weight_mean(mean) @ asked + method.bias_mean(mean)[0]
                    logits.append((centre + variance.sqrt() * noise[sample, episode, row, column]).item())
                total = sum(math.exp(value) for value in logits)
                likelihoods.append(math.exp(logits[int(targets[episode, row])]) / total)
            terms.append(-math.log(sum(likelihoods) / 4))
    assert abs(loss.item() - sum(terms) / len(terms)) < 1e-9


def test_gradients_are_those_of_finite_differences() -> None:
    model = small_model("versa", width=5, samples=3).train()
    support, mask, queries, targets = random_episodes(model, count=2)
    check_outer_gradients(model, lambda: model.loss(support, mask, queries, targets, torch.Generator().manual_seed(1)))
