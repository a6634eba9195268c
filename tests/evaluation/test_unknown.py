from statistics import fmean, pstdev

import pytest
import torch

from protograph._internal.errors import InputError
from protograph.data import Dataset
from protograph.episodes import fixed_episodes
from protograph.evaluation.metrics import EvaluationSizes, evaluation_spec
from protograph.evaluation.unknown import evaluate_unknown, with_unknown
from protograph.nn.model import GraphPrototypeNetwork


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
