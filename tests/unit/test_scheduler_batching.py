"""How the scheduler turns timings into plans of batches, and has leaders obey them."""

from __future__ import annotations

import random
from statistics import fmean
from typing import Any

import msgspec
from scheduler_desk import Desk, reborn

from elps.contracts.ids import JobId, WorkerId
from elps.contracts.messages import BatchPlan
from elps.contracts.state import Progress
from elps.contracts.telemetry import ExtraLeases, IterationTimings, WorkerMean
from elps.scheduler.core.batching import GAP

BATCH = 60
SPEEDS = {"j-w1": 300.0, "j-w2": 100.0}
"""Samples a second."""


class Balanced:
    """A job with two workers, one three times as fast, and its leader."""

    def __init__(self, **fields: Any) -> None:
        self.desk, self.iteration = Desk(), 0
        self.heard = 0  #: number that the leader shows
        self.shares: dict[WorkerId, int] = {}
        self.desk.shard()
        self.desk.agent(slots=2)
        document = {"batch": {"global": BATCH}, "workers": {"min": 2, "max": 2}, **fields}
        self.desk.submit("j", iterations=10_000, **document)
        self.desk.agent(trainers=[self.desk.trainer(w) for w in self.desk.workers()])
        self.beat()

    def beat(self, **fields: Any) -> list[BatchPlan]:
        """The leader says how it is; the plans sent upon it."""
        ready = list(self.desk.workers())
        told = {"ready": ready, "batches": self.heard, "progress": Progress(), **fields}
        self.desk.take_sent(BatchPlan)
        self.desk.shard(jobs=[self.desk.hosts(phase="running", **told)])
        return [message for _, message in self.desk.take_sent(BatchPlan)]

    def train(self, iterations: int, speeds: dict[str, float] = SPEEDS) -> list[BatchPlan]:
        """Iterations by the plan that is obeyed; plans are obeyed as they come, and shown by no beat yet."""
        plans = []
        for _ in range(iterations):
            if self.desk.core.timed(self.timings(speeds)):
                sent = [s.message for s in self.desk.core.messages(self.desk.now)]
                plans += [m for m in sent if isinstance(m, BatchPlan)]
                self.shares = dict(plans[-1].shares)
        return plans

    def timings(
        self, speeds: dict[str, float] = SPEEDS, cpu: dict[str, float] | None = None
    ) -> IterationTimings:
        sizes = self.shares or dict.fromkeys(self.desk.workers(), BATCH // 2)
        self.iteration += 1
        return IterationTimings(
            job=JobId("j"), term=self.desk.term().number, iteration=self.iteration,
            workers=[
                WorkerMean(
                    worker=w, samples=n, compute_s=n / speeds[w], pull_s=0, push_s=0, wait_s=0,
                    cpu_process=(cpu or {}).get(w),
                )
                for w, n in sizes.items() if n
            ],
        )  # fmt: skip


def test_shares_follow_the_speeds_and_sum_to_the_batch() -> None:
    job = Balanced()
    plans = job.train(20)
    assert plans
    assert [plan.number for plan in plans] == list(range(1, len(plans) + 1))
    assert all(sum(plan.shares.values()) == BATCH for plan in plans)
    fast, slow = plans[-1].shares.values()
    assert abs(fast - 3 * slow) <= 4
    assert plans[-1].reason


def test_a_plan_is_repeated_at_the_pace_of_beats_until_the_leader_shows_its_number() -> None:
    job = Balanced()
    newest = job.train(20)[-1]
    assert job.beat() == []  # it was said a moment ago
    job.desk.time += 2.0
    assert job.beat() == [newest]
    job.heard = newest.number
    job.desk.time += 2.0
    assert job.beat() == []


def test_timings_of_another_term_or_of_unknown_jobs_say_nothing() -> None:
    job = Balanced()
    for _ in range(10):
        timings = job.timings()
        assert not job.desk.core.timed(msgspec.structs.replace(timings, term=timings.term + 1))
        assert not job.desk.core.timed(msgspec.structs.replace(timings, job=JobId("other")))


def test_timings_that_come_twice_or_late_change_nothing() -> None:
    job = Balanced()
    first = job.timings()
    job.desk.core.timed(first)
    job.train(20)
    live = job.desk.core.book.live[JobId("j")]
    assert live.batching is not None
    plan = live.batching.plan
    assert not job.desk.core.timed(first)
    assert live.batching.plan is plan


def test_fixed_and_deterministic_jobs_and_those_of_one_worker_are_not_balanced() -> None:
    for fields in ({"deterministic": True},):
        job = Balanced(**fields)
        assert job.train(20) == []
        assert job.desk.core.book.live[JobId("j")].batching is None
    desk = Desk()
    desk.start()
    assert desk.core.book.live[JobId("j")].batching is None


def test_iterations_done_again_count_anew() -> None:
    job = Balanced()
    job.train(20)
    job.iteration, equal = 3, {"j-w1": 100.0, "j-w2": 100.0}
    assert job.train(5, equal) == []  # older than what was heard
    job.iteration = 3
    job.beat(progress=Progress(iteration=3, redone_iterations=17))
    assert job.train(12, equal)
    assert max(job.shares.values()) - min(job.shares.values()) <= 6


def test_a_scheduler_that_starts_anew_numbers_above_what_the_leader_may_have_heard() -> None:
    job = Balanced()
    job.heard = job.train(20)[-1].number
    job.beat()
    job.desk = reborn(job.desk)
    job.desk.shard()
    job.desk.agent(slots=2, trainers=[job.desk.trainer(w) for w in job.desk.workers()])
    assert job.beat() == []  # it knows no speeds yet: the leader goes on by what it has
    plans = job.train(20)
    assert plans[0].number == job.heard + GAP + 1
    assert job.shares["j-w1"] > 2 * job.shares["j-w2"]  # type: ignore[index]


def jumpy(lease_s: float, iterations: int = 80) -> list[BatchPlan]:
    """Plans for machines that jump about by a third; a lease takes so long whatever its size."""
    chance, job, plans = random.Random(3), Balanced(batch={"global": 400}), list[BatchPlan]()
    for _ in range(iterations):
        asked, tail = (plans[-1].trial, plans[-1].tail) if plans else (0, 0.0)
        told, timings = [], job.timings(dict.fromkeys(job.desk.workers(), 200.0))
        for mean in timings.workers:
            jump = chance.uniform(0.7, 1.3)
            more, leases = (200 * tail, 3) if tail else (float(bool(asked)), int(bool(asked)))
            extra_s = jump * (more / 2000 + leases * lease_s)
            extra = ExtraLeases(leases=leases, samples=more, compute_s=extra_s, wait_s=0.001)
            took_s = jump * ((mean.samples - more) / 2000 + lease_s) + extra_s
            told.append(
                msgspec.structs.replace(mean, compute_s=took_s, extra=extra if leases else None)
            )
        if plans:
            plans[-1] = msgspec.structs.replace(plans[-1], trial=0)  # once
        if job.desk.core.timed(msgspec.structs.replace(timings, workers=told)):
            sent = [s.message for s in job.desk.core.messages(job.desk.now)]
            plans += [m for m in sent if isinstance(m, BatchPlan)]
            job.shares = dict(plans[-1].shares)
            if plans[-1].trial:
                plans.append(plans[-1])  # as it was sent; the copy is obeyed
    return plans


def test_where_speeds_jump_a_lease_is_tried_and_a_tail_comes_if_that_is_cheap() -> None:
    plans = jumpy(lease_s=0.0005)
    assert any(plan.trial == 1 for plan in plans)
    assert any(plan.tail > 0 for plan in plans)
    assert "one lease more" in next(plan for plan in plans if plan.trial).reason
    first = next(i for i, plan in enumerate(plans) if plan.tail)
    assert sum(plan.trial for plan in plans[:first]) >= 3, "not before it is known"


def test_no_tail_comes_where_a_lease_takes_as_long_as_a_batch() -> None:
    plans = jumpy(lease_s=0.1)
    assert any(plan.trial == 1 for plan in plans)
    assert not any(plan.tail for plan in plans)


def test_plans_foresee_the_speeds_that_go_with_the_processor_time_of_now() -> None:
    """Two machines whose processors others use too, each iteration for another part."""

    def late(known: bool) -> float:
        """Mean time of the slowest over that of both together, once NARX has learned."""
        chance, job = random.Random(5), Balanced(batch={"global": 600, "policy": "narx"})
        share = dict.fromkeys(job.desk.workers(), 1.0)
        job.shares = dict.fromkeys(share, 300)
        ratios = []
        for t in range(200):
            speeds = {w: 300.0 * part for w, part in share.items()}
            slowest_s = max(n / speeds[w] for w, n in job.shares.items())
            if t >= 100:
                ratios.append(slowest_s * sum(speeds.values()) / 600)
            share = {w: chance.uniform(0.3, 1.0) for w in share}  # of the coming iteration
            if job.desk.core.timed(job.timings(speeds, share if known else None)):
                sent = [s.message for s in job.desk.core.messages(job.desk.now)]
                job.shares = dict([m for m in sent if isinstance(m, BatchPlan)][-1].shares)
        return fmean(ratios)

    assert late(known=True) - 1 < 0.5 * (late(known=False) - 1)
