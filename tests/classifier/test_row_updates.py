"""With few classes counted as many, every change is followed row by row; a naive model computes everything anew."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize
from test_estimator import Kept

from kept import NaiveSpace, blobs, fitted
from protograph import Classifier
from protograph.classifier.joint_space import JointSpace
from protograph.classifier.row_updates import RowUpdates
from protograph.nn import neighbours
from protograph.nn.backbones import Centred
from protograph.variants import AUX, Op, Variant, build

FEW = 3  # classes that are not many
NEAREST = Op("cos", options={"top": 3})
CASES = {
    "all neighbours": ("gcgpn-cos-aux", None, "all"),
    "distances": ("gcgpn-l2-aux", None, "all"),
    "relations": ("gcgpn-aux", "sparse", "all"),
    "relations, alone": ("gcgpn-aux-split", "sparse", "novel"),
    "keys": ("gcgpn-key", None, "all"),
    "alone": ("gcgpn-cos-aux", None, "novel"),
}


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "MOST_DENSE", FEW)


class KeptByRows(Kept):
    """The same changes, with all classes but a few counted as many."""

    @initialize(case=st.sampled_from([case for name, case in CASES.items() if name != "distances"]), seed=st.integers(0, 2**16))
    def begin(self, case: tuple[str, str | None, str], seed: int) -> None:
        self.usual, neighbours.MOST_DENSE = neighbours.MOST_DENSE, FEW
        self.classifier = pickle.loads(pickle.dumps(fitted(*case)))
        self.naive = NaiveSpace(self.classifier.space_)
        self.only_new = case[2] == "novel"
        self.generator = np.random.default_rng(seed)
        self.names = self.classifier.classes_.tolist()

    def teardown(self) -> None:
        neighbours.MOST_DENSE = getattr(self, "usual", neighbours.MOST_DENSE)


KeptByRows.TestCase.settings = settings(
    max_examples=150, stateful_step_count=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
test_sequences_of_changes_followed_by_rows_agree_with_a_naive_model = KeptByRows.TestCase
test_sequences_of_changes_followed_by_rows_agree_with_a_naive_model.pytestmark = [pytest.mark.slow]


def space_of(operators: tuple[Op, ...], classes: int, features: int = 6, kept: int = 0) -> JointSpace:
    """A space in float64, with so many of its classes added."""
    variant = Variant("tried", operators, "tried")
    model = build(variant, Centred(torch.zeros(features)), (features,), classes - kept, seed=1).double()
    generator = torch.Generator().manual_seed(2)
    support = [torch.randn(3, features, generator=generator, dtype=torch.float64) for _ in range(kept)]
    return JointSpace(model, variant, [f"{row}" for row in range(classes)], {}, support)


def anew(space: JointSpace) -> torch.Tensor:
    """The prototypes of a space, all computed from what it keeps."""
    return JointSpace(space.model, space.variant, space.names, space.relations, space.support).prototypes


def changes(space: JointSpace) -> Iterator[None]:
    generator = torch.Generator().manual_seed(3)
    for step in range(8):
        examples = torch.randn(2, 6, generator=generator, dtype=torch.float64)
        if step % 4 == 0:
            space.add_all({f"new {step}": examples, f"and {step}": -examples}, {})
        elif step % 4 == 1:
            space.remove(space.names[step])
        elif step % 4 == 2:
            space.add_examples(f"new {step - 2}", examples)
        else:
            space.remove_examples(f"new {step - 3}", [0], None)
        yield


@pytest.mark.parametrize("measure", ["cosine", "l2"])
@pytest.mark.parametrize("kind", ["cos", "transformed"])
def test_what_changes_is_what_would_be_computed_anew(many: None, kind: str, measure: str) -> None:
    options = {"top": 4} if kind == "cos" else {"top": 4, "measure": measure}
    operator = Op("l2" if (kind, measure) == ("cos", "l2") else kind, options=options)
    space = space_of((operator, *AUX), 30, kept=4)
    for _ in changes(space):
        assert space.updates is not None
        torch.testing.assert_close(space.prototypes, anew(space), rtol=0, atol=1e-12)
        assert not len(space.updates.stale)


@pytest.mark.parametrize("kind", ["cos", "l2", "transformed", "difference", "keys"])
def test_with_all_neighbours_many_classes_are_answered_as_few(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    classes = 300 if kind in ("transformed", "difference") else 2000
    dense = space_of((Op(kind), *AUX), classes, kept=20)
    monkeypatch.setattr(neighbours, "MOST_DENSE", 50)
    monkeypatch.setattr("protograph.nn.operators.nearest_pairs.NEIGHBOURS", classes)
    monkeypatch.setattr("protograph.classifier.row_updates.NEIGHBOURS", classes)
    sparse = space_of((Op(kind), *AUX), classes, kept=20)
    assert (sparse.updates is None) == (kind == "difference")
    torch.testing.assert_close(sparse.prototypes, dense.prototypes, rtol=0, atol=1e-10)
    episode = sparse.model.joint_prototypes(sparse.context())[0]
    torch.testing.assert_close(episode, dense.prototypes, rtol=0, atol=1e-10)
    queries = torch.randn(20, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(sparse.logits(queries), dense.logits(queries), rtol=0, atol=1e-9)


def test_a_change_touches_the_neighbours_of_a_class_alone(many: None) -> None:
    space = space_of((NEAREST, *AUX), 40)
    before = space.prototypes.clone()
    assert space.updates is not None
    space.add("new", space.updates.starts.take([7]), {})
    moved = (space.prototypes[:40] != before).any(1).nonzero()[:, 0]
    assert space.updates is not None
    gained = torch.cat([(block == 40).any(1).nonzero()[:, 0] + start for start, block in space.updates.graphs[0].indices])
    assert moved.tolist() == gained[gained < 40].tolist()
    assert 0 < len(moved) < 20
    alone = space.copied()
    before = alone.prototypes.clone()
    alone.add("newer", space.updates.starts.take([3]), {}, only_new=True)
    assert torch.equal(alone.prototypes[:41], before), "and with update='novel' no other"
    alone.add("newest", space.updates.starts.take([5]), {})
    torch.testing.assert_close(alone.prototypes, anew(alone), rtol=0, atol=1e-12)


def test_neighbours_are_kept_in_the_file(many: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = blobs()
    known = Classifier(variant=Variant("nearest", (NEAREST, *AUX), "nearest"), steps=2).fit(features, labels)
    known.add_class("new", features[:2])
    known.save(tmp_path / "kept.pg")
    loaded = Classifier.load(tmp_path / "kept.pg")
    monkeypatch.setattr("protograph.nn.neighbours.all_nearest", lambda *_: pytest.fail("they are found once more"))
    for one in (known, loaded):
        one.add_class("newer", features[3:5]).remove_class("b")
    np.testing.assert_allclose(loaded.prototypes_, known.prototypes_, atol=1e-7)


def test_many_classes_are_explained_by_their_neighbours(many: None) -> None:
    features, labels = blobs()
    known = Classifier(variant=Variant("nearest", (NEAREST, *AUX), "nearest"), steps=2).fit(features, labels)
    for nearest in known.explain(features[0], 3):
        assert sum(part.value for part in nearest.parts) == pytest.approx(nearest.score, abs=1e-5)
        assert len({part.name for part in nearest.parts}) == 3


def test_what_cannot_be_followed_is_computed_together(many: None) -> None:
    for operators in ((Op("difference"), *AUX), (Op("cos", order=2),)):
        assert not RowUpdates.can_follow(space_of(operators, 10).model, 10)
