import pytest
import torch
from torch import nn
from torch.nn.functional import batch_norm

from nn.few_shot.episodes import METHODS, WAYS, random_episodes, small_model
from protograph._internal.errors import InputError
from protograph.nn.few_shot import OF_QUERIES, base

JOINT = ("matching-networks", "prototypical-networks", "versa", "relation-network", "parameter-prediction")


@pytest.mark.parametrize("name", METHODS)
def test_logits_of_an_episode_do_not_depend_on_the_others(name: str) -> None:
    model = small_model(name, **({"test_steps": 2} if name in ("maml", "reptile") else {})).eval()
    support, mask, queries, _ = random_episodes(model)
    classes = torch.zeros(len(support), WAYS, dtype=torch.long)
    together = model(support, mask, queries, classes, 0)
    for episode in range(len(support)):
        rows = slice(episode, episode + 1)
        torch.testing.assert_close(model(support[rows], mask[rows], queries[rows], classes[rows], 0), together[rows])


@pytest.mark.parametrize("name", METHODS)
def test_evaluation_in_inference_mode_and_in_chunks_gives_the_same_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model(name, **({"test_steps": 2} if name in ("maml", "reptile") else {})).eval()
    support, mask, queries, _ = random_episodes(model)
    classes = torch.zeros(len(support), WAYS, dtype=torch.long)
    expected = model(support, mask, queries, classes, 0)
    monkeypatch.setitem(base.PIXELS_AT_ONCE, "cpu", 1)
    with torch.inference_mode():
        torch.testing.assert_close(model(support.clone(), mask.clone(), queries.clone(), classes, 0), expected)


@pytest.mark.parametrize("name", JOINT)
def test_a_seen_class_counts_as_a_class_of_equal_examples(name: str) -> None:
    model = small_model(name).eval()
    model.prototypes.data.normal_(generator=torch.Generator().manual_seed(0))
    support, mask, queries, _ = random_episodes(model)
    classes = torch.tensor([[2, 0, 4, 5, 6], [1, 3, 4, 5, 6], [0, 1, 4, 5, 6]])
    logits = model(support, mask, queries, classes, 2)
    for episode in range(len(support)):
        seen = [torch.stack([model.prototypes[index]] * support.shape[2]) for index in classes[episode, :2]]
        examples = torch.cat([torch.stack(seen), support[episode]])[None]
        expected = model.method(examples, torch.ones(examples.shape[:3], dtype=torch.bool), queries[episode][None])
        torch.testing.assert_close(logits[episode], expected[0])


@pytest.mark.parametrize("name", [name for name in METHODS if name not in JOINT])
def test_an_adapting_method_has_no_joint_label_space_and_no_prototypes(name: str) -> None:
    model = small_model(name)
    assert not model.joint
    assert "prototypes" not in dict(model.named_parameters())
    assert model.features == 256  # the pixels
    with pytest.raises(InputError, match="trained with a last layer for 3 novel classes, and the episode has 2: use 3 ways"):
        model(*(rows[:, :2] for rows in random_episodes(model)[:2]), random_episodes(model)[2], torch.zeros(3, 2), 0)


def test_with_the_statistics_of_queries_features_are_those_of_each_episodes_batch() -> None:
    model = small_model("versa", width=5).eval()
    images = torch.randn(5, 1, 16, 16).double()
    norms = [module for module in model.backbone.modules() if isinstance(module, nn.BatchNorm2d)]
    kept = [norm.running_mean.clone() for norm in norms]
    with model.using(OF_QUERIES):
        assert not model.joint
        assert torch.equal(model.embed(images), images.flatten(1))
        support = images.flatten(1)[:3].view(1, 3, 1, -1)
        found = model(support, torch.ones(1, 3, 1, dtype=torch.bool), images.flatten(1)[None], torch.zeros(1, 3), 0)
    assert model.joint

    def features(batch: torch.Tensor) -> torch.Tensor:
        maps = batch
        for conv, norm, relu, pool in model.backbone.blocks:
            maps = pool(relu(batch_norm(conv(maps), None, None, norm.weight, norm.bias, training=True)))
        return maps.flatten(1)

    with torch.no_grad():
        support, mask = features(images[:3]).view(1, 3, 1, -1), torch.ones(1, 3, 1, dtype=torch.bool)
        torch.testing.assert_close(found, model.method(support, mask, features(images)[None]))
    assert all(torch.equal(norm.running_mean, before) for norm, before in zip(norms, kept, strict=True))
    assert not any(norm.training for norm in norms)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in JOINT])
def test_an_adapted_network_in_half_precision_has_nearly_the_same_loss_and_gradients(name: str) -> None:
    found = []
    for precision in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        model = small_model(name, **({"hidden": 3} if name == "meta-lstm" else {})).float().train()
        model.precision = precision
        support, mask, queries, targets = random_episodes(model, queries=6)
        support, queries = support.float(), queries.float()
        loss = model.loss(support, mask, queries, targets, torch.Generator().manual_seed(0))
        loss.backward()
        gradients = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
        assert loss.dtype == torch.float32
        found.append((loss.detach(), torch.cat(gradients)))
    (loss, gradient), (half_loss, half_gradient) = found
    torch.testing.assert_close(half_loss, loss, rtol=0.03, atol=0.03)
    assert torch.cosine_similarity(gradient, half_gradient, 0) > 0.9
