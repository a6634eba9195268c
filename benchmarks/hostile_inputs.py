"""Read hostile inputs of all kinds, as many as asked for, and say what came of them: `make attack N=1000000`.

The inputs are those of tests/attack: an input is made by its kind and a seed, and each kind counts its seeds from 0. The state
is kept in build/attack, so that a run that was ended goes on: the counts of each kind, from which its next seed follows, and
each failure with its seed. The inputs are read by processes of their own, since one might kill them; another goes on behind
that input. benchmarks/ATTACK.md is the report.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

from attack_report import read_state, write_section, write_state

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]
READER = [sys.executable, __file__, "--read"]  # the command that reads inputs; a folder of its own is added
OUTCOMES = ("answered", "refused", "failed")
PORTION = 20_000  # inputs that a process reads
WORKING_SECONDS, WAITING_SECONDS = 120, 3600  # of processor time, or in all, without an input that ends: it hangs
MOST_KEPT = 200  # failures that are written down

Input = tuple[str, int]  # a kind and a seed


def run(count: int, jobs: int, kinds: Iterable[str]) -> int:
    """Read inputs until there were `count`, by several processes at once, and return the number of failures that remain."""
    state = read_state("inputs", {"kinds": {}, "failures": []})
    for kind in kinds:
        state["kinds"].setdefault(kind, dict.fromkeys((*OUTCOMES, "calls"), 0))
    read_again(state)
    while (done := sum(totals(state).values())) < count:
        inputs = next_inputs(totals(state), min(count - done, jobs * PORTION))
        with ThreadPoolExecutor(jobs) as threads:
            for answers in threads.map(read_inputs, [inputs[job::jobs] for job in range(jobs)]):
                enter(answers, state)
        write_state("inputs", state)
        print(f"{done + len(inputs):,} of {count:,} inputs, {len(state['failures'])} failures", flush=True)
    write_section("Hostile inputs", report_lines(state))
    return sum("today" not in failure for failure in state["failures"])


def totals(state: dict[str, Any]) -> Counter[str]:
    """Return how many inputs of each kind were read, which is also the next seed of the kind."""
    return Counter({kind: sum(counts[outcome] for outcome in OUTCOMES) for kind, counts in state["kinds"].items()})


def next_inputs(seeds: Counter[str], count: int) -> list[Input]:
    """Return the next inputs, each of a kind of which there were fewest."""
    inputs = []
    for _ in range(count):
        kind = min(seeds, key=lambda name: seeds[name])
        inputs.append((kind, seeds[kind]))
        seeds[kind] += 1
    return inputs


def enter(answers: list[dict[str, Any]], state: dict[str, Any]) -> None:
    """Count answers about inputs in a state."""
    for answer in answers:
        counts = state["kinds"][answer["kind"]]
        counts[answer["outcome"]] += 1
        counts["calls"] = max(counts["calls"], answer.get("calls", 0))
        if answer["outcome"] == "failed" and len(state["failures"]) < MOST_KEPT:
            state["failures"].append({key: answer[key] for key in ("kind", "seed", "error")})


def read_again(state: dict[str, Any]) -> None:
    """Read the inputs that failed in earlier runs once more, and note what comes of them today if they fail no longer."""
    failures = [failure for failure in state["failures"] if "today" not in failure]
    answers = read_inputs([(failure["kind"], failure["seed"]) for failure in failures])
    for failure, answer in zip(failures, answers, strict=True):
        if answer["outcome"] != "failed":
            failure["today"] = answer["outcome"]


def read_inputs(inputs: list[Input]) -> list[dict[str, Any]]:
    """Return what processes say of inputs, one after the other: kind, seed, outcome and, of a failure, the error."""
    answers: list[dict[str, Any]] = []
    while remaining := inputs[len(answers) :]:
        with tempfile.TemporaryDirectory() as folder:
            more, status = read_portion(remaining, folder)
        answers += more
        if len(more) < len(remaining):  # the next one ended the process
            kind, seed = remaining[len(more)]
            answers.append({"kind": kind, "seed": seed, "outcome": "failed", "error": f"the process ended with {status}"})
    return answers


def read_portion(inputs: list[Input], folder: str) -> tuple[list[dict[str, Any]], int]:
    """Return what a process says of the inputs until it ends, and its exit status."""
    alive, ended = Event(), Event()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*READER, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        threading.Thread(target=kill_hung, args=(process, alive, ended), daemon=True).start()
        json.dump(inputs, process.stdin)
        process.stdin.close()
        answers = []
        for line in process.stdout:
            alive.set()
            answers.append(json.loads(line))
        ended.set()
    return answers, process.returncode


def kill_hung(process: subprocess.Popen[str], alive: Event, ended: Event) -> None:
    """Kill a process that ends no input for a while."""
    begun = time.monotonic(), processor_seconds(process.pid)
    while not ended.wait(1):
        now = time.monotonic(), processor_seconds(process.pid)
        if alive.is_set():
            alive.clear()
            begun = now
        elif now[0] - begun[0] > WAITING_SECONDS or now[1] - begun[1] > WORKING_SECONDS:
            process.kill()


def processor_seconds(process: int) -> float:
    """Return the processor time of a process, 0 where Linux does not say it."""
    try:
        numbers = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


def answer_inputs(folder: Path) -> None:
    """Read the inputs that standard input lists, and write a line of JSON about each to standard output."""
    inputs = json.load(sys.stdin)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what reading an input prints is no answer
    warnings.simplefilter("ignore")
    import torch

    from attack.hostile import Attack

    torch.set_num_threads(1)
    attack = Attack(folder / "attack")
    for kind, seed in inputs:
        answer: dict[str, Any] = {"kind": kind, "seed": seed}
        try:
            answered, watch = attack.read(kind, seed, counted=False)
            answer |= {"outcome": "answered" if answered else "refused", "calls": watch.calls}
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{type(error).__name__}: {error} ({Path(where.filename).name}, line {where.lineno})"
            answer |= {"outcome": "failed", "error": said[:400]}
        print(json.dumps(answer), file=answers, flush=True)


def report_lines(state: dict[str, Any]) -> list[str]:
    """Return the report as lines of Markdown."""
    total = sum(totals(state).values())
    lines = [
        f"`make attack N={total}` read {total:,} inputs on Python {platform.python_version()}. Each is right "
        "but for some changes, which keep its structure: JSON values, tensors, headers, members, opcodes, cells; checksums are "
        "computed anew. An input is answered rightly or refused by one line. Everything else is a failure: another exception, "
        "a connection, a process, a name of a pickle, a file outside its folder, 3,000,000 calls of functions, 600 MB. Calls "
        "are counted of an input that takes more than 0.05 s, in which nobody makes as many: it is read again.",
        "",
        "| kind | inputs | answered | refused | failures | most calls |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for kind, read in sorted(totals(state).items()):
        counts = state["kinds"][kind]
        answered, refused, failed, calls = (f"{counts[key]:,}" for key in (*OUTCOMES, "calls"))
        lines.append(f"| {kind} | {read:,} | {answered} | {refused} | {failed} | {calls} |")
    if state["failures"]:
        lines += ["", "Failures, by the kind and seed of the input, and what comes of it where the cause was mended since:", ""]
        lines += [
            f"- {failure['kind']}, {failure['seed']}: `{' '.join(failure['error'].replace('`', '').split())}`; "
            f"{failure.get('today', 'not mended')}"
            for failure in state["failures"]
        ]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, nargs="?", default=100_000, help="How many inputs, with those of earlier runs.")
    parser.add_argument("--jobs", type=int, default=1, help="How many processes read inputs at once.")
    parser.add_argument("--read", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        answer_inputs(arguments.read)
        return 0
    from attack.hostile import KINDS

    return int(run(arguments.count, arguments.jobs, KINDS) > 0)


if __name__ == "__main__":
    sys.exit(main())
