from dataclasses import replace

import numpy as np
import pytest
import torch

from protograph import Classifier
from protograph._internal.errors import InputError
from protograph._internal.progress import Silent
from protograph.classifier import gaussian_fitting
from protograph.classifier.gaussian_fitting import (
    Fold,
    choose_offsets,
    choose_settings,
    choose_tempering,
    class_accuracy,
    class_statistics,
    enough_to_calibrate,
    fit_classifier,
    left_out_scores,
    right_confidence_factor,
    sharpness_growth,
)
from protograph.classifier.gaussian_space import FITTED, GaussianSettings, GaussianSpace
from protograph.classifier.leave_one_out import LeaveOneOut
from protograph.classifier.members import Members
from protograph.nn.classify import GaussianClassifier
from protograph.relations import keep_relations

Lists = dict[int, list[int]]


def many(classes: int = 24, images: int = 20, size: int = 12, seed: int = 0) -> tuple[torch.Tensor, Members, torch.Tensor]:
    """Features of classes whose centres follow from class vectors [C, 3], which are returned last."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(classes, 3, generator=generator)
    centres = vectors @ torch.randn(3, size, generator=generator)
    spread = torch.linspace(0.3, 2.0, size)
    features = centres.repeat_interleave(images, 0) + spread * torch.randn(classes * images, size, generator=generator)
    return features, {row: list(range(row * images, (row + 1) * images)) for row in range(classes)}, vectors


def test_every_class_acts_as_new_once_and_no_query_is_an_example() -> None:
    features, members, _ = many()
    chosen = list(range(24))
    folds = [Fold.of(features, members, chosen, number, 1.0, 0) for number in range(3)]
    assert sorted(class_id for fold in folds for class_id in fold.new) == chosen
    assert [len(fold.new) for fold in folds] == [8, 8, 8]
    for fold in folds:
        assert set(fold.old) == set(chosen) - set(fold.new)
        for class_id in chosen:
            assert set(fold.queries[class_id]) < set(members[class_id])
        for class_id in fold.new:
            assert not set(fold.queries[class_id]) & set(fold.examples[class_id])
        rest = [[row for row in members[name] if row not in fold.queries[name]] for name in fold.old]
        expected = class_statistics(features, [sorted(rows) for rows in rest], 1.0)
        torch.testing.assert_close(fold.statistics.means, expected.means)
        assert fold.statistics.counts == expected.counts


def test_the_logits_of_an_episode_are_those_of_a_space_to_which_its_classes_are_added() -> None:
    features, members, _ = many()
    fold = Fold.of(features, members, list(range(24)), 1, 0.5, 0)
    classifier = GaussianClassifier(1.5, 12.0, 6.0, 2.0).requires_grad_(False)
    for episode in fold.episodes(30.0):
        settings = GaussianSettings(0.5, 30.0, 1.5, 12.0, 6.0, 2.0)
        space = GaussianSpace(settings, fold.statistics, [str(name) for name in fold.old], {})
        for name in fold.new:
            space.add(str(name), features[fold.examples[name][: episode.shots]], {}, only_new=True)
        queries = [row for name in (*fold.old, *fold.new) for row in fold.queries[name]]
        logits = episode.logits(classifier)
        torch.testing.assert_close(logits, space.scores(features[queries]), atol=1e-4, rtol=1e-4)
        right = [[logit.argmax().item() == target for logit, target in zip(logits, episode.targets.tolist(), strict=True)]]
        shares = [
            np.mean([hit for hit, target in zip(right[0], episode.targets, strict=True) if target == row]) for row in range(24)
        ]
        assert episode.accuracy(logits) == pytest.approx(np.mean(shares))


def test_scores_of_images_left_out_are_those_of_fits_without_them() -> None:
    features, members, _ = many(10, 15, 12)
    settings = GaussianSettings(1.0, 20.0, 1.3, 12.0, 6.0, 2.0)
    scores, targets = left_out_scores(features, members, list(members), settings)
    names = [str(name) for name in members]
    together = GaussianSpace(settings, class_statistics(features, list(members.values()), 1.0), names, {}).scores(features)
    naive = []
    for image in range(len(features)):
        rest = [[row for row in rows if row != image] for rows in members.values()]
        naive.append(GaussianSpace(settings, class_statistics(features, rest, 1.0), names, {}).scores(features[[image]]))
    expected = torch.cat(naive)
    assert targets.tolist() == [row for row, rows in members.items() for _ in rows]
    own = torch.arange(len(features)), targets
    difference = (scores - expected).abs() / expected.std()  # not zero: the centre and the scale stay as they are
    assert difference.mean() < 0.01
    assert difference.max() < 0.1
    assert (scores - expected)[own].abs().mean() < 0.2 * (together - expected)[own].abs().mean()


@pytest.mark.parametrize("exact", [1500, 100])
def test_images_are_left_out_of_all_directions_and_not_of_those_that_a_model_keeps(
    monkeypatch: pytest.MonkeyPatch, exact: int
) -> None:
    monkeypatch.setattr(gaussian_fitting, "LARGEST_EXACT", exact)
    features, members, _ = many(20, 6, 120)
    features = features + torch.randn(features.shape, generator=torch.Generator().manual_seed(1))
    settings, names = GaussianSettings(1.0, 30.0, 1.3, 12.0, 6.0, 2.0), [str(name) for name in members]

    def space(rows: list[list[int]]) -> GaussianSpace:
        return GaussianSpace(settings, class_statistics(features, rows, 1.0, 20), names, {})

    scores, targets = left_out_scores(features, members, list(members), settings)
    full = space(list(members.values()))
    of_kept = [LeaveOneOut.of(full).scores(row, full.whitening.aligned(features[rows])) for row, rows in members.items()]
    images = range(0, len(features), 7)
    naive = [space([[row for row in rows if row != image] for rows in members.values()]) for image in images]
    own = torch.tensor(images), targets[images]
    expected = torch.cat([without.scores(features[[image]]) for image, without in zip(images, naive, strict=True)])
    expected = expected[torch.arange(len(images)), targets[images]]
    error = (scores[own] - expected).abs().mean()
    assert error < 0.6 * (full.scores(features)[own] - expected).abs().mean()
    assert error < 0.25 * (torch.cat(of_kept)[own] - expected).abs().mean()


def test_the_factor_makes_the_mean_confidence_the_share_of_right_answers() -> None:
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(6).repeat(200)
    logits = torch.randn(1200, 6, generator=generator, dtype=torch.float64)
    logits[torch.arange(1200), targets] += 1.5
    settings = GaussianSettings()
    factor = right_confidence_factor([(logits, targets)], settings)
    confidence = (factor * logits).softmax(1).max(1).values.mean().item()
    assert confidence == pytest.approx(class_accuracy(logits, targets), abs=2e-3)
    assert right_confidence_factor([(3 * logits, targets)], settings) == pytest.approx(factor / 3, rel=2e-3)
    tempered = replace(settings, tempering=0.4, usual_range=2.0)
    factor = right_confidence_factor([(logits, targets)], tempered)
    confidence = tempered.tempered(factor * logits).softmax(1).max(1).values.mean().item()
    assert confidence == pytest.approx(class_accuracy(logits, targets), abs=2e-3)


def test_the_power_of_tempering_is_found_from_what_is_right() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(20000, 8, generator=generator, dtype=torch.float64)
    usual = (logits.amax(1) - logits.mean(1)).mean().item()
    for power in (0.0, 0.5):
        settings = GaussianSettings(tempering=power, usual_range=usual)
        targets = torch.multinomial(settings.tempered(logits).softmax(1), 1, generator=generator)[:, 0]
        found = choose_tempering([], GaussianSettings(), logits, targets)
        assert found.tempering == pytest.approx(power, abs=0.05)
        assert found.usual_range == pytest.approx(usual)
        assert found.tempered(logits).argmax(1).tolist() == logits.argmax(1).tolist()


def test_offsets_undo_what_classes_that_act_as_new_have_too_much_or_too_little() -> None:
    features, members, _ = many()
    episodes = Fold.of(features, members, list(range(24)), 0, 1.0, 0).episodes(12.0)
    classifier = fit_classifier(episodes)
    found = choose_offsets(episodes, classifier)
    assert found[FITTED] == 0
    assert sorted(found) == [FITTED, *sorted({episode.shots for episode in episodes})]

    def loss(offsets: dict[int, float]) -> float:
        losses = [episode.loss(episode.logits(classifier, offsets)) for episode in episodes]
        weight = gaussian_fitting.OFFSET_WEIGHT * sum(value**2 for value in offsets.values())
        return (len(offsets) - 1) * torch.stack(losses).mean().item() + weight

    for shots in set(found) - {FITTED}:
        for step in (-0.2, 0.2):
            assert loss({**found, shots: found[shots] + step}) > loss(found)


def test_sharpness_grows_with_images_where_they_better_the_whitening() -> None:
    growth = {}
    for size, images in ((60, 12), (4, 200)):
        features, members, _ = many(12, images, size)
        settings = GaussianSettings(strength=4.0 * size)
        table = left_out_scores(features, members, list(members), settings)
        growth[size] = sharpness_growth(features, members, list(members), settings, *table)
    assert growth[60] > 0.1 > growth[4] >= 0


def test_the_classifier_has_the_least_loss() -> None:
    features, members, _ = many()
    episodes = Fold.of(features, members, list(range(24)), 0, 1.0, 0).episodes(12.0)

    def loss(classifier: GaussianClassifier) -> float:
        start = GaussianClassifier().logarithms
        total = torch.stack([episode.loss(episode.logits(classifier)) for episode in episodes]).mean()
        return (total + gaussian_fitting.PRIOR_WEIGHT * (classifier.logarithms - start).square().sum()).item()

    best = fit_classifier(episodes, steps=100)
    for index in range(4):
        for step in (-0.3, 0.3):
            other = GaussianClassifier().requires_grad_(False)
            other.logarithms.copy_(best.logarithms)
            other.logarithms[index] += step
            assert loss(other) > loss(best) - 1e-6


def test_a_useless_relation_counts_for_nothing_and_a_useful_one_for_much() -> None:
    features, members, vectors = many(images=12)
    names = [f"{row:02d}" for row in range(24)]
    noise = torch.rand(24, 24, generator=torch.Generator().manual_seed(5))
    distances = torch.cdist(vectors, vectors)
    chosen = {}
    for label, matrix in (("useful", torch.exp(-distances)), ("useless", noise)):
        kept = keep_relations({label: matrix}, names)
        chosen[label] = choose_settings(features, Members.listed(list(members.values())), kept, None, 0, Silent()).relations
    assert chosen["useful"].blended
    assert not chosen["useless"].blended
    both = keep_relations({"useless": noise, "useful": torch.exp(-distances)}, names)
    assert choose_settings(features, Members.listed(list(members.values())), both, None, 0, Silent()).relations.labels == (
        "useful",
    )


def test_a_class_is_found_by_a_useful_relation_alone() -> None:
    features, members, vectors = many(40, 12)
    similar = torch.exp(-torch.cdist(vectors, vectors)).numpy()
    old = [row for row in range(40) if row % 5]
    rows = [image for row in old for image in members[row]]
    labels = np.repeat([f"{row:02d}" for row in old], 12)
    known = Classifier().fit(features[rows].numpy(), labels, similar[np.ix_(old, old)])
    new = [row for row in range(40) if row % 5 == 0]
    known.add_classes(
        {f"{row:02d}": () for row in new},
        {f"{row:02d}": {f"{other:02d}": float(similar[row, other]) for other in old} for row in new},
    )
    asked = [image for row in new for image in members[row]]
    answers = known.predict(features[asked].numpy())
    right = np.mean(
        [answer == name for answer, name in zip(answers, np.repeat([f"{row:02d}" for row in new], 12), strict=True)]
    )
    assert right > 0.1  # by chance 1 in 40


def test_false_alarms_are_as_many_as_chosen_for_every_number_of_examples() -> None:
    features, members, _ = many(60, 40, seed=3)
    old, new = range(40), range(40, 60)
    rows = [image for row in old for image in members[row][:20]]
    labels = np.repeat([f"{row:02d}" for row in old], 20)
    fitted = Classifier(unknown=0.1).fit(features[rows].numpy(), labels)
    held_out = features[[image for row in old for image in members[row][20:]]].numpy()
    assert np.mean(fitted.predict(held_out) == "unknown") == pytest.approx(0.1, abs=0.05)
    for count in (1, 5, 10):
        known = Classifier(unknown=0.1).fit(features[rows].numpy(), labels)
        known.add_classes({f"{row:02d}": features[members[row][:count]].numpy() for row in new})
        asked = features[[image for row in new for image in members[row][20:]]].numpy()
        assert np.mean(known.predict(asked) == "unknown") == pytest.approx(0.1, abs=0.06), count
    assert set(known.space_.settings.limits) == {FITTED, 1, 2, 5, 10}


def test_probabilities_are_the_shares_of_right_answers() -> None:
    features, members, _ = many(60, 40, seed=4)
    rows = [image for row in range(40) for image in members[row][:20]]
    known = Classifier().fit(features[rows].numpy(), np.repeat([f"{row:02d}" for row in range(40)], 20))
    known.add_classes({f"{row:02d}": features[members[row][:5]].numpy() for row in range(40, 60)})
    asked = features[[image for row in range(60) for image in members[row][20:]]].numpy()
    probabilities, truth = known.predict_proba(asked), np.repeat([f"{row:02d}" for row in range(60)], 20)
    confidence, answers = probabilities.max(1), known.classes_[probabilities.argmax(1)]
    assert confidence.mean() == pytest.approx(np.mean(answers == truth), abs=0.1)


def test_too_few_classes_or_images_are_served_by_usual_settings() -> None:
    features, members, _ = many(3, 8)
    settings = choose_settings(features, Members.listed(list(members.values())), {}, None, 0, Silent())
    assert settings == GaussianSettings(strength=gaussian_fitting.USUAL * 12)
    with pytest.raises(InputError, match="too few images to calibrate 'unknown': give at least 4 classes with 4 or more"):
        choose_settings(features, Members.listed(list(members.values())), {}, 0.1, 0, Silent())
    alone = Classifier().fit(features[:5].numpy(), ["a"] * 5)
    assert alone.predict(features[:2].numpy()).tolist() == ["a", "a"]
    single = Classifier().fit(features[::8].numpy(), ["a", "b", "c"])
    assert single.predict(features[::8].numpy()).tolist() == ["a", "b", "c"]


@pytest.mark.parametrize("counts", [(4, 4, 4, 4), (5, 5, 5, 4), (19, 3, 3, 3), (10, 4, 4, 4), (8, 8, 3)])
def test_a_rate_can_be_calibrated_exactly_where_fitting_does_not_refuse_it(counts: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.cat([torch.randn(count, 6, generator=generator) + 5 * index for index, count in enumerate(counts)])
    labels = [f"class {index}" for index, count in enumerate(counts) for _ in range(count)]
    try:
        Classifier(unknown=0.05).fit(features.numpy(), labels)
    except InputError:
        assert not enough_to_calibrate(counts, 0.05)
    else:
        assert enough_to_calibrate(counts, 0.05)
    assert not enough_to_calibrate(counts, None)


def test_a_refit_is_a_fit_on_all_images_and_keeps_classes_without_examples(tmp_path: object) -> None:
    features, members, vectors = many(12, 15)
    names = [f"{row:02d}" for row in range(12)]
    similar = torch.exp(-torch.cdist(vectors, vectors)).numpy()
    labels = np.repeat(names, 15)
    first = Classifier(keep_features=True).fit(features[: 10 * 15].numpy(), labels[: 10 * 15], similar[:10, :10])
    likeness = {name: float(value) for name, value in zip(names, similar[10], strict=True) if name < "10"}
    first.add_class("10", features[members[10]].numpy(), likeness)
    first.add_class("told", (), {"00": 0.9}).add_examples("03", features[members[11]][:4].numpy())
    before = first.space_.relations["similarity"].similarities
    first.refit()
    order = [first.space_.names.index(name) for name in (*names[:11], "told")]
    assert first.space_.seen == 11
    assert first.space_.names[-1] == "told"
    torch.testing.assert_close(first.space_.relations["similarity"].similarities[order][:, order], before)
    rows = [*range(11 * 15), *members[11][:4]]
    whole = Classifier().fit(features[rows].numpy(), [*labels[: 11 * 15], *["03"] * 4], before[:11, :11].numpy())
    np.testing.assert_allclose(first.space_.prototypes[:11], whole.space_.prototypes, atol=1e-5)
    with pytest.raises(InputError, match="were not kept: fit with keep_features=True"):
        whole.refit()
