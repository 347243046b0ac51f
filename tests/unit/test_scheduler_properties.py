"""The scheduler's core under random failures: the books hold, and when they stop all jobs end and all is free."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from scheduler_walks import SchedulerMachine, walk

WALKS, STEPS, LONG_STEPS = 25, 80, 120


def walk_all(seeds: range, steps: int) -> None:
    for seed in seeds:
        try:
            walk(seed, steps)
        except BaseException:
            print(f"failed: walk({seed}, {steps})")
            raise


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "block", [0, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(1, 8))]
)
def test_any_sequence_of_failures_ends_with_all_jobs_ended_and_all_slots_free(block: int) -> None:
    walk_all(range(block * WALKS, (block + 1) * WALKS), STEPS)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("block", range(8))
def test_ten_thousand_sequences_of_failures_end_with_all_slots_free(block: int) -> None:
    walk_all(range(1000 + block * 1250, 1000 + (block + 1) * 1250), LONG_STEPS)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=25,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
