"""What newcomers leave: who grows, when a worker changes its job, and which machines go where."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from eps_facts import LINEAR, NO_USE, facts, held, queued, sizes
from hypothesis import given, settings
from hypothesis import strategies as st

from elps.contracts.ids import AgentId, JobId
from elps.scheduler.core.curve import LEAST, MOST
from elps.scheduler.core.eps import Eps
from elps.scheduler.core.gain import gain
from elps.scheduler.core.policy import (
    Facts,
    RunningFact,
)
from elps.scheduler.core.sizing import worth

# --- the rest ---------------------------------------------------------------------------------------------------------


def test_what_is_free_goes_where_it_gains_most_and_equal_jobs_come_to_equal_sizes() -> None:
    jobs = held("a", 1, rates=LINEAR), held("b", 3, rates=LINEAR), held("c", 1, rates=NO_USE)
    assert sizes(facts(9, 4, *jobs)) == {"a": 4, "b": 4, "c": 1}


def test_who_has_no_use_for_a_slot_gets_none() -> None:
    assert sizes(facts(4, 3, held("c", 1, rates=NO_USE))) == {"c": 1}


def test_a_worker_changes_its_job_only_if_that_pays_and_both_are_calm() -> None:
    uneven = held("a", 1, rates=LINEAR), held("b", 5, rates=LINEAR)
    assert sizes(facts(6, 0, *uneven)) == {"a": 2, "b": 4}
    assert sizes(facts(7, 0, held("a", 3, rates=LINEAR), held("b", 4, rates=LINEAR))) == {
        "a": 3,
        "b": 4,
    }
    just_now = held("a", 1, rates=LINEAR, calm_s=2.0), held("b", 5, rates=LINEAR)
    assert sizes(facts(6, 0, *just_now)) == {"a": 1, "b": 5}


def test_what_a_change_costs_says_whether_it_pays() -> None:
    """Of 1 and 3 workers, one that changes its job brings log(2) and takes log(3 / 2): 17 s in a minute."""

    def moved(**fields: Any) -> bool:
        jobs = held("a", 1, rates=LINEAR, **fields), held("b", 3, rates=LINEAR, **fields)
        return sizes(facts(4, 0, *jobs)) == {"a": 2, "b": 2}

    assert moved(cost_s=5.0, calm_s=1e4)
    assert not moved(cost_s=9.5, calm_s=1e4), "both together it costs more than it brings"
    assert moved(left=10.0), "3 s to go, and so it brings 1 s"
    assert not moved(left=10.0, cost_s=1.0, calm_s=1e4)


def test_a_job_whose_changes_cost_much_is_left_alone_for_long_and_given_what_is_free_only_if_that_pays() -> (
    None
):
    for calm_s, found in ((4.0, 1), (6.0, 2)):
        dear = held("a", 1, rates=LINEAR, cost_s=0.5, calm_s=calm_s)
        assert sizes(facts(2, 1, dear))["a"] == found
    for calm_s, found in ((40.0, 1), (60.0, 2)):
        dear = held("a", 1, rates=LINEAR, cost_s=0.5, calm_s=calm_s), held("b", 5, rates=LINEAR)
        assert sizes(facts(6, 0, *dear))["a"] == found
    little = tuple((n, 1 / (0.9 + 0.1 / n)) for n in (1, 2, 4))
    assert sizes(facts(2, 1, held("a", 1, rates=little, cost_s=1.0)))["a"] == 2
    assert sizes(facts(2, 1, held("a", 1, rates=little, cost_s=5.0)))["a"] == 1


def test_what_was_given_up_is_not_given_back_without_an_event_before_the_cost_has_been_worth_it() -> (
    None
):
    for fed in (True, False):
        for calm_s, quiet_s, found in ((5.0, 5.0, 3), (5.0, 2.0, 4), (11.0, 11.0, 4)):
            gave = held("a", 3, rates=LINEAR, trend=-1, calm_s=calm_s, fed=fed)
            assert sizes(facts(4, 1, gave, quiet_s=quiet_s))["a"] == found
    grew = held("a", 3, rates=LINEAR, trend=1, calm_s=5.0)
    assert sizes(facts(4, 1, grew, quiet_s=5.0))["a"] == 4, "that undoes nothing"


changed = st.fixed_dictionaries(
    {
        "workers": st.integers(1, 8),
        "rates": st.sampled_from([LINEAR, NO_USE, (), ((1, 1.0), (4, 2.5))]),
        "calm_s": st.sampled_from([0.5, 5.0, 20.0, 80.0, 1e4]),
        "cost_s": st.sampled_from([0.05, 0.1, 1.0, 5.0]),
        "trend": st.sampled_from([-1, 0, 1]),
        "fed": st.booleans(),
        "promise": st.sampled_from([0.5, 1.0, 2.0]),
        "left": st.none() | st.floats(1.0, 1000.0),
    }
)


@given(
    st.lists(changed, min_size=1, max_size=5), st.integers(0, 2), st.sampled_from([0.0, 3.0, 1e5])
)
@settings(max_examples=500, deadline=None)
def test_no_change_is_undone_within_its_cost_horizon_and_each_brings_more_than_it_costs(
    jobs: list[dict[str, Any]], free: int, quiet_s: float
) -> None:
    there = [held(f"j{n}", **job) for n, job in enumerate(jobs)]
    slots = sum(job.workers for job in there) + free
    decision = Eps().decide(facts(slots, free, *there, quiet_s=quiet_s))
    by_id = {job.job: job for job in there}
    changes = [(by_id[r.job], r.workers) for r in decision.resizes]
    for job, size in changes:
        undone = (size - job.workers) * job.trend < 0
        assert not undone or job.calm_s >= job.rests_s or quiet_s < job.calm_s
        assert job.calm_s >= job.rests_s or size > job.workers, "it is taken from too soon"
    horizon_s = min([job.horizon_s for job, _ in changes], default=0.0)
    if any(size < job.workers for job, size in changes):
        assert sum(size - job.workers for job, size in changes) == 0, "one moves"
        won = sum(
            worth(job) * (gain(job.rates, job.workers, size) * horizon_s - job.cost_s)
            for job, size in changes
        )
        assert won > 0, "it costs more than it brings"
    else:
        assert all(
            gain(job.rates, job.workers, size) * job.horizon_s > job.cost_s for job, size in changes
        )


def test_who_learns_more_comes_first_but_not_before_who_has_not_given_feedback() -> None:
    jobs = held("flat", 2, rates=LINEAR, promise=0.5), held("falls", 2, rates=LINEAR, promise=2.0)
    assert sizes(facts(6, 2, *jobs)) == {"flat": 2, "falls": 4}
    assert sizes(facts(4, 0, *jobs, queued("new"))) == {"flat": 1, "falls": 2}
    young = held("young", 2, rates=LINEAR, fed=False, promise=0.5)
    assert sizes(facts(5, 1, jobs[1], young)) == {"falls": 2, "young": 3}
    decision = Eps().decide(facts(8, 4, *jobs))
    reasons = {r.job: r.reason for r in decision.resizes}
    assert "the loss of falls still falls fast" in reasons[JobId("falls")]


def test_a_job_that_has_flattened_keeps_its_least_and_a_share() -> None:
    flat, falls = (
        held("flat", 4, least=2, most=16, rates=LINEAR, promise=LEAST),
        held("falls", 4, most=16, rates=LINEAR, promise=MOST),
    )
    for _ in range(20):
        found = sizes(facts(8, 0, flat, falls))
        if found == {"flat": flat.workers, "falls": falls.workers}:
            break
        flat = replace(flat, workers=found["flat"])
        falls = replace(falls, workers=found["falls"])
    assert flat.workers == 2
    assert falls.workers == 6
    alone = held("flat", 1, most=16, rates=LINEAR, promise=LEAST)
    assert sizes(facts(9, 8, alone))["flat"] == 9, "what nobody else takes it is given"


# --- machines that differ ---------------------------------------------------------------------------------------------


def slow(decided: Facts, **speeds: float) -> Facts:
    """With some of the agents slower."""
    return replace(
        decided, agents=tuple(replace(a, speed=speeds.get(a.agent, 1.0)) for a in decided.agents)
    )


def test_a_straggler_leaves_the_job_that_it_holds_up_for_one_whose_batches_follow_speeds() -> None:
    even = held("even", 4, rates=LINEAR, speeds=(1.0, 1.0, 0.25, 1.0), held_up=True)
    balanced = held("balanced", 4, rates=LINEAR)
    assert (even.power(4), even.power(3), even.best(4)) == (1.0, 3.0, 3)
    decision = Eps().decide(facts(8, 0, even, balanced))
    assert [(r.job, r.workers) for r in decision.resizes] == [("even", 3)]
    assert "faster without those that hold the others up" in decision.resizes[0].reason
    given_up = held("even", 3, rates=LINEAR, speeds=(1.0,) * 3, held_up=True, trend=-1, calm_s=1.0)
    assert sizes(slow(facts(8, 1, given_up, balanced), a0=0.25)) == {"even": 3, "balanced": 5}
    two = held("two", 4, rates=LINEAR, speeds=(1.0, 0.2, 1.0, 0.2), held_up=True)
    assert sizes(facts(4, 0, two)) == {"two": 2}, "one alone would be of no use"
    least = held("least", 4, least=4, rates=LINEAR, speeds=(1.0, 0.2, 1.0, 0.2), held_up=True)
    assert sizes(facts(4, 0, least)) == {"least": 4}
    assert sizes(facts(8, 0, two, held("old", 4, rates=NO_USE), queued("new"))) == {
        "two": 3,
        "old": 4,
    }


def test_a_fast_worker_is_given_by_who_has_slow_ones_to_who_has_no_use_for_those() -> None:
    mixed = held("mixed", 6, rates=LINEAR, speeds=(1.0, 0.25) * 3)
    even = held("even", 2, rates=LINEAR, held_up=True)
    decision = Eps().decide(facts(8, 0, mixed, even))
    assert {(r.job, r.workers, r.fastest) for r in decision.resizes} == {
        ("mixed", 5, True),
        ("even", 3, False),
    }
    alike = replace(even, workers=4)
    assert Eps().decide(facts(10, 0, mixed, alike)).resizes == ()


def test_a_slow_machine_that_is_free_is_given_to_whom_it_helps() -> None:
    even = held("even", 2, rates=LINEAR, held_up=True)
    balanced = held("balanced", 6, most=9, rates=LINEAR)
    assert sizes(slow(facts(9, 1, even, balanced), a0=0.25)) == {"even": 2, "balanced": 7}
    assert sizes(facts(9, 1, even, balanced))["even"] == 3, "a usual one goes where it brings most"


def test_a_newcomer_whose_workers_wait_for_one_another_is_given_no_straggler_that_it_can_do_without() -> (
    None
):
    free = slow(facts(4, 4, queued("new", 1, 4, held_up=True)), a1=0.25)
    (start,) = Eps().decide(free).starts
    assert start.agents == ("a0", "a2", "a3")
    needed = slow(facts(4, 4, queued("new", 4, 4, held_up=True)), a1=0.25)
    assert len(Eps().decide(needed).starts[0].agents) == 4
    follows = slow(facts(4, 4, queued("new", 1, 4)), a1=0.25)
    assert Eps().decide(follows).starts[0].agents == ("a0", "a2", "a3", "a1")


def test_what_a_job_lacks_is_given_on_fast_machines_first_to_those_that_slow_ones_hold_up() -> None:
    jobs = held("balanced", 2, rates=LINEAR), held("even", 2, rates=LINEAR, held_up=True)
    lame = tuple(
        RunningFact(j.job, 1, (AgentId(f"x{n}"),), (), held_up=j.held_up)
        for n, j in enumerate(jobs)
    )
    decided = replace(slow(facts(4, 2, *jobs), a0=0.5), running=lame)
    assert {r.job: r.agents for r in Eps().decide(decided).refills} == {
        "even": ("a1",),
        "balanced": ("a0",),
    }
    worse = replace(slow(facts(3, 1, *jobs), a0=0.25), running=lame[1:])
    assert Eps().decide(worse).refills == (), "with it, it would be slower than without"
    bare = replace(lame[1], agents=(), least=1)
    assert len(Eps().decide(replace(worse, running=(bare,))).refills) == 1


def test_weight_says_who_comes_first_and_not_whether_a_slot_is_of_use() -> None:
    for weight in (0.01, 100.0):
        assert sizes(facts(16, 15, held("j", 1, most=16, rates=LINEAR, weight=weight)))["j"] == 16
        assert sizes(facts(4, 3, held("j", 1, rates=NO_USE, weight=weight)))["j"] == 1


def test_a_slot_that_a_job_avoids_is_not_given_to_it() -> None:
    shy = held("shy", 1, avoid=(AgentId("a0"),))
    assert sizes(facts(3, 1, shy)) == {"shy": 1}
    rich = held("rich", 5, rates=LINEAR, avoid=(AgentId("a0"),))
    poor = held("poor", 1, rates=LINEAR, avoid=(AgentId("a0"),))
    assert sizes(facts(7, 1, rich, poor)) == {"rich": 4, "poor": 2}


@given(
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from([LINEAR, NO_USE, ()])), max_size=5),
    st.integers(0, 6),
)
@settings(max_examples=200, deadline=None)
def test_sizes_come_to_rest(jobs: list[tuple[int, Any]], free: int) -> None:
    """Nothing is undone without a reason: applied again and again, decisions end."""
    slots = sum(n for n, _ in jobs) + free
    now = {f"j{i}": n for i, (n, _) in enumerate(jobs)}
    for _ in range(60):
        left = slots - sum(now.values())
        assert left >= 0
        found = sizes(
            facts(
                slots,
                left,
                *(held(f"j{i}", now[f"j{i}"], rates=r) for i, (_, r) in enumerate(jobs)),
            )
        )
        if found == now:
            return
        now = found
    raise AssertionError(f"still changing: {now}")
