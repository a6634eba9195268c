"""Runs of the command on a Ray cluster whose machines share folders."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from protograph._internal.errors import InputError
from protograph.cli.jobs import Ended, run_command


class Cluster:
    """The engine of a cluster: Ray queues the runs and gives each run its share of a GPU."""

    slots: int | None = None

    def __init__(self, jobs: int, device: str) -> None:
        try:
            import ray
        except ImportError as error:
            raise InputError('--engine ray needs Ray: pip install "protograph[ray]"') from error
        self._ray: Any = ray  # whose own types lack those of some calls
        self._ray.init(ignore_reinit_error=True)  # the cluster of RAY_ADDRESS, or this machine
        gpu = device != "cpu" and (device != "auto" or self._ray.cluster_resources().get("GPU", 0) > 0)
        self._run = self._ray.remote(num_gpus=1 / jobs if gpu else 0, max_retries=0)(run_command)
        self._references: list[Any] = []

    def submit(self, name: str, words: Sequence[str]) -> "Future[Ended]":
        """Queue a run. What it reports is in Ray's logs."""
        reference = self._run.options(name=name).remote(list(words))
        self._references.append(reference)
        future: Future[Ended] = reference.future()
        return future

    def stop(self) -> None:
        """End all runs."""
        for reference in self._references:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()
