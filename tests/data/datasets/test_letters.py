import os
import subprocess
import sys
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protograph.data import Dataset
from protograph.data.datasets import letters as drawing
from protograph.data.datasets.letters import FACES, open_letters
from protograph.episodes import draw, seeded
from protograph.training.recipes import PAPER
from protograph.training.setup import training_spec

POOLS = ("train", "seen_validation", "novel_validation", "seen_test", "novel_test")


def test_there_are_enough_classes_to_show_something(letters: Dataset) -> None:
    assert letters.seen >= 190
    assert len(letters.novel_validation) >= 40
    assert len(letters.novel_test) >= 60


def test_class_ids_are_seen_then_novel_validation_then_novel_test(letters: Dataset) -> None:
    seen = list(range(letters.seen))
    assert (
        letters.train.classes.tolist() == letters.seen_validation.classes.tolist() == letters.seen_test.classes.tolist() == seen
    )
    novel = [*letters.novel_validation.classes.tolist(), *letters.novel_test.classes.tolist()]
    assert seen + novel == list(range(len(letters.classes)))


def test_no_image_and_no_novel_class_is_in_two_pools(letters: Dataset) -> None:
    images = torch.cat([getattr(letters, name).all_images() for name in POOLS])
    assert sorted(images.tolist()) == list(range(len(letters.store)))
    assert len(set(letters.classes)) == len(letters.classes)
    assert not {*letters.novel_validation.classes.tolist()} & {*letters.novel_test.classes.tolist()}


def test_no_held_out_image_is_a_copy_of_a_training_image(letters: Dataset) -> None:
    pixels = letters.store.pixels.numpy()
    drawn = {pixels[image].tobytes() for image in letters.train.all_images().tolist()}
    held_out = torch.cat([getattr(letters, name).all_images() for name in POOLS[1:]]).tolist()
    assert not any(pixels[image].tobytes() in drawn for image in held_out)


@pytest.mark.parametrize(("scheme", "seen_queries"), [("total", 15), ("per-class", 1)])
def test_training_episodes_reach_nothing_but_training_images(letters: Dataset, scheme: Any, seen_queries: int) -> None:
    spec = training_spec(letters, replace(PAPER, query_scheme=scheme, seen_queries=seen_queries), shots=5)
    allowed = set(letters.train.all_images().tolist())
    for step in range(5):
        episodes = draw(spec, 40, seeded(0, "train", step))
        assert set(episodes.images().tolist()) <= allowed
        assert int(episodes.classes.max()) < letters.seen


def test_letters_that_look_alike_are_one_class(letters: Dataset) -> None:
    latin, greek, cyrillic = "A", "Α", "А"
    assert [unicodedata.name(letter).split()[0] for letter in (latin, greek, cyrillic)] == ["LATIN", "GREEK", "CYRILLIC"]
    assert latin in letters.classes
    assert greek not in letters.classes
    assert cyrillic not in letters.classes


def test_different_letters_are_different_classes(letters: Dataset) -> None:
    assert set("eéêEo") <= set(letters.classes)


def test_the_relations_answer_for_every_class(letters: Dataset) -> None:
    assert letters.relations
    for relation in letters.relations.values():
        similarities = relation.similarities(letters.classes)
        assert similarities.shape == (len(letters.classes),) * 2
        assert similarities.isfinite().all()


def test_every_face_belongs_to_one_part() -> None:
    faces = [face for part in FACES.values() for face in part]
    assert len(set(faces)) == len(faces) == 16


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handful of letters, drawn in a moment by the same code."""
    monkeypatch.setattr(drawing, "_candidates", lambda: list("abcdefghAÁÂBCDEFGΑ"))
    monkeypatch.setattr(drawing, "_split", lambda alike, seed: (list(alike)[:8], list(alike)[8:12], list(alike)[12:]))


def equal(one: Dataset, other: Dataset) -> bool:
    pools = all(torch.equal(getattr(one, name).images, getattr(other, name).images) for name in POOLS)
    return one.classes == other.classes and pools and torch.equal(one.store.pixels, other.store.pixels)


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_the_same_seed_draws_the_same_images(tmp_path: Path) -> None:
    one = open_letters(tmp_path / "one")
    assert equal(one, open_letters(tmp_path / "two"))
    other = open_letters(tmp_path / "one", seed=1)
    assert other.fingerprint != one.fingerprint
    assert not torch.equal(other.store.pixels, one.store.pixels)


@pytest.mark.slow
def test_all_letters_drawn_again_are_the_same(letters: Dataset, tmp_path: Path) -> None:
    again = open_letters(tmp_path)
    assert again.fingerprint == letters.fingerprint
    assert equal(letters, again)


@pytest.mark.usefixtures("few")
def test_validation_and_test_images_are_set_in_faces_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without bending and noise every image is a glyph: it must be one of its own part's faces."""
    monkeypatch.setattr(drawing, "_bend", lambda glyphs, random: glyphs)
    monkeypatch.setattr(drawing, "_roughen", lambda images, random: images)
    plain = open_letters(tmp_path)
    fonts = {
        face: drawing.ImageFont.truetype(
            str(drawing._face_path(face)), round(drawing.CANVAS * 0.74), layout_engine=drawing.ImageFont.Layout.BASIC
        )
        for part in FACES.values()
        for face in part
    }
    for name in POOLS:
        part = name.removeprefix("seen_").removeprefix("novel_")
        pool = getattr(plain, name)
        for class_id, images in zip(pool.classes.tolist(), pool.images, strict=True):
            glyphs = {face: drawing._set_glyph(plain.classes[class_id], fonts[face]) for face in FACES[part]}
            found = {
                face
                for image in images.tolist()
                for face, glyph in glyphs.items()
                if np.array_equal(plain.store.pixels[image, 0].numpy(), glyph)
            }
            assert found == set(FACES[part])
            assert all(
                any(np.array_equal(plain.store.pixels[image, 0].numpy(), glyph) for glyph in glyphs.values())
                for image in images.tolist()
            )


@pytest.mark.usefixtures("few")
def test_a_second_opening_reads_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = open_letters(tmp_path)
    monkeypatch.setattr(drawing, "_draw", lambda *_: pytest.fail("drawn again"))
    assert equal(one, open_letters(tmp_path))


@pytest.mark.usefixtures("few")
def test_a_half_built_folder_is_never_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(drawing, "write_json", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            open_letters(tmp_path)
    assert list(tmp_path.iterdir()) == [], "what was drawn before the interruption is swept away"
    assert len(open_letters(tmp_path).store) > 0


@pytest.mark.usefixtures("few")
def test_what_a_killed_build_left_behind_is_never_used(tmp_path: Path) -> None:
    whole = open_letters(tmp_path / "elsewhere")
    left = tmp_path / f".letters-{whole.fingerprint}.dead"
    left.mkdir()
    (left / "pixels.npy").write_bytes(b"half an image")
    assert equal(whole, open_letters(tmp_path))


@pytest.mark.slow
def test_a_disk_that_is_full_says_so(tmp_path: Path) -> None:
    """NumPy's own writing says how many bytes it wrote, and not why no more."""
    script = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))\n"
        "from protograph.cli import app; app()"
    )
    command = [sys.executable, "-c", script, "datasets", "check", "letters"]
    environment = {**os.environ, "PROTOGRAPH_CACHE": str(tmp_path), "PYTHONPATH": str(Path(drawing.__file__).parents[3])}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith("error: cannot read or save: File too large")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("letters")], "nothing half done is left"
