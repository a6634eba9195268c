"""Several runs of the command at the same time, each in its own process, since one small network does not fill a GPU."""

import json
import os
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import typer

from protograph._internal.errors import InputError
from protograph._internal.progress import Progress

COMMAND = (sys.executable, "-m", "protograph")
ENDS_WITH_STDIN = "PROTOGRAPH_ENDS_WITH_STDIN"
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
        killed: Whether a signal ended it, so that another attempt may succeed.

    """

    answer: str
    failure: str | None = None
    killed: bool = False


@dataclass(frozen=True)
class Resources:
    """What each run gets, and how often it is tried.

    Attributes:
        threads: The threads of PyTorch, and so the CPUs that a run on a CPU reserves.
        runs_per_gpu: How many runs share a GPU.
        device: The device, as `train` takes it.
        retries: How often a run whose worker died is begun again; it continues from its last checkpoint.

    """

    threads: int
    runs_per_gpu: int = 1
    device: str = "auto"
    retries: int = 3


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


class LocalProcesses:
    """The engine of this machine. It passes on what the runs report, with their name in front."""

    def __init__(self, jobs: int, progress: Progress, thread_count: int | None = None) -> None:
        if jobs < 1:
            raise InputError(f"jobs must be at least 1, not {jobs}")
        self.slots: int | None = jobs
        self._progress, self._thread_count = progress, thread_count
        self._threads = ThreadPoolExecutor(jobs)
        self._running: list[subprocess.Popen[str]] = []
        self._stopped = False

    def submit(self, name: str, words: Sequence[str]) -> "Future[Ended]":
        """Start a run in its own process."""
        return self._threads.submit(
            run_command, words, lambda line: self._progress.say(f"{name}: {line}"), self._started, self._thread_count
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


Handle = TypeVar("Handle")  # of a queue


class Queued(ABC, Generic[Handle]):
    """An engine with a queue of its own, which is asked every now and then what its runs report and which have ended.

    Args:
        progress: Shows what the runs report, with their name in front.
        seconds: How long to wait between two questions.

    """

    slots: int | None = None

    def __init__(self, progress: Progress, seconds: float) -> None:
        self._progress, self._seconds = progress, seconds
        self._waiting: dict[Handle, tuple[str, Future[Ended]]] = {}
        self._changing = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def submit(self, name: str, words: Sequence[str]) -> "Future[Ended]":
        """Queue a run."""
        future: Future[Ended] = Future()
        run = self._begin(name, list(words))
        with self._changing:
            self._waiting[run] = name, future
        return future

    def stop(self) -> None:
        """End all runs."""
        self._stopped.set()
        self._thread.join()
        self._end([*self._waiting])

    def _watch(self) -> None:
        while not self._stopped.wait(self._seconds):
            with self._changing:
                waiting = dict(self._waiting)
            try:
                ended = self._ended([*waiting])
                for name, line in self._reports({run: name for run, (name, _) in waiting.items()}):
                    self._progress.say(f"{name}: {line}")
            except Exception as error:  # the queue itself is lost: all runs are
                ended = {run: Ended("", f"{type(error).__name__}: {error}") for run in waiting}
            for run, end in ended.items():
                with self._changing:
                    del self._waiting[run]
                waiting[run][1].set_result(end)

    @abstractmethod
    def _begin(self, name: str, words: list[str]) -> Handle:
        """Queue a run and return what the queue calls it."""

    @abstractmethod
    def _ended(self, runs: Sequence[Handle]) -> Mapping[Handle, Ended]:
        """Return how those of some runs ended that have."""

    @abstractmethod
    def _reports(self, names: Mapping[Handle, str]) -> Iterable[tuple[str, str]]:
        """Return names and lines that runs have reported since the last question."""

    @abstractmethod
    def _end(self, runs: Sequence[Handle]) -> None:
        """End these runs, and let go of the queue."""


def run_command(
    words: Sequence[str],
    say: Callable[[str], None] = print,
    started: Callable[["subprocess.Popen[str]"], None] = lambda process: None,
    thread_count: int | None = None,
) -> Ended:
    """Run the command with these arguments.

    The command ends when this process ends, even if this process is killed.

    Args:
        words: The arguments.
        say: Called with every line that the command reports.
        started: Called with the process.
        thread_count: The threads of PyTorch; by default as many as this process would have.

    """
    pipe = subprocess.PIPE
    variables = {**os.environ, ENDS_WITH_STDIN: "1", JOB: "1"}
    if thread_count is not None:
        variables["OMP_NUM_THREADS"] = str(thread_count)
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
        return Ended("", f"it was killed by signal {-process.returncode}", killed=True)
    failure = last.removeprefix("error: ") or f"exit code {process.returncode}"
    return Ended(printed[0], failure if process.returncode else None)


def end_with_parent() -> None:
    """End this process as soon as the process that started it ends, if that is a run of the command."""
    if not os.environ.pop(ENDS_WITH_STDIN, None):
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

    run_each(commands, LocalProcesses(jobs, progress), done, failed, give_up=True)
    if failures:
        raise InputError(failures[0])
    return {name: answers[name] for name in commands}
