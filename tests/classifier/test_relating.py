"""Classes that a class is likely to be similar to, and the map of all classes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from kept import DENSE, SPARSE, D, blobs
from protograph import Classifier, UnicodeRelation
from protograph.classifier.relating import EDGES, PROTOTYPES, principal_positions
from relations.wordnet_files import write_wordnet


@pytest.fixture(autouse=True)
def no_wordnet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """WordNet counts as not installed, unless a test writes one."""
    monkeypatch.setenv("WNHOME", str(tmp_path / "none"))
    monkeypatch.delenv("WNSEARCHDIR", raising=False)


def cosines(prototypes: NDArray[np.float32]) -> NDArray[np.float64]:
    rows = prototypes.astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ rows.T


def test_the_source_of_a_relation_suggests_for_classes_known_and_to_come() -> None:
    known = Classifier().fit(*blobs(), UnicodeRelation({"base": 1.0}))
    (first, *_) = known.suggest_relations("á")
    assert (first.label, first.source) == ("a", "unicode")
    assert first.similarity == pytest.approx(1.0)
    known.add_class("á", np.ones((1, D)))
    assert known.suggest_relations("a", top=2)[0].label == "á"
    assert len(known.suggest_relations("a", top=2)) == 2
    assert "a" not in [one.label for one in known.suggest_relations("a")]
    known.relate("á", "b")  # as which the source knows it now
    assert known.suggest_relations("á")[0].label == "b"


def test_without_a_source_prototypes_suggest() -> None:
    known = Classifier().fit(*blobs(), SPARSE)
    similar = cosines(known.prototypes_)[2]
    suggested = known.suggest_relations("c", top=3)
    order = sorted((index for index in range(6) if index != 2), key=lambda index: -max(0.0, similar[index]))[:3]
    assert [(one.label, one.source) for one in suggested] == [("abcdef"[index], PROTOTYPES) for index in order]
    assert [one.similarity for one in suggested] == pytest.approx([max(0.0, similar[index]) for index in order], abs=1e-6)
    assert known.suggest_relations("new") == []


def test_wordnet_suggests_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_wordnet(tmp_path / "wn")
    monkeypatch.setenv("WNHOME", str(tmp_path / "wn"))
    features, labels = blobs(4)
    names = {"a": "finch", "b": "crane", "c": "box", "d": "mine"}
    known = Classifier().fit(features, [names[label] for label in labels])
    suggested = known.suggest_relations("house finch")
    assert [(one.label, one.source) for one in suggested] == [("finch", "wordnet"), ("crane", "wordnet"), ("box", "wordnet")]
    assert [one.similarity for one in suggested] == pytest.approx([1 / 2, 1 / 4, 1 / 7])
    assert [one.label for one in known.suggest_relations("finch")] == ["crane", "box"]
    assert {one.source for one in known.suggest_relations("mine")} == {PROTOTYPES}  # which WordNet does not know
    assert known.suggest_relations("yours") == []


def test_no_class_and_a_single_one_have_suggestions_and_a_map() -> None:
    known = Classifier.empty(features=D)
    assert known.suggest_relations("a") == []
    assert (known.class_map().positions.shape, known.class_map().edges) == ((0, 2), ())
    known.add_class("a", np.ones((1, D)))
    assert known.suggest_relations("a") == known.suggest_relations("b") == []
    assert known.class_map().positions.tolist() == [[0, 0]]
    assert known.class_map().edges == ()
    known.add_class("b", np.zeros((1, D)))
    two = known.class_map()
    assert sorted(two.positions[:, 0].tolist()) == [-1, 1]
    assert two.positions[:, 1].tolist() == pytest.approx([0, 0])


@pytest.mark.parametrize(("classes", "size"), [(6, 5), (5, 40), (30, 4), (3, 1)])
def test_positions_keep_as_much_of_the_distances_as_two_dimensions_can(classes: int, size: int) -> None:
    prototypes = torch.from_numpy(np.random.default_rng(classes).normal(size=(classes, size)))
    rows = (prototypes / prototypes.norm(dim=1, keepdim=True)).numpy()
    rows -= rows.mean(0)
    components, lengths, _ = np.linalg.svd(rows, full_matrices=False)
    expected = np.zeros((classes, 2))
    for axis in range(min(2, size)):
        column = components[:, axis] * lengths[axis]
        expected[:, axis] = column * np.sign(column[np.abs(column).argmax()])
    positions = principal_positions(prototypes)
    np.testing.assert_allclose(positions, expected / np.abs(expected).max(), atol=1e-9)
    assert torch.equal(positions, principal_positions(prototypes))


def test_prototypes_that_are_all_alike_lie_on_one_point() -> None:
    assert principal_positions(torch.ones(4, 3)).tolist() == [[0, 0]] * 4
    assert principal_positions(torch.zeros(2, 3)).tolist() == [[0, 0]] * 2


def test_a_map_joins_each_class_to_the_most_similar_ones_by_relations() -> None:
    known = Classifier().fit(*blobs(), {"dense": DENSE}).add_class("aa", np.ones((1, D)), {"c": 0.9})
    drawn = known.class_map()
    assert drawn.labels.tolist() == ["a", "aa", "b", "c", "d", "e", "f"]
    similar = known.space_.relations["dense"].similarities.numpy()[known.order_][:, known.order_]
    expected: dict[tuple[int, int], float] = {}
    for row in range(7):
        others = sorted((other for other in range(7) if other != row), key=lambda other: -similar[row, other])
        for other in others[:EDGES]:
            if similar[row, other] > known.space_.relations["dense"].floor:
                pair = min(row, other), max(row, other)
                expected[pair] = max(expected.get(pair, 0), similar[row, other])
    assert {edge[:2]: edge.weight for edge in drawn.edges} == {pair: pytest.approx(value) for pair, value in expected.items()}
    assert {edge.relation for edge in drawn.edges} == {"dense"}


def test_classes_without_a_relation_are_joined_by_prototypes() -> None:
    known = Classifier().fit(*blobs(), SPARSE)
    drawn = known.class_map()
    by_relation = {edge[:2]: edge.weight for edge in drawn.edges if edge.relation == "similarity"}
    assert by_relation == {
        (0, 1): pytest.approx(0.9),
        (1, 2): pytest.approx(0.5),
        (0, 2): pytest.approx(0.7),
        (3, 4): pytest.approx(0.6),
    }
    assert {edge[:2] for edge in drawn.edges if edge.relation == PROTOTYPES} <= {(index, 5) for index in range(5)}
    plain = Classifier().fit(*blobs()).class_map()
    assert {edge.relation for edge in plain.edges} == {PROTOTYPES}


def test_a_map_of_a_variant() -> None:
    drawn = Classifier(variant="gcgpn-cos-aux", steps=0).fit(*blobs()).class_map()
    assert drawn.positions.shape == (6, 2)
    assert np.abs(drawn.positions).max() == 1
