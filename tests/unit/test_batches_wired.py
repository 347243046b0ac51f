"""The whole way of a plan: timings to the scheduler's core, its plan to the leader's batches, these to the next cut."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_desk import Desk, reborn

from elps.balance import scaled
from elps.contracts.ids import JobId, WorkerId
from elps.contracts.messages import BatchPlan
from elps.contracts.requests import ScaleCommand
from elps.contracts.state import Progress
from elps.contracts.telemetry import IterationTimings, WorkerMean
from elps.psshard.core.batches import Batches, Tail
from elps.scheduler.core.batching import GAP
from elps.scheduler.core.events import UserAsked

BATCH = 96


class Wired:
    """A job on an agent for each of its workers, of such speeds in samples a second; and what its leader keeps."""

    def __init__(self, *speeds: float, kinds: Sequence[str] = (), most: int = 8) -> None:
        self.desk, self.batches, self.iteration = Desk(), Batches(), 0
        self.n = self.redone = 0
        self.cores: dict[WorkerId, float] = {}  #: how much of one a worker can have, where not all
        self.speeds: list[float] = [*speeds]
        self.desk.shard()
        for i in range(len(speeds)):
            self.desk.agent(f"a{i + 1}", kind=kinds[i] if kinds else "")
        document = {"batch": {"global": BATCH}, "workers": {"min": 1, "max": most}}
        self.desk.submit("j", iterations=100_000, **document)
        self._start_trainers()
        self.beat()

    def join(self, speed: float, hear: bool = True, kind: str = "") -> WorkerId:
        """An agent more, and the job's trainer on it; the leader says so unless it is not to be heard."""
        before = {*self.ready}
        self.speeds.append(speed)
        self.desk.agent(f"a{len(self.speeds)}", kind=kind)
        wish = ScaleCommand(job="j", workers=len(self.speeds))
        assert self.desk.answered(UserAsked(self.desk.request(), "scale", wish)).ok
        self._start_trainers()
        (worker,) = {*self.ready} - before
        if hear:
            self.beat()
        return worker

    def _start_trainers(self) -> None:
        for worker, agent in self.desk.workers().items():
            self.desk.agent(agent, trainers=[self.desk.trainer(worker)])

    @property
    def ready(self) -> list[WorkerId]:
        return sorted(self.desk.workers())

    @property
    def sizes(self) -> dict[WorkerId, int]:
        """How the leader would cut an iteration now."""
        return scaled(self.batches.shares(self.ready), BATCH)

    def took_s(self) -> float:
        """What an iteration cut like that takes."""
        return max(self.sizes[w] / self._speed(w) for w in self.ready)

    def best_s(self) -> float:
        return BATCH / sum(self.speeds)

    def _speed(self, worker: WorkerId) -> float:
        return self.speeds[int(self.desk.workers()[worker][1:]) - 1]

    def beat(self) -> list[BatchPlan]:
        """The leader says how it is, and takes the plans sent upon it."""
        self.desk.time += 1.0
        self.desk.take_sent(BatchPlan)
        told = self.desk.hosts(
            phase="running", ready=self.ready,
            progress=Progress(iteration=self.iteration, redone_iterations=self.redone),
            batches=self.batches.number, shares=dict(self.batches.planned),
        )  # fmt: skip
        self.desk.shard(jobs=[told])
        return self._take([message for _, message in self.desk.take_sent(BatchPlan)])

    def train(self, iterations: int) -> list[BatchPlan]:
        plans: list[BatchPlan] = []
        for _ in range(iterations):
            if self.desk.core.timed(self.timings()):
                sent = [s.message for s in self.desk.core.messages(self.desk.now)]
                plans += self._take([m for m in sent if isinstance(m, BatchPlan)])
        return plans

    def timings(self) -> IterationTimings:
        self.iteration += 1
        return IterationTimings(
            job=JobId("j"), term=self.desk.term().number, n=self.n, iteration=self.iteration,
            workers=[
                WorkerMean(
                    worker=w, samples=n, compute_s=n / self._speed(w), pull_s=0, push_s=0, wait_s=0,
                    cpu_process=self.cores.get(w, 1.0),
                )
                for w, n in self.sizes.items() if n
            ],
            waiting={w: self.cores.get(w, 1.0) for w, n in self.sizes.items() if not n},
        )  # fmt: skip

    def rolled_back(self, to: int) -> None:
        """Within the term; the leader is not heard yet."""
        self.n, self.redone, self.iteration = self.n + 1, self.redone + self.iteration - to, to

    def taken_over(self) -> None:
        """Another scheduler is in charge, which knows the records and nothing else."""
        agents = self.desk.agents
        self.desk = reborn(self.desk)
        self.desk.shard()
        for name, kept in agents.items():
            self.desk.agent(name, **kept)

    def _take(self, plans: list[BatchPlan]) -> list[BatchPlan]:
        for plan in plans:
            tail = Tail(plan.tail, plan.least, plan.trial)
            self.batches.plan(plan.number, plan.shares, plan.reason, tail)
        return plans


def test_a_slow_worker_that_joins_equal_ones_does_not_hold_them_up() -> None:
    """They are equal, so no plan had to be: that one is decided for the newcomer has to reach the leader."""
    job = Wired(1000, 1000)
    job.train(20)
    assert len({*job.sizes.values()}) == 1
    alone_s = job.took_s()
    job.join(200, hear=False)
    assert job.took_s() <= 1.3 * alone_s, (
        "a quarter of an equal share until the scheduler has heard"
    )
    job.beat()
    assert job.took_s() <= 1.3 * alone_s
    job.train(20)
    assert job.took_s() <= 1.15 * job.best_s()


def test_a_worker_that_joins_one_that_trains_alone_begins_with_a_quarter() -> None:
    job = Wired(1000)
    job.train(5)
    slow = job.join(100, hear=False)
    assert job.sizes[slow] <= BATCH / 4
    job.beat()
    job.train(20)
    assert job.took_s() <= 1.15 * job.best_s()


def test_a_plan_is_said_once_speeds_are_known_and_then_only_what_differs() -> None:
    job = Wired(1000, 1000)
    plans = job.train(50)
    assert [plan.number for plan in plans if not plan.trial] == [1]
    assert {*plans[0].shares.values()} == {BATCH // 2}


def test_a_scheduler_that_takes_over_keeps_the_plan_in_force_until_it_has_measured() -> None:
    job = Wired(1000, 1000, 1000, 50)
    job.train(30)
    before_s, number = job.took_s(), job.batches.number
    assert before_s <= 1.1 * job.best_s()
    job.taken_over()
    assert job.beat() == []
    took_s = []
    for _ in range(20):
        job.train(1)
        took_s.append(job.took_s())
    assert max(took_s) <= 1.1 * before_s
    assert job.batches.number > number + GAP, "what else is in that plan it cannot know"


def test_who_joins_just_after_a_takeover_gets_a_quarter_and_others_what_they_had() -> None:
    job = Wired(1000, 1000, 50)
    job.train(30)
    before_s = job.took_s()
    job.taken_over()
    job.beat()
    job.join(300)
    took_s = []
    for _ in range(20):
        took_s.append(job.took_s())
        job.train(1)
    assert max(took_s) <= 1.3 * before_s
    assert job.took_s() <= 1.15 * job.best_s()


def test_who_sat_out_before_a_takeover_is_tried_with_a_granule_after_it() -> None:
    job = Wired(1000, 1000, 5)
    job.train(60)
    assert 0 in job.sizes.values()
    job.taken_over()
    job.beat()
    took_s = []
    for _ in range(20):
        job.train(1)
        took_s.append(job.took_s())
    assert max(took_s) <= 1.1 / 5, "one sample of it"
    assert took_s.count(min(took_s)) >= 15


def test_timings_from_before_a_rollback_that_come_late_do_not_hide_those_after_it() -> None:
    job = Wired(1000, 1000)
    job.train(500)
    late = job.timings()
    job.rolled_back(to=100)
    job.beat()
    job.desk.core.timed(late)
    job.speeds[0] = 250
    job.train(20)
    assert job.took_s() <= 1.15 * job.best_s()
    job.desk.core.timed(late)
    job.speeds[1] = 125
    job.train(20)
    assert job.took_s() <= 1.15 * job.best_s()


def test_a_newcomer_on_an_unknown_agent_begins_with_what_its_class_of_machine_can_do() -> None:
    begun = {}
    for kind in ("slow", "unheard of", ""):
        job = Wired(1000, 1000, 250, kinds=("fast", "fast", "slow"))
        job.train(30)
        came = job.join(250, kind=kind)
        begun[kind] = job.sizes[came]
        assert sum(job.sizes.values()) == BATCH
    fair = BATCH * 250 / 2500
    assert abs(begun["slow"] - fair) <= 2
    assert begun["unheard of"] == begun[""] <= BATCH / 4 / 4


def test_a_class_that_is_told_late_changes_nothing_that_was_measured() -> None:
    job = Wired(1000, 500)
    job.train(30)
    before = job.sizes
    job.desk.agent("a1", kind="fast")
    job.beat()
    job.train(10)
    assert max(abs(job.sizes[w] - before[w]) for w in before) <= 2


def test_one_that_sits_out_is_tried_again_once_its_processor_is_freer_and_not_before() -> None:
    job = Wired(1000, 1000, 10)
    busy = job.ready[2]
    job.cores[busy] = 0.02
    job.train(20)
    assert job.sizes[busy] == 0
    tried = 0
    for _ in range(30):
        job.train(1)
        tried += job.sizes[busy] > 0
    assert tried == 0, "as little is left as when it was measured"
    job.speeds[2], job.cores[busy] = 500, 1.0
    job.train(10)
    assert job.sizes[busy] > 0
    job.train(20)
    assert job.took_s() <= 1.15 * job.best_s()


def test_trials_that_a_freer_processor_promised_in_vain_cost_little_of_the_time() -> None:
    """While it waits a processor is idle, and when it computes, others want that as well."""
    job = Wired(1000, 1000, 5)
    busy = job.ready[2]
    job.train(20)
    took_s, plain_s = 0.0, job.took_s()
    for _ in range(300):
        job.cores[busy] = 0.3 if job.sizes[busy] else 1.0
        job.train(1)
        took_s += job.took_s()
    assert took_s <= 1.2 * 300 * plain_s
