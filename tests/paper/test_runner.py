"""The grid as command lines."""

from dataclasses import replace
from pathlib import Path

import pytest

from paper.made_up import make_run
from protograph._internal.errors import InputError
from protograph.paper.grid import Selection, Task, plan_tasks
from protograph.paper.ledger import read_ledger, record_run
from protograph.paper.published import Cell
from protograph.paper.runner import GridRun


def test_every_recipe_has_a_network_of_its_own_beside_which_no_other_is_mixed(tmp_path: Path) -> None:
    results, task = tmp_path / "results", Task(Cell("cub", 1, "gcgpn-aux"), "strong", 0)
    grid = GridRun([task, replace(task, seed=1)], results, tmp_path / "runs")
    record_run(results, task, make_run(tmp_path / "run", task))
    ledger = read_ledger(results)
    assert ledger[task].config.backbone == "conv4-128-mirror"
    assert grid.missing(ledger) == [replace(task, seed=1)]
    record_run(results, task, make_run(tmp_path / "other", task, backbone="conv4-64-128"))
    with pytest.raises(InputError, match="with backbone 'conv4-64-128', not 'conv4-128-mirror'"):
        grid.missing(read_ledger(results))


def test_each_run_gets_the_options_it_has_a_use_for(tmp_path: Path) -> None:
    tasks = plan_tasks(Selection(("cub",), (5,), ("dfslwof-att", "gcgpn")), "fast", 1)
    changes = {"batch_size": "8", "seen_queries": "9", "epochs": "2"}
    grid = GridRun(tasks, tmp_path / "results", tmp_path / "runs", changes, Path("images"), "cpu")
    lines, after = grid.commands(tasks)
    assert list(lines) == ["cub cosine fast-0", "cub 5-shot dfslwof-att fast-0", "cub 5-shot gcgpn fast-0"]
    assert after == {"cub 5-shot dfslwof-att fast-0": "cub cosine fast-0"}
    first, second, third = ({word for word in words if "--set" in word} for words in lines.values())
    assert first == {"--set=batch_size=8", "--set=epochs=2"}
    assert second == {"--set=batch_size=8", "--set=seen_queries=9", "--set=epochs=2"}
    assert third == {"--set=seen_queries=9", "--set=epochs=2"}
    start = tmp_path / "runs" / "cub" / "cosine" / "fast-0"
    assert f"--out={start}" in lines["cub cosine fast-0"]
    assert f"--start={start}" in lines["cub 5-shot dfslwof-att fast-0"]
    assert f"--root={Path('images').resolve()}" in lines["cub 5-shot gcgpn fast-0"]
    assert "--shots=5" in lines["cub 5-shot gcgpn fast-0"]


def test_what_a_recipe_pretrains_is_trained_once_for_all_that_start_from_it(tmp_path: Path) -> None:
    tasks = plan_tasks(Selection(("cub",), (1, 5), ("dfslwof-att", "gcgpn", "pn+")), "fast", 1)
    grid = GridRun(tasks, tmp_path / "results", tmp_path / "runs", {"pretrain": "cosine"})
    lines, after = grid.commands(tasks)
    assert [name for name in lines if "cosine" in name] == ["cub cosine fast-0"]
    behind = {f"cub {k}-shot {variant} fast-0" for k in (1, 5) for variant in ("dfslwof-att", "gcgpn")}
    assert after == dict.fromkeys(behind, "cub cosine fast-0")
    start = f"--start={tmp_path / 'runs' / 'cub' / 'cosine' / 'fast-0'}"
    assert {name for name, words in lines.items() if start in words} == behind
    assert {name for name, words in lines.items() if "--set=pretrain=cosine" in words} == behind


def test_the_first_task_with_folds_trains_their_starts_and_the_others_wait_for_it(tmp_path: Path) -> None:
    tasks = [Task(Cell("cub", 1, name), "best", 0) for name in ("gcgpn-mapped", "castle", "gcgpn-aux")]
    lines, after = GridRun(tasks, tmp_path / "results", tmp_path / "runs").commands(tasks)
    first, mapped, castle, aux = lines
    assert first == "cub linear best-0"
    assert after == {mapped: first, castle: first, aux: mapped}
