import math
from dataclasses import replace

import pytest
import torch
from naive import (
    close,
    naive_key_pairs,
    naive_score,
    rand,
    randomised_keys,
)

from protograph.nn.operators import (
    KeySimilarity,
    ShotAttention,
    Softmax,
    mean_over_shots,
)


def test_key_similarity_matches_learned_keys_with_queried_prototypes(context):
    similarity = randomised_keys(None)
    close(similarity(context).dense(7), naive_key_pairs(similarity, context))


def test_key_similarity_in_sn_answers_novel_rows_and_seen_columns_only(context):
    similarity = randomised_keys("sn")
    scores = similarity(context)
    assert (scores.rows, scores.columns) == (slice(4, 7), slice(0, 4))
    close(scores.values, naive_key_pairs(similarity, context)[:, 4:, :4])


def naive_attention(operator, context):
    """The share [E, N, S] that each seen class has in each novel one: per example, then averaged over those that are there."""
    weight, bias = operator.similarity.query.weight.tolist(), operator.similarity.query.bias.tolist()
    answer = torch.zeros(*context.mask.shape[:2], context.seen, dtype=torch.float64)
    for e, classes in enumerate(context.classes.tolist()):
        keys = [operator.similarity.keys[name].tolist() for name in classes[: context.seen]]
        for n, (shots, there) in enumerate(zip(context.support[e].tolist(), context.mask[e].tolist(), strict=True)):
            shots = [shot for shot, is_there in zip(shots, there, strict=True) if is_there]
            for shot in shots:
                shot = [x / math.hypot(*shot) for x in shot]
                asked = [b + sum(w * x for w, x in zip(line, shot, strict=True)) for line, b in zip(weight, bias, strict=True)]
                shares = [math.exp(operator.temperature.item() * naive_score(asked, key, "cosine")) for key in keys]
                for m, share in enumerate(shares):
                    answer[e, n, m] += share / sum(shares) / len(shots)
    return answer


@pytest.mark.parametrize("shots", [1, 5, "unequal"])
def test_shot_attention_asks_for_every_example_and_averages_the_answers(context, shots):
    count = 5 if shots == "unequal" else shots
    mask = torch.ones(2, 3, count, dtype=torch.bool)
    if shots == "unequal":
        mask = torch.tensor([[[1, 1, 0, 1, 0], [0, 1, 0, 0, 0], [1] * 5], [[0, 0, 0, 1, 1], [1] * 5, [1, 0, 0, 0, 0]]]).bool()
    context = replace(context, support=rand(2, 3, count, 5), mask=mask)
    operator = ShotAttention(6, 5, temperature=4.0).double()
    operator.similarity = randomised_keys("sn")
    (weights,) = operator.weights(context)
    assert (weights.rows, weights.columns) == (slice(4, 7), slice(0, 4))
    close(weights.values, naive_attention(operator, context))


def test_shot_attention_at_one_shot_is_a_softmax_of_keys(context):
    context = replace(context, support=context.support[:, :, :1], mask=context.mask[:, :, :1])
    prototypes = torch.cat([context.prototypes[:, :4], context.support[:, :, 0]], 1)
    operator = ShotAttention(6, 5).double()
    operator.similarity = randomised_keys("sn")
    alike = Softmax(operator.similarity, "keys", 10.0)
    close(operator(context).values, alike(replace(context, prototypes=prototypes)).values)


def test_keys_start_as_protocol_says():
    similarity = KeySimilarity(500, 200)
    assert similarity.keys.std().item() == pytest.approx(math.sqrt(2 / 200), rel=0.05)
    assert (similarity.query.weight - torch.eye(200)).std().item() == pytest.approx(0.001, rel=0.05)
    assert not similarity.query.bias.any()


def test_the_mean_of_no_shots_is_zero():
    values, mask = rand(1, 2, 3, 4), torch.tensor([[[True, True, False], [False, False, False]]])
    found = mean_over_shots(values, mask)
    close(found[0, 0], values[0, 0, :2].mean(0))
    assert found[0, 1].tolist() == [0.0] * 4
