"""Read hostile inputs of all kinds, as many as asked for, and say what came of them: `make attack N=1000000`.

The inputs are those of tests/attack: input i is of kind i modulo the number of kinds, and made by the seed i divided by it. The
state is kept in build/attack, so that a run that was ended goes on: the next input, the counts by kind, and each failure with
its seed. The inputs are read by a process of its own, since one might kill it; the next one goes on behind that input.
benchmarks/ATTACK.md is the report.
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
from pathlib import Path
from threading import Event
from typing import Any

from attack_report import read_state, write_section, write_state

ROOT = Path(__file__).parents[1]
EMPTY = {"next": 0, "answered": {}, "refused": {}, "failed": {}, "calls": {}, "failures": []}
PORTION = 20_000  # inputs that a process reads
WORKING_SECONDS, WAITING_SECONDS = 120, 3600  # of processor time, or in all, without an input that ends: it hangs
MOST_KEPT = 200  # failures that are written down


def run(count: int) -> None:
    """Read inputs until there were `count`, each portion in a process of its own."""
    state = read_again(read_state("state", EMPTY))
    while state["next"] < count:
        stop = min(count, state["next"] + PORTION)
        command = [sys.executable, __file__, "--portion", str(state["next"]), str(stop)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (
            tempfile.TemporaryDirectory() as folder,
            subprocess.Popen([*command, folder], stdout=subprocess.PIPE, text=True, env=environment) as process,
        ):
            state = follow(process, state, stop)
        write_state("state", state)
        print(f"{state['next']:,} of {count:,} inputs, {sum(state['failed'].values())} failures", flush=True)
    write_section("Hostile inputs", report_lines(state))


def read_again(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state after the inputs that failed in earlier runs were read once more: what failed may have been mended."""
    for failure in state["failures"]:
        if "kind" not in failure or "today" in failure:  # it ended its process, or did not fail any more
            continue
        command = [sys.executable, __file__, "--portion", str(failure["input"]), str(failure["input"] + 1)]
        with tempfile.TemporaryDirectory() as folder:
            ended = subprocess.run([*command, folder], capture_output=True, text=True, check=True)
        answer = json.loads(ended.stdout.splitlines()[-1])
        if not answer["failures"]:
            failure["today"] = "answered" if answer.get("answered") else "refused"
    return state


def follow(process: subprocess.Popen[str], state: dict[str, Any], stop: int) -> dict[str, Any]:
    """Return the state after what a process reports, input by input."""
    assert process.stdout is not None
    alive, ended = Event(), Event()
    threading.Thread(target=kill_hung, args=(process, alive, ended), daemon=True).start()
    for line in process.stdout:
        alive.set()
        try:
            answer = json.loads(line)
        except ValueError:  # what an input printed
            continue
        kind = answer["kind"]
        for key in ("answered", "refused", "failed"):
            state[key][kind] = state[key].get(kind, 0) + answer.get(key, 0)
        state["calls"][kind] = max(state["calls"].get(kind, 0), answer["calls"])
        state["failures"] += answer["failures"]
        state["next"] = answer["next"]
    ended.set()
    if process.wait() and state["next"] < stop:
        kind = kind_of(state["next"])
        state["failed"][kind] = state["failed"].get(kind, 0) + 1
        state["failures"].append({"input": state["next"], "error": f"the process ended with {process.returncode}"})
        state["next"] += 1
    state["failures"] = state["failures"][:MOST_KEPT]
    return state


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


def kind_of(number: int) -> str:
    """Return the kind of an input."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]
    from attack.hostile import KINDS

    return list(KINDS)[number % len(KINDS)]


def read_portion(start: int, stop: int, folder: Path) -> None:
    """Read the inputs of a portion, and print a line of JSON for each."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]
    warnings.simplefilter("ignore")
    import torch

    from attack.hostile import KINDS, Attack

    torch.set_num_threads(1)
    attack, kinds = Attack(folder / "attack"), list(KINDS)
    for number in range(start, stop):
        kind, seed = kinds[number % len(kinds)], number // len(kinds)
        counted: Counter[str] = Counter()
        failures, calls = [], 0
        try:
            answered, watch = attack.read(kind, seed, counted=False)
            counted["answered" if answered else "refused"] += 1
            calls = watch.calls
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            counted["failed"] += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{type(error).__name__}: {error} ({Path(where.filename).name}, line {where.lineno})"
            failures.append({"input": number, "kind": kind, "seed": seed, "error": said[:400]})
        answer = {"kind": kind, **counted, "calls": calls, "failures": failures, "next": number + 1}
        print(json.dumps(answer), flush=True)


def report_lines(state: dict[str, Any]) -> list[str]:
    """Return the report as lines of Markdown."""
    lines = [
        f"`make attack N={state['next']}` read {state['next']:,} inputs on Python {platform.python_version()}. Each is right "
        "but for some changes, which keep its structure: JSON values, tensors, headers, members, opcodes, cells; checksums are "
        "computed anew. An input is answered rightly or refused by one line. Everything else is a failure: another exception, "
        "a connection, a process, a name of a pickle, a file outside its folder, 3,000,000 calls of functions, 600 MB. Calls "
        "are counted of an input that takes more than 0.05 s, in which nobody makes as many: it is read again.",
        "",
        "| kind | inputs | answered | refused | failures | most calls |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for kind in sorted({*state["answered"], *state["refused"], *state["failed"]}):
        answered, refused, failed = (state[key].get(kind, 0) for key in ("answered", "refused", "failed"))
        total = answered + refused + failed
        lines.append(f"| {kind} | {total:,} | {answered:,} | {refused:,} | {failed} | {state['calls'].get(kind, 0):,} |")
    if state["failures"]:
        lines += [
            "",
            "Failures, by the number of the input, and what comes of that input where the cause was mended since:",
            "",
        ]
        lines += [
            f"- {failure['input']}: `{failure['error'].replace('`', '')}`; {failure.get('today', 'not mended')}"
            for failure in state["failures"]
        ]
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=100_000, help="How many inputs, with those of earlier runs.")
    parser.add_argument("--portion", nargs=3, metavar=("START", "STOP", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.portion:
        first, end, place = arguments.portion
        read_portion(int(first), int(end), Path(place))
    else:
        run(arguments.count)
