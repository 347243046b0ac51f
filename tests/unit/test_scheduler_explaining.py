"""Why a job has what it has, and what would bring it more: as the policy in force would decide."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_crowd import Crowd

from elps.contracts.ids import JobId
from elps.contracts.requests import JobCommand, PolicyCommand, Reply
from elps.contracts.state import JobState, Progress
from elps.scheduler.core.events import Answer, KeepPolicy, UserAsked
from elps.scheduler.core.explaining import explain
from elps.scheduler.core.fifo import Fifo
from elps.scheduler.core.policies import POLICIES

WIDE = {"min": 1, "max": 4}


def told(crowd: Crowd, job: str) -> str:
    reply = asked(crowd, "explain", JobCommand(job=job))
    assert reply.ok
    return "\n".join(reply.lines)


def asked(crowd: Crowd, what: str, body: Any) -> Reply:
    request = crowd.request()
    crowd.feed(UserAsked(request, what, body))
    (reply,) = [c.reply for c in crowd.out if isinstance(c, Answer) and c.request == request]
    return reply


def fed(crowd: Crowd, job: str) -> None:
    crowd.done[job] = Progress(iteration=50, metrics_iteration=40, metrics={"loss": 0.5})
    crowd.go(1)


def test_first_come_first_served_says_whose_end_a_job_waits_for() -> None:
    crowd = Crowd(2, Fifo())
    crowd.submit("old", workers={"min": 2, "max": 2})
    crowd.go(2)
    crowd.submit("next")
    crowd.submit("last")
    crowd.go(1)
    assert "it holds nothing" in told(crowd, "next")
    assert "it would start at once if a worker slot were free; or job old were over" in told(
        crowd, "next"
    )
    assert "behind earlier jobs" in told(crowd, "last")
    assert "job old were over" in told(crowd, "last")
    assert "that is the most it takes" in told(crowd, "old")


def test_a_running_job_is_told_what_its_policy_would_do() -> None:
    crowd = Crowd(3, Fifo())
    crowd.submit("old", workers={"min": 1, "max": 4})
    crowd.go(2)
    text = told(crowd, "old")
    assert "3 workers (1 on a0, 1 on a1, 1 on a2)" in text
    assert "policy fifo sets a job's size when it starts" in text
    assert (
        asked(crowd, "policy", PolicyCommand(policy="eps")).reason == "fifo before, eps from now on"
    )
    assert "it would get more at once if a worker slot were free" in told(crowd, "old")


def test_a_job_is_told_what_it_counts_and_what_changes_cost_it() -> None:
    crowd = Crowd(4)
    crowd.submit("old", workers=WIDE, iterations=10**6)
    crowd.go(2)
    text = told(crowd, "old")
    assert "it has not given its early feedback yet: it counts 3 times" in text
    assert (
        "takes 0.1 s of training from it (assumed until it is measured), and it rests for 10 s"
        in text
    )
    for n in range(1, 10):
        crowd.done["old"] = Progress(
            iteration=50 * n, loss=0.5 + 20 / (n + 1), metrics_iteration=40, metrics={"loss": 0.5}
        )
        crowd.go(1)
        if n == 3:
            assert "it counts as the median job" in told(crowd, "old")
    text = told(crowd, "old")
    assert "its loss has come to 2." in text
    assert "it counts 1 times as much as the median job" in text


def test_those_that_give_way_hear_whose_end_would_bring_it_back() -> None:
    crowd = Crowd(4)
    crowd.submit("old", workers=WIDE)
    crowd.go(2)
    fed(crowd, "old")
    crowd.submit("new", workers={"min": 1, "max": 2})
    crowd.go(4)
    assert crowd.sizes() == {"old": 2, "new": 2}
    assert "job new were over" in told(crowd, "old")
    assert "that is the most it takes" in told(crowd, "new")


def test_a_pinned_a_paused_and_an_ended_job_say_so() -> None:
    crowd = Crowd(2)
    crowd.submit("j", workers=WIDE)
    crowd.go(2)
    crowd.ask("pause")
    assert "to pause at the next iteration boundary" in told(crowd, "j")
    crowd.ask("kill")
    assert told(crowd, "j").startswith("killed: ")
    assert asked(crowd, "explain", JobCommand(job="nobody")).reason == "there is no job 'nobody'"


def test_a_policy_is_chosen_while_jobs_run_and_kept() -> None:
    crowd = Crowd(4, Fifo())
    crowd.submit("old", workers=WIDE)
    crowd.go(2)
    fed(crowd, "old")
    crowd.submit("new", workers=WIDE)
    crowd.go(3)
    assert crowd.sizes() == {"old": 4}
    asked(crowd, "policy", PolicyCommand(policy="eps"))
    assert KeepPolicy("eps") in crowd.out
    reply, kept = asked(crowd, "policy", PolicyCommand()), crowd.out.count(KeepPolicy("eps"))
    assert (reply.ok, reply.lines, kept) == (True, ["eps"], 1)
    assert reply.reason == "eps is in force; there are fifo, fair, srtf, optimus besides"
    crowd.go(3)
    assert crowd.sizes() == {"old": 2, "new": 2}
    asked(crowd, "policy", PolicyCommand(policy="fifo"))
    crowd.go(3)
    assert crowd.sizes() == {"old": 2, "new": 2}, "who trains goes on as it is"
    assert asked(crowd, "policy", PolicyCommand()).lines == ["fifo"]
    reply = asked(crowd, "policy", PolicyCommand(policy="best"))
    assert not reply.ok
    assert "known: fifo" in reply.reason
    assert crowd.core.policy.name == "fifo"


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=6),
    st.integers(1, 6),
    st.sampled_from(sorted(POLICIES)),
)
def test_whoever_asks_is_answered_and_nothing_is_changed_by_it(
    jobs: list[tuple[int, int]], agents: int, policy: str
) -> None:
    crowd = Crowd(agents, POLICIES[policy])
    for n, (least, more) in enumerate(jobs):
        crowd.submit(f"j{n}", workers={"min": least, "max": least + more})
        crowd.go(1)
        before = dict(crowd.core.book.records)
        for job in before:
            lines = explain(crowd.core.book, crowd.core.policy, JobId(job), crowd.now)
            assert lines
            assert crowd.core.book.records == before
            assert not crowd.core.book.out
    for record in crowd.core.book.records.values():
        assert record.state in (JobState.QUEUED, JobState.STARTING, JobState.RUNNING)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_what_a_job_is_said_to_wait_for_does_bring_it_more(policy: str) -> None:
    crowd = Crowd(2, POLICIES[policy])
    crowd.submit("first", workers={"min": 2, "max": 2})
    crowd.go(2)
    fed(crowd, "first")
    crowd.submit("second", workers={"min": 1, "max": 1})
    crowd.go(1)
    assert crowd.state("second") is JobState.QUEUED
    assert "job first were over" in told(crowd, "second")
    crowd.ask("kill", "first")
    crowd.go(2)
    assert crowd.state("second") is JobState.RUNNING
