"""Several runs of the command at once: one small net does not fill a GPU, and each run is a process of its own."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol

import typer

from protograph._internal.errors import InputError
from protograph._internal.progress import Progress

COMMAND = (sys.executable, "-m", "protograph")
WATCH = "PROTOGRAPH_ENDS_WITH_STDIN"
JOB = "PROTOGRAPH_JOB"  # set for the commands started here, which say where they stand although they answer as JSON


def arguments(context: typer.Context, **changed: Any) -> list[str]:
    """The options this command was given, as a command line would say them, some of them changed."""
    words: list[str] = []
    for parameter in context.command.params:
        value = changed.get(parameter.name or "", context.params.get(parameter.name or ""))
        if value is None or value is False or value == []:
            continue
        for each in value if isinstance(value, list | tuple) else [value]:
            words.append(parameter.opts[0] if each is True else f"{parameter.opts[0]}={each}")
    return words


@dataclass(frozen=True)
class Ended:
    """How a run of the command ended: what it printed and, if it failed, why."""

    answer: str
    failure: str | None = None


class Engine(Protocol):
    """Something that runs the command with a line of arguments, somewhere.

    slots: how many at a time; None where the engine has a queue of its own
    """

    slots: int | None

    def submit(self, name: str, words: Sequence[str]) -> "Future[Ended]":
        """Begin a run."""
        ...

    def stop(self) -> None:
        """End all that run."""
        ...


class Processes:
    """The engine of this machine. What the runs say on the way is passed on with their name before it."""

    def __init__(self, jobs: int, progress: Progress) -> None:
        if jobs < 1:
            raise InputError(f"jobs must be at least 1, not {jobs}")
        self.slots: int | None = jobs
        self._progress = progress
        self._threads = ThreadPoolExecutor(jobs)
        self._running: list[subprocess.Popen[str]] = []
        self._stopped = False

    def submit(self, name: str, words: Sequence[str]) -> "Future[Ended]":
        """Begin a run in a process of its own."""
        return self._threads.submit(
            run_command, words, lambda line: self._progress.say(f"{name}: {line}"), lambda process: self._began(process)
        )

    def stop(self) -> None:
        """End all that run, and wait until they have."""
        self._stopped = True
        for process in self._running:
            process.terminate()
        self._threads.shutdown(cancel_futures=True)

    def _began(self, process: "subprocess.Popen[str]") -> None:
        self._running.append(process)
        if self._stopped:
            process.terminate()


def run_command(
    words: Sequence[str],
    say: Callable[[str], None] = print,
    began: Callable[["subprocess.Popen[str]"], None] = lambda process: None,
) -> Ended:
    """Run the command with these arguments. It ends when this process does, however that ends."""
    pipe = subprocess.PIPE
    variables = {**os.environ, WATCH: "1", JOB: "1"}
    last = ""
    with subprocess.Popen(
        [*COMMAND, *words], stdin=pipe, stdout=pipe, stderr=pipe, text=True, encoding="utf-8", env=variables
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        began(process)
        printed: list[str] = []
        reader = threading.Thread(target=lambda: printed.append(process.stdout.read()))  # type: ignore[union-attr]
        reader.start()  # beside stderr: neither pipe may fill up
        for line in process.stderr:
            last = line.strip() or last
            say(line.rstrip())
        reader.join()
    if process.returncode < 0:
        return Ended("", f"it was killed by signal {-process.returncode}")
    failure = last.removeprefix("error: ") or f"exit code {process.returncode}"
    return Ended(printed[0], failure if process.returncode else None)


def end_with_parent() -> None:
    """Where another run of the command began this one, end at once when that one ends, even if it is killed."""
    if not os.environ.pop(WATCH, None):
        return

    def watch() -> None:
        while os.read(0, 1):
            pass
        os._exit(130)

    threading.Thread(target=watch, daemon=True).start()


def run_each(
    commands: Mapping[str, Sequence[str]],
    engine: Engine,
    done: Callable[[str, str], None],
    failed: Callable[[str, str], None],
    after: Mapping[str, str] | None = None,
    give_up: bool = False,
) -> None:
    """Run the command with each of these lines of arguments, as they come.

    done, failed: called here as runs end, with the name and what it printed or why it failed; what they raise ends the others
    after: of a name, the one that must be done before; where that one failed, this one fails without being begun
    give_up: after the first that fails begin no other, but let those that run go on to their end
    """
    waiting, running, after = dict(commands), dict[Future[Ended], str](), after or {}
    succeeded: set[str] = set()
    lost: set[str] = set()
    assert set(after.values()) <= set(commands)
    try:
        while waiting or running:
            for name in list(waiting):
                first = after.get(name)
                if first in lost:
                    del waiting[name]
                    lost.add(name)
                    failed(name, f"not begun, since {first} failed")
                elif (first is None or first in succeeded) and (engine.slots is None or len(running) < engine.slots):
                    running[engine.submit(name, waiting.pop(name))] = name
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                name, error = running.pop(future), future.exception()
                ended = Ended("", f"{type(error).__name__}: {error}") if error else future.result()
                if ended.failure is None:
                    succeeded.add(name)
                    done(name, ended.answer)
                else:
                    lost.add(name)
                    failed(name, ended.failure)
                    if give_up:
                        waiting.clear()
    finally:
        engine.stop()


def run_all(commands: Mapping[str, Sequence[str]], jobs: int, progress: Progress) -> dict[str, Any]:
    """Run the command with each of these lines of arguments, `jobs` at a time; what each answers as JSON, by name.

    After the first that fails no other begins, but those that run go on to their end; an interruption ends them.
    """
    answers: dict[str, Any] = {}
    failures: list[str] = []

    def done(name: str, printed: str) -> None:
        answers[name] = json.loads(printed)

    def failed(name: str, reason: str) -> None:
        failures.append(f"{name} failed: {reason}")

    run_each(commands, Processes(jobs, progress), done, failed, give_up=True)
    if failures:
        raise InputError(failures[0])
    return {name: answers[name] for name in commands}
