import math
from statistics import fmean, pstdev

import pytest
import torch
from torch import Tensor, nn

from protograph._internal.errors import InputError
from protograph.data import Dataset
from protograph.episodes import fixed_episodes, sample, seeded
from protograph.evaluation.metrics import (
    EVALUATION_SEED,
    MEASURES,
    Measure,
    choose_bias,
    episode_measures,
    evaluate,
    evaluate_unknown,
    evaluation_spec,
    extract,
    nearness,
    run_episodes,
    summarise,
    with_unknown,
)
from protograph.nn.backbones import Conv4
from protograph.nn.model import GraphPrototypeNetwork
from protograph.variants import build, find_variant


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


class InDouble(nn.Module):
    """A backbone in float64, so that no order of summation can turn an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Conv4((4, 4, 8, 8), channels=1).double()

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.net(images.double())
        return features


@pytest.fixture(scope="module")
def model(toy: Dataset) -> GraphPrototypeNetwork:
    """Untrained, but with settled batch statistics and prototypes where the seen classes are."""
    similarities = {"kinship": toy.relations["kinship"].similarities(toy.classes)}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = InDouble()
    made = build(find_variant("gcgpn-aux"), backbone, toy.store.image_shape, toy.seen, similarities).double()
    images = toy.train.images
    with torch.no_grad():
        for _ in range(20):
            made.train().embed(toy.store.gather(images.flatten()))
        features = made.eval().embed(toy.store.gather(images.flatten())).view(*images.shape, -1)
        made.prototypes.copy_(nn.functional.normalize(features, dim=-1).mean(1))
    return made


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
    one = evaluate(model, toy, "test", shots=1, ways=3, queries=4, episodes=8)
    assert one == evaluate(model, toy, "test", shots=1, ways=3, queries=4, episodes=8)
    assert one != evaluate(model, toy, "test", shots=1, ways=3, queries=4, episodes=8, seed=1)
    assert one != evaluate(model, toy, "validation", shots=1, ways=3, queries=4, episodes=8)


def test_evaluation_leaves_the_model_unchanged(model: GraphPrototypeNetwork, toy: Dataset) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    evaluate(model, toy, "test", shots=1, ways=3, queries=4, episodes=3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_nearness_is_what_a_loop_over_novel_queries_measures(model: GraphPrototypeNetwork, toy: Dataset) -> None:
    found = nearness(model, toy, shots=2, ways=3, episodes=4)
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
    found = evaluate_unknown(model, toy, "test", shots=2, ways=3, queries=4, episodes=3, seed=11)
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


def test_a_bias_is_chosen_on_validation_and_makes_its_h_mean_no_worse(model: GraphPrototypeNetwork, toy: Dataset) -> None:
    sizes = {"shots": 1, "ways": 3, "queries": 4, "episodes": 30}
    bias = choose_bias(model, toy, **sizes)
    plain, moved = (evaluate(model, toy, "validation", **sizes, bias=one)["h_mean"].mean for one in (0.0, bias))
    assert bias != 0.0
    assert moved > plain
    measures = evaluate(model, toy, "test", **sizes, bias=1000.0)
    assert measures["seen_joint"].mean == 0.0
    assert measures["novel_joint"].mean == measures["novel_novel"].mean
