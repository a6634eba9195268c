"""The command that lets many threads ask and change a classifier, for a moment."""

from pathlib import Path
from typing import Any

import pytest

from kept import SPARSE


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import threads

    return threads


@pytest.mark.slow
def test_every_answer_is_of_a_state_that_existed(command: Any) -> None:
    known = command.Recorded().fit(command.FEATURES, command.LABELS, SPARSE)
    taught = command.Taught(known)
    taught.run(0.5, 20)
    assert taught.errors == []
    assert taught.changes.total() >= 20
    assert len(vars(known)["states"]) > taught.changes.total()
    assert taught.answers
    assert taught.unexplained() == 0
    classes, probabilities, labels = next(iter(taught.answers))
    taught.answers.add((classes, probabilities[::-1], labels))
    assert taught.unexplained() == 1, "an answer of no state is noticed"


@pytest.mark.slow
def test_what_a_thread_raises_is_an_error(command: Any) -> None:
    known = command.Recorded().fit(command.FEATURES, command.LABELS)
    taught = command.Taught(known)
    taught.run(5, 20)
    assert taught.errors, "it has no relations, and examples are added with some"
