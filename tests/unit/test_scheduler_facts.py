"""What a policy is told, and what it costs to tell it: work is counted in calls, which no load changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from scheduler_desk import Desk

from elps.contracts.epoch import Term
from elps.contracts.ids import JobId, WorkerId
from elps.contracts.messages import TrainerStatus
from elps.contracts.state import JobState, Progress
from elps.scheduler.core.facts import LOOK_S, WAITS_S, all_facts
from elps.scheduler.core.fifo import Fifo
from elps.scheduler.core.policies import POLICIES
from elps.scheduler.core.policy import Decision, Facts


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


class Counting(Fifo):
    """How often it is asked."""

    times = 0

    def decide(self, facts: Facts) -> Decision:
        self.times += 1
        return super().decide(facts)


def test_while_a_job_waits_heartbeats_without_news_do_not_have_the_policy_asked_each_time() -> None:
    desk = busy(3, "fifo", waiting=1)
    policy = desk.core.policy = Counting()

    def asked(what: Callable[[], object]) -> int:
        before = policy.times
        what()
        return policy.times - before

    desk.wait(1)
    assert asked(lambda: [desk.agent(f"a{n:02}") for n in range(3)]) == 0
    desk.time += 2 * WAITS_S
    assert asked(lambda: [desk.shard(f"s{n:02}") for n in range(3)]) == 1
    assert asked(lambda: desk.agent("a03", slots=0)) == 1, "who joins is news"
    assert asked(lambda: desk.submit("q01")) >= 1
    assert asked(lambda: desk.agent("a00", slots=2)) >= 1
    assert desk.state("q00") is JobState.QUEUED, "there is no shard for it"
    desk.shard("s03", slots=1)
    assert desk.state("q00") is JobState.STARTING, "and then at once"


class Looking(Counting):
    """It looks though nobody wants anything."""

    resizes = True


def test_while_no_job_wants_anything_news_is_heeded_sooner_than_time_alone() -> None:
    """Else the slots of a job that has ended would lie idle until the next look."""
    desk = busy(3, "eps")
    policy = desk.core.policy = Looking()
    desk.wait(1)

    def asked(what: Callable[[], object]) -> int:
        before = policy.times
        what()
        return policy.times - before

    assert desk.core.book.news == desk.core.book.heeded
    desk.time += 2 * WAITS_S
    assert asked(lambda: desk.agent("a00")) == 0, "nothing is new"
    assert asked(lambda: desk.agent("a03")) == 1, "who joins is news"
    assert asked(lambda: desk.agent("a04")) == 0, "not with each of many"
    desk.time += 2 * WAITS_S
    assert asked(lambda: desk.agent("a00")) == 1, "but soon"
    desk.time += LOOK_S
    assert asked(lambda: desk.agent("a00")) == 1


def test_slots_that_are_not_cleared_in_time_are_not_waited_for_by_who_comes_later() -> None:
    desk = Desk()
    desk.shard()
    strange = TrainerStatus(
        job=JobId("x"), term=Term(1, 1), worker=WorkerId("x-w1"), state="running"
    )
    desk.agent("a1", slots=2, trainers=[strange])
    desk.wait(desk.core.bounds.clearing_s + 2)
    desk.submit(workers={"min": 1, "max": 2})
    assert desk.state() is JobState.STARTING
    assert len(desk.workers()) == 1
