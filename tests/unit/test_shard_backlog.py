"""Rows that wait for the broker: bounded by what they hold, in order, and cut into messages that a bus carries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elps.contracts.codec import decode
from elps.contracts.ids import JobId, WorkerId
from elps.contracts.telemetry import IterationRow, IterationRows, WorkerTiming
from elps.psshard.core import backlog
from elps.psshard.core.backlog import ROWS_AT_ONCE, Backlog, Row, bodies, by_job

JOB = JobId("job")
TIMING = WorkerTiming(
    worker=WorkerId("job-w1"), samples=1, compute_s=0.1, pull_s=0.1, wait_s=0.1, push_s=0.1, lease_s=0.1
)  # fmt: skip


def row(iteration: int, workers: int = 1, job: str = "job") -> Row:
    return JobId(job), IterationRow(
        iteration=iteration, passes=0.0, samples=1, skipped=0, loss=None, duration_s=0.0, at=0.0, term=1, plan=1,
        lr=1.0, workers=[TIMING] * workers,
    )  # fmt: skip


def iterations(rows: list[Row]) -> list[int]:
    return [r.iteration for _, r in rows]


@given(
    sizes=st.lists(st.integers(0, 12), max_size=30),
    taken=st.integers(0, 30),
    most=st.integers(1, 40),
)
def test_the_newest_wait_in_order_as_many_as_there_is_room_for(
    sizes: list[int], taken: int, most: int
) -> None:
    rows = [row(n, size) for n, size in enumerate(sizes)]
    waiting = Backlog(most)
    for r in rows[:taken]:
        waiting.add(r)
    unsent = waiting.take()
    for r in rows[taken:]:
        waiting.add(r)
    waiting.put_back(unsent)
    left = iterations(waiting.take())
    assert left == sorted(set(left))
    assert left[-1:] == iterations(rows[-1:]), "the newest is kept, however long it is"
    assert sum(1 + sizes[n] for n in left) <= most or len(left) == 1
    dropped = [n for n in range(len(rows)) if n not in left]
    assert not dropped or sum(1 + sizes[n] for n in [*left, *dropped]) > most
    assert not waiting.take()


@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=20),
    most=st.sampled_from((1_000, 5_000)),
)
def test_no_message_of_several_rows_is_too_long_and_none_is_lost(
    sizes: list[int], most: int
) -> None:
    rows = [row(n, size)[1] for n, size in enumerate(sizes)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backlog, "BODY_BYTES", most)
        made = list(bodies(JOB, rows, balanced=True))
    read = [decode(body, IterationRows) for body in made]
    assert [r for some in read for r in some.rows] == rows
    assert all(
        len(body) <= most or len(some.rows) == 1 for body, some in zip(made, read, strict=True)
    )
    assert all(some.job == JOB and some.balanced for some in read)


def test_jobs_go_apart_and_so_many_rows_at_once() -> None:
    rows = [row(n, job="ba"[n % 2]) for n in range(2 * ROWS_AT_ONCE + 2)]
    grouped = [(job, len(some), some[0].iteration) for job, some in by_job(rows)]
    full = ROWS_AT_ONCE
    assert grouped == [("a", full, 1), ("a", 1, 2 * full + 1), ("b", full, 0), ("b", 1, 2 * full)]
