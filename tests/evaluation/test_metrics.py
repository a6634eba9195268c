import math
from dataclasses import replace
from statistics import fmean, pstdev

import pytest
import torch
from torch import Tensor, nn

from protograph.data import Dataset
from protograph.episodes import fixed_episodes, sample, seeded
from protograph.evaluation.metrics import (
    EVALUATION_SEED,
    MEASURES,
    EvaluationSizes,
    Measure,
    choose_bias,
    episode_measures,
    evaluate,
    evaluation_spec,
    extract,
    nearness,
    run_episodes,
    summarise,
)
from protograph.nn.model import GraphPrototypeNetwork


def naive_measures(logits: list[list[float]], targets: list[int], seen: int) -> dict[str, float]:
    """The six measures of one episode, as one would count them by hand."""

    def answer(row: list[float], columns: range) -> int:
        return max(columns, key=lambda column: row[column])

    everything, old, new = range(len(logits[0])), range(seen), range(seen, len(logits[0]))
    queries = list(zip(logits, targets, strict=True))
    of_seen = [(row, target) for row, target in queries if target < seen]
    of_novel = [(row, target) for row, target in queries if target >= seen]

    def share(chosen: list[tuple[list[float], int]], columns: range) -> float:
        return sum(answer(row, columns) == target for row, target in chosen) / len(chosen)

    seen_joint, novel_joint = share(of_seen, everything), share(of_novel, everything)
    both = seen_joint + novel_joint
    return {
        "seen_seen": share(of_seen, old),
        "novel_novel": share(of_novel, new),
        "joint_joint": share(queries, everything),
        "seen_joint": seen_joint,
        "novel_joint": novel_joint,
        "h_mean": 2 * seen_joint * novel_joint / both if both else 0.0,
    }


@pytest.mark.parametrize("seed", range(5))
def test_measures_equal_a_count_by_hand(seed: int) -> None:
    generator = seeded(seed)
    seen, classes, queries = 6, 9, 14
    targets = torch.randint(0, classes, (20, queries), generator=generator)
    targets[:, 0], targets[:, 1] = 0, classes - 1  # at least one query of each kind
    logits = torch.rand(20, queries, classes, generator=generator)
    logits += 0.5 * nn.functional.one_hot(targets, classes)
    found = episode_measures(logits, targets, seen)
    assert set(found) == set(MEASURES)
    for episode in range(20):
        expected = naive_measures(logits[episode].tolist(), targets[episode].tolist(), seen)
        for name, value in expected.items():
            assert found[name][episode].item() == pytest.approx(value, abs=1e-6)


def certain(answers: list[int], classes: int) -> Tensor:
    return nn.functional.one_hot(torch.tensor(answers), classes).float()


def test_h_mean_is_the_mean_of_the_episodes_harmonic_means() -> None:
    targets = torch.tensor([[0, 1, 2, 3]] * 2)  # two seen, two novel
    logits = torch.stack([certain([0, 1, 0, 0], 4), certain([0, 0, 2, 3], 4)])  # 1 and 0, then 1/2 and 1
    measures = summarise(episode_measures(logits, targets, 2))
    assert measures["seen_joint"].mean == pytest.approx(75)
    assert measures["novel_joint"].mean == pytest.approx(50)
    assert measures["h_mean"].mean == pytest.approx(100 * (0 + 2 / 3) / 2)  # and not 60


def test_h_mean_is_zero_where_nothing_was_right() -> None:
    measures = episode_measures(certain([1, 0, 3, 2], 4)[None], torch.tensor([[0, 1, 2, 3]]), 2)
    assert measures["h_mean"].tolist() == [0.0]


def test_restricted_measures_look_only_at_their_own_columns() -> None:
    logits = torch.tensor([[[0.2, 0.1, 0.9, 0.0], [0.9, 0.8, 0.1, 0.2]]])  # a seen query, a novel one
    measures = episode_measures(logits, torch.tensor([[0, 3]]), 2)
    assert measures["seen_joint"].item() == measures["novel_joint"].item() == 0
    assert measures["seen_seen"].item() == measures["novel_novel"].item() == 1


def test_the_interval_is_1_96_standard_errors_in_per_cent() -> None:
    values = [0.1, 0.4, 0.4, 0.9, 1.0]
    found = Measure.of(torch.tensor(values, dtype=torch.float64))
    assert found.mean == pytest.approx(100 * fmean(values))
    assert found.ci95 == pytest.approx(100 * 1.96 * pstdev(values) / math.sqrt(5))
    assert str(found) == "56.00 ± 29.65"


@pytest.mark.parametrize("split", ["validation", "test"])
def test_seen_and_novel_queries_are_equal_in_number(letters: Dataset, toy: Dataset, split: str) -> None:
    for dataset, queries in ((letters, 15), (toy, 4)):
        episode = sample(evaluation_spec(dataset, split, 5, 1, queries), 0, 0)
        assert episode.seen == dataset.seen
        assert int((episode.targets < episode.seen).sum()) == int((episode.targets >= episode.seen).sum()) == 5 * queries


def episode_by_episode(model: GraphPrototypeNetwork, toy: Dataset, episodes: int, shots: int) -> dict[str, list[float]]:
    """Evaluation without a cache: the backbone runs on every episode's own images."""
    spec = evaluation_spec(toy, "test", 3, shots, 4, fewest_shots=1)
    found: dict[str, list[float]] = {name: [] for name in MEASURES}
    model.eval()
    for index in range(episodes):
        episode = sample(spec, 11, index)
        with torch.no_grad():
            support, queries = (model.embed(toy.store.gather(part[0].flatten())) for part in (episode.support, episode.queries))
            support = support.view(1, *episode.support.shape[1:], -1)
            logits = model(support, episode.mask, queries[None], episode.classes, episode.seen)
        for name, value in naive_measures(logits[0].tolist(), episode.targets[0].tolist(), episode.seen).items():
            found[name].append(value)
    return found


@pytest.fixture(scope="module")
def expected(model: GraphPrototypeNetwork, toy: Dataset) -> dict[str, list[float]]:
    return episode_by_episode(model, toy, 10, 2)


@pytest.mark.parametrize("memory", [1.0, 4e3, 64e6])
def test_cached_evaluation_equals_one_that_embeds_every_episode(
    model: GraphPrototypeNetwork, toy: Dataset, expected: dict[str, list[float]], memory: float
) -> None:
    assert len(set(expected["h_mean"])) > 2, "a comparison of constants would show nothing"
    episodes = fixed_episodes(evaluation_spec(toy, "test", 3, 2, 4, fewest_shots=1), 11, 10)
    images = episodes.images()
    features = extract(model, toy.store, images, batch=7)
    found = run_episodes(model, features, episodes.among(images), memory)
    for name in MEASURES:
        assert found[name].tolist() == pytest.approx(expected[name], abs=1e-6)


def test_evaluate_measures_the_same_episodes_every_time(model: GraphPrototypeNetwork, toy: Dataset) -> None:
    sizes = EvaluationSizes(shots=1, ways=3, queries=4, episodes=8)
    one = evaluate(model, toy, sizes)
    assert one == evaluate(model, toy, sizes)
    assert one != evaluate(model, toy, replace(sizes, seed=1))
    assert one != evaluate(model, toy, sizes, "validation")


def test_evaluation_leaves_the_model_unchanged(model: GraphPrototypeNetwork, toy: Dataset) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    evaluate(model, toy, EvaluationSizes(shots=1, ways=3, queries=4, episodes=3))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_nearness_is_what_a_loop_over_novel_queries_measures(model: GraphPrototypeNetwork, toy: Dataset) -> None:
    found = nearness(model, toy, EvaluationSizes(shots=2, ways=3, queries=5, episodes=4))
    spec = evaluation_spec(toy, "test", 3, 2, 5)
    lengths: dict[str, list[float]] = {"seen_norm": [], "novel_norm": []}
    distances: dict[str, list[float]] = {"to_own": [], "to_nearest_seen": [], "taken_for_seen": []}
    for index in range(4):
        episode = sample(spec, EVALUATION_SEED, index)
        with torch.no_grad():
            support = model.eval().embed(toy.store.gather(episode.support.flatten())).view(*episode.support.shape, -1)
            context = model.context(support, episode.mask, episode.classes, episode.seen)
            prototypes = model.joint_prototypes(context)[0].tolist()
            queries = model.embed(toy.store.gather(episode.queries[0])).tolist()
        for row, prototype in enumerate(prototypes):
            lengths["seen_norm" if row < episode.seen else "novel_norm"].append(math.hypot(*prototype) ** 2 / len(prototype))
        for query, target in zip(queries, episode.targets[0].tolist(), strict=True):
            if target >= episode.seen:
                squares = [math.dist(query, prototype) ** 2 / len(query) for prototype in prototypes]
                nearest = min(squares[: episode.seen])
                distances["to_own"].append(squares[target])
                distances["to_nearest_seen"].append(nearest)
                distances["taken_for_seen"].append(100.0 * (nearest < min(squares[episode.seen :])))
    for name, values in {**lengths, **distances}.items():
        assert found[name] == pytest.approx(fmean(values), rel=1e-5), name


def test_a_bias_is_chosen_on_validation_and_makes_its_h_mean_no_worse(model: GraphPrototypeNetwork, toy: Dataset) -> None:
    sizes = EvaluationSizes(shots=1, ways=3, queries=4, episodes=30)
    bias = choose_bias(model, toy, sizes)
    plain, moved = (evaluate(model, toy, sizes, "validation", bias=one)["h_mean"].mean for one in (0.0, bias))
    assert bias != 0.0
    assert moved > plain
    measures = evaluate(model, toy, sizes, bias=1000.0)
    assert measures["seen_joint"].mean == 0.0
    assert measures["novel_joint"].mean == measures["novel_novel"].mean
