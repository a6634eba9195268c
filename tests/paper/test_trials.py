"""What runs bring on the validation classes, compared and written down."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from paper.made_up import make_run
from protograph._internal.errors import InputError
from protograph._internal.files import write_json
from protograph.cli import app
from protograph.evaluation.metrics import MEASURES
from protograph.paper.grid import Task
from protograph.paper.published import Cell
from protograph.paper.trials import Trial, read_trials, trial_of, write_trials
from protograph.training.recipes import FAST
from protograph.training.run_folder import Run

TASK = Task(Cell("cub", 1, "gcgpn-aux"), "fast", 0)


def compare(*arguments: str | Path) -> Result:
    environment = {"COLUMNS": "250", "TERM": "dumb", "NO_COLOR": "1"}
    return CliRunner(env=environment).invoke(app, ["compare", *map(str, arguments)], prog_name="protograph")


def epochs(folder: Path, *h_means: float) -> None:
    """Let a run have ended so many epochs, with these validation measures."""
    lines = []
    for epoch, h_mean in enumerate(h_means, 1):
        validation = {name: {"mean": h_mean + 10 * place, "ci95": 0.5} for place, name in enumerate(reversed(MEASURES))}
        lines.append(
            json.dumps({"epoch": epoch, "learning_rate": 0.1, "loss": 1.0, "validation": validation, "learned": {}}) + "\n"
        )
    (folder / "epochs.jsonl").write_text("".join(lines))


def changed(folder: Path, h_mean: float, backbone: str | None = None, **settings: Any) -> Path:
    """A run of the task by other settings."""
    make_run(folder, TASK)
    config = json.loads((folder / "config.json").read_text())
    config["recipe"] |= settings
    write_json(folder / "config.json", {**config, "backbone": backbone or config["backbone"]})
    epochs(folder, 1.0, h_mean)
    return folder


def test_a_trial_says_what_it_changes_of_the_recipe_as_the_dataset_has_it(tmp_path: Path) -> None:
    assert FAST.learning_rate != 0.8  # CUB's own, so no change
    tried, measures = trial_of(Run.open(changed(tmp_path / "usual", 41.5)))
    assert tried == Trial("cub", 1, "gcgpn-aux", "fast", "", "", 0, 2)
    assert {name: measure.mean for name, measure in measures.items()} == {
        "h_mean": 41.5, "novel_joint": 51.5, "seen_joint": 61.5, "joint_joint": 71.5, "novel_novel": 81.5, "seen_seen": 91.5
    }  # fmt: skip
    tried, _ = trial_of(Run.open(changed(tmp_path / "other", 40.0, "conv4-128", learning_rate=0.4, dropout=0.5)))
    assert tried.changes == "backbone=conv4-128, learning_rate=0.4, dropout=0.5"
    strong = Task(TASK.cell, "strong", 0)
    for backbone, said in (("conv4-128-mirror", ""), ("conv4-64-128", "backbone=conv4-64-128")):
        epochs(make_run(tmp_path / backbone, strong, backbone=backbone), 1.0)
        assert trial_of(Run.open(tmp_path / backbone))[0].changes == said


def test_trials_that_differ_in_what_they_started_from_are_told_apart(tmp_path: Path) -> None:
    path, runs = tmp_path / "trials.csv", [changed(tmp_path / start, 41.5) for start in ("1234567890", "abcdefabcd")]
    for run in runs:
        config = json.loads((run / "config.json").read_text())
        write_json(run / "config.json", {**config, "start": run.name})
    assert compare(*runs, "--out", path).exit_code == 0
    assert [tried.changes for tried in read_trials(path)] == ["start=12345678", "start=abcdefab"]


def test_trials_on_other_data_or_relations_of_the_user_s_own_are_told_apart(tmp_path: Path) -> None:
    task = Task(Cell("folder", 1, "gcgpn-aux"), "demo", 0)
    tries = []
    for place, (data, relations) in enumerate((("portraits-1", []), ("drawings-2", []), ("portraits-1", ["0123456789", ""]))):
        epochs(make_run(tmp_path / str(place), task, fingerprint=data, relation_digests=relations), 1.0)
        tries.append(trial_of(Run.open(tmp_path / str(place))))
    assert [tried.changes for tried, _ in tries] == ["data=portrait", "data=drawings", "data=portrait, relation=01234567"]
    write_trials(tmp_path / "trials.csv", tries)
    assert len(read_trials(tmp_path / "trials.csv")) == 3


def test_runs_are_compared_by_validation_alone(tmp_path: Path) -> None:
    usual, other = changed(tmp_path / "usual", 41.5), changed(tmp_path / "other", 43.25, dropout=0.5)
    result = compare(usual, other)
    assert result.exit_code == 0, result.stderr
    assert "Validation classes, last finished epoch: cub 1-shot gcgpn-aux, fast" in result.stdout
    rows = [line for line in result.stdout.splitlines() if str(tmp_path) in line]
    assert [("41.50 ± 0.50" in row, "43.25 ± 0.50" in row, "dropout=0.5" in row) for row in rows] == [
        (True, False, False),
        (False, True, True),
    ]
    test = json.loads((usual / "measures.json").read_text())["measures"]["h_mean"]["mean"]
    assert f"{test:.2f}" not in result.stdout
    answer = json.loads(compare(usual, other, "--json").stdout)
    assert [each["validation"]["h_mean"]["mean"] for each in answer] == [41.5, 43.25]


def test_what_differs_between_runs_is_said_of_each(tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", Task(Cell("cub", 5, "gcgpn-aux", ("words",)), "paper", 0))
    epochs(other, 30.0)
    result = compare(changed(tmp_path / "usual", 41.5), other)
    assert "cub 1-shot gcgpn-aux, fast" in result.stdout
    assert "cub 5-shot gcgpn-aux with words, paper" in result.stdout


def test_runs_are_written_down_beside_others_and_again_in_their_own_place(tmp_path: Path) -> None:
    path, run = tmp_path / "trials.csv", changed(tmp_path / "run", 41.5, dropout=0.5)
    assert compare(changed(tmp_path / "usual", 40.0), "--out", path).exit_code == 0
    assert compare(run, "--out", path).exit_code == 0
    assert [round(measures["h_mean"], 2) for measures in read_trials(path).values()] == [40.0, 41.5]
    epochs(run, 1.0, 41.5, 44.0)  # it went on
    assert compare(run, "--out", path).exit_code == 0
    written = read_trials(path)
    assert {(tried.changes, tried.epoch): own["h_mean"] for tried, own in written.items()} == {
        ("", 2): 40,
        ("dropout=0.5", 3): 44,
    }
    write_trials(path, [])
    assert read_trials(path) == written


def test_a_file_may_know_only_some_measures(tmp_path: Path) -> None:
    path = tmp_path / "trials.csv"
    head = "dataset,shots,variant,recipe,relations,changes,seed,epoch," + ",".join(MEASURES)
    path.write_text(f'{head}\ncub,1,gcgpn-aux,fast,attributes,"learning_rate=0.2, warmup_steps=0",0,12,,,46.5,,,45.25\n')
    tried = Trial("cub", 1, "gcgpn-aux", "fast", "attributes", "learning_rate=0.2, warmup_steps=0", 0, 12)
    assert read_trials(path) == {tried: {"joint_joint": 46.5, "h_mean": 45.25}}


def test_old_names_of_settings_are_read_and_rewritten_as_today_s(tmp_path: Path) -> None:
    path = tmp_path / "trials.csv"
    head = "dataset,shots,variant,recipe,relations,changes,seed,epoch," + ",".join(MEASURES)
    old = "steps=250, batch=512, drops=((20, 0.006), (40, 0.001)), rate=0.2, warmup=0, scheme=per-class, start=ab"
    today = (
        "steps=250, batch_size=512, learning_rate_drops=((20, 0.006), (40, 0.001)), learning_rate=0.2, warmup_steps=0, "
        "query_scheme=per-class, start=ab"
    )
    path.write_text(f'{head}\ncub,1,gcgpn-aux,fast,attributes,"{old}",0,12,,,46.5,,,45.25\n')
    (trial,) = read_trials(path)
    assert trial.changes == today
    write_trials(path, [])
    assert path.read_text() == f'{head}\ncub,1,gcgpn-aux,fast,attributes,"{today}",0,12,,,46.5,,,45.25\n'
    assert list(read_trials(path)) == [trial]


def test_a_damaged_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "trials.csv"
    write_trials(path, [trial_of(Run.open(changed(tmp_path / "run", 41.5)))])
    path.write_text(path.read_text() + "cub,one,gcgpn\n")
    with pytest.raises(InputError, match=r"trials\.csv is damaged in line 3"):
        read_trials(path)
    path.write_text("nothing\nof this\n")
    with pytest.raises(InputError, match="line 2"):
        read_trials(path)


def test_what_cannot_be_compared_is_named(tmp_path: Path) -> None:
    fresh = make_run(tmp_path / "fresh", TASK)
    for arguments, said in (
        ([fresh], "has no finished epoch yet"),
        ([tmp_path / "nowhere"], "is not a run folder"),
        ([fresh, "--out", tmp_path / "trials.txt"], "ends in .csv"),
    ):
        result = compare(*arguments)
        assert result.exit_code == 2
        assert said in result.stderr
    assert not (tmp_path / "trials.txt").exists()


def test_a_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "trials.csv").write_bytes(b"dataset,\xff\xfe\n")
    with pytest.raises(InputError, match=r"trials.csv .* is not UTF-8: byte .*: save it as UTF-8"):
        read_trials(tmp_path / "trials.csv")
