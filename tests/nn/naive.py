"""What the tests of this folder share: exact comparison and seeded numbers, in float64."""

import math

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from protograph.nn.operators import KeySimilarity


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def rand(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class LargestTensor(TorchDispatchMode):
    """Remembers how many numbers the largest tensor holds that anything made."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        answer = function(*args, **(kwargs or {}))
        for tensor in answer if isinstance(answer, tuple | list) else [answer]:
            if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
                self.numbers = max(self.numbers, tensor.numel())
        return answer


def naive_score(a, b, measure):
    if measure == "cosine":
        return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)
    return -math.dist(a, b)


def naive_pairs(context, score):
    """score(e, m, n) of every pair of classes, one by one."""
    episodes, classes = context.classes.shape
    everything = range(classes)
    scores = [[[score(e, m, n) for n in everything] for m in everything] for e in range(episodes)]
    return torch.tensor(scores, dtype=torch.float64)


def naive_softmax(scores, temperature=1.0):
    """Every row for itself; a score of minus infinity is an absent edge."""
    weights = torch.zeros_like(scores)
    for e, rows in enumerate(scores.tolist()):
        for m, row in enumerate(rows):
            shares = [math.exp(temperature * score) for score in row]
            for n, share in enumerate(shares):
                weights[e, m, n] = share / sum(shares) if sum(shares) else 0
    return weights


def unit(context):
    return [[[x / math.hypot(*row) for x in row] for row in rows] for rows in context.prototypes.tolist()]


def graph(pairs, values, size):
    index = torch.tensor(pairs).T
    return torch.sparse_coo_tensor(index, values, (size, size), dtype=torch.float64, check_invariants=True)


def full_graph(matrix):
    index = torch.ones_like(matrix).nonzero().T
    return torch.sparse_coo_tensor(index, matrix.flatten(), matrix.shape, check_invariants=True)


def naive_key_pairs(similarity, context):
    weight, bias = similarity.query.weight.tolist(), similarity.query.bias.tolist()
    keys = []
    for rows, classes in zip(unit(context), context.classes.tolist(), strict=True):
        seen = [similarity.keys[name].tolist() for name in classes[:4]]
        novel = [
            [b + sum(w * x for w, x in zip(line, c, strict=True)) for line, b in zip(weight, bias, strict=True)]
            for c in rows[4:]
        ]
        keys.append(seen + novel)
    return naive_pairs(context, lambda e, m, n: naive_score(keys[e][m], keys[e][n], "cosine"))


def randomised_keys(block):
    similarity = KeySimilarity(6, 5, block).double()
    with torch.no_grad():
        similarity.query.weight.copy_(rand(5, 5))
        similarity.query.bias.copy_(rand(5))
    return similarity
