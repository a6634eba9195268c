from itertools import product
from statistics import fmean, pstdev

import pytest
import torch

from protograph._internal.errors import InputError
from protograph.data import Dataset
from protograph.episodes import fixed_episodes
from protograph.evaluation.metrics import EvaluationSizes, evaluation_spec
from protograph.evaluation.unknown import auroc, evaluate_unknown, false_alarm_threshold, with_unknown
from protograph.nn.model import GraphPrototypeNetwork


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.5])
def test_of_new_scores_like_the_held_out_ones_so_many_fall_below(rate: float) -> None:
    generator = torch.Generator().manual_seed(0)
    held_out, new = torch.randn(20_000, generator=generator), torch.randn(20_000, generator=generator)
    threshold = false_alarm_threshold(held_out, rate)
    assert (new < threshold).float().mean().item() == pytest.approx(rate, abs=0.01)


def test_the_threshold_is_a_held_out_score_and_too_few_have_none() -> None:
    scores = torch.tensor([0.9, 0.1, 0.5, 0.7])
    assert false_alarm_threshold(scores, 0.4) == pytest.approx(0.5)  # 2 of 5 places below it
    with pytest.raises(InputError, match=r"needs 9 held-out images, and there are 4"):
        false_alarm_threshold(scores, 0.1)
    for rate in (0.0, 1.0, -0.5):
        with pytest.raises(InputError, match=f"between 0 and 1, not {rate}"):
            false_alarm_threshold(scores, rate)


def test_auroc_is_the_share_of_pairs_in_order() -> None:
    generator = torch.Generator().manual_seed(0)
    known, unknown = (torch.randint(0, 9, (3, size), generator=generator).float() for size in (7, 5))
    for row in range(3):
        pairs = list(product(known[row].tolist(), unknown[row].tolist()))
        expected = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs)
        assert auroc(known, unknown)[row].item() == pytest.approx(expected)
    assert auroc(torch.tensor([2.0, 3.0]), torch.tensor([1.0])).item() == 1.0


def test_unknown_images_are_of_novel_classes_outside_the_episode(toy: Dataset) -> None:
    drawn = fixed_episodes(evaluation_spec(toy, "test", 3, 2, 4), 11, 20)
    extended = with_unknown(drawn, toy.novel_test, 11)
    known = drawn.queries.shape[1]
    assert torch.equal(extended.queries[:, :known], drawn.queries)
    assert extended.queries.shape[1] == 2 * known
    assert bool((extended.targets[:, known:] == -1).all())
    owner = {
        image: class_id
        for class_id, row in zip(toy.novel_test.classes.tolist(), toy.novel_test.images.tolist(), strict=True)
        for image in row
    }
    for classes, images in zip(drawn.classes.tolist(), extended.queries[:, known:].tolist(), strict=True):
        assert not {owner[image] for image in images} & set(classes)
    assert {owner[image] for image in extended.queries[:, known:].flatten().tolist()} == set(toy.novel_test.classes.tolist())
    with pytest.raises(InputError, match="all 7 novel classes are in every episode"):
        with_unknown(fixed_episodes(evaluation_spec(toy, "test", 7, 2, 4), 11, 1), toy.novel_test, 11)


def test_auroc_of_unknown_images_is_what_a_loop_over_pairs_counts(model: GraphPrototypeNetwork, toy: Dataset) -> None:
    found = evaluate_unknown(model, toy, EvaluationSizes(shots=2, ways=3, queries=4, episodes=3, seed=11))
    drawn = with_unknown(fixed_episodes(evaluation_spec(toy, "test", 3, 2, 4), 11, 3), toy.novel_test, 11)
    expected = []
    for index in range(3):
        one = drawn.slice(index, index + 1)
        with torch.no_grad():
            support = model.eval().embed(toy.store.gather(one.support.flatten())).view(*one.support.shape, -1)
            queries = model.embed(toy.store.gather(one.queries[0]))
            scores = model(support, one.mask, queries[None], one.classes, one.seen)[0].max(-1).values.tolist()
        known, unknown = scores[: len(scores) // 2], scores[len(scores) // 2 :]
        expected.append(100 * sum(a > b for a in known for b in unknown) / len(known) ** 2)
    assert found.mean == pytest.approx(fmean(expected), abs=1e-6)
    assert found.ci95 == pytest.approx(1.96 * pstdev(expected) / 3**0.5)
