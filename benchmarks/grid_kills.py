"""Kill the workers of a grid on a real Ray cluster at random, and compare its ledger with that of an undisturbed grid.

    python benchmarks/grid_kills.py --kills 30

The cluster has two nodes in this machine. The runs are real and tiny: letters, first and second stages, several seeds. A kill
is SIGKILL, to the process of a run or to the worker of Ray above it. A killed run begins again from its last checkpoint. The
undisturbed grid is trained by the engine of this machine. Times aside, both ledgers have to be the same, to the last digit.

The table is kept in benchmarks/GRID.md.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from paper.made_up import contents  # noqa: E402
from protograph.training.run_folder import Run  # noqa: E402
from report import Section, write  # noqa: E402

TITLE = "Killed workers"
HEAD = "# A grid on Ray\n\nWhat `python benchmarks/grid_kills.py` found.\n"
VARIANTS = ("pn+", "dfslwof-att", "gcgpn-aux")
SHORT = {
    "epochs": 6, "steps": 10, "episodes": 2, "batch_size": 32, "novel_queries": 2, "seen_queries": 10,
    "validation_episodes": 10, "test_queries": 5,
}  # fmt: skip
LONGEST_PAUSE = 3.0  # seconds between two kills, at most
NODE = {"num_cpus": 1, "object_store_memory": 100_000_000}


@dataclass
class Killer:
    """Kills runs below a folder, and notes what it killed."""

    folder: Path
    drawn: random.Random
    killed: Counter[str] = field(default_factory=Counter)
    answer: dict[str, Any] = field(default_factory=dict)

    def kill(self) -> None:
        """Kill a run that is in progress or its worker, if there is one."""
        runs = self.running()
        if not runs:
            return
        process, out = self.drawn.choice(runs)
        kind = self.drawn.choice(("run", "worker"))
        try:
            worker = parent_of(process)
            if not Path(f"/proc/{worker}/cmdline").read_bytes().startswith(b"ray::"):  # it was just killed
                return
            continues = (out / "checkpoint.safetensors").exists() and not (out / "measures.json").exists()
            os.kill(process if kind == "run" else worker, signal.SIGKILL)
        except (OSError, ValueError):  # it has just ended
            return
        self.killed[kind] += 1
        self.killed["with a checkpoint"] += continues

    def running(self) -> list[tuple[int, Path]]:
        """The processes that train below the folder, and where."""
        begin = f"--out={self.folder}/"
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            outs = [word for word in words if word.startswith(begin)]
            if "train" in words and outs:
                found.append((int(path.parent.name), Path(outs[0].removeprefix("--out="))))
        return found


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def command(folder: Path, seeds: int, *words: str) -> list[str]:
    """The command that trains the grid into a folder."""
    cells = [f"--variant={name}" for name in VARIANTS]
    sets = [f"--set={name}={value}" for name, value in SHORT.items()]
    fixed = ["--dataset=letters", "--shots=1", f"--seeds={seeds}", "--device=cpu", "--threads=1", "--json"]
    folders = [f"--results={folder / 'results'}", f"--runs={folder / 'runs'}"]
    return [sys.executable, "-m", "protograph", "reproduce", *cells, *fixed, *sets, *folders, *words]


def killed_grid(folder: Path, seeds: int, kills: int, seed: int) -> Killer:
    """Train the grid on two nodes, and kill its runs until there were that many kills or it has ended."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    killer = Killer(folder / "runs", random.Random(seed))
    try:
        cluster.add_node(**NODE)
        cluster.wait_for_nodes()
        words = command(folder, seeds, "--engine=ray", f"--retries={kills}")
        variables = {**os.environ, "RAY_ADDRESS": cluster.address}
        with subprocess.Popen(words, env=variables, stdout=subprocess.PIPE) as grid:
            while grid.poll() is None:
                time.sleep(killer.drawn.uniform(0, LONGEST_PAUSE))
                if killer.killed["run"] + killer.killed["worker"] < kills:
                    killer.kill()
            assert grid.stdout is not None
            killer.answer = json.load(grid.stdout)  # nothing else may stand there
        assert grid.returncode == 0, "the grid failed"
    finally:
        cluster.shutdown()
    return killer


def measure(seeds: int, kills: int, seed: int, scratch: Path) -> Section:
    """Train the grid twice and compare."""
    killer = killed_grid(scratch / "killed", seeds, kills, seed)
    subprocess.run(command(scratch / "whole", seeds), stdout=subprocess.DEVNULL, check=True)
    ours, theirs = (contents(scratch / name / "results") for name in ("killed", "whole"))
    assert killer.answer["done"] == len(theirs), killer.answer
    epochs = {len(Run.open(path.parent).history) for path in (scratch / "killed" / "runs").rglob("config.json")}
    assert epochs == {SHORT["epochs"]}, "a run has too few epochs"
    row: dict[str, object] = {"cells": len(theirs), "kills of runs": killer.killed["run"]}
    row |= {"kills of workers": killer.killed["worker"], "after a checkpoint": killer.killed["with a checkpoint"]}
    row["ledgers"] = "the same, to the last digit" if ours == theirs else "DIFFERENT"
    about = "Runs of letters on two nodes of Ray in one machine, killed by SIGKILL at random, beside an undisturbed grid."
    note = "after a checkpoint: kills of runs that had saved one and were not finished, so that they continued from it."
    return Section(TITLE, about, [row], [note])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=2, help="of each variant")
    parser.add_argument("--seed", type=int, default=0, help="of the kills")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("GRID.md"))
    given = parser.parse_args()
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_memory_monitor_refresh_ms": "0", "RAY_worker_niceness": "0"}
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    with TemporaryDirectory() as scratch:
        section = measure(given.seeds, given.kills, given.seed, Path(scratch).resolve())
    print(section.markdown())
    write(section, given.out, [TITLE], HEAD)


if __name__ == "__main__":
    main()
