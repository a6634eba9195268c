"""Work of several threads, in order and with little waiting to be taken: decoding and networks on a CPU.

A thread works on a batch from its files to its features, by one core. No core waits for another at the end of every layer, and
those that decode do not compete with those that compute.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

Job = TypeVar("Job")
Result = TypeVar("Result")

MOST_WORKERS = 16  # each holds the activations of a batch
AHEAD = 2  # results per worker that may wait to be taken


def ordered_results(
    work: Callable[[Job], Result], jobs: Sequence[Job], workers: int, threads: int | None = None
) -> Iterator[Result]:
    """Yield the result of each job, in order; a single job is done by the caller. After an error, jobs not begun are dropped.

    Args:
        work: What is done with a job, by one of the workers.
        jobs: The jobs.
        workers: How many jobs are worked on at a time.
        threads: The threads of PyTorch that each worker may use; by default as many as the caller.

    """
    if len(jobs) < 2:  # a new thread would have to start threads of PyTorch of its own
        yield from map(work, jobs)
        return
    usual = torch.get_num_threads()

    def prepare() -> None:
        if threads is not None:
            torch.set_num_threads(threads)  # of this thread, and of threads that begin later

    try:
        with ThreadPoolExecutor(workers, initializer=prepare) as pool:
            waiting: deque[Future[Result]] = deque()
            try:
                for job in jobs:
                    waiting.append(pool.submit(work, job))
                    if len(waiting) >= AHEAD * workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
    finally:
        if threads is not None:
            torch.set_num_threads(usual)


def cpu_workers() -> tuple[int, int]:
    """Return how many workers run a network on the CPU side by side, and how many threads of PyTorch each has."""
    threads = torch.get_num_threads()
    # Otherwise the number of threads cannot be changed later.
    if not torch.backends.openmp.is_available():  # type: ignore[no-untyped-call]
        return 1, threads
    workers = min(threads, MOST_WORKERS)
    return workers, threads // workers
