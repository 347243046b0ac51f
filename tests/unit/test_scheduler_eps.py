"""Early feedback first: who gives way to whom."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import pytest
from eps_facts import LINEAR, NO_USE, facts, held, queued, sizes
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_crowd import Crowd
from scheduler_walks import walk

from elps.contracts.ids import AgentId, JobId, ShardId
from elps.contracts.job import Pool as Size
from elps.contracts.state import JobState, Progress
from elps.scheduler.core.eps import PATIENCE_S, Eps
from elps.scheduler.core.places import Spreading
from elps.scheduler.core.policy import (
    AgentFact,
    HeldFact,
    QueuedFact,
    RunningFact,
    ShardFact,
)

# --- newcomers --------------------------------------------------------------------------------------------------------


def test_a_newcomer_takes_what_is_free_and_nobody_gives_way() -> None:
    assert sizes(facts(6, 2, held("old", 4), queued("new", 1, 8))) == {"old": 4, "new": 2}


def test_a_full_cluster_gives_way_to_a_newcomer() -> None:
    decided = facts(4, 0, held("old", 4), queued("new", 1, 8))
    assert sizes(decided) == {"old": 2}, "it is given its fair share"
    assert sizes(facts(4, 0, held("old", 4), queued("new"))) == {"old": 3}, (
        "and no more than it takes"
    )
    assert sizes(facts(4, 0, held("old", 4, fed=False), queued("new", 1, 8))) == {"old": 3}
    decision = Eps().decide(decided)
    assert decision.resizes[0].reason == "gives way to new"
    assert dict(decision.waits)[JobId("new")].endswith("running jobs give way to it")


def test_who_loses_least_gives_way() -> None:
    jobs = held("scales", 4, rates=LINEAR), held("wastes", 4, rates=NO_USE)
    assert sizes(facts(8, 0, *jobs, queued("new"))) == {"scales": 4, "wastes": 3}
    weighty = held("scales", 4, rates=LINEAR), held("same", 4, rates=LINEAR, weight=3.0)
    assert sizes(facts(8, 0, *weighty, queued("new"))) == {"scales": 3, "same": 4}


def test_jobs_without_feedback_give_way_last() -> None:
    jobs = held("young", 4, fed=False, rates=NO_USE), held("old", 2, rates=LINEAR)
    assert sizes(facts(6, 0, *jobs, queued("new"))) == {"young": 4, "old": 1}


def test_nobody_falls_below_its_least_and_a_pinned_job_stays_as_it_is() -> None:
    jobs = held("least", 2, least=2), held("pinned", 3, least=3, most=3)
    decided = facts(5, 0, *jobs, queued("new"), queued("next"))
    assert Eps().decide(decided).resizes == ()
    waits = dict(Eps().decide(decided).waits)
    assert "all jobs are at their least: 1 worker slot more" in waits[JobId("new")]
    assert waits[JobId("next")] == "behind earlier jobs that cannot be served yet"


def test_a_job_that_cannot_be_resized_now_is_left_alone() -> None:
    jobs = held("starts", 4, movable=False), held("old", 2)
    assert sizes(facts(6, 0, *jobs, queued("new"))) == {"starts": 4, "old": 1}


def test_what_is_on_its_way_is_not_taken_twice_however_long_it_takes() -> None:
    decided = facts(4, 0, held("old", 3), queued("new"), retiring=1)
    assert Eps().decide(decided).resizes == ()


def test_several_newcomers_share_what_is_free_and_are_given_way_to_at_once() -> None:
    free = facts(6, 6, queued("a", 1, 8), queued("b", 1, 8), queued("c", 2, 8))
    assert sizes(free) == {"a": 2, "b": 2, "c": 2}
    full = facts(8, 0, held("old", 8), queued("a"), queued("b"), queued("c", 2, 2))
    assert sizes(full) == {"old": 4}


def test_the_head_is_not_overtaken_and_jobs_with_feedback_come_after_newcomers() -> None:
    decided = facts(3, 1, held("old", 2, least=2), queued("big", 2, 2), queued("small"))
    assert [s.job for s in Eps().decide(decided).starts] == []
    decided = facts(1, 1, queued("again", fed=True), queued("new"))
    assert [s.job for s in Eps().decide(decided).starts] == ["new"]


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.booleans(), st.floats(0, 2 * PATIENCE_S)),
        min_size=1,
        max_size=7,
    ),
    st.integers(0, 8),
    st.integers(0, 4),
)
@settings(max_examples=300, deadline=None)
def test_nobody_who_arrived_later_is_served_before_one_that_has_waited_long_enough(
    jobs: list[tuple[int, bool, float]], free: int, more: int
) -> None:
    waiting = [queued(f"q{n}", m, m, fed=fed, since=-s) for n, (m, fed, s) in enumerate(jobs)]
    started = {
        s.job
        for s in Eps().decide(facts(free + 1 + more, free, held("h", 1 + more), *waiting)).starts
    }
    for n, (least, fed, waited) in enumerate(jobs):
        if waiting[n].job in started or least > free + 1 + more:
            continue
        later = [q for q in waiting[n + 1 :] if q.job in started]
        assert not later or (fed and waited < PATIENCE_S), "it was to be served first"
        assert not any(q.fed and -q.since < PATIENCE_S for q in later), "nobody else may overtake"


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.25, 0.5, 1.0, 2.0])), max_size=6),
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4), st.booleans()), max_size=5),
)
def test_what_is_not_taken_of_free_slots_stays_free(
    agents: list[tuple[int, float]], jobs: list[tuple[int, int, bool]]
) -> None:
    free = {AgentId(f"a{n}"): slots for n, (slots, _) in enumerate(agents)}
    before, given = dict(free), Counter[AgentId]()
    spreading = Spreading(free, {AgentId(f"a{n}"): speed for n, (_, speed) in enumerate(agents)})
    for least, more, held_up in jobs:
        left = spreading.left
        took = spreading.take(least + more, least, held_up=held_up)
        assert min(least, left) <= len(took) <= least + more
        given.update(took)
        assert {a: n - given[a] for a, n in before.items()} == free
        assert spreading.left == sum(free.values())


def test_to_leave_thousands_of_slow_slots_free_takes_about_as_long_as_to_take_them() -> None:
    crowd = tuple(AgentFact(AgentId(f"a{n:05}"), 1, 1, 0, (1.0, 0.25)[n % 2]) for n in range(8000))
    took_s = {}
    for held_up in (False, True):
        decided = facts(0, 0, queued("new", 1, 8000, held_up=held_up))
        decided = replace(decided, agents=crowd)
        began = time.perf_counter()
        (start,) = Eps().decide(decided).starts
        took_s[held_up] = time.perf_counter() - began
        assert len(start.agents) == (4000 if held_up else 8000)
    assert took_s[True] < 8 * took_s[False]


@pytest.mark.parametrize(("free", "least", "size"), [(2, 1, 3), (0, 1, 4), (2, 4, 4)])
def test_a_job_does_not_wait_for_workers_that_would_hold_it_up(
    free: int, least: int, size: int
) -> None:
    job = held("j", 4, least, held_up=True, speeds=(1.0,) * 3)
    lacks = RunningFact(
        JobId("j"), 1, (AgentId("a"),) * 3, (), held_up=True, slowest=1.0, least=least
    )
    slow = AgentFact(AgentId("slow"), 2, free, 0, 0.25)
    decided = replace(
        facts(0, 0, job), agents=(AgentFact(AgentId("a"), 3, 0, 0), slow), running=(lacks,)
    )
    assert sizes(decided) == {"j": size}
    given = [r for r in Eps().decide(decided).refills if r.agents]
    assert bool(given) == (least == 4), "below its least it takes what there is"


@pytest.mark.parametrize("back_s", [1.0, PATIENCE_S, 1e6])
def test_a_clock_that_is_set_back_does_not_make_a_job_wait_longer(back_s: float) -> None:
    old, new = queued("old", fed=True, since=back_s), queued("new", since=0.0)
    (start,) = Eps().decide(facts(1, 1, old, new)).starts
    assert start.job == "old"


def test_a_displaced_job_is_served_beside_a_stream_of_newcomers_within_a_bounded_time() -> None:
    crowd = Crowd(1)
    crowd.submit("old")
    crowd.done["old"] = Progress(iteration=8, metrics_iteration=8, metrics={"loss": 0.5})
    crowd.go(2)
    crowd.shards["s1"]["incarnation"] = "2"  # it is displaced, and stands behind who is new
    crowd.submit("n0")
    crowd.go(2)
    assert crowd.state("old") is JobState.QUEUED
    started, n = crowd.time, 0
    while crowd.state("old") is JobState.QUEUED and crowd.time < started + 2 * PATIENCE_S:
        crowd.submit(f"n{n + 1}")
        crowd.ask("kill", f"n{n}")
        crowd.go(10)
        n += 1
    assert PATIENCE_S - 20 <= crowd.time - started <= PATIENCE_S + 20


def on_shards(job: str, *gives: str, least: int = 1) -> HeldFact:
    """A job of one worker, led elsewhere."""
    bounds = Size(min=least, max=9)
    there = tuple(map(ShardId, gives))
    one = Size(min=1, max=1)
    return HeldFact(JobId(job), 1, one, 1 + len(gives), bounds, fed=True, calm_s=100.0, gives=there)


FULL = tuple(ShardFact(ShardId(f"s{n}"), 1, 0, 0) for n in range(2))


def test_shards_are_given_up_too() -> None:
    decided = facts(2, 1, on_shards("wide", "s1"), queued("new"), shards=FULL)
    (resize,) = Eps().decide(decided).resizes
    assert (resize.job, resize.workers, resize.shards) == ("wide", 1, 1)
    moving = facts(2, 1, on_shards("wide", "s1"), queued("new"), shards=FULL, shards_moving=1)
    assert Eps().decide(moving).resizes == ()


def test_nothing_is_taken_for_a_newcomer_that_no_shard_can_be_had_for() -> None:
    jobs = held("a", 2), held("b", 2)
    decision = Eps().decide(facts(4, 0, *jobs, queued("new"), queued("next"), shards=FULL))
    assert decision.resizes == ()
    assert "no more different shards" in dict(decision.waits)[JobId("new")]
    same = on_shards("c", "s1"), on_shards("d", "s1")
    two = QueuedFact(JobId("two"), Size(min=2, max=2), Size(min=1, max=1))
    assert Eps().decide(facts(3, 1, *same, two, shards=FULL)).resizes == ()
    apart = on_shards("c", "s1"), on_shards("d", "s0")
    given = {r.job for r in Eps().decide(facts(3, 1, *apart, two, shards=FULL)).resizes}
    assert given == {"c", "d"}


def test_what_is_free_is_used_while_the_head_cannot_be_served() -> None:
    decided = facts(5, 2, held("a", 1, rates=LINEAR), held("b", 2, least=2), queued("big", 5, 5))
    assert sizes(decided)["a"] > 1


def test_who_lacks_workers_does_not_take_those_that_others_give_up() -> None:
    lame, other = held("lame", 8), held("other", 4)
    decided = facts(9, 1, lame, other, queued("new"))
    decided = replace(decided, running=(RunningFact(JobId("lame"), 4, (), ()),))
    decision = Eps().decide(decided)
    assert [s.job for s in decision.starts] == ["new"]
    assert decision.refills == ()
    assert {r.job: r.workers for r in decision.resizes} == {"lame": 4}


def test_slots_that_a_job_lacks_are_not_given_up_by_it() -> None:
    lame, full = held("lame", 4), held("full", 7, least=7)
    decided = facts(8, 0, lame, full, queued("new", 3, 3))
    decided = replace(decided, running=(RunningFact(JobId("lame"), 3, (AgentId("a0"),), ()),))
    decision = Eps().decide(decided)
    assert decision.resizes == (), "it has one worker, its least"
    assert "all jobs are at their least: 3 worker slots more" in dict(decision.waits)[JobId("new")]


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 3)), max_size=4),
    st.integers(1, 5),
    st.integers(0, 3),
)
@settings(max_examples=300, deadline=None)
def test_who_is_told_that_others_give_way_gets_what_it_needs_by_that(
    jobs: list[tuple[int, int, int]], wish: int, free: int
) -> None:
    running = [held(f"j{n}", a + b, least=a) for n, (a, b, _) in enumerate(jobs)]
    there = {j.job: max(0, j.workers - c) for j, (_, _, c) in zip(running, jobs, strict=True)}
    decided = facts(sum(there.values()) + free + wish, free, *running, queued("new", wish, wish))
    lame = [RunningFact(j.job, j.workers - there[j.job], (), ()) for j in running]
    decision = Eps().decide(replace(decided, running=tuple(r for r in lame if r.missing)))
    for refill in decision.refills:
        there[refill.job] += len(refill.agents)
        free -= len(refill.agents)
    if "give way to it" in dict(decision.waits).get(JobId("new"), ""):
        given_up = sum(max(0, there[r.job] - r.workers) for r in decision.resizes)
        assert free + given_up >= wish


def test_what_is_given_while_the_head_cannot_be_served_is_not_given_up_for_it_again() -> None:
    """A job was given what is free, and has not got it yet."""
    jobs = held("grows", 3, least=2), held("least", 3, least=3)
    decided = facts(6, 1, *jobs, queued("big", 4, 4))
    decision = Eps().decide(replace(decided, running=(RunningFact(JobId("grows"), 1, (), ()),)))
    assert decision.resizes == ()
    assert [r.job for r in decision.refills] == ["grows"]


def test_nobody_gives_way_while_the_pool_is_being_discovered() -> None:
    decision = Eps().decide(facts(4, 0, held("old", 4), queued("new"), settling=True))
    assert decision.resizes == ()
    assert "discovering the pool" in dict(decision.waits)[JobId("new")]


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), max_size=4),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.integers(0, 5),
)
@settings(max_examples=300, deadline=None)
def test_whoever_can_be_served_at_all_is_served(
    jobs: list[tuple[int, int]], wishes: list[int], free: int
) -> None:
    """The head waits only if all others are at their least; decisions never give more than there is."""
    running = [held(f"j{i}", least + more, least=least) for i, (least, more) in enumerate(jobs)]
    slots = sum(j.workers for j in running) + free
    new = [queued(f"q{i}", n, n) for i, n in enumerate(wishes)]
    decided = facts(slots, free, *running, *new)
    decision = Eps().decide(decided)
    after = sizes(decided)
    assert sum(after.values()) <= slots
    assert all(after[j.job] >= j.bounds.min for j in running)
    started = {s.job for s in decision.starts}
    head = next((q for q in new if q.job not in started and q.workers.min <= slots), None)
    if head is not None:
        given_up = sum(j.workers for j in running) - sum(after[j.job] for j in running)
        at_least = all(after[j.job] == j.bounds.min for j in running)
        left = free - sum(len(s.agents) for s in decision.starts)
        spare = sum(j.workers - j.bounds.min for j in running)
        assert left + given_up >= head.workers.min or left + spare < head.workers.min or at_least


# --- in the scheduler -------------------------------------------------------------------------------------------------


def test_a_newcomer_trains_soon_on_a_full_cluster_and_the_rest_is_shared_out_again() -> None:
    crowd = Crowd(4)
    crowd.submit("old", workers={"min": 1, "max": 4})
    crowd.go(3)
    assert crowd.sizes() == {"old": 4}
    crowd.done["old"] = Progress(iteration=50, metrics_iteration=40, metrics={"accuracy": 0.5})
    crowd.go(1)
    assert crowd.record("old").fed_at is not None
    assert "feedback" in crowd.events()
    crowd.submit("new", workers={"min": 1, "max": 4})
    crowd.go(3)
    assert crowd.sizes() == {"old": 2, "new": 2}
    assert crowd.state("new") is JobState.RUNNING
    crowd.ask("kill", "new")
    crowd.go(4)
    assert crowd.sizes() == {"old": 4}


def test_feedback_is_told_once_and_kept() -> None:
    crowd = Crowd(1)
    crowd.submit("j", iterations=99, feedback={"iterations": 10})
    crowd.go(2)
    assert "feedback" not in crowd.events()
    crowd.done["j"] = Progress(iteration=10, loss=float("nan"))
    crowd.go(3)
    assert crowd.events().count("feedback") == 1
    assert crowd.record("j").fed_at is not None


@pytest.mark.timeout(300)
def test_any_sequence_of_failures_ends_with_all_jobs_ended_and_all_slots_free() -> None:
    for seed in range(20):
        try:
            walk(seed, 80, Eps())
        except BaseException:
            print(f"failed: walk({seed}, 80, Eps())")
            raise
