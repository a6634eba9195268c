"""The verb predict with a table of answers and a sorted folder, and with files that no image should be."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cli.test_classifier_verbs import answer, check_refused, protograph, write_birds
from encoders.images import tiny_encoder
from protograph import Classifier

KINDS = ("crow", "duck", "finch")


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_birds(tmp_path_factory.mktemp("birds") / "birds", KINDS, 6)


@pytest.fixture(scope="module")
def model(birds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fitted") / "birds.pg"
    files = sorted(birds.glob("*/*.png"))
    Classifier(tiny_encoder()).fit(files, [file.parent.name for file in files]).save(path)
    return path


def in_process(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "protograph", *map(str, arguments)]
    return subprocess.run(
        command,
        env={**os.environ, "COLUMNS": "200", **environment},
        capture_output=True,
        encoding="utf-8",
        check=False,
        errors="surrogateescape",
    )


def test_answers_are_written_and_counted(birds: Path, model: Path, tmp_path: Path) -> None:
    out, folder = tmp_path / "answers.csv", tmp_path / "sorted"
    said = answer("predict", model, birds, "--out", out, "--sort-into", folder)
    assert said == {
        "file": str(out),
        "images": 18,
        "continued": 0,
        "unreadable": 0,
        "classes": dict.fromkeys(KINDS, 6),
        "sorted_into": str(folder),
    }
    assert len([*folder.glob("*/*.png")]) == 18
    with out.open(newline="", encoding="utf-8") as file:
        table = [*csv.DictReader(file)]
    shown = answer("predict", model, birds)
    assert [row["file"] for row in table] == [row["file"] for row in shown]
    assert [float(row["probability_1"]) for row in table] == pytest.approx(
        [row["nearest"][0]["probability"] for row in shown], abs=1e-5
    )
    check_refused(protograph("predict", model, birds, "--out", out), "answers.csv exists: choose another --out, or remove it")
    other = tmp_path / "other"
    line = protograph("predict", model, birds, "--sort-into", other).stdout
    assert line == f"wrote {other / 'answers.csv'}: 18 images, with copies in {other}; crow: 6, duck: 6, finch: 6\n"


def test_options_of_a_table_are_checked_before_images_are_read(birds: Path, model: Path, tmp_path: Path) -> None:
    check_refused(protograph("predict", model, birds, "--out", tmp_path / "a.txt"), "give a name that ends in .csv or .jsonl")
    check_refused(protograph("predict", model, birds, "--sort-into", birds), "lie in one another")
    np.savez(tmp_path / "some.npz", vectors=np.eye(4, dtype=np.float32), labels=["a", "a", "b", "b"])
    answer("fit", tmp_path / "some.npz", "--out", tmp_path / "own.pg")
    check_refused(
        protograph("predict", tmp_path / "own.pg", tmp_path / "some.npz", "--sort-into", tmp_path / "x"), "cannot be sorted"
    )
    said = answer("predict", tmp_path / "own.pg", tmp_path / "some.npz", "--out", tmp_path / "a.jsonl")
    assert said["images"] == 4
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [row["file"] for row in rows] == [f"{tmp_path / 'some.npz'}[{row}]" for row in range(4)]


@pytest.mark.slow
def test_a_killed_command_is_continued_by_the_same_command(birds: Path, model: Path, tmp_path: Path) -> None:
    photos, out, folder = tmp_path / "photos", tmp_path / "killed.csv", tmp_path / "sorted"
    for number in range(100):  # more images than are answered at once
        shutil.copytree(birds, photos / str(number))
    command = [
        sys.executable,
        "-m",
        "protograph",
        "predict",
        str(model),
        str(photos),
        "--out",
        str(out),
        f"--sort-into={folder}",
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        while not out.with_name("killed.csv.part").exists() and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    assert not out.exists()
    assert answer("predict", model, photos, "--out", out, f"--sort-into={folder}")["images"] == 1800
    answer("predict", model, photos, "--out", tmp_path / "whole.csv")
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["killed.csv", "photos", "sorted", "whole.csv"]


def test_what_is_no_plain_file_is_refused_by_name(birds: Path, model: Path, tmp_path: Path) -> None:
    """None of these may wait for a pipe that nobody writes to."""
    for name in ("pipe.png", "pipe.pg", "pipe.npz", "pipe.csv"):
        os.mkfifo(tmp_path / name)
    named = "is a pipe or a device, not a"
    check_refused(protograph("predict", tmp_path / "pipe.pg", birds), "pipe.pg", named)
    check_refused(protograph("classes", "/dev/zero"), "/dev/zero", named)
    check_refused(protograph("remove-class", tmp_path / "pipe.pg", "crow"), "pipe.pg", named)
    check_refused(protograph("predict", model, tmp_path / "pipe.png"), "pipe.png cannot be read (it is a pipe or a device")
    check_refused(protograph("fit", tmp_path / "pipe.npz", "--out", tmp_path / "a.pg"), "pipe.npz", named)
    check_refused(protograph("fit", tmp_path / "pipe.csv", "--out", tmp_path / "a.pg"), "pipe.csv", named)
    check_refused(protograph("fit", birds, "--out", tmp_path / "a.pg", "--relations", tmp_path / "pipe.csv"), "pipe.csv", named)
    said = answer("predict", model, tmp_path / "pipe.png", birds / "crow" / "1.png", "--out", tmp_path / "a.csv", "--skip-bad")
    assert (said["images"], said["unreadable"]) == (2, 1)


def test_names_that_the_system_refuses_end_in_one_line(birds: Path, model: Path, tmp_path: Path) -> None:
    long = "x" * 5000
    check_refused(protograph("predict", model, long), "File name too long")
    check_refused(protograph("predict", long, birds), "File name too long")
    for option in (f"--out={tmp_path}/{long}.csv", f"--sort-into={tmp_path}/{long}"):
        result = protograph("predict", model, birds, option)
        assert (result.exit_code, "error: cannot read or save: File name too long" in result.stderr) == (2, True)
    check_refused(protograph("fit", long, "--out", tmp_path / "a.pg"), f"no folder at {long}")
    check_refused(protograph("fit", birds, "--out", f"{tmp_path}/{long}.pg"), "File name too long")
    check_refused(protograph("evaluate", model, f"{long}.csv"), "File name too long")


@pytest.mark.slow
def test_names_that_the_terminal_cannot_show_end_no_command(birds: Path, model: Path, tmp_path: Path) -> None:
    odd = tmp_path / "photos" / os.fsdecode(b"K\xc3\xa4fer caf\xe9.png")  # UTF-8, and then not
    odd.parent.mkdir()
    shutil.copy(birds / "crow" / "1.png", odd)
    for encoding in ("ascii", "utf-8"):
        shown = in_process("predict", model, odd, PYTHONIOENCODING=encoding)
        assert shown.returncode == 0, shown.stderr
        assert "caf\\udce9.png" in shown.stdout
        said = in_process("predict", model, odd, "--json", PYTHONIOENCODING=encoding)
        assert json.loads(said.stdout)[0]["file"] == str(odd)
        failed = in_process("predict", model, f"{odd}ä", PYTHONIOENCODING=encoding)
        assert (failed.returncode, failed.stderr.splitlines()[-1][:7]) == (2, "error: ")
        for suffix in ("csv", "jsonl"):
            out = tmp_path / f"{encoding} ä.{suffix}"
            said = in_process(
                "predict", model, odd.parent, "--out", out, "--sort-into", out.with_suffix(""), PYTHONIOENCODING=encoding
            )
            assert (said.returncode, out.is_file()) == (0, True), said.stderr
            shutil.rmtree(out.with_suffix(""))
    assert json.loads((tmp_path / "ascii ä.jsonl").read_text())["file"] == str(odd)


def test_fit_and_evaluate_know_parts_and_tables(birds: Path, tmp_path: Path) -> None:
    for part, numbers in (("train", range(4)), ("test", (4, 5))):
        for name in KINDS:
            (tmp_path / "own" / part / name).mkdir(parents=True)
            for number in numbers:
                shutil.copy(birds / name / f"{number}.png", tmp_path / "own" / part / name)
    (tmp_path / "own" / "test" / "heron").mkdir()
    shutil.copy(birds / "crow" / "0.png", tmp_path / "own" / "test" / "heron")
    model = tmp_path / "own.pg"
    fitted = ["fit", tmp_path / "own", "--out", model, "--backbone=conv4", "--keep-features"]
    said = answer(*fitted)
    assert (said["images"], said["test"]) == (12, {"images": 6, "accuracy": 1.0})
    assert said["notes"] == ["the test images of heron were not measured: train has none"]
    assert "6 test images: 100.0 % right, the mean over classes\n" in protograph(*fitted).stdout
    measured = answer("evaluate", model, tmp_path / "own")
    assert (measured["images"], measured["joint"]) == (6, 1.0)
    assert measured["notes"] == [f"{model} does not know heron: only 'unknown' is no wrong answer"]
    (note,) = answer("evaluate", model, tmp_path / "own" / "train")["notes"]
    assert note.startswith(f"12 of these 12 images are examples that {model} was given")
    rows = [f"birds/{name}/{number}.png;{name}" for name in KINDS for number in range(6)]
    table = tmp_path / "own.csv"
    table.write_text("\n".join(["path;label", *rows]))
    (tmp_path / "birds").symlink_to(birds)
    assert answer("fit", table, "--out", model, "--backbone=conv4")["images"] == 18
    assert answer("evaluate", model, table)["notes"] == []
    table.write_text("\n".join(["path;label", *rows, "gone.png;crow"]))
    check_refused(protograph("fit", table, "--out", model), "line 20 of", "there is no image gone.png", "--skip-bad")
    shown = protograph("fit", table, "--out", model, "--backbone=conv4", "--skip-bad")
    assert "left out 1 of 19 images that cannot be read" in shown.stderr


def test_a_note_tells_of_added_examples_too(birds: Path, model: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.pg"
    own.write_bytes(model.read_bytes())
    heron = write_birds(tmp_path / "new", ["heron"], 3)
    answer("add-class", own, "heron", heron / "heron")
    (note,) = answer("evaluate", own, heron)["notes"]
    assert note.startswith("3 of these 3 images are examples")
    assert answer("evaluate", own, birds)["notes"] == [], "the file does not keep these"


def test_an_explanation_without_relations_has_no_column_for_them(birds: Path, model: Path) -> None:
    shown = protograph("explain", model, birds / "crow" / "1.png").stdout
    assert "its own" in shown
    assert "from related classes" not in shown


def test_an_index_is_asked_and_its_recall_is_said(birds: Path, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("usearch")
    plain, indexed = (protograph("predict", model, birds, *more) for more in ((), ("--index",)))
    assert "index: the class that comparing with all finds, for 100.0 % of 18 images" in indexed.stderr
    assert [line.split()[:2] for line in indexed.stdout.splitlines()] == [
        line.split()[:2] for line in plain.stdout.splitlines()
    ]
    out = tmp_path / "answers.csv"
    said = protograph("predict", model, birds, "--index", "--out", out)
    assert "for 100.0 % of 18 images" in said.stderr
    assert len(out.read_text(encoding="utf-8").splitlines()) == 19
