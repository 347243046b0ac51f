"""Fair share, shortest remaining time, marginal gain; and what holds of every policy that resizes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_world import PolicyWorld
from scheduler_walks import walk

from elps.contracts.ids import AgentId, JobId, ShardId
from elps.contracts.job import Pool as Size
from elps.scheduler.core.costs import HORIZON_S
from elps.scheduler.core.fair import ByWeight
from elps.scheduler.core.gain import gain, time_s
from elps.scheduler.core.policies import POLICIES
from elps.scheduler.core.policy import AgentFact, Facts, HeldFact, QueuedFact, ShardFact
from elps.scheduler.core.sharing import Limits, shared_out
from elps.scheduler.core.work import works

ELASTIC = [name for name, policy in POLICIES.items() if policy.resizes]
LINEAR = tuple((n, float(n)) for n in (1, 2, 4))
NO_USE = ((1, 1.0), (2, 1.0), (4, 1.0))
"""Rates that do not grow with the workers."""
SHARDS = tuple(ShardFact(ShardId(f"s{n}"), 9, 9, 0) for n in range(3))
ONE = Size(min=1, max=1)
PLENTY = 40
"""Shards, so that nobody waits for one."""


def queued(job: str, least: int = 1, most: int = 8, **fields: Any) -> QueuedFact:
    return QueuedFact(JobId(job), ONE, Size(min=least, max=most), **fields)


def held(job: str, workers: int, least: int = 1, most: int = 8, **fields: Any) -> HeldFact:
    more = {"fed": True, "calm_s": 100.0, **fields}
    return HeldFact(JobId(job), workers, Size(min=least, max=most), 1, ONE, **more)


def facts(slots: int, free: int, *jobs: QueuedFact | HeldFact, **fields: Any) -> Facts:
    return Facts(
        shards=SHARDS,
        agents=tuple(AgentFact(AgentId(f"a{n}"), 1, int(n < free), 0) for n in range(slots)),
        queued=tuple(j for j in jobs if isinstance(j, QueuedFact)),
        running=(),
        held=tuple(j for j in jobs if isinstance(j, HeldFact)),
        **fields,
    )


def sizes(policy: str, decided: Facts) -> dict[str, int]:
    """What jobs are to have after a decision."""
    decision = POLICIES[policy].decide(decided)
    return {
        **{j.job: j.workers for j in decided.held},
        **{r.job: r.workers for r in decision.resizes},
        **{s.job: len(s.agents) for s in decision.starts},
    }


# --- fair -------------------------------------------------------------------------------------------------------------


def test_fair_gives_everybody_the_same_within_their_bounds() -> None:
    jobs = held("a", 1), held("b", 1), held("c", 1, most=2)
    assert sizes("fair", facts(8, 5, *jobs)) == {"a": 3, "b": 3, "c": 2}


def test_fair_goes_by_weight() -> None:
    jobs = held("heavy", 1, weight=2.0), held("light", 1)
    assert sizes("fair", facts(6, 4, *jobs)) == {"heavy": 4, "light": 2}


def test_fair_gives_a_newcomer_its_share_and_takes_it_from_those_above_theirs() -> None:
    decided = facts(9, 0, held("rich", 6), held("poor", 3, most=3), queued("new"))
    assert sizes("fair", decided) == {"rich": 3, "poor": 3}
    assert "gives way to new" in POLICIES["fair"].decide(decided).resizes[0].reason


def test_fair_lets_running_jobs_take_from_one_another_only_when_both_are_calm() -> None:
    assert sizes("fair", facts(8, 0, held("a", 6), held("b", 2))) == {"a": 4, "b": 2}
    assert sizes("fair", facts(8, 0, held("a", 6, calm_s=3.0), held("b", 2)))["a"] == 6
    assert sizes("fair", facts(8, 0, held("a", 6), held("b", 2, calm_s=3.0)))["a"] == 6


# --- srtf -------------------------------------------------------------------------------------------------------------


def test_srtf_gives_the_shortest_all_it_can_use_then_the_next() -> None:
    short = held("short", 1, most=4, rates=LINEAR, left=10.0)
    middle = held("middle", 1, rates=LINEAR, left=100.0)
    long = held("long", 1, rates=LINEAR, left=1000.0)
    assert sizes("srtf", facts(8, 5, long, middle, short)) == {"short": 4, "middle": 3, "long": 1}


def test_srtf_goes_by_time_and_not_by_iterations() -> None:
    slow = held("slow", 1, rates=((1, 0.01),), left=10.0)
    fast = held("fast", 1, rates=((1, 10.0),), left=1000.0)
    assert sizes("srtf", facts(6, 4, slow, fast)) == {"slow": 1, "fast": 5}


def test_srtf_gives_nothing_to_who_has_no_use_for_it() -> None:
    short = held("short", 1, rates=NO_USE, left=10.0)
    assert sizes("srtf", facts(4, 3, short)) == {"short": 1}


def test_srtf_takes_from_the_longest_for_the_shortest_but_not_for_a_little() -> None:
    short = held("short", 1, rates=LINEAR, left=10.0)
    assert sizes("srtf", facts(8, 0, short, held("long", 7, rates=LINEAR, left=99.0)))["long"] == 1
    assert sizes("srtf", facts(8, 0, short, held("long", 7, rates=LINEAR, left=12.0)))["long"] == 7


def test_srtf_serves_the_shortest_first_and_counts_the_unknown_as_of_middling_length() -> None:
    jobs = (
        queued("long", rates=LINEAR, left=100.0),
        queued("new"),
        queued("short", rates=LINEAR, left=10.0),
        queued("middle", rates=LINEAR, left=50.0),
    )
    decision = POLICIES["srtf"].decide(facts(2, 2, *jobs))
    assert [s.job for s in decision.starts] == ["short", "new"]
    assert works(jobs) == [100.0, 50.0, 10.0, 50.0]
    assert works([queued("a"), queued("b", left=5.0)]) == [1.0, 1.0]


# --- optimus ----------------------------------------------------------------------------------------------------------


def test_optimus_gives_to_whose_remaining_time_falls_most() -> None:
    long = held("long", 1, rates=LINEAR, left=1000.0)
    short = held("short", 1, rates=LINEAR, left=10.0)
    useless = held("useless", 1, rates=NO_USE, left=10_000.0)
    assert sizes("optimus", facts(8, 5, short, long, useless)) == {
        "short": 1,
        "long": 6,
        "useless": 1,
    }


def test_optimus_splits_by_the_root_of_what_is_left() -> None:
    """Of two jobs whose time is what is left over their workers, the one with four times as much has twice as many."""
    jobs = (
        held("a", 1, most=99, rates=LINEAR, left=400.0),
        held("b", 1, most=99, rates=LINEAR, left=100.0),
    )
    found = sizes("optimus", facts(30, 28, *jobs))
    assert found == {"a": 20, "b": 10}


def test_optimus_moves_a_worker_only_if_that_pays_by_a_margin() -> None:
    jobs = held("a", 5, rates=LINEAR, left=100.0), held("b", 5, rates=LINEAR, left=110.0)
    assert sizes("optimus", facts(10, 0, *jobs)) == {"a": 5, "b": 5}
    jobs = held("a", 5, rates=LINEAR, left=100.0), held("b", 5, rates=LINEAR, left=400.0)
    assert sizes("optimus", facts(10, 0, *jobs))["a"] < 5


# --- all --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ELASTIC)
def test_a_pinned_job_and_one_that_cannot_be_resized_are_left_alone(policy: str) -> None:
    jobs = (
        held("pinned", 4, least=4, most=4, rates=NO_USE, left=9.0),
        held("starts", 4, movable=False, growable=False, rates=NO_USE, left=9.0),
        held("other", 2, least=2),
    )
    decision = POLICIES[policy].decide(facts(12, 2, *jobs, queued("new", 3, 3)))
    assert {r.job for r in decision.resizes} <= {"other"}
    ((job, why),) = decision.waits
    assert job == "new"
    assert "all jobs are at their least" in why, "it is told to wait for what nobody can give up"


@pytest.mark.parametrize("policy", ELASTIC)
def test_a_full_cluster_gives_way_to_a_newcomer_and_nobody_overtakes(policy: str) -> None:
    decided = facts(4, 0, held("old", 4, rates=LINEAR, left=5.0), queued("new", 1, 1))
    assert sizes(policy, decided) == {"old": 3}
    full = facts(4, 1, held("old", 3, 3, 3), queued("big", 2, 2), queued("small", 1, 1))
    decision = POLICIES[policy].decide(full)
    assert decision.starts == ()
    assert decision.resizes == ()
    assert len(decision.waits) == 2


@pytest.mark.parametrize("policy", ELASTIC)
def test_nobody_gives_way_while_the_pool_is_being_discovered(policy: str) -> None:
    decided = facts(4, 0, held("old", 4), queued("new", 1, 1), settling=True)
    assert POLICIES[policy].decide(decided).resizes == ()


rates = st.lists(
    st.tuples(st.integers(1, 6), st.floats(0.01, 100.0)), max_size=3, unique_by=lambda r: r[0]
).map(lambda found: tuple(sorted(found)))
bounds = st.tuples(st.integers(1, 3), st.integers(0, 5)).map(
    lambda t: Size(min=t[0], max=t[0] + t[1])
)
jobs = st.fixed_dictionaries(
    {
        "workers": bounds,
        "shards": st.sampled_from([ONE, Size(min=1, max=3), Size(min=2, max=2)]),
        "rates": rates,
        "left": st.none() | st.floats(0.0, 1e6),
        "weight": st.sampled_from([0.5, 1.0, 1.0, 3.0]),
        "movable": st.sampled_from([True, True, True, False]),
        "cost_s": st.sampled_from([0.1, 0.1, 0.02, 0.5]),
        "promise": st.sampled_from([1.0, 1.0, 0.5, 2.0]),
        "held_up": st.booleans(),
    }
)
happenings = st.one_of(
    st.tuples(st.just("arrive"), jobs),
    st.tuples(st.sampled_from(["feed", "end", "lose"]), st.integers(0, 99)),
    st.tuples(st.just("join"), st.sampled_from([1.0, 1.0, 0.25, 0.5, 2.0])),
    st.tuples(st.just("wait"), st.integers(1, 15)),
)


@pytest.mark.parametrize("policy", ELASTIC)
@given(
    agents=st.integers(0, 12),
    shards=st.sampled_from([3, PLENTY]),
    story=st.lists(happenings, max_size=14),
)
@settings(max_examples=60, deadline=None)
def test_whatever_happens_decisions_keep_the_account_and_come_to_rest(
    policy: str, agents: int, shards: int, story: list[tuple[str, Any]]
) -> None:
    world = PolicyWorld(POLICIES[policy], agents, shards)
    for what, how in story:
        match what:
            case "arrive":
                world.arrive(**how)
            case "join":
                world.join(how)
            case "wait":
                world.time += how
            case _:
                getattr(world, what)(how)
        world.decide()
        world.decide()
        assert policy != "eps" or not (found := world.flaps()), found
    if policy != "eps":
        world.moves.clear()  # under the others what is free may be given before it is known who needs it
    world.settle()
    assert not (found := world.flaps()), found
    if policy == "eps":
        assert not (found := stragglers(world)), found
    used = sum(job is not None for job in world.agents.values())
    assert used == sum(len(known.at) for known in world.running.values())
    least = [k.workers.min for k in world.waiting.values() if k.workers.min <= len(world.agents)]
    if least and shards == PLENTY and all(k.movable for k in world.running.values()):
        leasts = sum(k.workers.min for k in world.running.values())
        assert leasts + max(least) > len(world.agents), "somebody waits who could be served"


def stragglers(world: PolicyWorld) -> list[str]:
    """Jobs that would be faster without their slowest worker by more than it costs, and can be."""
    found = []
    for known in world.running.values():
        able = known.movable and len(known.at) == known.size > known.workers.min
        if able:
            fewest = range(1, len(known.at) - known.workers.min + 1)
            best = max(world.power(known, n) for n in fewest)
            lost = gain(known.rates, best, world.power(known))
            alive_s = HORIZON_S
            if known.left is not None and known.rates:
                alive_s = min(alive_s, known.left * time_s(known.rates, world.power(known)))
            if lost * alive_s + known.cost_s < -1e-9:
                found.append(f"{known.job} on {[world.speeds[a] for a in known.at]}")
    return found


# --- sharing ----------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 6), bounds, st.floats(0.1, 10.0)), min_size=1, max_size=6),
    st.integers(0, 40),
)
@settings(max_examples=200, deadline=None)
def test_what_is_shared_out_is_the_best_there_is(
    found: list[tuple[int, Size, float]], slots: int
) -> None:
    least, most = [size.min for _, size, _ in found], [size.max for _, size, _ in found]
    worth = ByWeight([weight for _, _, weight in found])
    shares = shared_out(Limits([now for now, _, _ in found], least, most), worth, slots, 1.0)
    assert all(a <= n <= b for a, n, b in zip(least, shares, most, strict=True))
    full = max(sum(least), min(slots, sum(most)))
    assert sum(shares) == full, "a slot is left over, or given twice"
    gains = [worth.of(i, n + 1) for i, n in enumerate(shares) if n < most[i]]
    losses = [worth.of(i, n) for i, n in enumerate(shares) if n > least[i]]
    assert not gains or not losses or max(gains) <= min(losses) + 1e-12
    again = shared_out(Limits(shares, least, most), worth, slots, 1.0)
    assert again == shares, "what is right is changed"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("policy", ["fair", "srtf", "optimus"])
def test_any_sequence_of_failures_ends_with_all_jobs_ended_and_all_slots_free(policy: str) -> None:
    for seed in range(12):
        try:
            walk(seed, 80, POLICIES[policy])
        except BaseException:
            print(f"failed: walk({seed}, 80, POLICIES[{policy!r}])")
            raise
