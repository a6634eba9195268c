"""Large model files: whatever is changed, undone, redone or killed, the file holds the state that was in memory."""

import copy
import json
import os
import pickle
import shutil
import signal
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import Tensor

from kept import SPARSE, D, blobs, fitted
from protograph import Classifier
from protograph._internal import segments
from protograph._internal.errors import InputError
from protograph._internal.sealed import metadata
from protograph._internal.segments import NewSegment, read_segments, write_segment
from protograph.classifier import history as history_module
from protograph.classifier import segmented_file
from protograph.classifier.history import history_folder
from protograph.classifier.model_file import is_segmented, pack, read_header
from protograph.classifier.segmented_file import BASE_METADATA, list_segments

NEW = ("x", "a longer name", "é", "y", "z")


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every file be a large one, to which much may be appended."""
    monkeypatch.setattr(segmented_file, "SEGMENTED_BYTES", 0)
    monkeypatch.setattr(segmented_file, "LARGEST_APPENDED", 1000)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    path = tmp_path / "kept.pg"
    Classifier(keep_features=True).fit(*blobs(), SPARSE).save(path)
    return path


def add(path: Path, *names: str) -> None:
    for name in names:
        with Classifier.edit(path) as known:
            known.add_class(name, np.full((2, D), len(name) + ord(name[0])))


def classes(path: Path) -> str:
    return "".join(Classifier.load(path).classes_.tolist())


def contents(known: Classifier) -> Any:
    """Return all that a file holds of a classifier, to the last bit."""
    packed = pack(known._contents())
    joined = {name: rows if isinstance(rows, Tensor) else torch.cat(list(rows)) for name, rows in packed.tensors.items()}
    values = {name: value for name, value in packed.values.items() if name != "change"}
    numbers = {name: (tuple(rows.shape), rows.dtype, rows.numpy().tobytes()) for name, rows in joined.items()}
    return json.loads(json.dumps(values)), numbers


class Changed(RuleBasedStateMachine):
    """Any sequence of changes of a file, against a list of the states that were in memory."""

    @initialize(case=st.sampled_from(["gaussian", "gaussian novel", "variant"]), share=st.sampled_from([0.5, 3, 1000]))
    def begin(self, case: str, share: float) -> None:
        self.folder, self.patch = Path(tempfile.mkdtemp()), pytest.MonkeyPatch()
        self.patch.setattr(segmented_file, "SEGMENTED_BYTES", 0)
        self.patch.setattr(segmented_file, "LARGEST_APPENDED", share)
        self.patch.setattr(history_module, "LARGEST_KEPT", 10**9)
        self.path, self.generator = self.folder / "kept.pg", np.random.default_rng(0)
        if case == "variant":
            known = copy.deepcopy(fitted("gcgpn-aux", "sparse"))
        else:
            update = "novel" if "novel" in case else "all"
            known = Classifier(update=update, keep_features=True).fit(*blobs(), SPARSE)  # type: ignore[arg-type]
        known.save(self.path)
        self.state, self.known = contents(known), known
        self.done: list[tuple[str, Any]] = []  # each change with the state before it, and each undone one with that after it
        self.undone: list[tuple[str, Any]] = []

    def images(self, count: int) -> Any:
        return self.generator.normal(size=(count, D)).astype(np.float32)

    def change(self, known: Classifier, data: Any) -> None:
        """Change a classifier in some way."""
        names = known.classes_.tolist()
        free, added = [name for name in NEW if name not in names], known.space_.names[known.space_.seen :]
        kind = data.draw(st.sampled_from(["add", "add several", "remove", "rename", "examples", "setting", "relate"]))
        if kind == "add" and free:
            known.add_class(free[0], self.images(data.draw(st.integers(1, 3))), {names[0]: 0.5})
        elif kind == "add several" and len(free) > 1:
            known.add_classes({name: self.images(1) for name in free[:3]})
        elif kind == "remove" and len(names) > 3:
            known.remove_class(data.draw(st.sampled_from(names)))
        elif kind == "examples" and added:
            known.add_examples(data.draw(st.sampled_from(added)), self.images(2))
        elif kind == "relate" and added:
            known.relate(data.draw(st.sampled_from(added)), {known.space_.names[0]: 0.25})
        elif kind == "rename" and free:
            known.rename_class(data.draw(st.sampled_from(names)), free[-1])
        else:
            known.set_params(unknown_label=str(self.generator.integers(10**6)))

    @rule(data=st.data())
    def edit(self, data: Any) -> None:
        what = f"change {self.generator.integers(10**9)}"
        with Classifier.edit(self.path, what) as known:
            assert contents(known) == self.state
            self.change(known, data)
        self.done, self.undone = [*self.done, (what, self.state)], []
        self.state = contents(known)

    @rule(data=st.data(), loaded=st.booleans())
    def save(self, data: Any, loaded: bool) -> None:
        """A saved classifier has no history, whether it was loaded last or is one that others have changed the file since."""
        known = Classifier.load(self.path) if loaded else self.known
        self.change(known, data)
        known.save(self.path)
        self.known, self.state, self.done, self.undone = known, contents(known), [], []

    @precondition(lambda self: self.done)
    @rule()
    def undo(self) -> None:
        what, before = self.done.pop()
        assert Classifier.undo(self.path).what == what
        self.undone.append((what, self.state))
        self.state = before

    @precondition(lambda self: self.undone)
    @rule()
    def redo(self) -> None:
        what, after = self.undone.pop()
        assert Classifier.redo(self.path).what == what
        self.done.append((what, self.state))
        self.state = after

    @rule()
    def tear(self) -> None:
        """A process that was killed leaves a part of a change."""
        with self.path.open("ab") as file:
            file.write(self.generator.bytes(100))

    @invariant()
    def same_state(self) -> None:
        loaded = Classifier.load(self.path)
        assert contents(loaded) == self.state
        told = [(change.what, change.undone) for change in Classifier.history(self.path)]
        undone = [(what, True) for what, _ in self.undone]
        assert told == undone + [(what, False) for what, _ in reversed(self.done)]

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            self.patch.undo()
            shutil.rmtree(self.folder)


Changed.TestCase.settings = settings(
    max_examples=12, stateful_step_count=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
test_a_file_holds_the_state_that_was_in_memory = Changed.TestCase
test_a_file_holds_the_state_that_was_in_memory.pytestmark = [pytest.mark.slow]


def test_a_change_appends_only_what_is_different(tmp_path: Path) -> None:
    grown = []
    generator = np.random.default_rng(0)
    for count in (100, 2000):
        features = generator.normal(size=(2 * count, 32)).astype(np.float32)
        path = tmp_path / f"{count}.pg"
        known = Classifier(variant="gcgpn-aux", update="novel", steps=0)
        known.fit(features, np.repeat(np.arange(count), 2), {(0, 1): 0.5}).save(path)
        before = path.read_bytes()
        with Classifier.edit(path) as known:
            known.add_class(count, features[:1], {"3": 0.25})
        assert path.read_bytes().startswith(before)
        grown.append(path.stat().st_size - len(before))
        loaded = Classifier.load(path)
        assert loaded.space_.prototypes.is_contiguous()
        assert torch.equal(loaded.space_.prototypes, known.space_.prototypes)
        before = path.read_bytes()
        Classifier.undo(path)
        assert path.stat().st_size < len(before) + 500
        assert path.read_bytes().startswith(before)
    assert max(grown) < 3000


def test_a_small_file_is_plain_and_a_large_one_says_its_version(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_segmented(kept)
    assert metadata(kept.read_bytes())["version"] == read_header(kept)["version"] == "4"
    state = contents(Classifier.load(kept))
    monkeypatch.setattr(segmented_file, "SEGMENTED_BYTES", 2**26)
    assert contents(Classifier.load(kept)) == state
    add(kept, "x")
    assert not is_segmented(kept)
    assert classes(kept) == "abcdefx"
    assert Classifier.undo(kept).what == "added 'x' from 2 examples"
    assert is_segmented(kept)
    assert contents(Classifier.load(kept)) == state
    assert Classifier.redo(kept).what == "added 'x' from 2 examples"
    assert classes(kept) == "abcdefx"


def test_a_file_whose_changes_outweigh_it_is_written_anew(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmented_file, "LARGEST_APPENDED", 1)
    counts = []
    for index in range(12):
        add(kept, f"n{index:02d}")
        counts.append(len(list_segments(kept).segments))
    assert 1 in counts
    assert max(counts) > 1
    folder = list(history_folder(kept).iterdir())
    assert 1 <= len(folder) <= 3
    largest = kept.stat().st_size
    assert sum(file.stat().st_size for file in folder) < 4 * largest
    depth = len([change for change in Classifier.history(kept) if not change.undone])
    assert 2 <= depth < 12
    for _ in range(depth):
        Classifier.undo(kept)
    assert len(Classifier.load(kept).classes_) == 6 + 12 - depth
    for _ in range(depth):
        Classifier.redo(kept)
    assert len(Classifier.load(kept).classes_) == 18


def test_after_many_changes_a_file_is_written_anew(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmented_file, "SEGMENTS_UNTIL_REWRITE", 3)
    add(kept, "x", "y")
    assert len(list_segments(kept).segments) == 3
    add(kept, "z")
    assert len(list_segments(kept).segments) == 1
    for _ in range(3):
        Classifier.undo(kept)
    assert classes(kept) == "abcdef"
    monkeypatch.setattr(segmented_file, "MOST_SEGMENTS", 5)
    assert len(list_segments(kept).segments) == 5  # the base, two changes, and two returns
    with pytest.raises(InputError, match="went back and forth 5 times: change it first"):
        Classifier.redo(kept)
    assert classes(kept) == "abcdef"


def test_a_file_with_another_name_is_never_appended_to(kept: Path) -> None:
    copied = kept.with_name("copy.pg")
    os.link(kept, copied)
    before = copied.read_bytes()
    add(kept, "x")
    assert copied.read_bytes() == before
    assert classes(kept) == "abcdefx"
    assert not kept.samefile(copied)


def test_a_file_that_others_replaced_is_written_anew(kept: Path) -> None:
    known = Classifier.load(kept)
    other = Classifier.load(kept)
    other.add_class("o", np.ones((1, D))).save(kept)
    known.add_class("k", np.ones((1, D))).save(kept)
    assert classes(kept) == "abcdefk"
    assert len(list_segments(kept).segments) == 1


def test_a_saved_classifier_goes_on_appending(kept: Path) -> None:
    known = Classifier().fit(*blobs())
    known.save(kept)
    for index in range(3):
        known.add_class(f"n{index}", np.ones((1, D))).save(kept)
        assert len(list_segments(kept).segments) == 2 + index
    assert contents(Classifier.load(kept)) == contents(known)
    known.save(kept.with_name("other.pg"))
    assert len(list_segments(kept.with_name("other.pg")).segments) == 1


def test_rows_that_all_go_and_come_again_come_back(kept: Path) -> None:
    path, rows = kept.with_name("rows"), torch.arange(12.0).view(6, 2)
    states: list[dict[str, Any]] = [
        {"a": rows, "a.edges": rows.T.contiguous()},
        {"a": rows[:0], "a.edges": rows.T[:, :0].contiguous()},
        {"a": rows[:2], "a.edges": rows.T[:, :3].contiguous(), "b": torch.tensor(1)},
        {"a": [rows[:0], rows[:2], rows[4:]], "b": torch.tensor(2), "c": rows},
        {"a": rows[1:2], "b": torch.tensor(2), "c": rows[:0]},
    ]
    with path.open("w+b", buffering=0) as file:
        segmented_file.write_stored(file, {"number": 0}, states[0], {})
    for number, tensors in enumerate(states):
        stored = segmented_file.read_stored(path)
        if number:
            assert segmented_file.append_change(path, stored, {"number": number}, tensors, {}) is not None
            stored = segmented_file.read_stored(path)
        assert stored.values == {"number": number}
        expected = {name: rows if isinstance(rows, Tensor) else torch.cat(rows) for name, rows in tensors.items()}
        assert stored.tensors.keys() == expected.keys()
        assert all(torch.equal(stored.tensors[name], part) for name, part in expected.items())  # type: ignore[arg-type]


def test_copies_of_a_classifier_belong_to_no_file(kept: Path) -> None:
    known = Classifier.load(kept)
    for other in (copy.deepcopy(known), pickle.loads(pickle.dumps(known))):
        assert other._stored is None
        other.add_class("x", np.ones((1, D))).save(kept)
        assert classes(kept) == "abcdefx"
        assert len(list_segments(kept).segments) == 1


def test_whoever_reads_while_another_appends_sees_one_whole_state(kept: Path) -> None:
    states = [contents(Classifier.load(kept))]

    def change() -> None:
        for index in range(12):
            with Classifier.edit(kept) as known:
                known.add_class(f"n{index:02d}", np.full((1, D), index + 1.0))
                states.append(contents(known))

    with ThreadPoolExecutor(1) as threads:
        changing = threads.submit(change)
        while not changing.done():
            assert contents(Classifier.load(kept)) in states
        changing.result()
    assert contents(Classifier.load(kept)) == states[-1]


def test_a_change_that_is_cut_anywhere_leaves_the_old_state_and_is_overwritten(kept: Path) -> None:
    add(kept, "x")
    before, size = contents(Classifier.load(kept)), kept.stat().st_size
    add(kept, "y")
    content = kept.read_bytes()
    for length in range(size, len(content)):
        kept.write_bytes(content[:length])
        if length % 200 == 0 or length == len(content) - 1:
            assert contents(Classifier.load(kept)) == before
            assert [change.what for change in Classifier.history(kept)] == ["added 'x' from 2 examples"]
        with kept.open("rb", buffering=0) as file:
            assert read_segments(file).stop == size
    add(kept, "z")
    assert classes(kept) == "abcdefxz"
    assert Classifier.undo(kept).what == "added 'z' from 2 examples"
    assert contents(Classifier.load(kept)) == before


def test_damage_is_refused_by_one_clear_line(kept: Path) -> None:
    add(kept, "x", "y")
    content = kept.read_bytes()
    made = list_segments(kept).segments
    part = made[1].header.parts["prototypes"]
    for at, said in (
        (made[0].data + made[0].header.parts["gaussian.means"].at, "the tensor 'gaussian.means' does not match its checksum"),
        (made[1].data + part.at, "the tensor 'prototypes' does not match its checksum"),
        (made[1].start + 20, "change 1: its header"),
        (made[2].start + 20, "change 2: its header"),
        (made[0].start + 300, "its base: its header"),
    ):
        changed = bytearray(content)
        changed[at] ^= 1
        kept.write_bytes(changed)
        for act in (Classifier.load, lambda path: add(path, "z")):
            with pytest.raises(InputError, match=rf"kept\.pg is damaged \({said}") as raised:
                act(kept)
            assert "\n" not in str(raised.value)
        assert kept.read_bytes() == bytes(changed)


@pytest.mark.parametrize(
    ("changes", "tensors", "said"),
    [
        ({"removed": ["prototypes"]}, {}, "the tensor 'prototypes' is missing"),
        ({"removed": ["nothing"]}, {}, "removes the tensor 'nothing'"),
        ({"steps": [["set", ["features"], 3]]}, {}, "is .* not .*3"),
        ({"steps": [["set", ["bias"], 2**70]]}, {}, "64 bits"),
        ({"steps": [["turn", ["bias"]]]}, {}, "no change 'turn'"),
        ({"steps": [["splice", ["names"], [[0, 0, ["x"]]]]]}, {}, "names"),
        ({"spliced": {"prototypes": {"axis": 0, "splices": [[0, 1, 0]]}}}, {}, "has no rows"),
        ({"spliced": {"prototypes": {"axis": 0, "splices": [[0, 1, 1]]}}}, {"prototypes": torch.ones(2, D)}, "has 2"),
        ({"spliced": {"prototypes": {"axis": 0, "splices": [[9, 1, 1]]}}}, {"prototypes": torch.ones(1, D)}, "goes beyond"),
        ({"spliced": {"prototypes": {"axis": 0, "splices": [[0, 0, 1]]}}}, {"prototypes": torch.ones(1, D)}, "is .7, 5."),
        ({"spliced": {"prototypes": {"axis": 0, "splices": [[0, 1, 1]]}}}, {"prototypes": torch.ones(1, 3)}, "another form"),
        ({"spliced": {"prototypes": {"axis": 0, "splices": [[0, 6, 0]]}}}, {"prototypes": torch.ones(0, D)}, "is .0, 5."),
        ({"spliced": {"prototypes": {"axis": 1, "splices": [[0, 1, 1]]}}}, {"prototypes": torch.ones(6, 1).int()}, "form"),
        ({"spliced": {"new": {"axis": 0, "splices": [[0, 0, 1]]}}}, {"new": torch.ones(1, 3)}, "nothing to change"),
        ({"spliced": {"prototypes": {"axis": 2, "splices": []}}}, {"prototypes": torch.ones(0, D)}, "axis"),
        (
            {"spliced": {"prototypes": {"axis": 0, "splices": [[0, 1, 1]]}}},
            {"prototypes": torch.full((1, D), torch.nan)},
            "NaN",
        ),
        ({"more": 1}, {}, "more"),
        (None, {}, "'changes' is missing"),
    ],
)
def test_forged_changes_are_refused_with_the_reason(kept: Path, changes: Any, tensors: Any, said: str) -> None:
    """Changes with right digests that say what does not fit."""
    if changes is not None:
        text = json.dumps({"steps": [], "removed": [], "spliced": {}, **changes}).encode()
        tensors = {**tensors, "changes": torch.frombuffer(bytearray(text), dtype=torch.uint8)}
    last = list_segments(kept).segments[-1]
    with kept.open("r+b", buffering=0) as file:
        write_segment(file, NewSegment("change", last.digest, {"classes": 6, "change": None}, tensors, BASE_METADATA), last)
    with pytest.raises(InputError, match=rf"kept\.pg is damaged \(.*({said})") as raised:
        Classifier.load(kept)
    assert "\n" not in str(raised.value)


def test_a_forged_note_is_refused(kept: Path) -> None:
    last = list_segments(kept).segments[-1]
    with kept.open("r+b", buffering=0) as file:
        write_segment(file, NewSegment("change", last.digest, {"classes": -1}, {}, BASE_METADATA), last)
    with pytest.raises(InputError, match=r"is damaged \(.*classes"):
        Classifier.history(kept)


CHANGES: dict[str, Callable[[Path], object]] = {
    "change": lambda path: add(path, "killed"),
    "undo": Classifier.undo,
    "redo": Classifier.redo,
    "rewrite": lambda path: (setattr(segmented_file, "LARGEST_APPENDED", 0), add(path, "killed")),
}


def killed(path: Path, kind: str, count: int) -> int:
    """Return how a process ended that changes a file, and is killed before a call that writes."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    done = 0

    def counted(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal done
            if done == count:
                os.kill(os.getpid(), signal.SIGKILL)
            done += 1
            return function(*arguments, **options)

        return call

    try:
        for name in ("mkdir", "link", "open", "replace", "unlink", "fsync", "chmod"):
            setattr(os, name, counted(getattr(os, name)))
        segments._write = counted(segments._write)
        CHANGES[kind](path)
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHANGES)
def test_a_kill_before_any_call_of_the_system_leaves_the_old_or_the_new_state(kept: Path, kind: str) -> None:
    add(kept, "x", "y", "z")
    Classifier.undo(kept)
    shutil.copytree(kept.parent, kept.parent / "start")
    new = {"undo": "abcdefx", "redo": "abcdefxyz"}.get(kind, "abcdefkilledxy")
    seen = set()
    for count in range(99):
        folder = kept.parent / str(count)
        shutil.copytree(kept.parent / "start", folder)
        file = folder / "kept.pg"
        ended = killed(file, kind, count)
        assert ended in (0, -signal.SIGKILL)
        seen.add(classes(file))
        assert classes(file) in (new, "abcdefxy")
        if ended == 0:
            break
        before = classes(file)
        add(file, "w")  # goes on as if nothing had happened, and removes what was left
        Classifier.undo(file)
        assert classes(file) == before
        while any(not change.undone for change in Classifier.history(file)):
            Classifier.undo(file)
        assert classes(file) == "abcdef"
        assert {path.name for path in folder.iterdir()} <= {"kept.pg", "kept.pg.history"}
        assert not list(folder.rglob("*.part"))
    assert ended == 0
    assert seen == {new, "abcdefxy"}
    assert count > 5
