import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nn.naive import LargestTensor
from protograph._internal.errors import InputError
from protograph.data import Augmentation, Dataset, FeatureStore, ImageStore, Pool
from protograph.episodes import EpisodeSpec, draw, draw_batch, seeded
from protograph.nn.model import GraphPrototypeNetwork
from protograph.training.optimiser import make_optimiser
from protograph.training.recipes import Recipe
from protograph.training.run_config import RunConfig
from protograph.training.run_folder import Run
from protograph.training.setup import load_teacher, plan_training, training_spec
from protograph.training.stages import train
from protograph.training.step import TrainingStep, can_be_recorded, draw_mixes, drop_features, mixed_loss, teacher_logits
from protograph.variants import VARIANTS, build

Make = Callable[..., RunConfig]


def test_dropout_leaves_a_share_of_the_features_at_zero_and_their_mean_as_it_is() -> None:
    features = torch.ones(50, 400)
    dropped = drop_features(features, 0.25, seeded(1))
    kept = torch.rand(50, 400, generator=seeded(1)) >= 0.25
    assert torch.equal(dropped, torch.where(kept, features / 0.75, 0))
    assert 0.73 < kept.double().mean() < 0.77


def stepping(variant: str, toy: Dataset, config: RunConfig) -> tuple[GraphPrototypeNetwork, float, Any]:
    """A model before a step without augmentation, the loss of that step, and what was drawn for it."""
    chosen, plain = VARIANTS[variant], Augmentation()
    model, spec, _ = plan_training(config, toy)
    before = copy.deepcopy(model)
    count = config.recipe.batch_size if chosen.objective == "classify" else config.recipe.episodes
    loss = TrainingStep(model, make_optimiser(model, config.recipe), toy.store, plain, spec, count, chosen)(seeded(0))
    drawn = draw(spec, count, seeded(0)) if isinstance(spec, EpisodeSpec) else draw_batch(spec, count, seeded(0))
    return before.train(), loss.item(), drawn


def logits_of(head: torch.nn.Module, features: list[list[float]]) -> list[list[float]]:
    """What a linear head makes of features, by loops."""
    weight, bias = head.weight.tolist(), head.bias.tolist()  # type: ignore[union-attr, operator]
    return [
        [sum(w * x for w, x in zip(row, feature, strict=True)) + b for row, b in zip(weight, bias, strict=True)]
        for feature in features
    ]


def mean_cross_entropy(logits: list[list[float]], targets: list[int]) -> float:
    pairs = zip(logits, targets, strict=True)
    return sum(math.log(sum(map(math.exp, row))) - row[target] for row, target in pairs) / len(targets)


def test_linear_classification_is_cross_entropy_of_dot_products_plus_that_of_the_turns(
    toy: Dataset, toy_config: Make, small_resnet: str
) -> None:
    config = replace(toy_config("linear", rotation=0.5, batch_size=13), backbone=small_resnet)
    model, spec, _ = plan_training(config, toy)
    before = copy.deepcopy(model).train()
    chosen, plain = VARIANTS["linear"], Augmentation()
    optimiser = make_optimiser(model, config.recipe)
    loss = TrainingStep(model, optimiser, toy.store, plain, spec, 13, chosen, config.recipe)(seeded(0)).item()
    assert isinstance(spec, Pool)
    batch = draw_batch(spec, 13, seeded(0))
    turns = [0] * 7 + [1, 1, 2, 2, 3, 3]  # half of them upright
    images = toy.store.gather(batch.images)
    turned = torch.stack([torch.rot90(image, turn, (1, 2)) for image, turn in zip(images, turns, strict=True)])
    features = before.embed(turned).tolist()
    expected = mean_cross_entropy(logits_of(before.heads["classes"], features), batch.targets.tolist())
    expected += 0.5 * mean_cross_entropy(logits_of(before.heads["rotation"], features), turns)
    assert loss == pytest.approx(expected, abs=1e-5)


def test_shares_of_a_mixture_are_beta_distributed_and_at_one_depth() -> None:
    depths = []
    for seed in range(60):
        shares, mixes = draw_mixes(50, 3, seeded(seed))
        used = [depth for depth, mix in enumerate(mixes) if mix.any()]
        assert torch.equal(mixes[used[0]], shares)
        depths += used
    assert len(depths) == 60
    assert {*depths} == {0, 1, 2}
    shares, _ = draw_mixes(20_000, 3, seeded(0))
    assert shares.mean().item() == pytest.approx(1 / 2, abs=0.01)
    assert shares.var().item() == pytest.approx(1 / 20, abs=0.002)  # of Beta(2, 2)


def test_the_loss_of_mixed_images_counts_both_classes_by_their_shares() -> None:
    logits, shares = torch.randn(5, 4, generator=seeded(0)), torch.tensor([0.2, 0.5, 0.9])
    rows, targets = logits.tolist(), [0, 3, 1, 2, 2]
    expected = sum(mean_cross_entropy([rows[i]], [targets[i]]) for i in (3, 4))
    for i, share in enumerate(shares.tolist()):
        expected += (1 - share) * mean_cross_entropy([rows[i]], [targets[i]])
        expected += share * mean_cross_entropy([rows[i]], [targets[2 - i]])
    assert mixed_loss(logits, torch.tensor(targets), shares).item() == pytest.approx(expected / 5, abs=1e-5)


def test_upright_images_alone_are_mixed(toy: Dataset, toy_config: Make, small_resnet: str) -> None:
    config = replace(toy_config("linear", rotation=0.5, mixup=True, batch_size=13), backbone=small_resnet)
    model, spec, _ = plan_training(config, toy)
    before = copy.deepcopy(model).train()
    step = TrainingStep(
        model, make_optimiser(model, config.recipe), toy.store, Augmentation(), spec, 13, VARIANTS["linear"], config.recipe
    )
    loss = step(seeded(0)).item()
    assert isinstance(spec, Pool)
    generator = seeded(0)
    batch = draw_batch(spec, 13, generator)
    images = toy.store.gather(batch.images, Augmentation(), generator)
    turns = [0] * 7 + [1, 1, 2, 2, 3, 3]
    turned = torch.stack([torch.rot90(image, turn, (1, 2)) for image, turn in zip(images, turns, strict=True)])
    shares, mixes = draw_mixes(7, 4, generator)
    features = before.embed(turned, mixes=mixes)
    expected = mixed_loss(before.heads["classes"](features), batch.targets, shares).item()
    expected += 0.5 * mean_cross_entropy(logits_of(before.heads["rotation"], features.tolist()), turns)
    assert loss == pytest.approx(expected, abs=1e-5)


def test_classification_is_cross_entropy_of_cosines_with_every_seen_class(toy: Dataset, toy_config: Make) -> None:
    model, loss, batch = stepping("cosine", toy, toy_config("cosine"))
    features, prototypes = model.embed(toy.store.gather(batch.images)).tolist(), model.prototypes.tolist()
    expected = 0.0
    for feature, target in zip(features, batch.targets.tolist(), strict=True):
        scores = [10 * cosine(feature, prototype) for prototype in prototypes]
        expected += math.log(sum(map(math.exp, scores))) - scores[target]
    assert loss == pytest.approx(expected / len(features), abs=1e-5)


@pytest.mark.parametrize(("variant", "frozen"), [("dfslwof-att", True), ("aux-only", False)])
def test_a_network_that_mirrors_looks_from_both_sides_in_training_where_it_stays_as_it_is(
    toy: Dataset, toy_config: Make, variant: str, frozen: bool
) -> None:
    config = replace(toy_config(variant), backbone="conv4-128-mirror", relations=())
    assert isinstance(toy.store, ImageStore)
    mirrored = replace(toy, store=ImageStore(toy.store.pixels.flip(-1), toy.store.normalisation))
    losses = [stepping(variant, dataset, config)[1] for dataset in (toy, mirrored)]
    assert (losses[0] == pytest.approx(losses[1], abs=1e-5)) is frozen


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


@pytest.mark.parametrize("variant", ["pn+", "pn+cos"])
def test_few_shot_is_cross_entropy_among_the_novel_classes_of_an_episode(toy: Dataset, toy_config: Make, variant: str) -> None:
    model, loss, episodes = stepping(variant, toy, toy_config(variant))
    ways, queries = 3, 3 * 2
    assert episodes.queries.shape == (2, queries)
    support, asked = (
        model.embed(toy.store.gather(each.flatten())).view(*each.shape, -1) for each in (episodes.support, episodes.queries)
    )
    expected = 0.0
    for e in range(2):
        for q in range(queries):
            query = asked[e, q].tolist()
            scores = []
            for n in range(ways):
                prototype = support[e, n, 0].tolist()
                distance = -(math.dist(query, prototype) ** 2) / len(query)
                scores.append(distance if variant == "pn+" else 10 * cosine(query, prototype))
            target = int(episodes.classes[e, episodes.seen :].tolist().index(class_of(toy, int(episodes.queries[e, q]))))
            expected += math.log(sum(map(math.exp, scores))) - scores[target]
    assert loss == pytest.approx(expected / (2 * queries), abs=1e-5)


def class_of(toy: Dataset, image: int) -> int:
    return int(toy.train.classes[(toy.train.images == image).any(1)])


def test_batches_take_every_class_alike_and_every_image_of_it() -> None:
    pool = Pool.from_members({0: [3], 1: [0, 1, 2], 2: [7, 4, 5, 6]})
    batch = draw_batch(pool, 24_000, seeded(0))
    assert torch.equal(draw_batch(pool, 24_000, seeded(0)).images, batch.images)
    for row in range(3):
        drawn = batch.images[batch.targets == row]
        members = [image for image in pool.images[row].tolist() if image >= 0]
        assert len(drawn) == pytest.approx(8000, rel=0.05)
        counts = [int((drawn == image).sum()) for image in members]
        assert sum(counts) == len(drawn)
        assert counts == pytest.approx([len(drawn) / len(members)] * len(members), rel=0.1)


@pytest.mark.parametrize("variant", ["gcgpn-aux", "gcgpn-aux-split"])
def test_a_step_with_a_sparse_relation_makes_nothing_of_the_size_of_all_pairs_of_classes(variant: str) -> None:
    classes, neighbours, each, features = 4096, 32, 4, 8
    row = torch.arange(classes).repeat_interleave(neighbours)
    column = (row + torch.randint(1, classes, (neighbours,), generator=seeded(0)).repeat(classes)) % classes
    values = torch.rand(len(row), generator=seeded(1))
    graph = torch.sparse_coo_tensor(torch.stack([row, column]), values, (classes, classes), check_invariants=True)
    images = torch.arange(classes * each).view(classes, each)
    pool = Pool(torch.arange(classes), images, torch.full((classes,), each))
    store = FeatureStore(torch.randn(classes * each, features, generator=seeded(2)))
    spec = EpisodeSpec(pool, None, ways=5, shots=1, novel_queries=3, seen_queries=4)
    model = build(VARIANTS[variant], "identity", (features,), classes, {"graph": graph})
    optimiser = make_optimiser(model, Recipe("short"))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with LargestTensor() as largest:
        loss = TrainingStep(model, optimiser, store, Augmentation(), spec, 2, VARIANTS[variant])(seeded(3))
    assert loss.isfinite()
    assert all((new != old).any() for new, old in zip(model.parameters(), before, strict=True))
    assert neighbours * classes < largest.numbers < classes * classes / 8


def test_a_step_with_a_sparse_relation_is_not_captured(toy: Dataset, toy_config: Make) -> None:
    """It asks the host how many edges an episode has."""
    spec = training_spec(toy, toy_config().recipe, 1)
    for similarities, captured in ((torch.eye(25), True), (torch.eye(25).to_sparse_coo(), False)):
        model = build(VARIANTS["gcgpn-aux"], "identity", (4,), 12, {"kinship": similarities})
        assert can_be_recorded(model, FeatureStore(torch.zeros(9, 4)), spec) is captured


@pytest.mark.parametrize("variant", ["pn+", "gcgpn-cos"])
def test_training_may_take_more_or_fewer_classes_as_novel_than_evaluation_asks_of(
    toy: Dataset, toy_config: Make, variant: str, tmp_path: Path
) -> None:
    for ways in (2, 4):
        config = toy_config(variant, training_ways=ways)
        assert config.recipe.ways == 3
        _, _, episodes = stepping(variant, toy, config)
        assert episodes.support.shape[1] == ways
        assert episodes.classes.shape[1] - episodes.seen == ways
        assert plan_training(config, toy)[2].ways == 3, "which is what validation asks of"
    too_many = f"{toy.seen} ways of {toy.seen} seen classes: use fewer ways .--set training_ways=N.$"
    with pytest.raises(InputError, match=too_many):
        train(toy_config(variant, training_ways=toy.seen), toy, tmp_path / "run")


def test_a_teacher_adds_the_divergence_of_its_softened_probabilities(
    toy: Dataset, toy_config: Make, small_resnet: str, tmp_path: Path
) -> None:
    train(replace(toy_config("linear", batch_size=8), backbone=small_resnet), toy, tmp_path / "teacher")
    changes = {"teacher": str(tmp_path / "teacher"), "teacher_weight": 0.5, "teacher_temperature": 2.0, "batch_size": 9}
    config = toy_config("cosine", **changes)
    teacher, named = load_teacher(config, toy)
    assert teacher is not None
    assert named.teacher == Run.open(tmp_path / "teacher").fingerprint
    model, spec, _ = plan_training(config, toy)
    before, chosen = copy.deepcopy(model).train(), VARIANTS["cosine"]
    taught = teacher_logits(teacher, torch.device("cpu"))
    optimiser, plain = make_optimiser(model, config.recipe), Augmentation()
    loss = TrainingStep(model, optimiser, toy.store, plain, spec, 9, chosen, config.recipe, teacher=taught)(seeded(0)).item()
    assert isinstance(spec, Pool)
    batch = draw_batch(spec, 9, seeded(0))
    images = toy.store.gather(batch.images)
    logits = before.seen_logits(before.embed(images)).tolist()
    known = logits_of(teacher.heads["classes"], teacher.embed(images).tolist())
    expected = mean_cross_entropy(logits, batch.targets.tolist())
    for mine, taught_row in zip(logits, known, strict=True):
        p, q = softened(taught_row, 2.0), softened(mine, 2.0)
        expected += 0.5 * 2.0**2 * sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)) / 9
    assert loss == pytest.approx(expected, abs=1e-5)


def softened(logits: list[float], temperature: float) -> list[float]:
    total = sum(math.exp(value / temperature) for value in logits)
    return [math.exp(value / temperature) / total for value in logits]


def test_a_run_with_a_teacher_is_repeatable_and_refuses_one_that_cannot_teach(
    toy: Dataset, toy_config: Make, tmp_path: Path
) -> None:
    train(toy_config("cosine"), toy, tmp_path / "teacher")
    student = toy_config("cosine", teacher=str(tmp_path / "teacher"), seed=1)
    first = train(student, toy, tmp_path / "first")
    assert train(student, toy, tmp_path / "second")["measures"] == first["measures"]
    assert train(student, toy, tmp_path / "first") == first, "which is finished"
    assert Run.open(tmp_path / "first").config.teacher
    train(toy_config("aux-only"), toy, tmp_path / "episodes")
    with pytest.raises(InputError, match="'aux-only' is trained on episodes; name a run of a first stage"):
        train(toy_config("cosine", teacher=str(tmp_path / "episodes")), toy, tmp_path / "third")
    with pytest.raises(InputError, match="nowhere"):
        train(toy_config("cosine", teacher=str(tmp_path / "nowhere")), toy, tmp_path / "third")
    assert not (tmp_path / "third").exists()
