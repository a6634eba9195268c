import json
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from protograph._internal.errors import InputError
from protograph.evaluation.metrics import PAPER_MEASURES
from protograph.training.run_config import RunConfig
from protograph.training.run_folder import Checkpoint, Run, lock_run

Make = Callable[..., RunConfig]


@pytest.fixture
def run(tmp_path: Path, toy_config: Make) -> Run:
    return Run.claim(tmp_path / "run", toy_config())


@pytest.fixture
def checkpoint() -> Checkpoint:
    tensors = {
        "last.weight": torch.randn(2, 3),
        "last.count": torch.tensor(7),
        "best.weight": torch.randn(2, 3).to(memory_format=torch.contiguous_format).T,
        "progress.loss_sum": torch.tensor(1.25, dtype=torch.float64),
    }
    validation = {name: {"mean": 50.0, "ci95": 1.0} for name in PAPER_MEASURES}
    history = [{"epoch": epoch, "loss": loss, "validation": validation} for epoch, loss in ((1, 0.1), (2, 0.05))]
    return Checkpoint(tensors, 12, 2, 33.25, 9.5, history)


def same(one: Checkpoint, other: Checkpoint) -> bool:
    values = [{name: value for name, value in vars(each).items() if name != "tensors"} for each in (one, other)]
    return (
        values[0] == values[1]
        and one.tensors.keys() == other.tensors.keys()
        and all(value.dtype == other.tensors[name].dtype for name, value in one.tensors.items())
        and all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())
    )


def test_a_claimed_folder_holds_configuration_and_environment(run: Run) -> None:
    assert {file.name for file in run.folder.iterdir()} == {"config.json", "environment.json"}
    assert Run.open(run.folder).config == run.config


def test_the_same_configuration_may_claim_its_folder_again(run: Run) -> None:
    before = (run.folder / "config.json").stat().st_mtime_ns
    assert Run.claim(run.folder, run.config).config == run.config
    assert (run.folder / "config.json").stat().st_mtime_ns == before


def test_another_configuration_is_refused_naming_the_difference(run: Run) -> None:
    other = replace(run.config, seed=1, recipe=replace(run.config.recipe, epochs=9))
    with pytest.raises(InputError) as refusal:
        Run.claim(run.folder, other)
    for words in (str(run.folder), "seed is 0 there, not 1", "recipe.epochs is 3 there, not 9", "--out"):
        assert words in str(refusal.value)
    assert Run.open(run.folder).config == run.config


def test_a_foreign_folder_is_refused_and_left_alone(tmp_path: Path, toy_config: Make) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"not a run folder.*--out"):
        Run.claim(tmp_path, toy_config())
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path, toy_config: Make) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(InputError, match="not a run folder"):
        Run.claim(tmp_path / "run", toy_config())


def test_an_empty_folder_may_be_claimed(tmp_path: Path, toy_config: Make) -> None:
    assert Run.claim(tmp_path, toy_config()).folder == tmp_path


@pytest.mark.parametrize("written", [0, 1])
def test_a_run_killed_while_it_claimed_its_folder_can_be_started_again(
    tmp_path: Path, toy_config: Make, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """Killed before file number `written` got its name; a kill cleans nothing up."""
    names: list[Path] = []

    def replace_or_die(source: Path, target: Path) -> None:
        if len(names) == written:
            raise KeyboardInterrupt
        names.append(Path(source).rename(target))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace_or_die)
        patch.setattr(Path, "unlink", lambda path, missing_ok=False: None)
        with pytest.raises(KeyboardInterrupt):
            Run.claim(tmp_path / "run", toy_config())
    assert Run.claim(tmp_path / "run", toy_config()).load() is None


def test_what_a_killed_run_left_unfinished_is_removed_by_the_next(run: Run) -> None:
    for name in ("checkpoint.safetensors", "epochs.jsonl", "split.json", "measures.json"):
        (run.folder / f".{name}.ab12cd34.part").write_bytes(b"half")
    Run.claim(run.folder, run.config)
    assert {file.name for file in run.folder.iterdir()} == {"config.json", "environment.json"}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"recipe": null}', b'{"recipe": {"epochz": 3}}', b"\xff"])
def test_a_damaged_configuration_is_refused(run: Run, content: bytes) -> None:
    (run.folder / "config.json").write_bytes(content)
    with pytest.raises(InputError):
        Run.open(run.folder)


def test_a_checkpoint_survives_the_disk(run: Run, checkpoint: Checkpoint) -> None:
    assert run.load() is None
    run.save(checkpoint)
    loaded = run.load()
    assert loaded is not None
    assert same(loaded, checkpoint)
    assert loaded.part("last.").keys() == {"weight", "count"}
    assert [json.loads(line) for line in (run.folder / "epochs.jsonl").read_text().splitlines()] == checkpoint.history


def test_weights_are_those_asked_for(run: Run, checkpoint: Checkpoint) -> None:
    with pytest.raises(InputError, match="no checkpoint"):
        run.weights("best")
    run.save(checkpoint)
    assert torch.equal(run.weights("best")["weight"], checkpoint.tensors["best.weight"])
    del checkpoint.tensors["best.weight"]
    run.save(checkpoint)
    with pytest.raises(InputError, match="no best weights"):
        run.weights("best")


def test_a_truncated_checkpoint_is_refused(run: Run, checkpoint: Checkpoint) -> None:
    run.save(checkpoint)
    path = run.folder / "checkpoint.safetensors"
    whole = path.read_bytes()
    for length in range(0, len(whole), 5):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"checkpoint\.safetensors is damaged"):
            run.load()


def test_no_flipped_byte_of_a_checkpoint_goes_unnoticed(run: Run, checkpoint: Checkpoint) -> None:
    """Refused, or without effect: spaces that pad the header may become other white space."""
    run.save(checkpoint)
    path = run.folder / "checkpoint.safetensors"
    whole = path.read_bytes()
    unnoticed = []
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            loaded = run.load()
        except InputError as error:
            assert "damaged" in str(error)  # noqa: PT017
        else:
            if loaded is None or not same(loaded, checkpoint):
                unnoticed.append(whole[place - 20 : place + 1])
    assert unnoticed == []


def test_a_damaged_result_is_refused(run: Run) -> None:
    assert run.measures is None
    for content in ('{"measures": ', "{}", "[]"):
        (run.folder / "measures.json").write_text(content)
        with pytest.raises(InputError, match=r"measures\.json is damaged"):
            _ = run.measures


def test_a_damaged_history_is_refused(run: Run) -> None:
    (run.folder / "epochs.jsonl").write_text('{"epoch": 1')
    with pytest.raises(InputError, match=r"epochs\.jsonl is damaged .*: remove measures\.json beside it"):
        _ = run.history


MEASURE = {"mean": 50.0, "ci95": 1.0}
MEASURES = dict.fromkeys(PAPER_MEASURES, MEASURE)
INCOMPLETE = {"measures": dict.fromkeys(("novel_novel", "h_mean"), MEASURE)}
FINAL = {"epoch": 3, "measures": MEASURES}
EPOCH = {"epoch": 1, "loss": 0.5, "validation": MEASURES}


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("measures", {**FINAL, "epoch": "last"}),
        ("measures", {**FINAL, "measures": {"h_mean": 50.0}}),
        ("measures", {**FINAL, "measures": {**MEASURES, "h_mean": {"mean": "half", "ci95": 1.0}}}),
        ("measures", {**FINAL, "measures": {**MEASURES, "h_mean": {"mean": float("nan"), "ci95": 1.0}}}),
        ("measures", {**FINAL, **INCOMPLETE}),
        ("measures", {**FINAL, "measures": {}}),
        ("measures", {**FINAL, "last_epoch": 3}),
        ("measures", {**FINAL, "last_epoch": {"epoch": 3, **INCOMPLETE}}),
        ("measures", {**FINAL, "balanced": {"bias": 1.0, **INCOMPLETE}}),
        ("measures", {**FINAL, "other_statistics": {"running": INCOMPLETE}}),
        ("measures", {**FINAL, "balanced": {"measures": FINAL["measures"]}}),
        ("epochs", {**EPOCH, "loss": "low"}),
        ("epochs", {**EPOCH, "validation": {"h_mean": MEASURE}}),
        ("epochs", {**EPOCH, "epoch": -1}),
        ("epochs", {**EPOCH, "learned": {"temperature": [1.0]}}),
        ("epochs", [EPOCH]),
        ("environment", {"protograph": 3, "torch": "2"}),
        ("environment", []),
    ],
)
def test_values_of_other_types_are_refused(run: Run, file: str, values: object) -> None:
    """Commands that compare or report runs would end in an exception of Python."""
    name, part = {"epochs": ("epochs.jsonl", "history")}.get(file, (f"{file}.json", file))
    (run.folder / name).write_text(json.dumps(values))
    with pytest.raises(InputError, match=f"{name} is damaged"):
        getattr(run, part)


def test_values_of_the_right_types_are_read(run: Run) -> None:
    alone = {"measures": {"novel_novel": MEASURE}}
    further = {"last_epoch": FINAL, "balanced": {"bias": -1.0, **alone}, "other_statistics": {"running": alone}, "further": [1]}
    (run.folder / "measures.json").write_text(json.dumps({**FINAL, **further}))
    (run.folder / "epochs.jsonl").write_text(json.dumps({**EPOCH, "loss": float("nan"), "rate": 0.1}) + "\n")
    assert (run.measures or {})["measures"] == FINAL["measures"]
    assert run.history[0]["learning_rate"] == 0.1
    assert run.environment["gpu"] is None or run.environment["gpu"]


@pytest.mark.parametrize("name", ["config.json", "measures.json", "epochs.jsonl", "environment.json", "checkpoint.safetensors"])
def test_a_pipe_and_endless_brackets_end_no_command(run: Run, name: str) -> None:
    def read() -> object:
        known = Run.open(run.folder)
        return known.measures, known.history, known.environment, known.load()

    path = run.folder / name
    path.unlink(missing_ok=True)
    path.write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"is damaged|cannot be read"):
        read()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match=f"{name} is a pipe or a device"):
        read()


def test_weights_that_are_not_finite_are_refused(run: Run, checkpoint: Checkpoint) -> None:
    checkpoint.tensors["best.weight"] = torch.full((2, 3), torch.nan)
    run.save(checkpoint)
    with pytest.raises(InputError, match=r"the weights .weight. .* hold NaN or infinity"):
        run.weights("best")


def test_relations_that_are_no_texts_are_refused(run: Run) -> None:
    path = run.folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "relations": [["base"]]}))
    with pytest.raises(InputError, match="'relations' must be a list of texts"):
        Run.open(run.folder)


def test_of_different_trainings_that_start_together_one_has_the_folder(tmp_path: Path, toy_config: Make) -> None:
    """The others are refused by the name of the first, and it finds nothing of theirs."""
    together, answered, folder = threading.Barrier(8), threading.Semaphore(0), tmp_path / "run"

    def train(seed: int) -> str:
        together.wait()
        try:
            with lock_run(folder):
                run = Run.claim(folder, replace(toy_config(), seed=seed))
                for _ in range(7):  # until all others were refused
                    assert answered.acquire(timeout=60)
                assert Run.open(folder).config == run.config
        except InputError as error:
            answered.release()
            return str(error)
        return "trained"

    with ThreadPoolExecutor(8) as threads:
        ends = [future.result() for future in [threads.submit(train, seed) for seed in range(8)]]
    assert ends.count("trained") == 1
    refusal = f"{folder} is in use by (process {os.getpid()} on .*|another process): wait for it, or choose another folder"
    assert all(re.fullmatch(refusal, end) for end in ends if end != "trained")
    assert not (folder / ".lock").exists()
