import math

import torch
from naive import close, naive_score

from protograph.nn.operators import DictionaryAttention


def applied(weight, row):
    return [sum(w * x for w, x in zip(line, row, strict=True)) for line in weight]


def test_new_classes_attend_to_seen_classifiers_by_cosines_in_two_learned_maps(context):
    operator = DictionaryAttention(5, temperature=3.0).double()
    for layer in (operator.query, operator.key):
        layer.weight.data.normal_()
    (weights,) = operator.weights(context)
    assert (weights.rows, weights.columns) == (slice(4, 7), slice(0, 4))
    query, key = operator.query.weight.tolist(), operator.key.weight.tolist()
    for episode, prototypes in enumerate(context.prototypes.tolist()):
        rows = [[x / math.hypot(*row) for x in row] for row in prototypes]
        for n, new in enumerate(rows[4:]):
            scores = [math.exp(3 * naive_score(applied(query, new), applied(key, old), "cosine")) for old in rows[:4]]
            close(weights.values[episode, n], torch.tensor(scores, dtype=torch.float64) / sum(scores))
