"""What a model answers, recounted with loops."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch

from protograph.data import Dataset
from protograph.episodes import sample
from protograph.evaluation.confusions import Answers, add, collect, related_labels, shares, strongest
from protograph.evaluation.metrics import EVALUATION_SEED, EvaluationSizes, evaluate, evaluation_spec, extract
from protograph.nn.graph import GraphLayer
from protograph.nn.model import GraphPrototypeNetwork
from protograph.nn.operators import Context
from protograph.training.run_config import RunConfig
from protograph.training.setup import make_model

EPISODES = 7


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["gcgpn-aux", "gcgpn-aux-split", "dfslwof-att", "pn+"])
def test_answers_are_those_of_a_naive_recount(toy: Dataset, toy_config: Callable[..., RunConfig], variant: str) -> None:
    config = toy_config(variant)
    model = make_model(config, toy).eval()
    layer = model.graph.layers[0]
    assert isinstance(layer, GraphLayer)
    with torch.no_grad():
        layer.scales.copy_(torch.linspace(-0.5, 1.5, len(layer.scales)))
        for theta in layer.thetas.values():
            theta.copy_(torch.randn(theta.shape))
        model, toy, evaluation_spec(toy, "test", config.recipe.ways, config.shots, config.recipe.test_queries), EPISODES
    spec = evaluation_spec(toy, "test", config.recipe.ways, config.shots, config.recipe.test_queries)
    found = collect(model, toy, spec, EPISODES)
    pairs: Counter[tuple[int, int]] = Counter()
    taken: dict[tuple[int, int], list[float]] = {}
    right = {True: 0, False: 0}
    for index in range(EPISODES):
        episode = sample(spec, EVALUATION_SEED, index)
        classes = episode.classes[0].tolist()
        support = extract(model, toy.store, episode.support.flatten()).view(*episode.support.shape, -1)
        queries = extract(model, toy.store, episode.queries[0])
        with torch.inference_mode():
            context = model.context(support, episode.mask, episode.classes, episode.seen)
            logits = model(support, episode.mask, queries[None], episode.classes, episode.seen)[0]
            lengths = naive_lengths(model, context)
        for query, target in enumerate(episode.targets[0].tolist()):
            answer = int(logits[query].argmax())
            pair = classes[target], classes[answer]
            pairs[pair] += 1
            right[target < episode.seen] += target == answer
            if target >= episode.seen:
                took = lengths[answer]
                row = taken.setdefault(pair, [0.0] * len(toy.classes))
                for column, value in enumerate(took):
                    row[classes[column]] += value / sum(took)
    assert found.pairs == pairs
    assert dict(found.right) == right
    assert found.answered.keys() == taken.keys()
    for pair, row in taken.items():
        assert found.answered[pair].tolist() == pytest.approx(row, abs=1e-5)
    for seen in (True, False):
        for answered in (True, False):
            count = sum(n for (a, b), n in pairs.items() if (a < toy.seen, b < toy.seen) == (seen, answered))
            assert found.sides[seen, answered] == count
    sizes = EvaluationSizes(config.shots, config.recipe.ways, config.recipe.test_queries, EPISODES)
    measures = evaluate(model, toy, sizes)
    for seen, name in ((True, "seen_joint"), (False, "novel_joint")):
        total = found.sides[seen, True] + found.sides[seen, False]
        assert 100 * found.right[seen] / total == pytest.approx(measures[name].mean)


def naive_lengths(model: GraphPrototypeNetwork, context: Context) -> list[list[float]]:
    """How long what each class adds to each prototype is, one pair of classes at a time."""
    layer, count = model.graph.layers[0], context.classes.shape[1]
    assert isinstance(layer, GraphLayer)
    rows = context.prototypes[0].double()
    if layer.normalise_inputs:
        rows = torch.stack([row / row.norm() for row in rows])
    found = [[0.0] * count for _ in range(count)]
    for label, weights, scale in zip(layer.labels, model.weights(context), layer.scales.tolist(), strict=True):
        matrix = weights.dense(count).reshape(-1, count, count)[0].double()
        moved = [row * layer.thetas[label].double() if label in layer.thetas else row for row in rows]
        for n in range(count):
            size = sum(matrix[n, m] * moved[m] for m in range(count)).norm().item() if layer.normalise_outputs else 1.0
            for m in range(count):
                if size > 0:
                    found[n][m] += abs(scale) * float(matrix[n, m]) * moved[m].norm().item() / size
    return found


def made() -> Answers:
    """Seen classes 0 and 1; novel ones 2 and 3."""
    answers = Answers(classes=4, episodes=1)
    took = torch.tensor([[0.7, 0.3, 0, 0], [0.2, 0.8, 0, 0], [0.1, 0.3, 0.6, 0], [0.5, 0.1, 0, 0.4]])
    targets, given = torch.tensor([0, 1, 2, 2, 2, 3, 3]), torch.tensor([0, 2, 2, 2, 0, 2, 2])
    add(answers, torch.arange(4), targets, given, 2, took)
    return answers


def test_the_commonest_answers_and_what_their_prototypes_took() -> None:
    answers = made()
    assert answers.sides == {(True, True): 1, (True, False): 1, (False, False): 4, (False, True): 1}
    assert answers.confused(2) == [((3, 2), 2), ((1, 2), 1)]
    assert answers.commonest(True, 5) == [(2, 2)]
    assert answers.winner((2, 2)).tolist() == pytest.approx([0.1, 0.3, 0.6, 0])
    assert strongest(answers.winner((2, 2)), 2, 2) == [(1, pytest.approx(0.3)), (0, pytest.approx(0.1))]
    assert answers.commonest(False, 5) == [(3, 2), (2, 0)]
    assert answers.commonest(False, 1) == [(3, 2)]
    assert strongest(answers.winner((2, 0)), 0, 3) == [(1, pytest.approx(0.3))]  # it took nothing from others
    assert answers.loser((3, 2)).tolist() == pytest.approx([0.5, 0.1, 0, 0.4])
    assert answers.loser((2, 0)).tolist() == pytest.approx([0.1, 0.3, 0.6, 0])
    assert (2, 2) not in answers.missed


def test_which_operators_relate_classes(toy: Dataset, toy_config: Callable[..., RunConfig]) -> None:
    labels = {variant: related_labels(make_model(toy_config(variant), toy)) for variant in ("gcgpn-aux", "pn+", "dfslwof-att")}
    assert labels == {"gcgpn-aux": ["kinship"], "pn+": [], "dfslwof-att": ["attention"]}


@pytest.mark.parametrize("variant", ["gcgpn-aux", "gcgpn-aux-split", "dfslwof-att"])
def test_shares_are_those_of_lengths_in_every_row(toy: Dataset, toy_config: Callable[..., RunConfig], variant: str) -> None:
    model = make_model(toy_config(variant), toy).eval()
    layer = model.graph.layers[0]
    assert isinstance(layer, GraphLayer)
    assert layer.normalise_outputs == (variant != "dfslwof-att")
    episode = sample(evaluation_spec(toy, "test", 3, 1, 2), EVALUATION_SEED, 0)
    with torch.inference_mode():
        for theta in layer.thetas.values():
            theta.copy_(torch.randn(theta.shape))
        support = extract(model, toy.store, episode.support.flatten()).view(*episode.support.shape, -1)
        context = model.context(support, episode.mask, episode.classes, episode.seen)
        found, lengths = shares(model, context), naive_lengths(model, context)
    for row, expected in zip(found.tolist(), lengths, strict=True):
        assert row == pytest.approx([length / sum(expected) for length in expected], abs=1e-5)


def test_shares_of_every_row_sum_to_one(toy: Dataset, toy_config: Callable[..., RunConfig]) -> None:
    config = toy_config("gcgpn-aux-split")
    model = make_model(config, toy).eval()
    episode = sample(evaluation_spec(toy, "test", 3, 1, 2), EVALUATION_SEED, 0)
    with torch.inference_mode():
        support = extract(model, toy.store, episode.support.flatten()).view(*episode.support.shape, -1)
        found = shares(model, model.context(support, episode.mask, episode.classes, episode.seen))
    assert found.shape == (len(episode.classes[0]),) * 2
    assert torch.allclose(found.sum(1), torch.ones(len(found)))
