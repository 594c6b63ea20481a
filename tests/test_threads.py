"""Parts of one work that run side by side in the driver."""

from __future__ import annotations

import threading
import time

import pytest

from eddyline.spark.threads import MOST, cpu_time_ns, side_by_side


def test_the_first_work_runs_here_and_the_others_beside_it() -> None:
    meeting = threading.Barrier(3, timeout=30)

    def work(number: int) -> tuple[int, str]:
        meeting.wait()  # passes only if all run at once
        return number, threading.current_thread().name

    done = side_by_side([lambda n=n: work(n) for n in range(3)])
    assert [number for number, _ in done] == [0, 1, 2]
    assert done[0][1] == threading.current_thread().name
    assert len({name for _, name in done}) == 3


def test_works_without_a_free_thread_run_here() -> None:
    leave, left = threading.Event(), list[bool]()
    busy = threading.Barrier(MOST + 1, timeout=30)

    def block() -> None:
        busy.wait()
        left.append(leave.wait(30))

    others = threading.Thread(target=side_by_side, args=([block] * MOST,))
    others.start()  # one work in it, and one in each of the threads for others
    try:
        busy.wait()
        here = threading.get_ident()
        assert side_by_side([threading.get_ident] * 3) == [here] * 3
        assert not left  # it hasn't waited for them
    finally:
        leave.set()
        others.join()


@pytest.mark.parametrize("place", [0, 1])
def test_the_error_of_a_work_is_raised_once_all_have_ended(place: int) -> None:
    begun, ended = [], []

    def fail() -> None:
        raise ValueError(place)

    def last() -> None:
        begun.append(1)
        time.sleep(0.2)
        ended.append(1)

    works = [last, last]
    works[place:place] = [fail]
    with pytest.raises(ValueError, match=str(place)):
        side_by_side(works)
    assert begun == ended


def test_cpu_time_of_others_counts_as_that_of_the_thread_they_work_for() -> None:
    meeting = threading.Barrier(2, timeout=30)

    def burn() -> int:
        meeting.wait()
        began = time.thread_time_ns()
        while time.thread_time_ns() - began < 50_000_000:
            pass
        return time.thread_time_ns() - began

    before, here = cpu_time_ns(), time.thread_time_ns()
    spent = side_by_side([burn, burn])
    here = time.thread_time_ns() - here
    assert cpu_time_ns() - before >= here + spent[1]
