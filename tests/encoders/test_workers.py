import threading

import pytest
import torch

from protograph.encoders.workers import AHEAD, MOST_WORKERS, cpu_workers, ordered_results


@pytest.mark.parametrize("workers", [1, 3])
def test_results_come_in_order_and_each_once(workers: int) -> None:
    later = [threading.Event() for _ in range(10)]

    def work(job: int) -> int:
        if workers > 1 and job % 2 == 0 and job < 9:
            assert later[job + 1].wait(10), "an even job ends after the odd one behind it"
        later[job].set()
        return job * job

    assert list(ordered_results(work, range(10), workers)) == [job * job for job in range(10)]


def test_few_results_wait_to_be_taken() -> None:
    begun: list[int] = []
    results = ordered_results(begun.append, range(100), 2)
    next(results)
    assert len(begun) <= 2 * AHEAD + 2
    results.close()


def test_an_error_ends_the_work_and_later_jobs_are_dropped() -> None:
    begun: list[int] = []

    def work(job: int) -> int:
        begun.append(job)
        if job == 3:
            raise ValueError("job 3")
        return job

    results = ordered_results(work, range(100), 2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="job 3"):
        next(results)
    assert len(begun) < 20


def test_workers_have_the_threads_they_are_given_and_the_caller_keeps_its_own() -> None:
    usual = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        assert set(ordered_results(lambda job: torch.get_num_threads(), range(6), 2, 2)) == {2}
        assert torch.get_num_threads() == 4
        later, _ = ordered_results(lambda job: torch.get_num_threads(), [0, 1], 1)
        assert later == 4, "threads that begin later have as many as before"
        assert cpu_workers() == (4, 1)
        torch.set_num_threads(3 * MOST_WORKERS)
        assert cpu_workers() == (MOST_WORKERS, 3)
    finally:
        torch.set_num_threads(usual)


def test_a_single_job_is_done_by_the_caller_and_none_give_nothing() -> None:
    assert list(ordered_results(lambda job: threading.get_ident(), [0], 2, 1)) == [threading.get_ident()]
    assert list(ordered_results(lambda job: job, [], 2)) == []
