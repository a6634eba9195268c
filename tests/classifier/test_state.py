import copy
import inspect
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kept import DENSE, SPARSE, blobs
from protograph import Classifier
from protograph._internal.errors import InputError
from protograph.classifier import model_file

FEATURES, LABELS = blobs(images=8)


def grown(variant: str | None, relations: Any, **parameters: Any) -> Classifier:
    steps = None if variant is None else 1
    known = Classifier(variant=variant, steps=steps, keep_features=variant is None, **parameters)
    known.fit(FEATURES, LABELS, relations)
    return known.add_class("new", -FEATURES[:3], None if relations is None else {"a": 0.5})


CASES: dict[str, tuple[str | None, Any]] = {
    "gaussian": (None, None),
    "gaussian with relations": (None, DENSE),
    "dense": ("gcgpn-aux", DENSE),
    "sparse": ("gcgpn-aux", SPARSE),
    "keys": ("gcgpn-key", None),
}
CHANGES: dict[str, Callable[[Classifier], Any]] = {
    "add_class": lambda known: known.add_class("x", FEATURES[:2] + 1),
    "add_classes": lambda known: known.add_classes({"x": FEATURES[:2] + 1, "y": FEATURES[2:5] - 1}),
    "add_examples": lambda known: known.add_examples("new", FEATURES[:2] + 1),
    "remove_class": lambda known: known.remove_class("b"),
    "remove_added": lambda known: known.remove_class("new"),
    "rename_class": lambda known: known.rename_class("b", "z"),
}


def contents(known: Classifier) -> str:
    """Everything that a classifier knows, as a text, from its parts and not from a single reference to them."""
    space = known.space_
    model = {name: value.tolist() for name, value in space.model.state_dict().items()} if hasattr(space, "model") else {}
    parts = [
        {name: (relation.similarities.to_dense().tolist(), relation.known) for name, relation in space.relations.items()},
        {name: value.tolist() for name, value in known.kept_.items()},
        [known.classes_.tolist(), known.order_.tolist(), known.threshold_, known.bias_, space.names],
        [space.prototypes.tolist(), [examples.tolist() for examples in space.support]],
        known.predict_proba(FEATURES[:3]).tolist(),
    ]
    return repr([model, *parts])


class Interruption:
    """Ctrl-C at the n-th call of a function of this package, generators apart."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        generator = frame.f_code.co_flags & inspect.CO_GENERATOR  # Python drops what is raised while one is closed
        if "protograph" in frame.f_code.co_filename and not generator:
            self.left -= 1
            if self.left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt


def interrupted(change: Callable[[Classifier], Any], known: Classifier, after: int) -> bool:
    before = sys.gettrace()
    sys.settrace(Interruption(after))
    try:
        change(known)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("case", CASES)
def test_a_change_that_is_interrupted_anywhere_leaves_everything_as_it_was(case: str, change: str) -> None:
    known = grown(*CASES[case])
    before, calls = contents(known), 0
    expected = copy.deepcopy(known)
    CHANGES[change](expected)
    while interrupted(CHANGES[change], known, calls):
        assert contents(known) == before, f"interrupted at call {calls}"
        calls += 1
    assert calls > 5
    assert contents(known) == contents(expected)


@pytest.mark.parametrize("case", CASES)
def test_a_change_that_fails_leaves_everything_as_it_was(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = grown(*CASES[case])
    before = contents(known)
    with pytest.raises(InputError, match="there is a class 'a' already"):
        known.add_classes({"x": FEATURES[:2], "a": FEATURES[:2]})
    assert contents(known) == before
    monkeypatch.setattr("protograph.classifier.state.as_labels", lambda *_: 1 / 0)
    for change in CHANGES.values():
        with pytest.raises(ZeroDivisionError):
            change(known)
        assert contents(known) == before


def test_a_file_that_could_not_be_loaded_again_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = grown(None, None)
    known.save(tmp_path / "known.pg")
    before = (tmp_path / "known.pg").read_bytes()
    known.space_.names = known.space_.names.extended(["nobody"])
    with pytest.raises(InputError, match=r"known.pg was left as it was, since the new file could not be loaded again: "):
        known.save(tmp_path / "known.pg")
    assert (tmp_path / "known.pg").read_bytes() == before
    assert list(tmp_path.iterdir()) == [tmp_path / "known.pg"]
    monkeypatch.setattr(model_file, "check_contents", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        grown(None, None).save(tmp_path / "known.pg")
    assert (tmp_path / "known.pg").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("case", ["gaussian with relations", "keys"])
def test_threads_see_whole_states_and_lose_no_change(case: str) -> None:
    known = grown(*CASES[case])
    torch_threads, errors, over = torch.get_num_threads(), [], threading.Event()

    def read() -> None:
        while not over.is_set():
            try:
                said = known.predictions(FEATURES[:5])
                assert said.probabilities.shape == (5, len(said.classes))
                np.testing.assert_allclose(said.probabilities.sum(1), 1)
                assert set(said.labels) <= set(said.classes)
                known.predict(FEATURES[:5])
                known.explain(FEATURES[0], 2)
                known.prototypes_.sum()
            except Exception as error:
                errors.append(error)

    def change(name: str) -> None:
        try:
            for index in range(12):
                known.add_class(f"{name}{index}", FEATURES[index : index + 2] + index)
                if index % 3 == 2:
                    known.remove_class(f"{name}{index}")
        except Exception as error:
            errors.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    writers = [threading.Thread(target=change, args=(name,)) for name in ("r", "s", "t")]
    for thread in (*readers, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    over.set()
    for thread in readers:
        thread.join()
    assert errors == []
    expected = [f"{name}{index}" for name in "rst" for index in range(12) if index % 3 != 2]
    assert known.classes_.tolist() == sorted([*"abcdef", "new", *expected])
    assert torch.get_num_threads() == torch_threads


def test_copies_and_pickles_change_apart() -> None:
    known = grown(*CASES["dense"])
    before = contents(known)
    for other in (copy.deepcopy(known), pickle.loads(pickle.dumps(known))):
        other.remove_class("a")
        assert contents(known) == before
