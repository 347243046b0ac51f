"""What a policy is told, and what it costs to tell it: work is counted in calls, which no load changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from scheduler_desk import Desk

from elps.contracts.state import Progress
from elps.scheduler.core.facts import LOOK_S, all_facts
from elps.scheduler.core.policies import POLICIES


def busy(number: int, policy: str = "eps", waiting: int = 0) -> Desk:
    """So many shards and agents, and on each of them a job that trains; others wait."""
    desk = Desk()
    desk.core.policy = POLICIES[policy]
    desk.core.book.resizes = POLICIES[policy].resizes
    for n in range(number):
        desk.shard(f"s{n:02}", slots=1)
        desk.agent(f"a{n:02}")
    for n in range(number):
        job = f"j{n:02}"
        desk.submit(job)
        ((worker, agent),) = desk.workers(job).items()
        desk.agent(agent, trainers=[desk.trainer(worker, job)])
        progress = Progress(iteration=1)
        hosted = desk.hosts(job, phase="running", ready=[worker], progress=progress)
        desk.shard(desk.places(job)[0], jobs=[hosted])
    for n in range(waiting):
        desk.submit(f"q{n:02}")
    desk.wait(1)
    return desk


def calls(what: Callable[[], object]) -> int:
    """Python functions entered, and generators resumed."""
    count = 0

    def called(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        what()
    finally:
        sys.setprofile(before)
    return count


def test_telling_all_there_is_costs_in_proportion_to_jobs_and_members() -> None:
    few, many = busy(5), busy(20)
    small, large = (
        calls(lambda desk=desk: all_facts(desk.core.book, desk.now, held=True))  # type: ignore[misc]
        for desk in (few, many)
    )
    assert large < 6 * small


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"fifo"}))
def test_a_heartbeat_costs_no_more_at_rest_than_under_a_policy_that_resizes_nothing(
    policy: str,
) -> None:
    costs = []
    for name in ("fifo", policy):
        desk = busy(10, name)
        assert desk.core.book.asked_at > desk.time - LOOK_S or name == "fifo"
        costs.append(calls(lambda desk=desk: desk.agent("a00")))  # type: ignore[misc]
    assert costs[1] < 1.2 * costs[0]
