"""Work that many threads bring, and a thread's loop."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from elps.contracts.ids import JobId
from elps.psshard.inorder import InOrder
from elps.psshard.ticker import Ticker

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_plane import running

JOB = JobId("job")
WAIT_S = 10.0


@pytest.fixture(autouse=True)
def _eager_threads() -> Iterator[None]:
    """Threads change places as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


# --- in order ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_what_many_threads_bring_is_done_one_at_a_time_in_the_order_it_came(threads: int) -> None:
    alone, lock = threading.Lock(), threading.Lock()
    done: list[int] = []
    count = 0

    def do(number: int) -> None:
        assert alone.acquire(blocking=False), "two threads are at it"
        done.append(number)
        alone.release()

    faults: list[str] = []
    queue = InOrder(JOB, do, faults.append)

    def bring() -> None:
        nonlocal count
        for _ in range(300):
            with lock:  # the order is that of the lock
                queue.put([count, count + 1])
                count += 2
            queue.work()

    with running(*[bring] * threads):
        pass
    assert faults == []
    assert done == list(range(threads * 600))


def test_nothing_is_left_when_the_last_thread_returns() -> None:
    """Who brings something while another is about to stop must not rely on it in vain."""
    for _ in range(300):
        done: list[int] = []
        queue = InOrder(JOB, done.append, lambda _: None)
        start = threading.Barrier(2)

        def bring(
            number: int, queue: InOrder[int] = queue, start: threading.Barrier = start
        ) -> None:
            start.wait(WAIT_S)
            queue.put([number])
            queue.work()

        with running(lambda b=bring: b(1), lambda b=bring: b(2)):
            pass
        assert sorted(done) == [1, 2]


def test_what_the_work_itself_brings_comes_after_what_was_there() -> None:
    done: list[int] = []

    def do(number: int) -> None:
        done.append(number)
        if number < 3:
            queue.put([number + 10])
            queue.work()  # as an event does that a command causes

    queue = InOrder(JOB, do, lambda _: None)
    queue.put([1, 2, 3])
    queue.work()
    assert done == [1, 2, 3, 11, 12]


def test_a_fault_is_told_once_and_the_rest_is_done_all_the_same() -> None:
    done: list[int] = []
    faults: list[str] = []

    def do(number: int) -> None:
        if number == 2:
            raise ZeroDivisionError("by two")
        done.append(number)

    queue = InOrder(JOB, do, faults.append)
    queue.put([1, 2, 3, 4])
    queue.work()
    assert faults == ["ZeroDivisionError: by two"]
    assert done == [1, 3, 4]
    queue.put([5])
    queue.work()
    assert done == [1, 3, 4, 5]


# --- the ticker -------------------------------------------------------------------------------------------------------


def test_a_ticker_does_what_it_is_handed_in_its_own_thread_in_order_and_before_it_ticks() -> None:
    closed, ended = threading.Event(), threading.Event()
    seen: list[object] = []
    ticker = Ticker(lambda: seen.append("tick"))
    me = threading.get_ident()
    for number in range(3):
        ticker.hand(lambda n=number: seen.append((n, threading.get_ident() != me)))  # type: ignore[misc]
    ticker.hand(ended.set)
    with running(lambda: ticker.run(closed)):
        assert ended.wait(WAIT_S)
        closed.set()
        ticker.wake()
    assert seen[:4] == [(0, True), (1, True), (2, True), "tick"]


def test_a_ticker_ticks_without_being_handed_anything() -> None:
    closed, ticks = threading.Event(), threading.Semaphore(0)
    ticker = Ticker(ticks.release)
    with running(lambda: ticker.run(closed)):
        assert all(ticks.acquire(timeout=WAIT_S) for _ in range(3))
        closed.set()


def test_a_ticker_is_woken_to_end_and_does_not_begin_once_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("elps.psshard.ticker.TICK_S", 3600.0)
    closed, ticked = threading.Event(), threading.Event()
    ticker = Ticker(ticked.set)
    with running(lambda: ticker.run(closed)):
        ticker.hand(lambda: None)
        assert ticked.wait(WAIT_S)
        closed.set()
        ticker.wake()
    ticked.clear()
    ticker.run(closed)
    assert not ticked.is_set()


def test_what_a_ticker_is_handed_may_fail_and_that_is_seen_by_who_runs_it() -> None:
    ticker = Ticker(lambda: None)
    ticker.hand(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        ticker.run(threading.Event())
