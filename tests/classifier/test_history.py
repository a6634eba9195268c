"""Earlier versions of a model file: undo, redo, and what a kill, a copy or a damaged version leaves."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from kept import D, blobs
from protograph import Classifier
from protograph._internal.errors import InputError
from protograph._internal.sealed import metadata
from protograph.classifier import history as history_module
from protograph.classifier.history import MOST_VERSIONS, history, history_folder, redo, undo

ROOT = Path(__file__).parents[2]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    path = tmp_path / "kept.pg"
    Classifier().fit(*blobs()).save(path)
    return path


def add(path: Path, *names: str) -> None:
    for name in names:
        with Classifier.edit(path) as known:
            known.add_class(name, np.full((1, D), len(name) + ord(name[0])))


def classes(path: Path) -> str:
    return "".join(Classifier.load(path).classes_.tolist())


def test_changes_are_undone_and_redone_one_by_one(kept: Path) -> None:
    versions = [kept.read_bytes()]
    for name in "xyz":
        add(kept, name)
        versions.append(kept.read_bytes())
    for index in (2, 1, 0):
        assert undo(kept).what == f"added '{'xyz'[index]}' from 1 example"
        assert kept.read_bytes() == versions[index]
    with pytest.raises(InputError, match="nothing to undo: no change of"):
        undo(kept)
    for index in (1, 2, 3):
        assert redo(kept).what == f"added '{'xyz'[index - 1]}' from 1 example"
        assert kept.read_bytes() == versions[index]
    with pytest.raises(InputError, match="nothing to redo"):
        redo(kept)


def test_the_history_says_what_was_done_and_what_was_undone(kept: Path) -> None:
    assert history(kept) == []
    features, _ = blobs()
    with Classifier.edit(kept) as known:
        known.add_classes({"x": features[:3], "y": features[3:4]}).rename_class("a", "α").add_examples("b", features[:2])
    with Classifier.edit(kept) as known:
        known.remove_class("c")
    with Classifier.edit(kept, change="told by hand") as known:
        known.add_class("z", features[:2])
    with Classifier.edit(kept) as known:
        known.set_params(update="novel")
    assert undo(kept).undone
    said = history(kept)
    assert [change.what for change in said] == [
        "changed the settings",
        "told by hand",
        "removed 'c'",
        "added 'x' from 3 examples and 'y' from 1 example; renamed 'a' to 'α'; added 2 examples to 'b'",
    ]
    assert [(change.number, change.classes, change.undone) for change in said] == [
        (4, 8, True), (3, 8, False), (2, 7, False), (1, 8, False)
    ]  # fmt: skip
    assert all(time.strptime(change.when, "%Y-%m-%dT%H:%M:%SZ") for change in said)


def test_a_change_after_undo_takes_the_place_of_what_was_undone(kept: Path) -> None:
    add(kept, "x", "y", "z")
    undo(kept)
    undo(kept)
    add(kept, "w")
    assert [(change.number, change.what) for change in history(kept)] == [
        (4, "added 'w' from 1 example"), (1, "added 'x' from 1 example")
    ]  # fmt: skip
    with pytest.raises(InputError, match="it was changed since"):
        redo(kept)
    assert len(list(history_folder(kept).iterdir())) == 2
    undo(kept)
    undo(kept)
    assert classes(kept) == "abcdef"
    redo(kept)
    redo(kept)
    assert classes(kept) == "abcdefwx"


def test_the_oldest_versions_go_first(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "MOST_VERSIONS", 3)
    add(kept, *"uvwxy")
    assert [change.number for change in history(kept)] == [5, 4, 3]
    assert len(list(history_folder(kept).iterdir())) == 3
    for _ in range(3):
        undo(kept)
    assert classes(kept) == "abcdefuv"
    with pytest.raises(InputError, match=r"kept\.pg\.history, which does not have it any more"):
        undo(kept)
    assert [change.undone for change in history(kept)] == [True] * 3
    assert MOST_VERSIONS == 20


def test_a_file_without_its_folder_says_so(kept: Path) -> None:
    add(kept, "x")
    shutil.rmtree(history_folder(kept))
    assert history(kept) == []
    with pytest.raises(InputError, match=r"kept in .*kept\.pg\.history, which is not there"):
        undo(kept)
    history_folder(kept).write_text("mine")
    with pytest.raises(InputError, match=r"history is in the way of the earlier versions"):
        add(kept, "y")
    assert classes(kept) == "abcdefx"
    with pytest.raises(InputError, match="there is no model file"):
        history(kept.with_name("none.pg"))


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other"])
def test_a_damaged_version_is_refused_and_the_file_stays(kept: Path, damage: str) -> None:
    add(kept, "x", "y", "z")
    (version,) = history_folder(kept).glob("000002-*")
    content = version.read_bytes()
    version.unlink()  # or the damage would be that of every name of the file
    flipped = bytes([content[-1] ^ 1])
    first = next(history_folder(kept).glob("000001-*")).read_bytes()
    version.write_bytes({"cut": content[:-9], "flipped": content[:-1] + flipped, "empty": b"", "other": first}[damage])
    before = kept.read_bytes()
    with pytest.raises(InputError, match=r"left as it is, since the version to go back to cannot be used"):
        undo(kept)
    assert kept.read_bytes() == before
    add(kept, "w")
    assert undo(kept).number == 4
    assert kept.read_bytes() == before
    assert history(kept)[-1].number in (1, 3)


def test_a_version_does_not_change_with_the_file(kept: Path) -> None:
    """Whoever writes into the file, instead of replacing it, writes into no version."""
    add(kept, "x", "y")
    undo(kept)
    redo(kept)
    versions = {file: file.read_bytes() for file in history_folder(kept).iterdir()}
    with kept.open("r+b") as file:
        file.write(b"overwritten")
    assert versions == {file: file.read_bytes() for file in history_folder(kept).iterdir()}


def test_without_hard_links_versions_are_copies(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    add(kept, "x", "y")
    undo(kept)
    undo(kept)
    redo(kept)
    assert classes(kept) == "abcdefx"


def test_a_file_fitted_anew_begins_a_new_history(kept: Path) -> None:
    add(kept, "x", "y")
    undo(kept)
    Classifier().fit(*blobs(seed=1)).save(kept)
    assert history(kept) == []
    with pytest.raises(InputError, match="nothing to redo"):
        redo(kept)
    add(kept, "z")
    assert [change.what for change in history(kept)] == ["added 'z' from 1 example"]
    assert len(list(history_folder(kept).iterdir())) == 1


def test_a_link_and_its_target_share_a_history(kept: Path) -> None:
    link = kept.with_name("link.pg")
    link.symlink_to(kept)
    add(link, "x")
    assert history(kept) == history(link) != []
    undo(link)
    assert link.is_symlink()
    assert classes(kept) == "abcdef"


def test_a_long_description_is_cut(kept: Path) -> None:
    with Classifier.edit(kept, change="é" * 9999) as known:
        known.add_class("x", np.ones((1, D)))
    (change,) = history(kept)
    assert (len(change.what), change.what[-1]) == (500, "…")


def test_an_empty_classifier_has_a_history(tmp_path: Path) -> None:
    path = tmp_path / "new.pg"
    Classifier.empty(features=D).save(path)
    add(path, "x", "y")
    undo(path)
    undo(path)
    assert len(Classifier.load(path).classes_) == 0
    assert [change.classes for change in history(path)] == [2, 1]


KILLED = """
import os, signal, sys
import numpy as np
from protograph import Classifier
from protograph.classifier.history import redo, undo

count, done = int(sys.argv[2]), 0

def counted(function):
    def call(*arguments, **options):
        global done
        if done == count:
            os.kill(os.getpid(), signal.SIGKILL)
        done += 1
        return function(*arguments, **options)
    return call

for name in ("mkdir", "link", "open", "replace", "unlink", "fsync", "chmod"):
    setattr(os, name, counted(getattr(os, name)))
if sys.argv[3] == "undo":
    undo(sys.argv[1])
elif sys.argv[3] == "redo":
    redo(sys.argv[1])
else:
    with Classifier.edit(sys.argv[1]) as known:
        known.add_class("killed", np.ones((1, 5)))
print("finished")
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["change", "undo", "redo"])
def test_a_kill_before_any_call_of_the_system_leaves_the_old_or_the_new_version(kept: Path, kind: str) -> None:
    add(kept, "x", "y", "z")
    undo(kept)
    shutil.copytree(kept.parent, kept.parent / "start")
    allowed = {"change": ("abcdefxy", "abcdefkilledxy"), "undo": ("abcdefxy", "abcdefx"), "redo": ("abcdefxy", "abcdefxyz")}
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    for count in range(99):
        folder = kept.parent / str(count)
        shutil.copytree(kept.parent / "start", folder)
        file = folder / "kept.pg"
        command = [sys.executable, "-c", KILLED, str(file), str(count), kind]
        done = subprocess.run(command, env=environment, check=False, capture_output=True)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        assert classes(file) in allowed[kind]
        assert metadata(file.read_bytes())["digest"]
        if done.returncode == 0:
            break
        before = classes(file)
        add(file, "w")  # goes on as if nothing had happened, and removes what was left
        undo(file)
        assert classes(file) == before
        while any(not change.undone for change in history(file)):
            undo(file)
        assert classes(file) == "abcdef"
        assert sorted(path.name for path in folder.iterdir()) == ["kept.pg", "kept.pg.history"]
        assert not list(history_folder(file).glob(".*"))
    assert done.returncode == 0
    assert count > 3


TEACHING = """
import sys
import numpy as np
from protograph import Classifier
from protograph.classifier.history import undo

for index in range(999):
    with Classifier.edit(sys.argv[1]) as known:
        known.add_class(f"n{index:03d}", np.ones((1, 5)))
    print(index, flush=True)
"""


@pytest.mark.slow
def test_what_was_confirmed_before_a_kill_at_random_is_there(kept: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    generator = random.Random(0)
    with Classifier.edit(kept) as known:
        known.add_class("n", np.ones((1, D)))
    for _ in range(int(os.environ.get("PROTOGRAPH_KILLS", "3"))):
        start = len(Classifier.load(kept).classes_)
        script = TEACHING.replace("range(999)", f"range({start}, {start} + 999)")
        with subprocess.Popen([sys.executable, "-c", script, str(kept)], env=environment, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(generator.uniform(0, 0.3))
            process.kill()
            confirmed = [int(line) for line in process.stdout.read().split()]
        names = set(Classifier.load(kept).classes_.tolist())
        assert {f"n{index:03d}" for index in [start, *confirmed]} <= names
        assert undo(kept).what.startswith("added 'n")
        redo(kept)
        assert len(list(history_folder(kept).iterdir())) <= MOST_VERSIONS + 1
