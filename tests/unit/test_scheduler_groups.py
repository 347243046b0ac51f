"""Groups: what they may have together, and how much they count, under every policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_crowd import Crowd

from elps.contracts.ids import AgentId, JobId, ShardId
from elps.contracts.job import Pool as Size
from elps.contracts.state import Progress
from elps.scheduler.core.core import Core
from elps.scheduler.core.eps import Eps
from elps.scheduler.core.groups import Group, Grouped, read
from elps.scheduler.core.policies import POLICIES
from elps.scheduler.core.policy import AgentFact, Decision, Facts, HeldFact, QueuedFact, ShardFact

LINEAR = tuple((n, float(n)) for n in (1, 2, 4, 8))
sizes = st.tuples(st.integers(1, 3), st.integers(0, 5)).map(
    lambda pair: Size(min=pair[0], max=pair[0] + pair[1])
)
names = st.sampled_from(["", "a", "b"])


@st.composite
def worlds(draw: st.DrawFn) -> Facts:
    held = []
    for n in range(draw(st.integers(0, 4))):
        workers, shards = draw(sizes), draw(sizes)
        held.append(
            HeldFact(
                JobId(f"h{n}"),
                draw(st.integers(workers.min, workers.max)),
                workers,
                draw(st.integers(shards.min, shards.max)),
                shards,
                fed=draw(st.booleans()),
                group=draw(names),
                rates=LINEAR,
                room=draw(st.integers(0, 3)),
                calm_s=draw(st.sampled_from([0.0, 5.0, 100.0])),
                gives=(ShardId("s1"),),
            )
        )
    queued = [
        QueuedFact(JobId(f"q{n}"), draw(sizes), draw(sizes), group=draw(names))
        for n in range(draw(st.integers(0, 4)))
    ]
    return Facts(
        shards=tuple(ShardFact(ShardId(f"s{n}"), 4, draw(st.integers(0, 4)), 0) for n in range(4)),
        agents=tuple(AgentFact(AgentId(f"a{n}"), 4, draw(st.integers(0, 4)), 0) for n in range(4)),
        queued=tuple(queued),
        running=(),
        held=tuple(held),
    )


def used(facts: Facts, decision: Decision, name: str) -> tuple[int, int]:
    """Workers and shards of a group after a decision."""
    found = {j.job: (j.workers, j.shards) for j in facts.held if j.group == name}
    own = {j.job for j in facts.queued if j.group == name}
    found |= {r.job: (r.workers, r.shards) for r in decision.resizes if r.job in found}
    found |= {s.job: (len(s.agents), len(s.shards)) for s in decision.starts if s.job in own}
    return sum(w for w, _ in found.values()), sum(s for _, s in found.values())


@given(worlds(), st.sampled_from(sorted(POLICIES)), st.integers(1, 12), st.integers(1, 12))
def test_no_group_gets_more_than_its_quota(
    facts: Facts, policy: str, workers: int, shards: int
) -> None:
    grouped = Grouped(POLICIES[policy], {"a": Group(workers=workers, shards=shards)})
    decision = grouped.decide(facts)
    before = used(facts, Decision(), "a")
    after = used(facts, decision, "a")
    assert after[0] <= max(workers, before[0])
    assert after[1] <= max(shards, before[1])
    served = {s.job for s in decision.starts} | {job for job, _ in decision.waits}
    assert served == {j.job for j in facts.queued}, "whoever waits is told why"
    assert grouped.decide(facts) == decision


@given(worlds(), st.sampled_from(sorted(POLICIES)))
def test_a_quota_that_nobody_reaches_changes_nothing(facts: Facts, policy: str) -> None:
    wide = Grouped(POLICIES[policy], {"a": Group(workers=999, shards=999), "c": Group(weight=3)})
    assert wide.decide(facts) == POLICIES[policy].decide(facts)


class Looking(Eps):
    """Notes how much jobs with a place count."""

    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []

    def decide(self, facts: Facts) -> Decision:
        self.seen.append({job.job: job.weight for job in facts.held})
        return super().decide(facts)


def test_a_group_with_a_weight_counts_as_one_job_of_it() -> None:
    looking, one = Looking(), Size(min=1, max=1)
    held = tuple(
        HeldFact(JobId(name), 1, one, 1, one, fed=True, weight=weight, group=group)
        for name, weight, group in (("x", 1.0, "a"), ("y", 3.0, "a"), ("z", 2.0, ""))
    )
    facts = Facts(shards=(), agents=(), queued=(), running=(), held=held)
    Grouped(looking, {"a": Group(weight=2.0)}).decide(facts)
    Grouped(looking, {"a": Group(workers=9)}).decide(facts)
    assert looking.seen == [{"x": 0.5, "y": 1.5, "z": 2.0}, {"x": 1.0, "y": 3.0, "z": 2.0}]


@pytest.mark.parametrize("quota", [2, None])
def test_a_weight_is_not_shared_with_jobs_that_wait_and_cannot_start(quota: int | None) -> None:
    one, two = Size(min=1, max=1), Size(min=1, max=2)
    held = (
        HeldFact(JobId("own"), 2, two, 1, one, fed=True, group="a"),
        HeldFact(JobId("other"), 2, Size(min=2, max=9), 1, one, fed=True),
    )
    shards = (ShardFact(ShardId("s1"), 9, 9, 0),)
    agents = tuple(AgentFact(AgentId(f"a{n}"), 1, int(n > 3), 0) for n in range(5))
    for length, part in ((0, 1), (1, 2), (60, 3)):
        waits = [
            QueuedFact(JobId(f"q{n}"), one, Size(min=1, max=1), group="a") for n in range(length)
        ]
        facts = Facts(shards, agents, tuple(waits), (), held)
        looking = Looking()
        Grouped(looking, {"a": Group(weight=2.0, workers=quota)}).decide(facts)
        # of the five slots three are the leasts of who runs
        expected = 2.0 if quota else 2.0 / part
        assert looking.seen == [{"own": expected, "other": 1.0}]


@given(worlds(), st.floats(0.1, 9))
def test_the_jobs_of_a_group_count_as_much_as_its_weight_together(
    facts: Facts, weight: float
) -> None:
    looking = Looking()
    grouped = Grouped(looking, {"a": Group(weight=weight)})
    grouped.decide(facts)
    grouped.decide(replace(facts, queued=()))
    with_queue, alone = (
        [seen[job.job] for job in facts.held if job.group == "a"] for seen in looking.seen
    )
    if alone:
        assert sum(alone) == pytest.approx(weight)
        assert 0 < sum(with_queue) <= weight * (1 + 1e-9)


class Passes(tuple[Any, ...]):
    """Counts how often it is gone through."""

    times = 0

    def __iter__(self) -> Iterator[Any]:
        self.times += 1
        return super().__iter__()


def test_a_long_queue_that_waits_for_a_quota_is_gone_through_no_more_often_than_a_short_one() -> (
    None
):
    def passes(waiting: int) -> tuple[int, int]:
        one = Size(min=1, max=1)
        held = Passes([HeldFact(JobId("h"), 8, Size(min=8, max=8), 1, one, fed=True, group="a")])
        queue = Passes(QueuedFact(JobId(f"q{n}"), one, one, group="a") for n in range(waiting))
        shards = (ShardFact(ShardId("s1"), 9, 9, 0),)
        agents = (AgentFact(AgentId("a1"), 8, 0, 0),)
        facts = Facts(shards=shards, agents=agents, queued=queue, running=(), held=held)
        decision = Grouped(Eps(), {"a": Group(workers=8)}).decide(facts)
        assert len(decision.waits) == waiting
        return held.times, queue.times

    assert passes(50) == passes(5)


def test_what_is_over_its_quota_is_left_as_it_is() -> None:
    one = Size(min=1, max=9)
    held = HeldFact(
        JobId("x"), 5, one, 2, one, fed=True, calm_s=99, group="a", rates=LINEAR, room=2
    )
    agents = (AgentFact(AgentId("a1"), 9, 9, 0),)
    facts = Facts(shards=(), agents=agents, queued=(), running=(), held=(held,))
    assert Grouped(Eps(), {"a": Group(workers=2, shards=1)}).decide(facts).resizes == ()
    assert Grouped(Eps(), {}).decide(facts).resizes != ()
    assert Grouped(Eps(), {"a": Group(workers=2)}).decide(replace(facts, held=())) == Decision()


@given(worlds(), st.integers(1, 12), st.integers(1, 12))
def test_nobody_gives_way_below_its_least(facts: Facts, workers: int, shards: int) -> None:
    decision = Grouped(Eps(), {"a": Group(workers=workers, shards=shards)}).decide(facts)
    bounds = {job.job: job for job in facts.held}
    for resize in decision.resizes:
        job = bounds[resize.job]
        assert resize.workers >= min(job.workers, job.bounds.min)
        assert resize.shards >= min(job.shards, job.shard_bounds.min)


def test_who_cannot_be_served_takes_nothing_of_its_groups_quota_and_stands_in_nobodys_way() -> None:
    one, many = Size(min=1, max=1), Size(min=2, max=8)
    agents = tuple(AgentFact(AgentId(f"a{n}"), 1, 1, 0) for n in range(8))
    shards = (ShardFact(ShardId("s1"), 9, 9, 0),)
    queued = (
        QueuedFact(JobId("big"), Size(min=10, max=10), many, group="a"),
        QueuedFact(JobId("small"), one, one, group="a"),
    )
    facts = Facts(shards=shards, agents=agents, queued=queued, running=())
    for policy in POLICIES.values():
        decision = Grouped(policy, {"a": Group(workers=8)}).decide(facts)
        assert [s.job for s in decision.starts] == ["small"], policy.name


def test_jobs_give_way_within_each_group_whoever_waits_first() -> None:
    one, five = Size(min=1, max=1), Size(min=1, max=5)
    held = tuple(
        HeldFact(JobId(f"h{g}"), 4, five, 1, one, fed=True, calm_s=99, group=g) for g in "ab"
    )
    queued = (
        QueuedFact(JobId("never"), one, Size(min=6, max=6), group="a"),
        QueuedFact(JobId("new"), one, one, group="b"),
    )
    agents = tuple(AgentFact(AgentId(f"a{n}"), 1, 0, 0) for n in range(8))
    shards = (ShardFact(ShardId("s1"), 9, 9, 0),)
    facts = Facts(shards=shards, agents=agents, queued=queued, running=(), held=held)
    grouped = Grouped(Eps(), {"a": Group(workers=4), "b": Group(workers=4)})
    decision = grouped.decide(facts)
    assert [(r.job, r.workers) for r in decision.resizes] == [("hb", 3)]
    assert "more than the 4 that it may have" in dict(decision.waits)[JobId("never")]


def test_groups_are_read_from_a_setting() -> None:
    assert read("") == {}
    assert read("a=weight:2,workers:8,shards:4; b = workers: 4") == {
        "a": Group(2.0, 8, 4),
        "b": Group(None, 4, None),
    }
    for wrong in ("a", "=workers:1", "a=workers", "a=workers:x", "a=workers:1.5", "a=cores:1",
                  "a=weight:0", "a=workers:-1", "a=workers:1;a=workers:2", "a=weight:nan"):  # fmt: skip
        with pytest.raises(ValueError, match="expected text like"):
            read(wrong)


def test_in_the_scheduler_a_group_waits_for_its_quota_and_others_go_ahead() -> None:
    crowd = Crowd(4)
    crowd.core = Core([], crowd.now, policy=Eps(), groups={"a": Group(workers=2)})
    crowd.wait(3)
    for name, group in (("one", "a"), ("two", "a"), ("three", "a"), ("four", "")):
        crowd.submit(name, group=group, workers={"min": 1, "max": 2})
    crowd.go(6)
    assert crowd.sizes() == {"one": 1, "two": 1, "four": 2}, "one has given way to two"
    assert "the quota of its group a: it asks for 1 worker, 2 of 2 are taken" in (
        crowd.record("three").reason
    )
    for name in ("one", "two", "four"):
        crowd.done[name] = Progress(iteration=50, metrics_iteration=40, metrics={"loss": 0.5})
    crowd.go(5)
    assert crowd.sizes() == {"one": 1, "two": 1, "four": 2}
    crowd.ask("kill", "one")
    crowd.go(4)
    assert crowd.sizes() == {"two": 1, "three": 1, "four": 2}
