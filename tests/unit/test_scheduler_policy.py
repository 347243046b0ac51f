"""First come, first served, at a fixed size."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from elps.contracts.ids import AgentId, JobId, ShardId
from elps.contracts.job import Pool as Size
from elps.scheduler.core.fifo import Fifo
from elps.scheduler.core.policy import (
    AgentFact,
    Facts,
    QueuedFact,
    RunningFact,
    ShardFact,
)


def shards(*free: int, clearing: int = 0) -> tuple[ShardFact, ...]:
    return tuple(ShardFact(ShardId(f"s{n}"), 4, f, clearing) for n, f in enumerate(free))


def agents(*free: int, clearing: int = 0) -> tuple[AgentFact, ...]:
    return tuple(AgentFact(AgentId(f"a{n}"), 4, f, clearing) for n, f in enumerate(free))


def queued(job: str, workers: tuple[int, int] = (1, 1), on: tuple[int, int] = (1, 1)) -> QueuedFact:
    return QueuedFact(JobId(job), Size(min=on[0], max=on[1]), Size(min=workers[0], max=workers[1]))


def test_a_job_gets_what_is_free_up_to_its_most() -> None:
    facts = Facts(shards(4, 4, 4), agents(1, 2), (queued("j", (1, 8), (1, 2)),), ())
    (start,) = Fifo().decide(facts).starts
    assert start.shards == ("s0", "s1")
    assert sorted(start.agents) == ["a0", "a1", "a1"]


def test_shards_of_a_job_are_different_processes_however_many_slots_one_has() -> None:
    decision = Fifo().decide(Facts(shards(4), agents(4), (queued("j", (1, 1), (2, 2)),), ()))
    assert decision.starts == ()
    assert "needs 2 shards" in decision.waits[0][1]
    assert "there are 1 in all" in decision.waits[0][1]


def test_worker_slots_are_spread_over_agents() -> None:
    (start,) = Fifo().decide(Facts(shards(1), agents(4, 4), (queued("j", (4, 4)),), ())).starts
    assert start.agents == ("a0", "a1", "a0", "a1")


def test_the_emptier_shard_is_taken_first_and_leads() -> None:
    (start,) = Fifo().decide(Facts(shards(1, 3), agents(1), (queued("j"),), ())).starts
    assert start.shards == ("s1",)


def test_nobody_overtakes_the_head_of_the_queue() -> None:
    facts = Facts(shards(4), agents(1), (queued("big", (2, 2)), queued("small")), ())
    decision = Fifo().decide(facts)
    assert decision.starts == ()
    assert "pool is too small" not in dict(decision.waits)[JobId("big")]
    assert dict(decision.waits)[JobId("big")].startswith("needs 1 shard and 2 worker slots")
    assert dict(decision.waits)[JobId("small")] == "behind earlier jobs: first come, first served"


def test_a_job_larger_than_the_whole_pool_is_passed_over_and_says_so() -> None:
    facts = Facts(shards(4), agents(1), (queued("huge", (5, 5), (2, 2)), queued("small")), ())
    decision = Fifo().decide(facts)
    assert [start.job for start in decision.starts] == ["small"]
    assert decision.starts[0].reason.startswith("first in the queue that the pool can hold")
    assert decision.waits == (
        (
            JobId("huge"),
            (
                "needs 2 shards and 5 worker slots; the pool is too small in shards (there are 1 in all) and "
                "worker slots (there are 4 in all): start more; later jobs go ahead meanwhile"
            ),
        ),
    )


def test_a_job_that_was_passed_over_is_the_head_again_once_the_pool_has_grown() -> None:
    waiting = (queued("huge", (5, 5)), queued("small"))
    assert Fifo().decide(Facts(shards(4), agents(1), waiting, ())).starts[0].job == "small"
    decision = Fifo().decide(Facts(shards(4), agents(1, 3), waiting, ()))
    assert decision.starts == ()
    assert decision.waits[1] == (JobId("small"), "behind earlier jobs: first come, first served")


def test_nobody_is_passed_over_while_members_are_being_discovered() -> None:
    facts = Facts(
        shards(4), agents(1), (queued("huge", (5, 5)), queued("small")), (), settling=True
    )
    assert Fifo().decide(facts).starts == ()


def test_several_jobs_start_in_one_decision_without_sharing_a_slot() -> None:
    facts = Facts(shards(2), agents(2), (queued("a"), queued("b"), queued("c")), ())
    decision = Fifo().decide(facts)
    assert [s.job for s in decision.starts] == ["a", "b"]
    assert [job for job, _ in decision.waits] == ["c"]


def test_running_jobs_get_replacements_before_the_queue_is_served() -> None:
    lacking = RunningFact(JobId("old"), 1, (), ())
    decision = Fifo().decide(Facts(shards(4), agents(1), (queued("new"),), (lacking,)))
    assert [r.job for r in decision.refills] == ["old"]
    assert decision.starts == ()


def test_an_agent_to_be_avoided_gets_no_replacement() -> None:
    lacking = RunningFact(JobId("j"), 2, (), (AgentId("a0"),))
    (refill,) = Fifo().decide(Facts(shards(4), agents(4, 1), (), (lacking,))).refills
    assert refill.agents == ("a1",)


def test_a_job_waits_for_slots_that_are_being_cleared_rather_than_come_out_smaller() -> None:
    facts = Facts(shards(4), agents(1, clearing=1), (queued("j", (1, 2)),), ())
    decision = Fifo().decide(facts)
    assert decision.starts == ()
    assert "cleared" in decision.waits[0][1]


def test_while_members_are_discovered_only_jobs_that_get_their_most_are_started() -> None:
    wide, narrow = queued("j", (1, 2)), queued("j", (1, 1))
    assert not Fifo().decide(Facts(shards(1), agents(1), (wide,), (), settling=True)).starts
    assert Fifo().decide(Facts(shards(1), agents(1), (narrow,), (), settling=True)).starts
    assert Fifo().decide(Facts(shards(1), agents(1), (wide,), ())).starts


sizes = st.tuples(st.integers(1, 4), st.integers(0, 4)).map(lambda t: (t[0], t[0] + t[1]))


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 4), max_size=4),
    st.lists(st.integers(0, 4), max_size=4),
    st.lists(st.tuples(sizes, sizes), max_size=5),
    st.lists(st.integers(1, 3), max_size=3),
    st.booleans(),
)
def test_a_decision_never_gives_more_than_is_free_and_never_less_than_the_least(
    free_shards: list[int],
    free_agents: list[int],
    wanted: list[tuple[tuple[int, int], tuple[int, int]]],
    missing: list[int],
    settling: bool,
) -> None:
    jobs = tuple(queued(f"q{n}", w, s) for n, (w, s) in enumerate(wanted))
    running = tuple(RunningFact(JobId(f"r{n}"), m, (), ()) for n, m in enumerate(missing))
    facts = Facts(shards(*free_shards), agents(*free_agents), jobs, running, settling=settling)
    decision = Fifo().decide(facts)
    assert decision == Fifo().decide(facts)
    given_agents = [a for s in decision.starts for a in s.agents]
    given_agents += [a for r in decision.refills for a in r.agents]
    given_shards = [s for start in decision.starts for s in start.shards]
    assert all(given_agents.count(f.agent) <= f.free for f in facts.agents)
    assert all(given_shards.count(f.shard) <= f.free for f in facts.shards)
    for start in decision.starts:
        job = next(q for q in jobs if q.job == start.job)
        assert job.workers.min <= len(start.agents) <= job.workers.max
        assert job.shards.min <= len(set(start.shards)) == len(start.shards) <= job.shards.max
    assert len(decision.starts) + len(decision.waits) == len(jobs)
    slots = sum(fact.slots for fact in facts.agents)
    possible = [
        q.job
        for q in jobs
        if settling or (q.workers.min <= slots and q.shards.min <= len(facts.shards))
    ]
    assert [s.job for s in decision.starts] == possible[: len(decision.starts)]
    assert [job for job, why in decision.waits if "later jobs go ahead" in why] == [
        q.job for q in jobs if q.job not in possible
    ]
    behind = [job for job, why in decision.waits if why.startswith("behind earlier jobs")]
    assert behind == possible[len(decision.starts) + 1 :]
