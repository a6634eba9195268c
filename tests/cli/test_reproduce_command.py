"""The grid from the command, mostly with a stand-in for the trainer."""

import functools
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
import types
import warnings
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from paper.made_up import contents
from protograph.cli import app, jobs
from protograph.cli import reproduce as verb
from protograph.cli import train as train_verb
from protograph.cli.jobs import Ended
from protograph.data import DATASETS, Dataset, DatasetSource, open_dataset
from protograph.evaluation.metrics import MEASURES
from protograph.paper import runner
from protograph.paper.ledger import lock_ledger, read_ledger
from protograph.report import figures
from protograph.training import loop as training
from protograph.training.recipes import RECIPES, resolve_recipe
from protograph.variants import VARIANTS, find_variant

HERE = Path(__file__).parent
SMALL = ["--dataset=letters", "--variant=pn+", "--variant=dfslwof-att", "--variant=teen", "--variant=gcgpn-aux"]


def reproduce(*arguments: str | Path) -> Result:
    environment = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1", "PROTOGRAPH_DATA": None}
    words = ["reproduce", *map(str, arguments)]
    return CliRunner(env=environment).invoke(app, words, prog_name="protograph")


@pytest.fixture
def faked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, where `train` is the stand-in; its log."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "open_dataset", lambda name, *_: types.SimpleNamespace(name=name, fingerprint="images-1"))
    monkeypatch.setattr(jobs, "COMMAND", (sys.executable, "-S", str(HERE / "fake_train.py")))
    recipes = {
        f"{variant} {name}": asdict(resolve_recipe(find_variant(variant), "letters", name))
        for variant in VARIANTS
        if VARIANTS[variant].method is None  # a variable holds no more
        for name in RECIPES
    }
    monkeypatch.setenv("FAKE_RECIPES", json.dumps(recipes))
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def logged(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.slow
def test_the_missing_cells_are_run_and_recorded_and_done_ones_skipped(faked: Path) -> None:
    result = reproduce(*SMALL, "--shots=1")
    assert result.exit_code == 0, result.stderr
    assert len(contents(Path("results"))) == 4
    assert Path("results/letters/1-shot/gcgpn-aux/demo-0.json").exists()
    assert "letters 1-shot pn+ demo-0: epoch 1" in result.stderr
    assert "letters 1-shot pn+ demo-0: H-Mean" in result.stderr
    assert result.stdout.strip() == str(Path("RESULTS.md").resolve())
    assert len(logged(faked)) == 2 * 5  # and the first stage
    written = Path("RESULTS.md").read_bytes()
    Path("RESULTS.md").unlink()
    assert reproduce(*SMALL, "--shots=1").exit_code == 0
    assert len(logged(faked)) == 2 * 5
    assert Path("RESULTS.md").read_bytes() == written
    assert reproduce(*SMALL, "--seeds=2").exit_code == 0
    assert len(contents(Path("results"))) == 4 * 2 * 2
    assert not Path("results/.lock").exists()


@pytest.mark.slow
def test_other_relations_are_run_by_name_and_kept_apart(faked: Path) -> None:
    result = reproduce("--dataset=letters", "--table=relations")
    assert result.exit_code == 0, result.stderr
    own = Path("results/letters/1-shot/gcgpn-aux")
    assert sorted(str(path.relative_to(own)) for path in own.rglob("*.json")) == [
        "accent/demo-0.json",
        "base/demo-0.json",
        "demo-0.json",
    ]
    assert json.loads((own / "base" / "demo-0.json").read_text())["configuration"]["relations"] == ["base"]
    assert {task.cell.relations for task in read_ledger(Path("results"))} == {(), ("base",), ("accent",)}
    text = Path("RESULTS.md").read_text()
    assert "| letters | 1 | GcGPN-aux, base |" in text
    assert "letters 1-shot gcgpn-aux with base demo-0: H-Mean" in result.stderr
    assert "gcgpn-aux, base" in reproduce("--dataset=letters", "--table=relations", "--list").stdout
    assert len(logged(faked)) == 2 * 3


@pytest.mark.slow
def test_the_first_stage_is_trained_once_before_those_that_need_it(faked: Path) -> None:
    result = reproduce("--dataset=letters", "--variant=dfslwof-att", "--variant=teen", "--seeds=2", "--jobs=4")
    assert result.exit_code == 0, result.stderr
    events = logged(faked)
    for seed in (0, 1):
        first = str(Path("runs/letters/cosine").resolve() / f"demo-{seed}")
        ends = [event["time"] for event in events if event["out"] == first and event["event"] == "end"]
        assert len([event for event in events if event["out"] == first]) == 2
        later = [
            event["time"] for event in events
            if event["event"] == "begin" and event["out"].endswith(f"demo-{seed}") and event["out"] != first
        ]  # fmt: skip
        assert len(later) == 4
        assert min(later) > ends[0]


@pytest.mark.slow
def test_runs_take_the_device_that_was_there_at_the_beginning(faked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "find_device", lambda name: torch.device("cuda" if name == "auto" else name))
    monkeypatch.setenv("FAKE_FAILS", "--device=cuda")
    result = reproduce(*SMALL, "--shots=1")
    assert result.exit_code == 2
    assert "4 of 4 cells failed" in result.stderr
    monkeypatch.setenv("FAKE_FAILS", "--device=auto")
    assert reproduce(*SMALL, "--shots=1").exit_code == 0


@pytest.mark.slow
def test_cells_run_side_by_side_and_begin_in_order(faked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_TOGETHER", "2")  # none ends before two have begun
    variants = ["gcgpn", "gcgpn-aux"]
    assert reproduce("--dataset=letters", "--shots=1", *(f"--variant={name}" for name in variants), "--jobs=2").exit_code == 0
    assert [event["event"] for event in logged(faked)] == ["begin", "begin", "end", "end"]
    faked.unlink()
    monkeypatch.delenv("FAKE_TOGETHER")
    assert reproduce("--dataset=letters", "--shots=5", *(f"--variant={name}" for name in variants)).exit_code == 0
    assert [Path(event["out"]).parent.name for event in logged(faked)] == ["gcgpn", "gcgpn", "gcgpn-aux", "gcgpn-aux"]


@pytest.mark.slow
def test_one_failing_cell_does_not_stop_the_others(faked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAILS", "--variant=pn+")
    result = reproduce(*SMALL, "--shots=1")
    assert result.exit_code == 2
    assert len(contents(Path("results"))) == 3
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: 1 of 4 cells failed (letters 1-shot pn+ demo-0: made up to fail); the others are recorded")
    monkeypatch.delenv("FAKE_FAILS")
    assert reproduce(*SMALL, "--shots=1").exit_code == 0
    assert len(contents(Path("results"))) == 4


def test_where_the_first_stage_fails_those_behind_it_are_not_begun(faked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAILS", "--variant=cosine")
    result = reproduce(*SMALL, "--shots=1", "--jobs=2", "--json")
    assert result.exit_code == 2
    found = json.loads(result.stdout)
    assert found["done"] == 2
    assert found["failed"] == {
        "letters cosine demo-0": "made up to fail",
        **{
            f"letters 1-shot {variant} demo-0": "not started, since letters cosine demo-0 failed"
            for variant in ("dfslwof-att", "teen")
        },
    }


def test_a_second_grid_refuses(faked: Path) -> None:
    with lock_ledger(Path("results")):
        result = reproduce(*SMALL)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"in use by process {os.getpid()}" in result.stderr
        assert reproduce(*SMALL, "--list").exit_code == 0
    assert not faked.exists()


def test_the_list_says_what_is_done_and_what_is_missing(faked: Path) -> None:
    assert reproduce("--dataset=letters", "--shots=5", "--variant=pn+").exit_code == 0
    listed = json.loads(reproduce(*SMALL, "--list", "--json").stdout)
    assert listed["done"] == ["results/letters/5-shot/pn+/demo-0.json"]
    assert len(listed["missing"]) == 7
    shown = reproduce(*SMALL, "--list").stdout
    assert "1 of 8 are in results" in shown
    assert shown.count("missing") == 7


@pytest.mark.slow
def test_the_table_alone_comes_from_the_ledger(faked: Path) -> None:
    assert reproduce(*SMALL, "--shots=1").exit_code == 0
    before = Path("RESULTS.md").read_bytes()
    Path("RESULTS.md").write_bytes(before[:200] + b"touched by hand")
    assert reproduce("--table-only").exit_code == 0
    assert Path("RESULTS.md").read_bytes() == before


def test_a_file_of_the_user_s_own_is_not_taken_for_the_table(faked: Path) -> None:
    Path("RESULTS.md").write_text("# Results of my own")
    result = reproduce(*SMALL)
    assert result.exit_code == 2
    assert "RESULTS.md exists and was not written by `reproduce`: move it, or choose another --results" in result.stderr
    assert Path("RESULTS.md").read_text() == "# Results of my own"
    assert not faked.exists(), "found before anything runs"


def test_runs_may_lie_in_the_ledger_s_folder_and_are_no_ledger_by_themselves(faked: Path) -> None:
    for _ in range(2):
        assert reproduce("--dataset=letters", "--shots=1", "--variant=gcgpn", "--results=both", "--runs=both").exit_code == 0
    for ledger in ("both", "runs"):
        assert reproduce("--dataset=letters", "--shots=1", "--variant=gcgpn", f"--results={ledger}").exit_code == 0
    Path("runs/letters/1-shot/gcgpn/demo-0.json").unlink()
    result = reproduce("--table-only", "--results=runs")
    assert result.exit_code == 2
    assert "runs holds runs and is not a ledger" in result.stderr


def test_a_damaged_file_of_the_ledger_is_named_before_anything_runs(faked: Path) -> None:
    path = Path("results/letters/1-shot/pn+/demo-0.json")
    path.parent.mkdir(parents=True)
    path.write_text("{")
    result = reproduce(*SMALL)
    assert result.exit_code == 2
    assert f"{path} is damaged" in result.stderr
    assert not faked.exists()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--set=epochz=3"], ["'epochz'", "epochs"]),
        (["--set=epochs"], ["NAME=VALUE"]),
        (["--set=epochs=few"], ["whole number", "'few'"]),
        (["--variant=gcgpn-aux", "--set=batch_size=4"], ["none of the cells", "'batch_size'"]),
        (["--variant=gcgpn-axu"], ["'gcgpn-axu'", "gcgpn-aux"]),
        (["--recipe=papr"], ["'papr'", "paper"]),
        (["--table=CAB"], ["'CAB'", "CUB"]),
        (["--engine=rai"], ["'rai'", "ray"]),
        (["--device=toaster"], ["'toaster'"]),
        (["--seeds=0"], ["at least 1"]),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(faked: Path, arguments: list[str], named: list[str]) -> None:
    result = reproduce("--dataset=letters", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert all(words in result.stderr for words in named)
    assert not Path("results").exists()


def test_a_dataset_that_cannot_be_opened_is_refused_before_anything_runs(
    faked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "open_dataset", open_dataset)
    monkeypatch.delenv("PROTOGRAPH_DATA", raising=False)
    result = reproduce("--table=CUB", "--root", tmp_path / "nowhere")
    assert result.exit_code == 2
    assert "nowhere" in result.stderr
    result = reproduce("--table=CUB")
    assert "dataset 'cub' needs its files" in result.stderr
    assert not faked.exists()


def test_numbers_by_other_settings_are_not_mixed_into_a_ledger(faked: Path) -> None:
    assert reproduce("--dataset=letters", "--shots=1", "--variant=gcgpn").exit_code == 0
    result = reproduce("--dataset=letters", "--shots=1", "--variant=gcgpn", "--set=epochs=2")
    assert result.exit_code == 2
    assert "with epochs 10, not 2" in result.stderr
    result = reproduce("--dataset=letters", "--shots=1", "--variant=gcgpn-aux", "--set=epochs=2")
    assert result.exit_code == 2, "they would stand in one table"
    assert "has letters 1-shot gcgpn demo-0 with epochs 10, not 2" in result.stderr
    others = ["--set=epochs=2", "--results=short", "--runs=short-runs"]
    assert reproduce("--dataset=letters", "--shots=1", "--variant=gcgpn-aux", *others).exit_code == 0


def test_numbers_on_other_images_are_not_mixed_into_a_ledger(faked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS, "letters", replace(DATASETS["letters"], built_in=False))
    assert reproduce("--dataset=letters", "--shots=1", "--variant=gcgpn", "--root=here").exit_code == 0
    monkeypatch.setattr(runner, "open_dataset", lambda name, *_: types.SimpleNamespace(name=name, fingerprint="images-2"))
    for variant in ("gcgpn", "gcgpn-aux"):  # done, and missing
        result = reproduce("--dataset=letters", "--shots=1", f"--variant={variant}", "--root=there")
        assert result.exit_code == 2
        assert "on other images (fingerprint images-1, not images-2)" in result.stderr


def test_every_ledger_has_tables_of_its_own(faked: Path) -> None:
    assert reproduce("--dataset=letters", "--shots=1", "--variant=gcgpn").exit_code == 0
    before = Path("RESULTS.md").read_text()
    assert reproduce("--dataset=letters", "--shots=1", "--variant=gcgpn", "--results=again").exit_code == 0
    assert Path("RESULTS.md").read_text() == before
    assert "the ledger `again/`" in Path("AGAIN.md").read_text()
    for words in ("--results=resluts", "--dataset=letters", "--list", "--jobs=2", "--engine=ray", "--device=cpu"):
        result = reproduce("--table-only", words)
        assert result.exit_code == 2
        assert "no ledger at resluts" in result.stderr or "would be ignored with --table-only" in result.stderr
    assert Path("RESULTS.md").read_text() == before
    assert not Path("RESLUTS.md").exists()


def test_a_root_that_would_be_ignored_is_refused(faked: Path) -> None:
    result = reproduce("--dataset=letters", "--root=somewhere")
    assert result.exit_code == 2
    assert "dataset 'letters' is built in and reads no files: leave out --root" in result.stderr


def test_the_table_is_written_once_when_the_grid_ends(faked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    monkeypatch.setattr("protograph.paper.runner.write_summary", lambda results, ledger: written.append(len(ledger)))
    assert reproduce("--dataset=letters", "--shots=1", "--variant=gcgpn", "--variant=gcgpn-aux").exit_code == 0
    assert written == [2]


def test_numbers_of_another_network_are_not_mixed_into_a_ledger(faked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reproduce("--dataset=letters", "--shots=1", "--variant=gcgpn").exit_code == 0
    monkeypatch.setitem(DATASETS, "letters", replace(DATASETS["letters"], backbone="conv4-64"))
    result = reproduce("--dataset=letters", "--shots=1", "--variant=gcgpn")
    assert result.exit_code == 2
    assert "with backbone 'conv4-32', not 'conv4-64'" in result.stderr


def grid_in_a_process(arguments: list[str]) -> multiprocessing.process.BaseProcess:
    """A grid in a fork of this process, which spares it the imports."""

    def run() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in a shell's background
        os._exit(reproduce(*arguments).exit_code)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # forks and threads: these here are idle
        process = multiprocessing.get_context("fork").Process(target=run)
        process.start()
    return process


@pytest.mark.slow
def test_killing_the_grid_at_random_ends_with_the_same_ledger(faked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [*SMALL, "--jobs=2"]
    assert reproduce(*arguments, "--results=whole/results", "--runs=whole/runs").exit_code == 0
    whole = contents(Path("whole/results"))
    assert len(whole) == 8
    faked.write_text("")
    monkeypatch.setenv("FAKE_SECONDS", "0.2")
    drawn, kills = random.Random(0), 0
    while True:
        # by what was done, not by the clock: a quick machine's grid is killed as often as a slow one's, and none outruns it
        enough = faked.read_text().count("\n") + drawn.randint(0, 6)
        monkeypatch.setenv("FAKE_HOLD", str(enough + 2))
        process = grid_in_a_process(arguments)
        while process.exitcode is None and faked.read_text().count("\n") < enough:
            process.join(0.01)
        process.join(drawn.uniform(0, 0.2))
        if process.exitcode is None:
            os.kill(process.pid or 0, drawn.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))
            process.join()
            kills += 1
        elif process.exitcode == 0:
            break
        assert kills < 500, "it gets nowhere"
    assert kills > 2
    assert contents(Path("results")) == whole
    assert Path("RESULTS.md").read_bytes() == Path("whole/RESULTS.md").read_bytes()
    assert list(Path("results").rglob(".*")) == []


def test_a_killed_grid_takes_its_runs_along(faked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SECONDS", "30")
    process = grid_in_a_process([*SMALL, "--jobs=2"])
    while not faked.exists() or len(logged(faked)) < 2:
        assert process.is_alive()
        time.sleep(0.02)
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    pids = [event["pid"] for event in logged(faked)]
    while any(alive(pid) for pid in pids):  # or else until they end by themselves, and say so
        time.sleep(0.02)
    assert {event["event"] for event in logged(faked)} == {"begin"}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_real_command_ends_with_the_one_that_began_it(tmp_path: Path) -> None:
    """Not the stand-in: `protograph` itself watches."""
    with subprocess.Popen(
        [sys.executable, "-c", "import time; from protograph.cli.jobs import end_with_parent as e; e(); time.sleep(60)"],
        stdin=subprocess.PIPE,
        env={**os.environ, jobs.ENDS_WITH_STDIN: "1"},
    ) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(50) == 130


def test_without_ray_it_is_said_what_to_install(faked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = reproduce(*SMALL, "--engine=ray")
    assert result.exit_code == 2
    assert 'pip install "protograph[ray]"' in result.stderr


SHORT = {
    "epochs": 1, "steps": 2, "episodes": 1, "batch_size": 4, "validation_episodes": 2, "ways": 2, "test_queries": 1,
    "novel_queries": 1, "seen_queries": 2,
}  # fmt: skip
SETS = [f"--set={name}={value}" for name, value in SHORT.items()]


@pytest.mark.slow
def test_a_reduced_grid_on_the_letters_as_a_user_runs_it(
    letters: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = ["--dataset=letters", "--shots=1", "--variant=pn+", "--variant=gcgpn-aux"]
    sets = [word for word in SETS if "batch_size" not in word]  # of which neither has a use
    command = [sys.executable, "-m", "protograph", "reproduce", "--device=cpu", *cells, *sets]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ledger = read_ledger(tmp_path / "results")
    assert [str(task) for task in sorted(ledger)] == ["letters 1-shot gcgpn-aux demo-0", "letters 1-shot pn+ demo-0"]
    assert all(list(entry.measures) == list(MEASURES) for entry in ledger.values())
    assert "| letters | 1 | GcGPN-aux |" in (tmp_path / "RESULTS.md").read_text()
    monkeypatch.chdir(tmp_path)
    for words in (["figures", "--dataset=letters"], ["report", "results"]):
        done_here = CliRunner(env={"PROTOGRAPH_DATA": None}).invoke(app, words)
        assert done_here.exit_code == 0, done_here.stderr
    assert {path.name for path in Path("figures").glob("*.pdf")} == {
        "shots-letters.pdf", "operator-letters-base.pdf", "operator-letters-base-column.pdf", "operator-letters-accent.pdf",
        "operator-letters-accent-column.pdf",
    }  # fmt: skip
    page = Path("report.html").read_text()
    assert "GcGPN-aux" in page
    assert page.count("data:image/svg+xml") == 2  # the two operators of the letters
    run = Path("runs/letters/1-shot/gcgpn-aux/demo-0")
    shown = CliRunner().invoke(app, ["report", str(run), "--episodes=3", "--device=cpu", "--out=run.html", "--json"])
    assert json.loads(shown.stdout) == {"page": "run.html"}
    assert "gcgpn-aux on letters, 1-shot" in Path("run.html").read_text()


class Here:
    """An engine that trains in this process, and is interrupted when so many runs have begun."""

    slots: int | None = 1

    def __init__(self, *_: Any, most: int | None = None) -> None:
        self.begun, self.most = 0, most

    def submit(self, name: str, words: list[str]) -> "Future[Ended]":
        if self.begun == self.most:
            raise KeyboardInterrupt
        self.begun += 1
        result = CliRunner().invoke(app, words)
        future: Future[Ended] = Future()
        future.set_result(Ended(result.stdout, result.stderr if result.exit_code else None))
        return future

    def stop(self) -> None: ...


@pytest.mark.slow
def test_the_real_trainer_interrupted_behind_every_run_ends_with_the_same_ledger(
    toy: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = DatasetSource(lambda root, progress, skip_bad: toy, "conv4-32", "noisy patterns", built_in=True)
    monkeypatch.setitem(DATASETS, "toy", source)
    monkeypatch.setattr(figures, "draw_run", lambda *_: None)
    monkeypatch.setattr(training, "EvaluationSizes", functools.partial(training.EvaluationSizes, episodes=20))
    monkeypatch.setattr(train_verb, "run_training", trained := Counted(train_verb.run_training))
    words = ["--dataset=toy", "--shots=1", "--device=cpu", *SETS]
    words += ["--variant=pn+", "--variant=dfslwof-att", "--variant=teen", "--variant=gcgpn-aux-split"]
    monkeypatch.setattr(verb, "LocalProcesses", Here)
    whole = reproduce(*words, "--results=whole/results", "--runs=whole/runs")
    assert whole.exit_code == 0, whole.stderr
    assert trained.folders == ["demo-0"] * 5
    monkeypatch.setattr(verb, "LocalProcesses", functools.partial(Here, most=2))
    ends: list[int] = []
    while not ends or ends[-1] == 130:
        ends.append(reproduce(*words).exit_code)
        assert len(ends) < 9
    assert ends == [130, 130, 130, 0]  # two runs each time; a finished first stage that is needed is looked at again
    assert contents(Path("results")) == contents(Path("whole/results"))
    assert len(contents(Path("results"))) == 4


class Counted:
    """A function that remembers the folders it was called for."""

    def __init__(self, function: Any) -> None:
        self.function, self.folders = function, list[str]()

    def __call__(self, config: Any, dataset: Any, folder: Path, *more: Any) -> Any:
        self.folders.append(folder.name)
        return self.function(config, dataset, folder, *more)
