import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from encoders.images import tiny_encoder, write_images
from protograph import Classifier
from protograph._internal.errors import InputError
from protograph._internal.files import cache_folder
from protograph._internal.progress import Silent
from protograph.classifier import bulk
from protograph.classifier.bulk import BulkResult, predict_files

IMAGES = 23


class StoppedError(Exception):
    """What ends a run in the middle, as a kill would."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file, to be read and not changed."""
    folder = tmp_path_factory.mktemp("model")
    images = [write_images(folder / name, 6, seed) for seed, name in enumerate(("owl", "cat"))]
    path = folder / "own.pg"
    Classifier(tiny_encoder()).fit([*images[0], *images[1]], ["owl"] * 6 + ["=cat"] * 6).save(path)
    return path


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_images(tmp_path / "photos" / "a", IMAGES // 2)
    write_images(tmp_path / "photos" / "b", IMAGES - IMAGES // 2, seed=1)
    monkeypatch.setattr(bulk, "ANSWERED_TOGETHER", 4)
    return tmp_path / "photos"


def run(model: Path, photos: Path, **options: Any) -> BulkResult:
    settings: dict[str, Any] = {"out": None, "sort_into": None, "top": 3, "skip_bad": False, "progress": Silent(), **options}
    return predict_files(Classifier.load(model), model, [photos], **settings)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def listing(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_answers_are_those_of_the_classifier(model: Path, photos: Path, tmp_path: Path) -> None:
    done = run(model, photos, out=tmp_path / "new" / "a.csv", top=1)
    files = [str(file) for file in sorted(photos.rglob("*.png"))]
    answers = Classifier.load(model).predict(files).tolist()
    table = rows(tmp_path / "new" / "a.csv")
    assert [row["file"] for row in table] == files
    assert [row["class"].removeprefix("'") for row in table] == answers
    assert [*table[0]] == ["file", "class", "likeness", "class_1", "probability_1", "problem"]
    assert done == BulkResult(tmp_path / "new" / "a.csv", IMAGES, 0, 0, {name: answers.count(name) for name in done.classes})
    assert sum(done.classes.values()) == IMAGES


def test_the_cache_is_left_alone(model: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROTOGRAPH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bulk, "ANSWERED_TOGETHER", 1000)
    run(model, photos, out=tmp_path / "a.csv")
    assert not [*cache_folder().glob("features-*")]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@pytest.mark.parametrize("kills", [[3], [0], [7, 8, 9], [1, 5, 5, 6, 2]])
def test_a_run_that_was_killed_ends_with_the_same_bytes(
    kills: list[int], suffix: str, model: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped after so many copies, before their answers are written."""
    whole, part = tmp_path / "whole", tmp_path / "killed"
    run(model, photos, out=tmp_path / f"whole.{suffix}", sort_into=whole)
    copy = bulk.SortedFolder.copy
    for kill in kills:
        copies: list[Path] = []

        def stop(self: Any, image: Path, label: Any, kill: int = kill, copies: list[Path] = copies) -> Path:
            if len(copies) == kill:
                raise StoppedError
            copies.append(image)
            return copy(self, image, label)

        with monkeypatch.context() as patch:
            patch.setattr(bulk.SortedFolder, "copy", stop)
            with pytest.raises(StoppedError):
                run(model, photos, out=tmp_path / f"killed.{suffix}", sort_into=part)
            assert not (tmp_path / f"killed.{suffix}").exists()
    done = run(model, photos, out=tmp_path / f"killed.{suffix}", sort_into=part)
    assert done.images == IMAGES
    assert (tmp_path / f"killed.{suffix}").read_bytes() == (tmp_path / f"whole.{suffix}").read_bytes()
    assert listing(part) == listing(whole)
    assert len(listing(whole)) == IMAGES


def test_images_of_the_same_name_and_class_are_all_copied(model: Path, photos: Path, tmp_path: Path) -> None:
    run(model, photos, sort_into=tmp_path / "sorted")
    answers = rows(tmp_path / "sorted" / "answers.csv")
    copies = listing(tmp_path / "sorted")
    del copies["answers.csv"]
    assert sorted(copies.values()) == sorted(Path(row["file"]).read_bytes() for row in answers)
    assert {name.partition("/")[0] for name in copies} == {row["class"].removeprefix("'") for row in answers}


def test_images_that_cannot_be_read_end_the_run_or_get_a_row(model: Path, photos: Path, tmp_path: Path) -> None:
    bad = photos / "a" / "005x.png"
    bad.write_bytes(b"no image")
    with pytest.raises(InputError, match=r"005x\.png cannot be read"):
        run(model, photos, out=tmp_path / "a.csv", sort_into=tmp_path / "sorted")
    done = run(model, photos, out=tmp_path / "a.csv", sort_into=tmp_path / "sorted", skip_bad=True)
    assert (done.images, done.continued, done.unreadable) == (IMAGES + 1, 4, 1)
    (row,) = [row for row in rows(tmp_path / "a.csv") if row["problem"]]
    assert (row["file"], row["class"]) == (str(bad), "")
    assert "it is not one of JPEG" in row["problem"]
    assert len(listing(tmp_path / "sorted")) == IMAGES
    run(model, photos, out=tmp_path / "b.csv", skip_bad=True)
    assert (tmp_path / "b.csv").read_bytes() == (tmp_path / "a.csv").read_bytes()
    shutil.rmtree(photos / "b")
    for file in (photos / "a").glob("???.png"):
        file.unlink()
    assert run(model, photos, out=tmp_path / "c.csv", skip_bad=True).classes == {}


def test_changes_of_the_model_and_of_images_are_told(model: Path, photos: Path, tmp_path: Path) -> None:
    own, out = tmp_path / "own.pg", tmp_path / "a.csv"
    own.write_bytes(model.read_bytes())
    bad = photos / "b" / "999.png"
    bad.write_bytes(b"no image")
    with pytest.raises(InputError, match="cannot be read"):
        run(own, photos, out=out)
    with Classifier.edit(own) as classifier:
        classifier.rename_class("owl", "snowy")
    with pytest.raises(InputError, match="cannot be continued: the model file has changed"):
        run(own, photos, out=out, skip_bad=True)
    own.write_bytes(model.read_bytes())
    bad.unlink()
    with pytest.raises(InputError, match="cannot be continued: images were added, removed or changed"):
        run(own, photos, out=out)
    assert json.loads((tmp_path / "a.csv.part.json").read_text())["answers"] == 20


def test_folders_in_one_another_are_refused(model: Path, photos: Path, tmp_path: Path) -> None:
    for folder in (photos, photos / "sorted", tmp_path):
        with pytest.raises(InputError, match="lie in one another: choose a folder elsewhere"):
            run(model, photos, sort_into=folder)
    (tmp_path / "link").symlink_to(photos)
    with pytest.raises(InputError, match="lie in one another"):
        run(model, photos, sort_into=tmp_path / "link" / "sorted")
    assert not (photos / "sorted").exists()
