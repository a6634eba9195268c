import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sklearn.utils.estimator_checks import parametrize_with_checks

from kept import D, NaiveSpace, fitted
from protograph import Classifier

EXPECTED_FAILURES: dict[str, str] = {}


@parametrize_with_checks([Classifier(steps=20)], expected_failed_checks=lambda estimator: EXPECTED_FAILURES)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


CASES = (
    ("gcgpn-aux", "dense", "all"),
    ("gcgpn-aux", "sparse", "all"),
    ("gcgpn-aux", "dense", "novel"),
    ("gcgpn-aux-split", "sparse", "novel"),
    ("gcgpn-cos-aux", None, "all"),
    ("gcgpn-key", None, "all"),
)
NEW = ("new", "neu", "nuovo", "nieuw", "ny")


class Kept(RuleBasedStateMachine):
    """Any sequence of changes, against a model that computes everything anew from what every class came from."""

    @initialize(case=st.sampled_from(CASES), seed=st.integers(0, 2**16))
    def begin(self, case: tuple[str, str | None, str], seed: int) -> None:
        self.classifier = copy.deepcopy(fitted(*case))
        self.naive = NaiveSpace(self.classifier.space_)
        self.only_new = case[2] == "novel"
        self.generator = np.random.default_rng(seed)
        self.names = self.classifier.classes_.tolist()

    @precondition(lambda self: len(self.names) < 10)
    @rule(data=st.data(), count=st.integers(0, 3))
    def add(self, data: Any, count: int) -> None:
        name = data.draw(st.sampled_from([name for name in (*NEW, *"abcdef") if name not in self.names]))
        examples = self.generator.normal(size=(count, D)).astype(np.float32)
        told = {}
        if self.naive.relation is not None:
            told = {other: self.generator.uniform() for other in data.draw(st.sets(st.sampled_from(self.names), max_size=3))}
        if not count and not told:
            return
        self.classifier.add_class(name, examples, told or None)
        self.naive.add(name, list(examples.astype(np.float64)), told, self.only_new)
        self.names.append(name)

    @precondition(lambda self: len(self.names) > 1)
    @rule(data=st.data())
    def remove(self, data: Any) -> None:
        name = data.draw(st.sampled_from(self.names))
        self.classifier.remove_class(name)
        self.naive.remove(name, self.only_new)
        self.names.remove(name)

    @rule(data=st.data())
    def rename(self, data: Any) -> None:
        old = data.draw(st.sampled_from(self.names))
        new = data.draw(st.sampled_from([name for name in ("x", "a longer name", *NEW) if name not in self.names]))
        self.classifier.rename_class(old, new)
        next(one for one in self.naive.classes if one.name == old).name = new
        self.names[self.names.index(old)] = new

    @rule()
    def save_and_load(self) -> None:
        with TemporaryDirectory() as folder:
            self.classifier.save(Path(folder) / "kept.pg")
            self.classifier = Classifier.load(Path(folder) / "kept.pg")

    @rule()
    def predict(self) -> None:
        queries = self.generator.normal(size=(4, D)).astype(np.float32)
        rows = self.naive.kept()
        lengths = np.linalg.norm(rows, axis=1)
        cosines = np.array([[query @ row / np.linalg.norm(query) for row in rows] for query in queries.astype(np.float64)])
        cosines /= np.where(lengths, lengths, 1)
        answers = self.classifier.predict(queries)
        for answer, scores in zip(answers.tolist(), cosines, strict=True):
            assert scores[self.names.index(answer)] >= scores.max() - 1e-5
        found = self.classifier.space_.cosines(self.classifier._features(queries)).numpy()
        np.testing.assert_allclose(found, cosines, atol=2e-5)

    @invariant()
    def same_classes_and_prototypes(self) -> None:
        assert self.classifier.classes_.tolist() == self.classifier.space_.names == self.names
        np.testing.assert_allclose(self.classifier.prototypes_, self.naive.kept(), atol=2e-5)


Kept.TestCase.settings = settings(
    max_examples=1000, stateful_step_count=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
test_a_thousand_sequences_of_changes_agree_with_a_naive_model = Kept.TestCase
