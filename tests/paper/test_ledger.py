import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from paper.made_up import epoch_line, make_ledger, make_run, numbers
from protograph._internal.errors import InputError
from protograph.evaluation.metrics import MEASURES
from protograph.paper.grid import Task
from protograph.paper.ledger import entry_path, lock_ledger, read_ledger, record_run, scores, upgrade_ledger
from protograph.paper.published import Cell
from protograph.paper.runner import GridRun
from protograph.paper.trials import recipe_changes
from protograph.training.recipes import STRONG, resolve_recipe
from protograph.variants import find_variant

ROOT = Path(__file__).parents[2]
CELL = Cell("cub", 5, "gcgpn-aux")
TASK = Task(CELL, "fast", 2)


def test_an_entry_has_the_place_and_the_words_of_the_contract(tmp_path: Path) -> None:
    record_run(tmp_path / "results", TASK, make_run(tmp_path / "run", TASK))
    path = tmp_path / "results" / "cub" / "5-shot" / "gcgpn-aux" / "fast-2.json"
    content = json.loads(path.read_text())
    assert [content[key] for key in ("dataset", "shots", "variant", "recipe", "seed")] == ["cub", 5, "gcgpn-aux", "fast", 2]
    assert content["measures"] == numbers(TASK)
    assert content["fingerprint"] == "images-1"
    assert content["configuration"]["recipe"]["test_queries"] == 10
    assert {"environment", "finished", "training_seconds", "epoch"} <= content.keys()
    (task, entry), *more = read_ledger(tmp_path / "results").items()
    assert (task, more) == (TASK, [])
    assert {name: vars(measure) for name, measure in entry.measures.items()} == numbers(TASK)


def test_what_was_learned_is_that_of_the_chosen_epoch(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", TASK)
    lines = [epoch_line(epoch, {"operators.0.temperature": float(epoch)}) for epoch in range(1, 6)]
    (folder / "epochs.jsonl").write_text("".join(lines))
    assert record_run(tmp_path / "results", TASK, folder).learned == {"operators.0.temperature": 3.0}


@pytest.mark.parametrize(("variant", "further"), [("dfslwof-att", False), ("teen", False), ("gcgpn-aux", True)])
def test_what_a_recipe_gives_to_start_from_is_shared_and_trained_further(tmp_path: Path, variant: str, further: bool) -> None:
    cell = Cell("cub", 1, variant)
    for seed, start in enumerate("ab"):
        task = Task(cell, "strong", seed)
        record_run(tmp_path / "results", task, make_run(tmp_path / str(seed), task, start=start))
    found = scores(read_ledger(tmp_path / "results"), "strong")[cell].values()
    assert {(score.draws, score.trained_further) for score in found} == {(("a", "b"), further)}


@pytest.mark.parametrize("dataset", ["mini-imagenet", "cub"])
@pytest.mark.parametrize("variant", ["gcgpn-aux", "pn+"])
def test_an_entry_from_before_images_were_changed_is_of_the_recipe_as_it_is_now(
    tmp_path: Path, dataset: str, variant: str
) -> None:
    task = Task(Cell(dataset, 1, variant), "fast", 0)
    content = json.loads(entry_path(ROOT / "results", task).read_text())
    for name in STRONG.image_changes:
        content["configuration"]["recipe"].pop(name, None)
    path = entry_path(tmp_path / "results", task)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content))
    config = read_ledger(tmp_path / "results")[task].config
    assert config.recipe == resolve_recipe(find_variant(variant), dataset, "fast")
    assert (config.recipe.image_changes, recipe_changes(config)) == ({}, "")
    assert GridRun([task], tmp_path / "results", tmp_path / "runs").missing(read_ledger(tmp_path / "results")) == []


OLD_NAMES = {
    "learning_rate": "rate", "learning_rate_drops": "drops", "batch_size": "batch", "query_scheme": "scheme",
    "warmup_steps": "warmup", "scalar_learning_rate_factor": "scalar_rate", "relation_temperature": "sharpness",
}  # fmt: skip


def as_first_written(path: Path) -> dict[str, Any]:
    """Give a file the names it had before files had a format number; its content."""
    content = json.loads(path.read_text())
    del content["format"], content["configuration"]["format"]
    recipe = content["configuration"]["recipe"]
    content["configuration"]["recipe"] = {OLD_NAMES.get(name, name): value for name, value in recipe.items()}
    path.write_text(json.dumps(content))
    return content


def values(content: Any) -> list[Any]:
    """All values that are no dictionaries, in order."""
    if isinstance(content, dict):
        return [value for inner in content.values() for value in values(inner)]
    return [content]


def test_a_file_without_a_format_is_read_by_its_old_names_and_rewritten_with_the_same_values(tmp_path: Path) -> None:
    entry = record_run(tmp_path, TASK, make_run(tmp_path / "run", TASK))
    path = entry_path(tmp_path, TASK)
    new = json.loads(path.read_text())
    old = as_first_written(path)
    assert old["configuration"]["recipe"]["rate"] == entry.config.recipe.learning_rate
    assert read_ledger(tmp_path) == {TASK: entry}
    assert json.loads(path.read_text()) == old, "reading changes no file"
    assert upgrade_ledger(tmp_path) == [path]
    assert json.loads(path.read_text()) == new
    assert values(json.loads(path.read_text())["configuration"]["recipe"]) == values(old["configuration"]["recipe"])
    written = path.read_bytes()
    assert upgrade_ledger(tmp_path) == []
    assert path.read_bytes() == written


def test_a_file_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    record_run(tmp_path, TASK, make_run(tmp_path / "run", TASK))
    path = entry_path(tmp_path, TASK)
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 3}))
    with pytest.raises(InputError, match=r"fast-2\.json has format 3, and this version reads up to 2: install a newer one"):
        read_ledger(tmp_path)


def test_the_repository_s_ledgers_have_today_s_names() -> None:
    paths = [*(ROOT / "results").glob("**/*-shot/**/*.json")]
    assert len(paths) == 221 + 31
    for path in paths:
        content = json.loads(path.read_text())
        assert (content["format"], content["configuration"]["format"]) == (2, 2)
        assert not content["configuration"]["recipe"].keys() & set(OLD_NAMES.values())


def test_a_measure_beside_the_six_does_not_enter_the_ledger(tmp_path: Path) -> None:
    further = {**numbers(TASK), "top_five": {"mean": 90.0, "ci95": 0.1}}
    folder = make_run(tmp_path / "run", TASK, further)
    measured = json.loads((folder / "measures.json").read_text())
    (folder / "measures.json").write_text(json.dumps({**measured, "last_epoch": {"epoch": 4, "measures": further}}))
    entry = record_run(tmp_path / "results", TASK, folder)
    content = json.loads(entry_path(tmp_path / "results", TASK).read_text())
    assert content["measures"] == content["last_epoch"]["measures"] == numbers(TASK)
    assert list(entry.measures) == list(entry.last) == list(MEASURES)


def test_what_nothing_reads_may_be_in_a_run_that_is_recorded(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", TASK)
    measured = json.loads((folder / "measures.json").read_text())
    (folder / "measures.json").write_text(json.dumps({**measured, "further": {"novel_novel": 1, "h_mean": 2}}))
    assert record_run(tmp_path, TASK, folder).measures == read_ledger(tmp_path)[TASK].measures


def test_recording_twice_leaves_the_same_file(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", TASK)
    record_run(tmp_path, TASK, folder)
    before = entry_path(tmp_path, TASK).read_bytes()
    record_run(tmp_path, TASK, folder)
    assert entry_path(tmp_path, TASK).read_bytes() == before


def test_a_run_of_something_else_or_without_an_end_is_not_recorded(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", Task(CELL, "fast", 1))
    with pytest.raises(InputError, match="holds cub 5-shot gcgpn-aux fast-1, not cub 5-shot gcgpn-aux fast-2"):
        record_run(tmp_path / "results", TASK, folder)
    (folder / "measures.json").unlink()
    with pytest.raises(InputError, match="not finished"):
        record_run(tmp_path / "results", TASK, folder)
    assert not (tmp_path / "results").exists()


def nothing(content: dict[str, Any]) -> None:
    content.clear()


def no_h_mean(content: dict[str, Any]) -> None:
    del content["measures"]["h_mean"]


def no_number(content: dict[str, Any]) -> None:
    content["measures"]["h_mean"]["mean"] = float("nan")


def no_epoch(content: dict[str, Any]) -> None:
    del content["epoch"]


def no_last_epoch(content: dict[str, Any]) -> None:
    content["last_epoch"] = {"measures": content["measures"], "epoch": "last"}


def learned_text(content: dict[str, Any]) -> None:
    content["learned"] = {"temperature": "warm"}


@pytest.mark.parametrize("damage", [nothing, no_h_mean, no_number, no_epoch, no_last_epoch, learned_text])
def test_a_damaged_file_is_named(tmp_path: Path, damage: Any) -> None:
    record_run(tmp_path, TASK, make_run(tmp_path / "run", TASK))
    path = entry_path(tmp_path, TASK)
    content = json.loads(path.read_text())
    damage(content)
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"fast-2\.json is damaged .*remove it"):
        read_ledger(tmp_path)


def test_a_file_cut_short_or_at_another_place_is_named(tmp_path: Path) -> None:
    record_run(tmp_path, TASK, make_run(tmp_path / "run", TASK))
    path = entry_path(tmp_path, TASK)
    moved = path.rename(path.with_name("fast-7.json"))
    with pytest.raises(InputError, match=r"fast-7\.json holds the numbers of cub 5-shot gcgpn-aux fast-2"):
        read_ledger(tmp_path)
    moved.write_bytes(moved.read_bytes()[:100])
    with pytest.raises(InputError, match=r"fast-7\.json is damaged"):
        read_ledger(tmp_path)


def test_scores_are_means_over_seeds(tmp_path: Path) -> None:
    results = make_ledger(
        tmp_path / "results", {(CELL, "fast"): {"h_mean": [40.0, 44.0, 45.0]}, (CELL, "paper"): {"h_mean": [50.0]}}
    )
    ledger = read_ledger(results)
    several, one = scores(ledger, "fast")[CELL], scores(ledger, "paper")[CELL]
    assert several["h_mean"].mean == 43.0
    assert several["h_mean"].spread == pytest.approx(((3**2 + 1 + 2**2) / 2) ** 0.5)
    assert (one["h_mean"].mean, one["h_mean"].spread) == (50.0, 0.5)
    assert list(one) == list(MEASURES)
    assert scores(ledger, "demo") == {}


def test_a_second_grid_is_refused_while_the_first_is_at_work(tmp_path: Path) -> None:
    with lock_ledger(tmp_path):
        with pytest.raises(InputError, match=f"in use by process {os.getpid()} on .* since .*--results"), lock_ledger(tmp_path):
            pass
        assert (tmp_path / ".lock").exists()
    assert list(tmp_path.iterdir()) == []
    with lock_ledger(tmp_path):
        pass


def test_of_many_that_find_a_dead_lock_one_takes_it_over(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("process 1 on far-away since then")
    together, answered, holding, most = threading.Barrier(8), threading.Semaphore(0), 0, 0

    def take() -> str:
        nonlocal holding, most
        together.wait()
        try:
            with lock_ledger(tmp_path):
                holding += 1
                most = max(most, holding)
                for _ in range(7):  # until all others were refused; one that is let in instead waits for ever no more
                    assert answered.acquire(timeout=60)
                holding -= 1
        except InputError as error:
            answered.release()
            return str(error)
        return "held"

    with ThreadPoolExecutor(8) as threads:
        ends = [future.result() for future in [threads.submit(take) for _ in range(8)]]
    assert (ends.count("held"), most) == (1, 1)
    assert all("in use by process" in end for end in ends if end != "held")
    assert list(tmp_path.iterdir()) == []


def test_the_ledger_names_relations_by_label_wherever_their_files_lie(tmp_path: Path) -> None:
    cell = Cell("cub", 1, "gcgpn-aux", ("words", "embeddings_own"))
    task = Task(cell, "fast", 0)
    folder = make_run(tmp_path / "run", task, relations=["/somewhere/words.npz", "embeddings:/elsewhere/own.csv"])
    record_run(tmp_path / "results", task, folder)
    path = tmp_path / "results" / "cub" / "1-shot" / "gcgpn-aux" / "words-and-embeddings_own" / "fast-0.json"
    content = path.read_text()
    assert "where/" not in content
    assert json.loads(content)["relations"] == json.loads(content)["configuration"]["relations"] == list(cell.relations)
    assert list(read_ledger(tmp_path / "results")) == [task]
    with pytest.raises(InputError, match="holds cub 1-shot gcgpn-aux with words and embeddings_own"):
        record_run(tmp_path / "results", Task(Cell("cub", 1, "gcgpn-aux", ("tree",)), "fast", 0), folder)
