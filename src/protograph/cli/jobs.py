"""Several runs of the command at the same time, each in its own process, since one small network does not fill a GPU."""

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
JOB = "PROTOGRAPH_JOB"  # set for the commands started here, which report progress although they answer as JSON


def arguments(context: typer.Context, **changed: Any) -> list[str]:
    """Return the options of the current command as a command line, with some of them changed."""
    words: list[str] = []
    for parameter in context.command.params:
        value = changed.get(parameter.name or "", context.params.get(parameter.name or ""))
        if value is None or value is False or value == []:
            continue
        for item in value if isinstance(value, list | tuple) else [value]:
            words.append(parameter.opts[0] if item is True else f"{parameter.opts[0]}={item}")
    return words


@dataclass(frozen=True)
class Ended:
    """The end of a run of the command.

    Attributes:
        answer: What it printed.
        failure: Why it failed, or None.

    """

    answer: str
    failure: str | None = None


class Engine(Protocol):
    """Runs the command with lines of arguments.

    Attributes:
        slots: The number of runs at the same time; None if the engine has its own queue.

    """

    slots: int | None

    def submit(self, name: str, words: Sequence[str]) -> "Future[Ended]":
        """Start a run."""
        ...

    def stop(self) -> None:
        """End all runs."""
        ...


class Processes:
    """The engine of this machine. It passes on what the runs report, with their name in front."""

    def __init__(self, jobs: int, progress: Progress) -> None:
        if jobs < 1:
            raise InputError(f"jobs must be at least 1, not {jobs}")
        self.slots: int | None = jobs
        self._progress = progress
        self._threads = ThreadPoolExecutor(jobs)
        self._running: list[subprocess.Popen[str]] = []
        self._stopped = False

    def submit(self, name: str, words: Sequence[str]) -> "Future[Ended]":
        """Start a run in its own process."""
        return self._threads.submit(
            run_command, words, lambda line: self._progress.say(f"{name}: {line}"), lambda process: self._started(process)
        )

    def stop(self) -> None:
        """End all runs and wait for them."""
        self._stopped = True
        for process in self._running:
            process.terminate()
        self._threads.shutdown(cancel_futures=True)

    def _started(self, process: "subprocess.Popen[str]") -> None:
        self._running.append(process)
        if self._stopped:
            process.terminate()


def run_command(
    words: Sequence[str],
    say: Callable[[str], None] = print,
    started: Callable[["subprocess.Popen[str]"], None] = lambda process: None,
) -> Ended:
    """Run the command with these arguments.

    The command ends when this process ends, even if this process is killed.

    Args:
        words: The arguments.
        say: Called with every line that the command reports.
        started: Called with the process.

    """
    pipe = subprocess.PIPE
    variables = {**os.environ, WATCH: "1", JOB: "1"}
    last = ""
    with subprocess.Popen(
        [*COMMAND, *words], stdin=pipe, stdout=pipe, stderr=pipe, text=True, encoding="utf-8", env=variables
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        started(process)
        printed: list[str] = []
        reader = threading.Thread(target=lambda: printed.append(process.stdout.read()))  # type: ignore[union-attr]
        reader.start()  # while stderr is read below: neither pipe may fill up
        for line in process.stderr:
            last = line.strip() or last
            say(line.rstrip())
        reader.join()
    if process.returncode < 0:
        return Ended("", f"it was killed by signal {-process.returncode}")
    failure = last.removeprefix("error: ") or f"exit code {process.returncode}"
    return Ended(printed[0], failure if process.returncode else None)


def end_with_parent() -> None:
    """End this process as soon as the process that started it ends, if that is a run of the command."""
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
    """Run the command with each of these lines of arguments, in order.

    Args:
        commands: The lines of arguments by name.
        engine: What runs them.
        done: Called in this thread with the name and the output of a run that succeeded. An exception it raises ends all runs.
        failed: Called in this thread with the name of a run that failed and the reason. An exception it raises ends all runs.
        after: For a name, the one that has to succeed before. If that one fails, this one fails without being started.
        give_up: Whether to start no run after the first failure. Those that run continue to their end.

    """
    waiting, running, after = dict(commands), dict[Future[Ended], str](), after or {}
    succeeded: set[str] = set()
    unsuccessful: set[str] = set()
    assert set(after.values()) <= set(commands)
    try:
        while waiting or running:
            for name in list(waiting):
                first = after.get(name)
                if first in unsuccessful:
                    del waiting[name]
                    unsuccessful.add(name)
                    failed(name, f"not started, since {first} failed")
                elif (first is None or first in succeeded) and (engine.slots is None or len(running) < engine.slots):
                    running[engine.submit(name, waiting.pop(name))] = name
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                name, error = running.pop(future), future.exception()
                ended = Ended("", f"{type(error).__name__}: {error}") if error else future.result()
                if ended.failure is None:
                    succeeded.add(name)
                    done(name, ended.answer)
                else:
                    unsuccessful.add(name)
                    failed(name, ended.failure)
                    if give_up:
                        waiting.clear()
    finally:
        engine.stop()


def run_all(commands: Mapping[str, Sequence[str]], jobs: int, progress: Progress) -> dict[str, Any]:
    """Run the command with each of these lines of arguments and return the JSON answers by name.

    After the first failure no further run is started, but those that run continue to their end. An interruption ends them.

    Args:
        commands: The lines of arguments by name.
        jobs: The number of runs at the same time.
        progress: Shows what the runs report.

    Raises:
        InputError: If a run failed.

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
