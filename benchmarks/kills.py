"""Kill commands at random moments and at every call that writes, and let the disk fill up at each: `make kills N=1000`.

Each trial begins with a copy of the same folder. The command is disturbed, and then run again until it ends by itself. Nothing
may be lost: a model file is always the old or the new one, and what stands in the folder in the end is what an undisturbed
command leaves. The ways to disturb:

    kill    SIGKILL before the n-th call that writes: opening a file to write, writing to the disk, renaming, removing
    full    from the n-th such call on, the disk is full
    short   no file can have more than n bytes, so that a write ends in its middle
    moment  SIGKILL at a random moment

The trials are run by processes that are forked from this one, which has imported everything. `reproduce` runs the stand-in for
`train` that its tests have, since `train` is disturbed by itself. benchmarks/ATTACK.md is the report.
"""

import argparse
import contextlib
import copy
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402

import protograph as pg  # noqa: E402
from attack_report import read_state, write_section, write_state  # noqa: E402
from disturbance import Disturbance  # noqa: E402
from paper.made_up import contents  # noqa: E402
from protograph._internal.errors import InputError  # noqa: E402
from protograph._internal.files import UNFINISHED  # noqa: E402
from protograph.classifier import segmented_file  # noqa: E402
from protograph.cli import app, find_verb, jobs  # noqa: E402
from protograph.data.feature_shards import finished_shards, is_feature_folder, read_manifest, read_shard  # noqa: E402
from protograph.paper import runner  # noqa: E402
from protograph.paper.ledger import read_ledger  # noqa: E402
from protograph.training.recipes import resolve_recipe  # noqa: E402
from protograph.training.run_folder import Run  # noqa: E402
from protograph.variants import find_variant  # noqa: E402

EMPTY: dict[str, Any] = {"next": 0, "counted": {}, "failures": []}
KINDS = ("kill", "moment", "full", "short")
MOST_ATTEMPTS = 5  # until a command that is run again has ended by itself
SECONDS = 600  # after which a command counts as hung, on a machine that does other work too
TRAINING = ("--dataset=features", "--root=vectors.npz", "--variant=gcgpn-cos-aux")
REPRODUCED = ("pn+", "gcgpn-aux")
FEWER = [f"--set={name}={value}" for name, value in {
    "epochs": 3, "steps": 2, "episodes": 1, "ways": 2, "validation_episodes": 2, "test_queries": 2, "novel_queries": 2,
    "seen_queries": 2,
}.items()]  # fmt: skip


@dataclass(frozen=True)
class Command:
    """A command that is disturbed.

    Attributes:
        words: Its arguments.
        outcome: Returns what it leaves in a folder, to compare.
        intact: Raises an `AssertionError` unless nothing in the folder is lost or half done, whatever has happened.
        once: Whether it must not be run again where it was complete before it was disturbed.
        large: Whether the model file is a large one, to which changes are appended, however little it holds.

    """

    words: tuple[str, ...]
    outcome: Callable[[], Any]
    intact: Callable[[], None]
    once: bool = False
    large: bool = False


def model_outcome() -> Any:
    """Return all that counts in a model file, and what it answers."""
    known = pg.Classifier.load("own.pg")
    queries = np.load("one.npz")["vectors"]
    return known.classes_.tolist(), known.predict_proba(queries).tobytes(), known.prototypes_.tobytes()


def model_intact() -> None:
    """Assert that a model file, if there is one, can be loaded, with the changes that can be undone."""
    if Path("own.pg").exists():
        model_outcome()
        pg.Classifier.history("own.pg")


def run_outcome() -> Any:
    """Return all that two runs share, but the time they took."""
    run = Run.open(Path("run"))
    checkpoint, measures = run.load(), run.measures
    assert checkpoint is not None
    assert measures is not None
    tensors = {name: value.numpy().tobytes() for name, value in sorted(checkpoint.tensors.items())}
    numbers = {name: value for name, value in measures.items() if not name.endswith("_seconds")}
    return tensors, checkpoint.history, run.history, numbers


def run_intact() -> None:
    """Assert that each file of a run folder, if it is there, is whole."""
    if Path("run/config.json").exists():
        run = Run.open(Path("run"))
        run.load()
        _ = run.history, run.measures


def shards_outcome() -> Any:
    """Return the shards of features, to the last bit."""
    return {path.name: path.read_bytes() for path in Path("features").iterdir() if not path.name.startswith(".")}


def shards_intact() -> None:
    """Assert that each shard of features, if it is there, is whole."""
    if is_feature_folder(Path("features")):
        manifest = read_manifest(Path("features"))
        for index in finished_shards(Path("features"), manifest):
            read_shard(Path("features"), manifest, index)


def ledger_outcome() -> Any:
    """Return what two ledgers of the same grid share, and their table."""
    return contents(Path("results")), Path("RESULTS.md").read_text(encoding="utf-8")


def ledger_intact() -> None:
    """Assert that each file of a ledger is whole."""
    read_ledger(Path("results"), new=True)


COMMANDS = {
    "fit": Command(("fit", "vectors.npz", "--out", "own.pg"), model_outcome, model_intact),
    "add-class": Command(("add-class", "own.pg", "new", "one.npz"), model_outcome, model_intact, once=True),
    "remove-class": Command(("remove-class", "own.pg", "c01"), model_outcome, model_intact, once=True),
    "correct": Command(("correct", "own.pg", "one.npz", "c02"), model_outcome, model_intact, once=True),
    "train": Command(
        ("train", "--dataset=features", "--root=vectors.npz", "--variant=gcgpn-cos-aux", *FEWER, "--out=run"),
        run_outcome,
        run_intact,
    ),
    "embed": Command(
        ("embed", "birds", "--out=features", "--backbone=conv4", "--images-per-shard=4"), shards_outcome, shards_intact
    ),
    "reproduce": Command(
        ("reproduce", "--dataset=letters", "--shots=1", *(f"--variant={name}" for name in REPRODUCED)),
        ledger_outcome,
        ledger_intact,
    ),
    "add-class-large": Command(("add-class", "own.pg", "new", "one.npz"), model_outcome, model_intact, once=True, large=True),
}

NEXT = Command(("rename-class", "own.pg", "c00", "other"), model_outcome, model_intact)  # the command after one that was done


@dataclass(frozen=True)
class Ended:
    """How a command ended: the exit code, or less than 0 the signal; what it said, how many calls wrote, and the seconds."""

    code: int
    said: str
    calls: int
    seconds: float

    def disturbed(self, kind: str, at: float) -> bool:
        """Return whether a disturbance happened before the command ended by itself."""
        return self.code < 0 if kind in ("kill", "moment") else self.calls >= at if kind == "full" else self.code != 0


def run(command: Command, folder: Path, disturbance: tuple[str, float]) -> Ended:
    """Run a command in a folder, in a forked process, disturbed or not."""
    reader, writer = os.pipe()
    began = time.monotonic()
    if not (child := os.fork()):
        os.close(reader)
        os.setpgid(0, 0)
        os.chdir(folder)
        said, code, disturbed = io.StringIO(), 1, Disturbance(*disturbance)
        try:
            if command.large:
                let_files_be_large()
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
                disturbed.begin()
                app([*command.words], prog_name="protograph")
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 0
        except BaseException as error:
            said.write(f"{type(error).__name__}: {error}")
        finally:
            os.write(writer, json.dumps([said.getvalue()[-2000:], disturbed.calls]).encode())
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
        signal.alarm(SECONDS)
        text = pipe.read()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        signal.alarm(0)
    said, calls = json.loads(text) if text else ("", 0)
    return Ended(code, said, calls, time.monotonic() - began)


def let_files_be_large() -> None:
    """Let every model file of this process be a large one, to which much may be appended."""
    segmented_file.SEGMENTED_BYTES, segmented_file.LARGEST_APPENDED = 0, 1000


def in_folder(folder: Path, act: Callable[[], Any]) -> Any:
    """Return what a function returns in a folder."""
    with contextlib.chdir(folder):
        return act()


def prepare(folder: Path) -> None:
    """Write what the commands start from."""
    generator = np.random.default_rng(0)
    rows = np.repeat(np.arange(24), 16)
    vectors = generator.normal(size=(24, 8))[rows] + 0.4 * generator.normal(size=(len(rows), 8))
    np.savez(folder / "vectors.npz", vectors=vectors.astype(np.float32), labels=np.array([f"c{row:02d}" for row in rows]))
    np.savez(folder / "one.npz", vectors=vectors[:3].astype(np.float32))
    for number in range(12):
        path = folder / "birds" / f"c{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (16, 16, 3), np.uint8)).save(path)


def stand_in(folder: Path) -> None:
    """Let `reproduce` run the stand-in for `train` that its tests have, on images that are not opened."""
    jobs.COMMAND = (sys.executable, "-S", str(ROOT / "tests" / "cli" / "fake_train.py"))
    runner.open_dataset = lambda name, *_: SimpleNamespace(name=name, fingerprint="images-1")
    recipes = {f"{name} demo": asdict(resolve_recipe(find_variant(name), "letters", "demo")) for name in REPRODUCED}
    os.environ |= {"FAKE_RECIPES": json.dumps(recipes), "FAKE_LOG": str(folder / "trainings"), "FAKE_SECONDS": "0.02"}


def start_of(name: str, base: Path, folder: Path) -> None:
    """Copy what a command starts from."""
    shutil.copytree(base, folder)
    if name in ("fit", "train", "embed", "reproduce"):
        (folder / "own.pg").unlink()
    if COMMANDS[name].large:
        shutil.copyfile(folder / "large.pg", folder / "own.pg")
    (folder / "large.pg").unlink()


@dataclass(frozen=True)
class Plan:
    """A command that is going to be disturbed.

    Attributes:
        name: Its name.
        calls: How many calls write if nothing disturbs it.
        seconds: How long that takes.
        largest: The bytes of the largest file that it leaves behind then.
        expected: What it leaves behind then.

    """

    name: str
    calls: int
    seconds: float
    largest: int
    expected: Any

    def disturbance(self, turn: int, turns: int, drawn: random.Random) -> tuple[str, float]:
        """Return how the command is disturbed in one of its turns: at every call, if the turns suffice, then at random."""
        every = [(kind, call) for kind in ("kill", "full") for call in range(1, self.calls + 1)]
        if turns < len(every):
            return drawn.choice(every)
        if turn < len(every):
            return every[turn]
        return drawn.choice((("moment", drawn.uniform(0.001, self.seconds)), ("short", drawn.randrange(self.largest))))


def prepared(names: list[str], place: Path) -> list[Plan]:
    """Return the plans of commands, and write into a folder of this place what they start from."""
    os.environ["PROTOGRAPH_CACHE"] = str(place / "cache")
    base, right = place / "base", place / "right"
    base.mkdir()
    prepare(base)
    stand_in(place)
    fitted = run(COMMANDS["fit"], base, ("", 0))
    assert not fitted.code, fitted.said
    if not (child := os.fork()):
        let_files_be_large()
        pg.Classifier.load(base / "own.pg").save(base / "large.pg")
        os._exit(0)
    assert not os.waitpid(child, 0)[1]
    plans = []
    for name in names:
        start_of(name, base, right)
        before = stamps(right)
        ended = run(COMMANDS[name], right, ("", 0))
        assert not ended.code, ended.said
        largest = max(size for _, size, _ in stamps(right) - before)
        plans.append(Plan(name, ended.calls, ended.seconds, largest, in_folder(right, COMMANDS[name].outcome)))
        shutil.rmtree(right)
        print(f"{name}: {ended.calls} calls write, {ended.seconds:.2f} s undisturbed", flush=True)
    return plans


def stamps(folder: Path) -> set[tuple[Path, int, int]]:
    """Return the files of a folder, each with its bytes and its time."""
    files = [(path, path.stat()) for path in folder.rglob("*") if path.is_file()]
    return {(path, status.st_size, status.st_mtime_ns) for path, status in files}


def trial(plan: Plan, base: Path, folder: Path, disturbance: tuple[str, float]) -> tuple[bool, str]:
    """Disturb a command once, run it until it ends by itself, and return whether it was disturbed and what was wrong, or ''."""
    start_of(plan.name, base, folder)
    ended = run(COMMANDS[plan.name], folder, disturbance)
    disturbed = ended.disturbed(*disturbance)
    if disturbance[0] in ("full", "short") and ended.code not in (0, 2):
        return disturbed, f"a full disk ended it with {ended.code}: {ended.said[-300:]}"
    if disturbance[0] in ("kill", "moment") and ended.code not in (0, -signal.SIGKILL, -signal.SIGALRM):
        return disturbed, f"it ended with {ended.code}: {ended.said[-300:]}"
    return disturbed, wrong_after(plan, folder)


def wrong_after(plan: Plan, folder: Path) -> str:
    """Run a disturbed command until it ends by itself, and return what is wrong with what it leaves behind, or ''."""
    command, expected = COMMANDS[plan.name], plan.expected
    try:
        in_folder(folder, command.intact)
    except (InputError, AssertionError, OSError) as error:
        return f"left something half done: {error}"
    if command.once and in_folder(folder, command.outcome) == expected:
        run(NEXT, folder, ("", 0))
        return left_behind(folder)
    for _ in range(MOST_ATTEMPTS):
        again = run(command, folder, ("", 0))
        if again.code == 0:
            break
    else:
        return f"did not go on: {again.code}, {again.said[-300:]}"
    try:
        if in_folder(folder, command.outcome) != expected:
            return "ended differently"
    except (InputError, AssertionError, OSError) as error:
        return f"lost something: {error}"
    return left_behind(folder)


def left_behind(folder: Path) -> str:
    """Return what is wrong if a folder holds unfinished files, or ''."""
    left = [str(path.relative_to(folder)) for path in folder.rglob(f"*{UNFINISHED}")]
    return f"left {', '.join(sorted(left))}" if left else ""


def report_lines(counted: Counter[tuple[str, str]], calls: dict[str, int], state: dict[str, Any]) -> list[str]:
    """Return the report as lines of Markdown."""
    count, failures = sum(counted.values()), state["failures"]
    lines = [
        f"`make kills N={count}` disturbed {count:,} commands: by SIGKILL before a call that writes, by SIGKILL at a random "
        "moment, by a disk that is full from a call that writes on, and by a write that ends after a random number of bytes. "
        "The command was then run again until it ended by itself. A failure is a file that cannot be read, a result that is "
        "lost, an end that differs from that of an undisturbed command, or an unfinished file that the next command leaves "
        f"there. {state['next'] - count} further commands ended before they were disturbed, and do not count.",
        "",
        "| command | calls that write | killed at a call | killed at a moment | disk full | write cut short | failures |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, number in calls.items():
        failed = sum(failure.startswith(f"{name},") for failure in failures)
        times = " | ".join(f"{counted[name, kind]:,}" for kind in KINDS)
        lines.append(f"| {name} | {number} | {times} | {failed} |")
    return [*lines, *(["", *(f"- {failure}" for failure in failures)] if failures else [])]


def main(count: int, names: list[str], seed: int, whole: bool) -> int:
    """Disturb the commands `count` times in all, and return the number of failures.

    Args:
        count: How many times, with those of earlier runs if it is a whole run.
        names: The commands.
        seed: The seed.
        whole: Whether to go on where the last run ended, and to write the report.

    """
    torch.set_num_threads(1)
    state = read_state("kills", EMPTY) if whole else copy.deepcopy(EMPTY)
    counted = Counter({tuple(key.split(", ")): times for key, times in state["counted"].items()})
    for name in names:
        find_verb(COMMANDS[name].words[0])
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(os.path.realpath(scratch))
        plans = prepared(names, place)
        while (done := sum(counted.values())) < count:
            plan = plans[state["next"] % len(plans)]
            drawn = random.Random(f"{seed} {state['next']}")
            kind, at = plan.disturbance(state["next"] // len(plans), count // len(plans), drawn)
            disturbed, wrong = trial(plan, place / "base", place / "trial", (kind, at))
            if wrong:
                state["failures"].append(f"{plan.name}, {kind} at {at:g}: {wrong}")
                print(state["failures"][-1], flush=True)
            counted[plan.name, kind] += disturbed
            shutil.rmtree(place / "trial")
            state |= {"next": state["next"] + 1, "counted": {", ".join(key): times for key, times in counted.items()}}
            if whole:
                write_state("kills", state)
            if disturbed and done % 50 == 49:
                print(f"{done + 1} of {count}, {len(state['failures'])} failures", flush=True)
    for (name, kind), times in sorted(counted.items()):
        print(f"{name} {kind}: {times}")
    print(f"{count} commands disturbed, {len(state['failures'])} failures; {state['next'] - count} more ended before that")
    if whole:
        calls = {plan.name: plan.calls for plan in plans}
        write_section("Kills and full disks", report_lines(counted, calls, state))
    return len(state["failures"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "count", type=int, nargs="?", default=100, help="How many commands are disturbed, with those of earlier runs."
    )
    parser.add_argument("--command", action="append", choices=COMMANDS, help="Only these commands; repeatable.")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sys.exit(main(arguments.count, arguments.command or list(COMMANDS), arguments.seed, arguments.command is None) > 0)
