import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data.layouts import blocks
from encoders.images import tiny_encoder
from kept import NAMES, D, NaiveSpace, blobs, fitted, unit
from protograph import AUX, Classifier, Op, Variant
from protograph._internal.errors import InputError
from protograph.classifier.explanation import EARLIER, Nearest, contributions, evidence
from protograph.nn.graph import GraphLayer

CASES = [
    ("gcgpn-aux", "dense"),
    ("gcgpn-aux", "sparse"),
    ("gcgpn-aux-split", "dense"),
    ("gcgpn-cos-aux", None),
    ("gcgpn-key", None),
]


@pytest.mark.parametrize("case", CASES)
def test_parts_sum_to_the_score(case: tuple[str, str | None]) -> None:
    known = copy.deepcopy(fitted(*case))
    known.add_class("new", np.ones((2, D)), {"b": 0.5} if case[1] else None).remove_class("d")
    query = np.random.default_rng(0).normal(size=D)
    found = known.explain(query, top=6)
    cosines = known.space_.cosines(torch.tensor(query, dtype=torch.float32)[None])[0]
    logits, probabilities = known.decision_function(query[None])[0], known.predict_proba(query[None])[0]
    assert [one.name for one in found] == known.classes_[logits.argsort()[::-1]].tolist()
    for one in found:
        place = known.classes_.tolist().index(one.name)
        assert sum(part.value for part in one.parts) == pytest.approx(one.score, abs=1e-6)
        assert one.score == pytest.approx(cosines[place].item())
        assert (one.logit, one.probability) == pytest.approx((logits[place], probabilities[place]))
        assert one.own == pytest.approx(sum(part.value for part in one.parts if part.name == one.name))
        sizes = [abs(part.value) for part in one.parts]
        assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("case", CASES)
def test_added_classes_are_explained_when_no_fitted_one_is_left(case: tuple[str, str | None]) -> None:
    known = copy.deepcopy(fitted(*case))
    known.add_class("new", np.ones((2, D)), {"b": 0.5} if case[1] else None).add_class("other", -np.ones((1, D)))
    for name in NAMES:
        known.remove_class(name)
    for one in known.explain(np.ones(D)):
        assert sum(part.value for part in one.parts) == pytest.approx(one.score, abs=1e-5)


def test_parts_are_what_is_left_when_a_term_is_dropped() -> None:
    known = copy.deepcopy(fitted("gcgpn-aux", "sparse")).add_class("new", np.ones((1, D)), {"b": 0.5, "c": 0.9})
    asked = np.random.default_rng(1).normal(size=D)
    found = {one.name: one for one in known.explain(asked, top=7)}
    space = known.space_
    query = asked - space.centred.centre.numpy()
    (layer,) = space.model.graph.layers
    initial = space.context().prototypes[0].double().numpy()
    normal = {name: row / np.linalg.norm(row) for name, row in zip(space.names, initial, strict=True)}
    temperature = space.model.operators[0].temperature.item()
    weights = {name: np.exp(temperature * score) for name, score in {"new": 1.0, "b": 0.5, "c": 0.9}.items()}
    terms = {
        name: weight / sum(weights.values()) * normal[name] * theta(layer, "similarity") for name, weight in weights.items()
    }
    length = np.linalg.norm(sum(terms.values()))
    scale = layer.scales[0].item() / (length * np.linalg.norm(known.prototypes_[-1]) * np.linalg.norm(query))
    for name, term in terms.items():
        (value,) = [part.value for part in found["new"].parts if (part.name, part.operator) == (name, "similarity")]
        assert value == pytest.approx(scale * term @ query, abs=1e-6)
    assert {part.operator for part in found["new"].parts} == {"similarity", "identity-nn"}
    assert {part.name for part in found["f"].parts} == {"f"}, "it has no edges"


def theta(layer: torch.nn.Module, label: str) -> np.ndarray:
    values: np.ndarray = layer.thetas[label].detach().double().numpy()
    return values


def test_operators_that_are_not_normalised_sum_up_too() -> None:
    layer = GraphLayer(("one", "two"), D, normalise_outputs=False)
    generator = torch.Generator().manual_seed(0)
    inputs, rows = torch.randn(4, D, generator=generator), list(torch.rand(2, 4, generator=generator))
    query = torch.randn(D, generator=generator).double()
    with torch.no_grad():
        layer.scales.copy_(torch.tensor([0.3, -1.7]))
        layer.thetas["two"].copy_(torch.randn(D, generator=generator))
        seen = layer.rows(inputs)
        prototype = 0.3 * (rows[0] @ seen) - 1.7 * (rows[1] @ seen) * layer.thetas["two"]
        found = contributions(layer, inputs, rows, prototype, query)
    assert sum(float(part.sum()) for part in found.values()) == pytest.approx(unit(prototype.double().numpy()) @ query.numpy())


def test_a_full_theta_and_two_layers_sum_up_too() -> None:
    features, labels = blobs()
    for variant in (
        Variant("full", (Op("cos"), *AUX), "", theta="full"),
        Variant("deep", (Op("cos"), *AUX), "", layers=2),
        Variant("power", (Op("relation", order=2), *AUX), ""),
    ):
        relations = {("a", "b"): 0.5, ("b", "c"): 0.7} if variant.needs_relation else None
        known = Classifier(variant=variant, steps=5).fit(features, labels, relations).add_class("new", np.ones((2, D)))
        for one in known.explain(features[0], top=7):
            assert sum(part.value for part in one.parts) == pytest.approx(one.score, abs=1e-6)
            assert EARLIER not in {part.operator for part in one.parts}


@pytest.mark.parametrize("case", [("gcgpn-aux", "dense"), ("gcgpn-aux", "sparse"), ("gcgpn-aux-split", "dense")])
@pytest.mark.parametrize("scale", [1.0, -0.5])
def test_what_relations_bring_is_what_other_classes_add_to_a_prototype(case: tuple[str, str], scale: float) -> None:
    known, told = copy.deepcopy(fitted(*case)), {"b": 0.5, "c": 0.9}
    (layer,) = known.space_.model.graph.layers
    layer.scales[0] *= scale
    naive = NaiveSpace(known.space_)
    naive.add("new", [np.ones(D)], told, only_new=False)
    known.add_class("new", np.ones((1, D)), told)
    normal = [unit(naive.start(one)) for one in naive.classes]
    own, others = np.zeros(D), np.zeros(D)
    for label, size in zip(layer.labels, layer.scales.tolist(), strict=True):
        weights = naive.weights(label, 6, normal)
        terms = {other: weight * normal[other] * theta(layer, label) for other, weight in weights.items()}
        length = np.linalg.norm(sum(terms.values(), np.zeros(D)))
        for other, term in terms.items():
            if other == 6:
                own += size * term / length
            else:
                others += size * term / length
    assert np.allclose(own + others, known.prototypes_[-1], atol=1e-5)
    expected = np.linalg.norm(others) / (np.linalg.norm(own) + np.linalg.norm(others))
    assert expected > 0.01
    assert known.relation_share("new") == pytest.approx(expected, rel=1e-4)
    (found,) = [one for one in known.explain(np.arange(D, dtype=float), top=7) if one.name == "new"]
    assert abs(found.score - found.own) <= np.linalg.norm(others) / np.linalg.norm(own + others)


def test_a_fitted_class_acts_as_new() -> None:
    known = fitted("gcgpn-aux", "dense")
    space = known.space_
    told = dict(zip(NAMES, space.relations["similarity"].similarities[2].tolist(), strict=True))
    assert told.pop("c") == pytest.approx(1), "as that of an added class is"
    example = space.centred.back(space.model.prototypes[2:3]).numpy()
    again = copy.deepcopy(known).remove_class("c").add_class("c", example, told)
    assert known.relation_share("c") == pytest.approx(again.relation_share("c"), rel=1e-4)


def test_relations_bring_nothing_or_everything() -> None:
    known = copy.deepcopy(fitted("gcgpn-aux", "sparse")).add_class("new", relations={"b": 0.5})
    assert known.relation_share("new") == 1, "it has no example"
    assert known.relation_share("f") == 0, "it has no edge"
    assert known.relation_share("a") > 0.01
    (layer,) = known.space_.model.graph.layers
    layer.scales[0] = 0
    assert known.relation_share("a") == known.relation_share("new") == 0, "they have no weight"


def test_relations_bring_little_where_a_class_is_far_more_alike_to_itself() -> None:
    """Whatever their scale: what passes them is the class itself."""
    known = copy.deepcopy(fitted("gcgpn-aux", "dense"))
    before = known.relation_share("a")
    known.space_.model.operators[0].temperature.fill_(100)
    assert known.relation_share("a") < 0.01 < before


def test_other_operators_are_no_relations() -> None:
    features, labels = blobs()
    for more in ({}, {"layers": 2}):
        variant = Variant("both", (Op("relation"), Op("cos"), *AUX), "", **more)
        known = Classifier(variant=variant, steps=5).fit(features, labels, {("a", "b"): 0.5})
        assert known.relation_share("c") == 0
        assert 0 < known.relation_share("a") < 0.5
    assert fitted("gcgpn-cos-aux", None).relation_share("a") == 0


def test_a_prototype_that_was_left_alone_is_explained_by_the_classes_before(tmp_path: Path) -> None:
    known = copy.deepcopy(fitted("gcgpn-aux", "dense", "novel"))
    before = {one.name: values(one) for one in known.explain(np.ones(D), top=6)}
    known.add_class("new", np.ones((2, D)), dict.fromkeys(NAMES, 0.9))
    for one in known.explain(np.ones(D), top=7):
        assert sum(part.value for part in one.parts) == pytest.approx(one.score, abs=1e-5)
        if one.name != "new":
            assert values(one) == pytest.approx(before[one.name], abs=1e-6), "nothing of what came later"
    known.remove_class("a")
    found = known.explain(np.ones(D), top=6)
    for one in found:
        assert values(one) == {(one.name, EARLIER): pytest.approx(one.score)}, "it holds something of a class that is gone"
        assert one.own == 0
    known.save(tmp_path / "kept.pg")
    assert Classifier.load(tmp_path / "kept.pg").explain(np.ones(D), top=6) == found


def values(one: Nearest) -> dict[tuple[str, str], float]:
    return {(part.name, part.operator): part.value for part in one.parts}


@pytest.mark.parametrize("variant", ["gcgpn-cos-aux", None])
@pytest.mark.parametrize("against", [None, "b"])
def test_what_speaks_for_a_class_is_a_difference_of_logits(against: str | None, variant: str | None) -> None:
    if variant is None:
        known = Classifier(prior="half").fit(*blobs())
        known.space_.settings = replace(known.space_.settings, power=0.5)
        known.space_._update()
    else:
        known = copy.deepcopy(fitted(variant, None))
        known.bias_ = 0.7
    known.add_class("new", np.ones((2, D)))
    features = torch.randn(D)
    logits = known.space_.logits(features[None], known.offsets())[0].tolist()
    names = known.space_.names
    for row, name in enumerate(names):
        if name == against:
            continue
        others = [logits[names.index(against)]] if against else [logit for other, logit in enumerate(logits) if other != row]
        linear = evidence(known.space_, features, known.offsets(), row, names.index(against) if against else None)
        score = sum(float(weight) * float(value) for weight, value in zip(linear.weights, features, strict=True))
        assert score + linear.constant == pytest.approx(logits[row] - sum(others) / len(others), abs=1e-6)


def test_a_single_class_has_nothing_against_it() -> None:
    known = copy.deepcopy(fitted("gcgpn-cos-aux", None))
    for name in NAMES[1:]:
        known.remove_class(name)
    features = torch.randn(D)
    linear = evidence(known.space_, features, known.offsets(), 0)
    expected = known.space_.logits(features[None], 0.0)[0, 0].item()
    assert (linear.weights @ features.double()).item() + linear.constant == pytest.approx(expected)


@pytest.fixture(scope="module")
def seeing() -> Classifier:
    """A classifier of images, whose encoder keeps 2 x 2 positions apart."""
    images = [blocks(40, 40, seed % 3, seed) for seed in range(12)]
    return Classifier(tiny_encoder(size=32)).fit(images, [f"kind-{seed % 3}" for seed in range(12)])


@pytest.mark.parametrize(("name", "against"), [(None, None), ("kind-1", None), ("kind-1", "kind-2")])
def test_a_heatmap_adds_up_to_the_score(seeing: Classifier, name: str | None, against: str | None, tmp_path: Path) -> None:
    image = blocks(40, 40, 7)
    heatmap = seeing.heatmap(image, name, against)
    logits = dict(zip(seeing.classes_.tolist(), seeing.decision_function([image])[0].tolist(), strict=True))
    chosen = name or max(logits, key=lambda each: logits[each])
    others = [logits[against]] if against else [logit for other, logit in logits.items() if other != chosen]
    assert (heatmap.name, heatmap.against) == (chosen, against)
    assert heatmap.score == pytest.approx(logits[chosen] - sum(others) / len(others), abs=1e-4)
    assert heatmap.scores.shape == (2, 2)
    assert sum(heatmap.scores.flatten().tolist()) == pytest.approx(heatmap.score, abs=1e-4)
    assert heatmap.pixels.shape == (3, 32, 32)
    seeing.save(tmp_path / "seeing.pg")
    again = Classifier.load(tmp_path / "seeing.pg").heatmap(image, name, against)
    torch.testing.assert_close(again.scores, heatmap.scores)


def test_a_position_is_credited_with_what_lies_there() -> None:
    """Two classes that differ in one corner alone."""
    plain, marked = np.full((32, 32, 3), 90, np.uint8), np.full((32, 32, 3), 90, np.uint8)
    marked[20:30, 2:12] = 250, 20, 20
    encoder = tiny_encoder(size=32)
    known = Classifier(encoder).fit([plain, plain, marked, marked], ["plain", "plain", "marked", "marked"])
    scores = known.heatmap(marked, "marked", "plain").scores
    assert scores.argmax() == 2, "the lower left of four positions"


def test_what_has_no_heatmap_is_named(seeing: Classifier) -> None:
    image = blocks(40, 40, 7)
    for asked, named in (
        ((np.ones((1, 3200)),), "there is no heatmap of features"),
        (([image, image],), "heatmap takes one image at a time, not 2"),
        ((image, "kind-1", "kind-1"), "'kind-1' is the class that the heatmap is of"),
        ((image, "kind-9"), "there is no class 'kind-9'"),
    ):
        with pytest.raises(InputError, match=named):
            seeing.heatmap(*asked)
    with pytest.raises(InputError, match="there is no heatmap of features"):
        fitted("gcgpn-cos-aux", None).heatmap(image)

    class Plain:
        """An encoder of a user's own, which knows nothing of positions."""

        features = 4
        encode = None
        encode_augmented = None
        description = None
        tensors = None

    other = copy.deepcopy(seeing)
    other.encoder_ = Plain()  # type: ignore[assignment]
    with pytest.raises(InputError, match="the encoder has no score_map"):
        other.heatmap(image)
