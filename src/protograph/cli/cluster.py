"""Runs of the command on a Ray cluster whose machines share folders."""

import logging
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from protograph._internal.errors import InputError
from protograph._internal.progress import Progress
from protograph._version import __version__
from protograph.cli.jobs import Ended, Queued, Resources, run_command

RAY_POLL_SECONDS = 0.5
LONGEST_LOOK = 120  # seconds in which every machine of a cluster has to answer
PROBE = ".protograph-cluster-"  # the beginning of the name of a file that every machine must see


class RunKilledError(RuntimeError):
    """A run was ended by a signal, such as that of a system without memory."""


def connect() -> Any:
    """Return Ray, connected to the cluster of RAY_ADDRESS, or to one that is started on this machine.

    Nothing that workers print reaches this process's output: what runs report is shown in one place.

    Raises:
        InputError: Ray is not installed, or the cluster does not answer.

    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # it would print deaths of workers to standard output, coloured
    try:
        import ray
    except ImportError as error:
        raise InputError('--engine ray needs Ray: pip install "protograph[ray]"') from error
    try:
        ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"the cluster does not answer ({reason}): check RAY_ADDRESS, or leave it out") from error
    return ray


def check_machines(ray: Any, folder: Path, paths: Sequence[Path]) -> None:
    """Check that every machine has this version of the package and sees the same folders, before any work begins.

    Args:
        ray: Ray, connected.
        folder: A folder that results are written to.
        paths: Files and folders that are read.

    Raises:
        InputError: A machine lacks something.

    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    alive = [node for node in ray.nodes() if node["Alive"] and "CPU" in node["Resources"]]
    machines = {node["NodeID"]: f"machine {node['NodeManagerHostname']}" for node in alive}
    with _probe(folder) as probe:
        wanted = [str(path) for path in (probe, *paths)]
        answers = {
            machine: ray.remote(num_cpus=0, max_retries=0)(_look)
            .options(scheduling_strategy=NodeAffinitySchedulingStrategy(machine, soft=False))
            .remote(wanted)
            for machine in machines
        }
        for machine, answer in answers.items():
            try:
                version, missing = ray.get(answer, timeout=LONGEST_LOOK)
            except Exception as error:  # whatever is wrong with another machine
                reason = " ".join(str(error).split())
                raise InputError(f"{machines[machine]} cannot run Protograph ({reason}): install it there") from error
            if version != __version__:
                raise InputError(f"{machines[machine]} has Protograph {version}, not {__version__}: install the same one")
            if missing:
                lacking = folder if missing[0] == str(probe) else missing[0]
                raise InputError(f"{machines[machine]} does not see {lacking}: put it on storage that all machines share")


def _look(paths: list[str]) -> tuple[str, list[str]]:
    """Return the version on this machine, and which paths it does not see."""
    return __version__, [path for path in paths if not os.path.exists(path)]  # noqa: PTH110 - it also takes a name that is too long


@contextmanager
def _probe(folder: Path) -> Iterator[Path]:
    """Write a file that every machine must see, and remove it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.resolve() / f"{PROBE}{secrets.token_hex(8)}"
    path.touch()
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


class Reports:
    """Lines that runs report, until the driver takes them; an actor of the cluster."""

    def __init__(self) -> None:
        self._lines: list[tuple[str, str]] = []

    def add(self, name: str, line: str) -> None:
        """Take a line of a run."""
        self._lines.append((name, line))

    def take(self) -> list[tuple[str, str]]:
        """Return all lines since the last call."""
        taken, self._lines = self._lines, []
        return taken


class Cluster(Queued[Any]):
    """The engine of a cluster: Ray queues the runs and gives each run its CPUs and its share of a GPU.

    Args:
        resources: What each run gets.
        folder: The folder of the run folders.
        paths: Files and folders that runs read.
        progress: Shows what the runs report.

    Raises:
        InputError: A machine does not see the folders, or none is large enough for a run.

    """

    def __init__(self, resources: Resources, folder: Path, paths: Sequence[Path], progress: Progress) -> None:
        self._ray = connect()
        self._resources = resources
        self._machines: dict[str, str] = {}  # by the folder of a run that was done there
        self._folders: dict[Any, str] = {}
        try:
            self._options = self._checked_options()
            check_machines(self._ray, folder, paths)
            self._lines = self._ray.remote(num_cpus=0)(Reports).remote()
        except BaseException:
            self._ray.shutdown()
            raise
        super().__init__(progress, RAY_POLL_SECONDS)

    def _checked_options(self) -> dict[str, Any]:
        """Return what each run asks Ray for, which some machine must have."""
        wanted, nodes = self._resources, [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        gpu = wanted.device != "cpu" and (wanted.device != "auto" or any(node.get("GPU", 0) for node in nodes))
        cpus = max(1, wanted.threads // wanted.runs_per_gpu) if gpu else wanted.threads
        most = max((node.get("CPU", 0) for node in nodes if node.get("GPU", 0) or not gpu), default=0)
        if most < cpus:
            what = f"{cpus} CPUs and a GPU" if gpu else f"{cpus} CPUs"
            raise InputError(f"no machine of the cluster has {what} for a run: give fewer --threads, or another --device")
        return {"num_cpus": cpus, "num_gpus": 1 / wanted.runs_per_gpu if gpu else 0, "max_retries": wanted.retries}

    def _begin(self, name: str, words: list[str]) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options = {**self._options, "name": name, "retry_exceptions": [RunKilledError]}
        if machine := self._machines.get(_option(words, "start")):  # which may still have its files in memory
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(machine, soft=True)
        run = self._ray.remote(_attempt).options(**options).remote(name, words, self._resources.threads, self._lines)
        self._folders[run] = _option(words, "out")
        return run

    def _ended(self, runs: Sequence[Any]) -> Mapping[Any, Ended]:
        ready = self._ray.wait(list(runs), num_returns=len(runs), timeout=0)[0] if runs else []
        return {run: self._end_of(run) for run in ready}

    def _end_of(self, run: Any) -> Ended:
        try:
            ended, machine = self._ray.get(run)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, RunKilledError):
                return Ended("", f"{error.cause}, {self._resources.retries + 1} times")
            return Ended("", f"{type(error.cause).__name__}: {error.cause}")
        except self._ray.exceptions.RayError as error:
            return Ended("", f"its worker died, {self._resources.retries + 1} times ({type(error).__name__})")
        self._machines[self._folders[run]] = machine
        assert isinstance(ended, Ended)
        return ended

    def _reports(self, names: Mapping[Any, str]) -> Iterable[tuple[str, str]]:
        taken: list[tuple[str, str]] = self._ray.get(self._lines.take.remote())
        return taken

    def _end(self, runs: Sequence[Any]) -> None:
        for run in runs:
            self._ray.cancel(run, force=True)
        self._ray.shutdown()


def _attempt(name: str, words: list[str], threads: int, lines: Any) -> tuple[Ended, str]:
    """Run the command in a worker, and return how it ended and on which machine.

    Raises:
        RunKilledError: A signal ended it. Ray then tries again.

    """
    import ray

    sent: list[Any] = []
    ended = run_command(words, lambda line: sent.append(lines.add.remote(name, line)), thread_count=threads)
    ray.get(sent)  # what a worker has sent and nobody has taken ends with it
    if ended.killed:
        raise RunKilledError(ended.failure)
    return ended, ray.get_runtime_context().get_node_id()


def _option(words: Sequence[str], name: str) -> str:
    """Return the value of an option on a command line, or ''."""
    return next((word.partition("=")[2] for word in words if word.startswith(f"--{name}=")), "")
