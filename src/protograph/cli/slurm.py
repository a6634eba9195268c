"""Runs of the command as jobs of SLURM, whose machines share folders."""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protograph._internal.errors import InputError
from protograph._internal.progress import Progress
from protograph.cli.jobs import Ended, Queued, Resources, run_command

SLURM_POLL_SECONDS = 2.0
MINUTES = 24 * 60  # of a job, where the user gives no other time
MARK = "protograph: "  # in front of what a run reports, in the log of its job
LOGS = ".slurm"  # the folder of the logs, in that of the run folders


@dataclass(eq=False)
class QueuedRun:
    """A run in the queue: its arguments, its job, how often it was begun, and how many bytes of its log were shown."""

    name: str
    words: Sequence[str]
    job: Any
    attempts: int = 1
    shown: int = 0


class Slurm(Queued[QueuedRun]):
    """The engine of a cluster with SLURM, by submitit: each run is a job.

    Args:
        resources: What each run gets.
        folder: The folder of the run folders, on storage that all machines share.
        options: Options of sbatch by name, such as partition.
        progress: Shows what the runs report.
        kind: "slurm", or "local" for processes of this machine.

    Raises:
        InputError: There is no SLURM here, or an option is wrong.

    """

    def __init__(
        self, resources: Resources, folder: Path, options: Mapping[str, str], progress: Progress, kind: str = "slurm"
    ) -> None:
        try:
            from submitit import AutoExecutor
        except ImportError as error:
            raise InputError('--engine slurm needs submitit: pip install "protograph[slurm]"') from error
        if kind == "slurm" and shutil.which("sbatch") is None:
            raise InputError("--engine slurm needs sbatch, which is not here: log in to a machine of the cluster")
        self._resources = resources
        self._executor = AutoExecutor(folder=(folder / LOGS).resolve(), cluster=kind)
        gpu = resources.device.startswith("cuda")
        wanted: dict[str, Any] = {"timeout_min": MINUTES, "cpus_per_task": resources.threads, "gpus_per_node": int(gpu)}
        wanted |= {f"slurm_{name}": int(value) if value.isdecimal() else value for name, value in options.items()}
        try:
            self._executor.update_parameters(**wanted)
        except (NameError, ValueError, TypeError, AssertionError) as error:
            raise InputError(
                f"--slurm has an option that cannot be used ({' '.join(str(error).split())}): correct it"
            ) from error
        super().__init__(progress, SLURM_POLL_SECONDS)

    def _begin(self, name: str, words: list[str]) -> QueuedRun:
        return QueuedRun(name, words, self._submitted(words))

    def _submitted(self, words: Sequence[str]) -> Any:
        return self._executor.submit(_run_as_job, list(words), self._resources.threads)

    def _ended(self, runs: Sequence[QueuedRun]) -> Mapping[QueuedRun, Ended]:
        done = {run: _end_of(run.job) for run in runs if run.job.done()}
        ended = {}
        for run, end in done.items():
            if not end.killed:
                ended[run] = end
            elif run.attempts <= self._resources.retries:  # from its last checkpoint
                run.job, run.attempts, run.shown = self._submitted(run.words), run.attempts + 1, 0
            else:
                ended[run] = Ended("", f"{end.failure}, {run.attempts} times")
        return ended

    def _reports(self, names: Mapping[QueuedRun, str]) -> Iterable[tuple[str, str]]:
        return [(run.name, line) for run in names for line in _new_lines(run)]

    def _end(self, runs: Sequence[QueuedRun]) -> None:
        for run in runs:
            run.job.cancel()


def _run_as_job(words: list[str], threads: int) -> Ended:
    """Run the command in a job, whose log has what it reports."""
    return run_command(words, lambda line: print(f"{MARK}{line}", flush=True), thread_count=threads)


def _end_of(job: Any) -> Ended:
    """Return how a job ended; one without an answer was killed, by SLURM or with its machine."""
    try:
        ended = job.result()
    except Exception as error:  # whatever submitit makes of a job that was lost
        reason = str(error).strip().splitlines()
        return Ended("", f"its job {job.job_id} was lost ({reason[0] if reason else type(error).__name__})", killed=True)
    assert isinstance(ended, Ended)
    return ended


def _new_lines(run: QueuedRun) -> Iterator[str]:
    """Yield what a run has reported since the last call."""
    try:
        with Path(run.job.paths.stdout).open("rb") as log:
            log.seek(run.shown)
            content = log.read()
    except OSError:  # it has not begun
        return
    complete = content[: content.rfind(b"\n") + 1]
    run.shown += len(complete)
    for line in complete.decode(errors="replace").splitlines():
        if line.startswith(MARK):
            yield line.removeprefix(MARK)
