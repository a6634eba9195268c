"""The Gaussian space against a model that computes everything anew from all images, with loops in float64."""

import copy
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kept import DENSE, SPARSE, D, blobs
from protograph import Classifier
from protograph._internal.errors import InputError
from protograph.classifier import asking, gaussian_space
from protograph.classifier.explanation import CONSTANT, EARLIER, EXAMPLES
from protograph.classifier.gaussian_space import FITTED, GaussianSettings, GaussianSpace, RelationUse

Vector = Any


class NaiveGaussian:
    """All images by class; everything else is recomputed when it is asked for."""

    def __init__(self, settings: GaussianSettings, fitted: dict[str, Vector], similarities: Any = None) -> None:
        self.settings, self.fitted, self.later, self.added = settings, dict(fitted), {}, {}
        self.gone: list[Vector] = []  # images of fitted classes that were removed: what they taught of the spread stays
        self.centre = np.mean([self.mean_of(self.lengthened(images)) for images in fitted.values()], 0)
        self.similar = similarities  # of the fitted classes by name, then of added ones to them

    def lengthened(self, images: Vector) -> list[Vector]:
        powered = [np.sign(image) * np.abs(image) ** self.settings.power for image in images]
        return [image / np.linalg.norm(image) for image in powered]

    def mean_of(self, rows: list[Vector]) -> Vector:
        return sum(rows) / len(rows)

    def aligned(self, images: Vector) -> list[Vector]:
        moved = [image - self.centre for image in self.lengthened(images)]
        return [image / np.linalg.norm(image) for image in moved]

    def images(self, name: str) -> list[Vector]:
        if name in self.added:
            return self.aligned(self.added[name])
        return self.aligned(self.fitted[name]) + self.aligned(self.later.get(name, []))

    def names(self) -> list[str]:
        return [*self.fitted, *self.added]

    def scatter(self) -> tuple[Vector, int]:
        total, freedom = np.zeros((D, D)), 0
        for images in [*(self.images(name) for name in self.names()), *(self.aligned(images) for images in self.gone)]:
            if images:
                mean = self.mean_of(images)
                total += sum(np.outer(image - mean, image - mean) for image in images)
                freedom += len(images) - 1
        return total, freedom

    def remove(self, name: str) -> None:
        if name in self.fitted:
            self.gone.append(self.fitted.pop(name))
            self.later.pop(name, None)
        else:
            del self.added[name]
        if self.similar is not None:
            self.similar.pop(name, None)

    def rename(self, old: str, new: str) -> None:
        for group in ("fitted", "later", "added"):
            setattr(self, group, {new if name == old else name: value for name, value in getattr(self, group).items()})
        if self.similar is not None:
            renamed = {new if name == old else name: row for name, row in self.similar.items()}
            self.similar = {
                name: {new if other == old else other: v for other, v in row.items()} for name, row in renamed.items()
            }

    def root(self) -> Vector:
        scatter, freedom = self.scatter()
        floor = self.settings.strength * np.trace(scatter) / freedom / D
        values, vectors = np.linalg.eigh(scatter + floor * np.eye(D))
        return vectors @ np.diag(values**-0.5) @ vectors.T

    def scale(self) -> float:
        """The mean length for images that took no part: residuals are longer by what each explains of itself."""
        root, (scatter, freedom) = self.root(), self.scatter()
        floor = self.settings.strength * np.trace(scatter) / freedom / D
        count = sum(len(self.images(name)) for name in self.names())
        itself = np.trace(scatter @ np.linalg.inv(scatter + floor * np.eye(D))) / count
        within, between = float(np.trace(root @ scatter @ root)), 0.0
        for name in self.names():
            images = self.images(name)
            if images:
                between += len(images) * float(np.sum((root @ self.mean_of(images)) ** 2))
        return float(np.sqrt((between + within / (1 - itself)) / count))

    def prototypes(self) -> dict[str, Vector]:
        root, scale, found = self.root(), self.scale(), {}
        for name in self.fitted:
            images = self.images(name)
            share = len(images) / (len(images) + self.settings.kappa)
            found[name] = share * root @ self.mean_of(images) / scale
        for name in self.added:
            images, use = self.images(name), self.settings.relations
            related = self.similar is not None and name in self.similar and (use.blended or not images)
            kappa = use.kappa if related else self.settings.kappa
            share = len(images) / (len(images) + kappa)
            own = root @ self.mean_of(images) / scale if images else np.zeros(D)
            found[name] = share * own
            if related:
                found[name] = found[name] + (1 - share) * self.predicted(name, {key: found[key] for key in self.fitted})
        return found

    def predicted(self, name: str, prototypes: dict[str, Vector]) -> Vector:
        known = np.stack([[self.similar[row][column] for column in self.fitted] for row in self.fitted])
        new = np.array([self.similar[name][column] for column in self.fitted])
        vectors, middle = known - known.mean(0), np.mean(list(prototypes.values()), 0)
        scale = sum(float(row @ row) for row in vectors) / len(vectors)
        inverse = np.linalg.inv(vectors.T @ vectors + self.settings.relations.ridge * scale * np.eye(len(known)))
        targets = np.stack([prototype - middle for prototype in prototypes.values()])
        return (new - known.mean(0)) @ inverse @ vectors.T @ targets + middle

    def logits(self, queries: Vector) -> Vector:
        settings, prototypes, root = self.settings, self.prototypes(), self.root()
        result = []
        for query in self.aligned(queries):
            u = root @ query
            u = u / np.linalg.norm(u)
            row = []
            for name, prototype in prototypes.items():
                count = len(self.images(name))
                related = name in self.added and self.similar is not None and name in self.similar
                related = related and (settings.relations.blended or not count)
                kappa = settings.relations.kappa if related else settings.kappa
                v = 1 / (count + kappa)
                distance = float(np.sum((u - prototype) ** 2))
                logit = settings.temperature * (1 - distance / (1 + settings.widening * v))
                logit -= settings.dimensions / 2 * np.log(1 + v)
                logit += settings.offset(count) if name in self.added else 0.0
                row.append(self.sharpness() * (logit + settings.relations.offset * kappa * v * related))
            spread = (max(row) - sum(row) / len(row)) / settings.usual_range
            result.append([logit * min(8, max(1 / 8, spread)) ** -settings.tempering for logit in row])
        return np.array(result)

    def sharpness(self) -> float:
        fitted = sum(len(images) - 1 for images in [*self.fitted.values(), *self.gone])
        counts = [len(images) for images in self.added.values()]
        return self.settings.sharpness_of(len(self.fitted), counts, self.scatter()[1] / fitted)


SETTINGS = GaussianSettings(
    power=0.5, strength=7.0, kappa=1.3, temperature=9.0, dimensions=4.0, widening=1.7,
    relations=RelationUse(("similarity",), ridge=0.2, kappa=3.0, offset=0.7, blended=True),
    offsets={FITTED: 0.0, 1: -0.3, 2: 0.4}, sharpness={FITTED: 1.3, 1: 1.1, 5: 1.2}, growth=0.2, tempering=0.3, usual_range=2.0,
)  # fmt: skip


def pair(settings: GaussianSettings = SETTINGS, relations: Any = DENSE, **parameters: Any) -> tuple[Classifier, NaiveGaussian]:
    """A classifier with given settings, and the naive model of the same images."""
    features, labels = blobs()
    features = features.astype(np.float32)
    known = Classifier(**parameters).fit(features, labels, relations)
    space = known.space_
    assert isinstance(space, GaussianSpace)
    settings = settings if relations is not None else replace(settings, relations=RelationUse(()))
    rows = [np.flatnonzero(labels == name).tolist() for name in known.classes_]
    from protograph.classifier.gaussian_fitting import class_statistics

    statistics = class_statistics(torch.from_numpy(features), rows, settings.power)
    known.space_ = GaussianSpace(settings, statistics, space.names, space.relations)
    similar = None
    if relations is DENSE:
        similar = {row: dict(zip("abcdef", values, strict=True)) for row, values in zip("abcdef", DENSE, strict=True)}
    return known, NaiveGaussian(settings, {name: features[labels == name] for name in known.classes_.tolist()}, similar)


def agree(known: Classifier, naive: NaiveGaussian, seed: int = 9) -> None:
    queries = np.random.default_rng(seed).normal(size=(5, D)).astype(np.float32)
    expected = naive.logits(queries)
    assert known.space_.names == naive.names()
    assert known.classes_.tolist() == sorted(naive.names())
    np.testing.assert_allclose(known.space_.logits(torch.from_numpy(queries)).numpy(), expected, rtol=1e-4, atol=2e-4)
    order = np.argsort(naive.names())
    np.testing.assert_allclose(known.decision_function(queries), expected[:, order], rtol=1e-4, atol=2e-4)
    for name, prototype in naive.prototypes().items():
        np.testing.assert_allclose(known.prototypes_[known.classes_.tolist().index(name)], prototype, atol=2e-5)
    assert known.predict(queries).tolist() == [naive.names()[row.argmax()] for row in expected]


@pytest.mark.parametrize("relations", [DENSE, None])
@pytest.mark.parametrize("power", [0.5, 1.0])
def test_any_sequence_of_changes_agrees_with_a_naive_model(relations: Any, power: float, tmp_path: Path) -> None:
    for seed in range(6):
        generator = np.random.default_rng(seed)
        known, naive = pair(replace(SETTINGS, power=power), relations)
        fresh = itertools.count()
        for _ in range(7):
            change = generator.choice(["add", "add", "examples", "examples", "remove", "rename", "load", "several"])
            names = naive.names()
            name, images = str(generator.choice(names)), generator.normal(size=(generator.integers(1, 4), D)).astype(np.float32)
            new, likeness = (
                f"new {next(fresh)}",
                {other: float(generator.uniform()) for other in naive.fitted},
            )
            told = likeness if relations is not None and generator.uniform() < 0.5 else None
            if told is not None and generator.uniform() < 0.3:
                images = images[:0]
            if change == "add":
                known.add_class(new, images if len(images) else (), told)
                naive.added[new] = images
                if told is not None:
                    naive.similar[new] = told
            elif change == "several":
                known.add_classes({new: images, new + " too": images + 1} if len(images) else {new + " too": images + 1})
                naive.added |= {new: images, new + " too": images + 1} if len(images) else {new + " too": images + 1}
            elif change == "examples" and len(images):
                known.add_examples(name, images)
                images_of = naive.added if name in naive.added else naive.later
                images_of[name] = np.concatenate([images_of.get(name, images[:0]), images])
            elif change == "remove" and (name in naive.added or len(naive.fitted) > 3):
                known.remove_class(name)
                naive.remove(name)
            elif change == "rename":
                known.rename_class(name, new)
                naive.rename(name, new)
            elif change == "load":
                known.save(tmp_path / "kept.pg")
                known = Classifier.load(tmp_path / "kept.pg")
        agree(known, naive, seed)


def test_a_fitted_class_that_leaves_has_taught_the_spread() -> None:
    known, _ = pair(relations=None)
    before = known.space_.whitening.directions.clone()
    prototypes = known.prototypes_.copy()
    known.remove_class("b")
    assert torch.equal(known.space_.whitening.directions, before)
    assert known.classes_.tolist() == list("acdef")
    rest = prototypes[[0, 2, 3, 4, 5]]
    lengths = np.linalg.norm(known.prototypes_, axis=1) / np.linalg.norm(rest, axis=1)
    np.testing.assert_allclose(lengths, lengths.mean(), rtol=1e-5)  # only the common scale changes


def test_update_novel_leaves_all_other_prototypes_exactly_as_they_are() -> None:
    known, _ = pair(update="novel")
    before, images = known.space_.prototypes.clone(), np.random.default_rng(1).normal(size=(3, D)).astype(np.float32)
    known.add_class("new", images, {"a": 0.9})
    known.add_classes({"two": images[:1], "three": images})
    assert torch.equal(known.space_.prototypes[:6], before)
    mixed = known.space_.prototypes.clone()
    known.add_examples("c", images)
    assert torch.equal(known.space_.prototypes[[0, 1, 3, 4, 5, 6, 7, 8]], mixed[[0, 1, 3, 4, 5, 6, 7, 8]])
    assert not torch.equal(known.space_.prototypes[2], mixed[2])
    known.remove_class("new")
    assert torch.equal(known.space_.prototypes[:6], torch.cat([mixed[:2], known.space_.prototypes[2:3], mixed[3:6]]))


def test_after_an_error_no_class_is_added() -> None:
    known, naive = pair(relations=None)
    images = np.ones((2, D), np.float32)
    for given, reason in (
        ({"x": images, "a": images}, "there is a class 'a' already"),
        ({"x": images, "y": ()}, "nothing is known of class 'y'"),
    ):
        with pytest.raises(InputError, match=reason):
            known.add_classes(given)
        agree(known, naive)
    with pytest.raises(InputError, match="no class 'A': did you mean 'a'"):
        known.add_examples("A", images)
    with pytest.raises(InputError, match="no examples are given for class 'a'"):
        known.add_examples("a", [])


@pytest.mark.parametrize("relations", [DENSE, SPARSE, None])
def test_parts_sum_to_the_logit_and_are_of_examples_and_relations(relations: Any) -> None:
    known, _ = pair(relations=relations)
    images = np.random.default_rng(2).normal(size=(2, D)).astype(np.float32)
    known.add_class("new", images, None if relations is None else {"a": 0.9, "b": 0.1})
    if relations is not None:
        known.add_class("told", (), {"c": 0.9})
    for query in np.random.default_rng(3).normal(size=(4, D)).astype(np.float32):
        logits = dict(zip(known.classes_.tolist(), known.decision_function(query[None])[0], strict=True))
        for nearest in known.explain(query, top=9):
            assert sum(part.value for part in nearest.parts) == pytest.approx(nearest.score, abs=1e-9)
            assert nearest.score == nearest.logit == pytest.approx(logits[nearest.name], abs=1e-9)
            operators = {part.operator for part in nearest.parts}
            if nearest.name in "abcdef" or relations is None:
                assert operators == {EXAMPLES, CONSTANT}
                assert {part.name for part in nearest.parts} == {nearest.name}
            else:
                assert operators == {CONSTANT, "similarity"} | ({EXAMPLES} if nearest.name == "new" else set())


def test_the_part_of_examples_is_what_their_image_changes() -> None:
    """The part is linear in the mean of the examples: half of the logit's change when the mean is turned around."""
    known, _ = pair(replace(SETTINGS, tempering=0.0), None)
    query = torch.from_numpy(np.random.default_rng(4).normal(size=(1, D)).astype(np.float32))
    space = known.space_
    part = next(part.value for part in known.explain(query.numpy())[0].parts if part.operator == EXAMPLES)
    row = space.index(known.explain(query.numpy())[0].name)
    before = space.logits(query)[0, row].item()
    space.prototypes = torch.where(torch.arange(6)[:, None] == row, -space.prototypes, space.prototypes)
    assert (before - space.logits(query)[0, row].item()) / 2 == pytest.approx(part, abs=1e-5)


def test_a_prototype_whose_origin_changed_is_explained_as_earlier() -> None:
    known, _ = pair(update="novel")
    images = np.random.default_rng(5).normal(size=(3, D)).astype(np.float32)
    known.add_class("new", images[:1], {"a": 0.9})
    known.add_examples("a", 3 * images - 1)  # moves what the prototype of `new` was made of
    nearest = next(nearest for nearest in known.explain(images[0], top=9) if nearest.name == "new")
    assert {part.operator for part in nearest.parts} == {EARLIER, CONSTANT}


def test_relations_bring_a_share_that_falls_with_the_number_of_examples() -> None:
    known, _ = pair()
    images = np.random.default_rng(6).normal(size=(6, D)).astype(np.float32)
    shares = []
    for count in (0, 1, 6):
        known.add_class(f"from {count}", images[:count] if count else (), {"a": 0.9, "b": 0.5})
        shares.append(known.relation_share(f"from {count}"))
    assert shares[0] == 1
    assert 1 > shares[1] > shares[2] > 0
    assert 0 < known.relation_share("a") < 1
    plain, _ = pair(relations=None)
    assert plain.relation_share("a") == 0


def test_limits_lie_between_those_of_the_table() -> None:
    settings = GaussianSettings(limits={FITTED: 1.0, 1: -3.0, 2: -1.0})
    assert settings.limit(1) == -3
    assert settings.limit(2) == -1
    assert settings.limit(4) == pytest.approx(0.0)  # half way from 2 examples to infinitely many
    assert settings.limit(10_000) == pytest.approx(1.0, abs=1e-3)
    assert GaussianSettings().limit(3) == 0


def test_likeness_is_the_largest_logit_less_the_limit_of_the_class_and_knows_no_prior() -> None:
    known, _ = pair(replace(SETTINGS, limits={FITTED: 1.0, 1: -3.0}), None)
    known.add_class("new", np.ones((1, D), np.float32))
    queries = np.random.default_rng(7).normal(size=(5, D)).astype(np.float32)
    logits = known.space_.scores(torch.from_numpy(queries)).numpy() / known.space_.sharpness
    logits[:, -1] += 1.0 + 3.0
    np.testing.assert_allclose(known.unknown_score(queries), logits.max(1), atol=1e-9)
    scores = known.unknown_score(queries)
    known.set_params(prior={"a": 100.0})
    assert np.array_equal(known.unknown_score(queries), scores)


def test_with_many_classes_answers_are_computed_in_portions_of_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    known, _ = pair(relations=None)
    queries = np.random.default_rng(8).normal(size=(7, D)).astype(np.float32)
    before, likeness = known.predict(queries), known.unknown_score(queries)
    monkeypatch.setattr(gaussian_space, "MOST_IN_DOUBLE", 3)
    monkeypatch.setattr(asking, "NUMBERS_AT_ONCE", 12)
    fewer = copy.deepcopy(known)
    fewer.space_.prototypes = fewer.space_.prototypes
    assert fewer.space_.linear()[0].dtype == torch.float32
    assert fewer.predict(queries).tolist() == before.tolist()
    np.testing.assert_allclose(fewer.unknown_score(queries), likeness, atol=1e-5)


def test_many_classes_keep_their_whitening_until_enough_examples_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaussian_space, "MOST_REWHITENED", 3)
    features, labels = blobs(images=12)
    known = Classifier(keep_features=True).fit(features, labels)
    before, whitening = known.space_.prototypes.clone(), known.space_.whitening
    known.add_class("new", -features[:4]).add_examples("a", features[12:14]).remove_class("b")
    space = known.space_
    assert space.whitening is whitening
    kept = [row for row, name in enumerate("abcdef") if name not in "ab"]
    assert torch.equal(space.prototypes[1:5], before[kept])
    anew = (space.own_share(5) * space.whitened_means([5])).float()
    assert torch.equal(space.prototypes[5:], anew), "its own prototype is as the whitening makes it"
    fresh = GaussianSpace(
        space.settings, space.fitted, space.names, {}, space.support, space.further, space.related,
        (space.whitening, space.scale, space.prototypes),
    )  # fmt: skip
    queries = torch.from_numpy(features[:9].astype(np.float32))
    torch.testing.assert_close(space.logits(queries), fresh.logits(queries), rtol=0, atol=1e-9)
    known.add_class("many", features[20:40] + 1)
    assert known.space_.whitening is not whitening
    last = known.space_
    together = GaussianSpace(last.settings, last.fitted, last.names, {}, last.support, last.further, last.related)
    torch.testing.assert_close(known.space_.prototypes, together.prototypes)
