"""The grid and the features on a real Ray cluster of two nodes, most runs with a stand-in for the trainer."""

import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cli.test_classifier_verbs import answer, check_refused, protograph, write_birds
from cli.test_reproduce_command import HERE, SETS, SMALL, faked, logged, reproduce
from paper.made_up import contents
from protograph._internal.errors import InputError
from protograph.cli import cluster, jobs, ray_embedding
from protograph.cli.cluster import check_machines, connect

os.environ["RAY_DEDUP_LOGS_SKIP_REGEX"] = "."  # as `connect` does, which Ray reads when it is imported
ray_module = pytest.importorskip("ray", reason="needs Ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings
__all__ = ["faked"]
ATTEMPT = cluster._attempt
PATHS = [str(HERE.parents[1] / "src"), str(HERE.parent)]
VARIABLES = {
    "PYTHONPATH": os.pathsep.join([*PATHS, os.environ.get("PYTHONPATH", "")]),  # workers inherit it
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # workers are nice by default, and get nothing on a busy machine
    "RAY_memory_monitor_refresh_ms": "0",  # which would end runs where other programs take the memory
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a cluster of two nodes on this machine."""
    from ray.cluster_utils import Cluster

    before = {name: os.environ.get(name) for name in VARIABLES}
    os.environ.update(VARIABLES)
    node = {"num_cpus": 2, "object_store_memory": 100_000_000, "include_dashboard": False}
    started = Cluster(initialize_head=True, head_node_args=node)
    try:
        started.add_node(num_cpus=2, object_store_memory=100_000_000)
        started.wait_for_nodes()
        yield started.address
    finally:
        ray_module.shutdown()
        started.shutdown()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.fixture(autouse=True)
def two_nodes(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RAY_ADDRESS", address)
    yield
    ray_module.shutdown()


def stand_in(command: tuple[str, ...], variables: Mapping[str, str]) -> Callable[..., Any]:
    """What a worker does instead of training."""
    attempt = ATTEMPT

    def attempt_with_stand_in(*arguments: Any) -> Any:
        jobs.COMMAND = command
        os.environ.update(variables)
        return attempt(*arguments)

    return attempt_with_stand_in


@pytest.fixture
def on_workers(faked: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in on the workers of the cluster, too; its log."""
    variables = {name: value for name, value in os.environ.items() if name.startswith("FAKE_")}
    monkeypatch.setattr(cluster, "_attempt", stand_in(jobs.COMMAND, {**variables, "FAKE_SECONDS": "0.5"}))
    return faked


def test_the_same_grid_on_ray_leaves_the_same_ledger_and_answers_as_json(on_workers: Path) -> None:
    cells = ["--dataset=letters", "--variant=dfslwof-att", "--shots=1"]
    assert reproduce(*cells, "--results=whole/results", "--runs=whole/runs").exit_code == 0
    result = reproduce(*cells, "--engine=ray", "--device=cpu", "--json")
    assert (result.exit_code, result.stderr, json.loads(result.stdout)["done"]) == (0, "", 1)
    assert contents(Path("results")) == contents(Path("whole/results"))
    assert [*Path("runs").glob(f"{cluster.PROBE}*")] == []


def test_workers_killed_at_random_end_with_the_same_ledger(on_workers: Path) -> None:
    assert reproduce(*SMALL, "--shots=1", "--results=whole/results", "--runs=whole/runs").exit_code == 0
    on_workers.write_text("")
    drawn, kills, ended = random.Random(0), [], threading.Event()

    def kill() -> None:
        while not ended.wait(drawn.uniform(0.1, 0.6)) and len(kills) < 4:
            begun = [event["pid"] for event in logged(on_workers) if event["event"] == "begin"]
            for pid in begun[-1:]:
                try:
                    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                    os.kill(drawn.choice([pid, parent]), signal.SIGKILL)
                    kills.append(pid)
                except OSError:  # it has ended
                    continue

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        result = reproduce(*SMALL, "--shots=1", "--engine=ray", "--device=cpu", "--retries=20")
    finally:
        ended.set()
        killer.join()
    assert result.exit_code == 0, result.stderr
    assert len(kills) > 2
    assert contents(Path("results")) == contents(Path("whole/results"))
    assert "letters 1-shot pn+ demo-0: epoch 1" in result.stderr
    assert "\x1b" not in result.stderr + result.stdout
    assert result.stdout.strip() == str(Path("RESULTS.md").resolve())


def test_a_run_that_dies_again_and_again_is_named_with_the_number_of_attempts(
    on_workers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = (sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    monkeypatch.setattr(cluster, "_attempt", stand_in(dying, {}))
    result = reproduce("--dataset=letters", "--shots=1", "--variant=pn+", "--engine=ray", "--device=cpu", "--retries=1")
    assert result.exit_code == 2
    assert "pn+ demo-0: it was killed by signal 9, 2 times" in result.stderr


def test_what_the_cluster_lacks_is_said_before_anything_runs(on_workers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [*SMALL, "--engine=ray"]
    result = reproduce(*cells, "--device=cpu", "--threads=3")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "no machine of the cluster has 3 CPUs for a run: give fewer --threads" in result.stderr
    result = reproduce(*cells, "--device=cuda")
    assert "no machine of the cluster has 1 CPUs and a GPU" in result.stderr
    ray = connect()
    with pytest.raises(InputError, match=r"machine .* does not see .*nowhere: put it on storage that all machines share"):
        check_machines(ray, Path("runs"), [Path("nowhere").resolve()])
    monkeypatch.setattr(cluster, "__version__", "0.0.1")
    with pytest.raises(InputError, match=r"machine .* has Protograph .*, not 0\.0\.1"):
        check_machines(ray, Path("runs"), [])
    assert not on_workers.exists()


def test_an_address_where_nothing_answers_is_refused(faked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "nowhere")
    result = reproduce(*SMALL, "--engine=ray")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "the cluster does not answer" in result.stderr


def test_numbers_are_those_of_the_local_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the stand-in: real runs, the second stage after the first."""
    monkeypatch.chdir(tmp_path)
    cells = ["--dataset=letters", "--shots=1", "--variant=dfslwof-att", "--device=cpu", "--threads=1", *SETS]
    result = reproduce(*cells, "--engine=ray", "--results=cluster/results", "--runs=cluster/runs")
    assert result.exit_code == 0, result.stderr
    assert reproduce(*cells).exit_code == 0
    assert contents(Path("cluster/results")).keys() == {"letters/1-shot/dfslwof-att/demo-0.json"}
    ours, theirs = (each["measures"] for folder in ("results", "cluster/results") for each in contents(Path(folder)).values())
    assert ours == theirs


def dying_once() -> type[ray_embedding.ShardMaker]:
    """A worker that gets SIGKILL at shard 3, unless that has happened; made here, so that Ray sends its code."""
    maker = ray_embedding.ShardMaker

    class DyingOnce(maker):  # type: ignore[valid-type, misc]
        def __call__(self, batch: dict[str, Any]) -> Any:
            died = self._embedding.folder.with_name("died")
            if batch["shard"].tolist() == [3] and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return maker.__call__(self, batch)

    return DyingOnce


def test_ray_data_on_two_nodes_gives_the_same_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    birds = write_birds(tmp_path / "birds", ("crow", "owl"), 10)
    monkeypatch.chdir(tmp_path)
    (birds / "crow" / "6.png").write_bytes(b"nothing")
    command = ("embed", birds.name, "--backbone=conv4", "--images-per-shard=3")
    local = answer(*command, "--out=local", "--skip-bad")
    monkeypatch.setattr(ray_embedding, "ShardMaker", dying_once())
    dead = protograph(*command, "--out=cluster", "--engine=ray", "--skip-bad", "--retries=0", "--json")
    check_refused(dead, "a worker of the cluster failed (The actor died")
    Path("died").unlink()
    capfd.readouterr()
    said = answer(*command, "--out=cluster", "--engine=ray", "--skip-bad")
    assert Path("died").exists()
    assert capfd.readouterr().err == ""  # what Ray itself would write there
    assert {**said, "folder": "local", "continued": 0} == local
    assert (said["images"], said["shards"], [*said["unreadable"]]) == (20, 7, ["crow/6.png"])
    ours, theirs = ({path.name: path.read_bytes() for path in Path(name).iterdir()} for name in ("local", "cluster"))
    assert ours == theirs
    refused = protograph(*command, "--out=cluster", "--engine=ray", "--json")
    check_refused(refused, "crow/6.png cannot be read", "--skip-bad leaves")
