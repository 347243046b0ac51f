"""The batches of one job's workers: what timings say of their speed, and the plan that its leader is to obey.

Nothing here is stored, and nothing waits for it. A scheduler that starts anew learns the speeds again within a few
iterations; until everyone who trains was measured the job goes on by the plan that its leader has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from elps.balance import Balancer, Decision, Extra, Member, Observation, Policy
from elps.contracts.epoch import Term
from elps.contracts.ids import AgentId, JobId, WorkerId
from elps.contracts.job import JobDocument
from elps.contracts.messages import BatchPlan, HostedJob
from elps.contracts.telemetry import IterationTimings

GAP = 1_000
"""A scheduler that finds a plan in force that it does not know numbers its own so much higher: the one before may have
sent some that no heartbeat has shown yet, but never so many within one."""

NO_KINDS: Mapping[AgentId, str] = {}


class Batching:
    """Made for a balanced job when its leader is first heard; lives as long as the job."""

    def __init__(self, job: JobId, document: JobDocument) -> None:
        policy = Policy.named(document.batch_policy)
        batch = document.batch
        self._job = job
        self._balancer = Balancer(batch.global_, granule=batch.granule, policy=policy)
        self._term: Term | None = None
        self._n = 0  #: highest of the epochs within the term that timings came from
        self._redone = 0  #: iterations done again, when its leader was last heard
        self._shown = 0  #: highest number that its leader has shown under this term
        self._foreign = False  #: it obeys a plan of another scheduler, whose tail is not known here
        #: None: the workers get equal batches, and nothing is known of any of them.
        self.plan: BatchPlan | None = None

    @property
    def decision(self) -> Decision:
        """The newest, also when it changed nothing."""
        return self._balancer.decision

    def led(
        self,
        hosted: HostedJob,
        agents: Mapping[WorkerId, AgentId],
        kinds: Mapping[AgentId, str] = NO_KINDS,
    ) -> None:
        """The leader was heard; `agents` are those of the job's workers, `kinds` the classes of their machines."""
        redone = _redone(hosted)
        if hosted.term != self._term:
            self._term, self._shown, self._n = hosted.term, 0, 0
            self._balancer.rewind(0)
        elif redone != self._redone:
            self._balancer.rewind(0)
        self._redone = redone
        self._heed(hosted.batches)
        ready = [
            Member(w, host=agents[w], kind=kinds.get(agents[w], ""))
            for w in sorted({*hosted.ready})
            if w in agents
        ]
        if not ready or tuple(ready) == self._balancer.members:
            return
        decision = self._balancer.staff(ready)
        if self.plan is not None and decision.changed:
            self._say(decision)
        elif self._foreign:
            self._balancer.resume(hosted.shares)

    def timed(self, timings: IterationTimings) -> bool:
        """Learn from finished iterations; True if there is a new plan.

        The first is said as soon as something was measured, also when it leaves shares equal: only one that a plan does
        not name is a newcomer to the leader, and what is decided for newcomers has to differ from something.
        """
        known = self._term is not None and timings.term == self._term.number
        if not known or timings.n < self._n or not self._balancer.members:
            return False
        if timings.n > self._n:  # its iterations may be done again
            self._n = timings.n
            self._balancer.rewind(0)
        decision = self._balancer.observe(
            timings.iteration, self._observations(timings), _extras(timings)
        )
        known = self._balancer.knows([t.worker for t in timings.workers])
        if self._foreign and not known:
            return False  # what was decided with knowledge is better than what is decided without
        say = decision.changed or self._foreign or (known and self.plan is None)
        self._foreign = False
        if say:
            self._say(decision)
        return say

    def paces(self, agents: Mapping[WorkerId, AgentId]) -> dict[AgentId, float]:
        """Seconds that a sample takes on each agent, the mean of its workers, of those that were measured."""
        times: dict[AgentId, list[float]] = {}
        for worker, seconds in self._balancer.paces().items():
            if worker in agents:
                times.setdefault(agents[worker], []).append(seconds)
        return {agent: fmean(found) for agent, found in times.items()}

    def unheeded(self, hosted: HostedJob) -> BatchPlan | None:
        """The plan that the leader does not show yet; None if it does, or there is none."""
        plan = self.plan
        return plan if plan is not None and hosted.batches < plan.number else None

    def _observations(self, timings: IterationTimings) -> Sequence[Observation]:
        """Whoever has no timing had nothing to do."""
        told = {t.worker for t in timings.workers}
        out = [
            Observation(
                t.worker,
                t.samples,
                t.compute_s,
                pull_s=t.pull_s,
                push_s=t.push_s,
                wait_s=t.wait_s,
                cpu_process=t.cpu_process,
                cpu_host=t.cpu_host,
                memory=t.memory_bytes,
            )
            for t in timings.workers
        ]
        members = [member.worker for member in self._balancer.members]
        free = timings.waiting
        idle = (Observation(w, 0, cpu_process=free.get(w)) for w in members if w not in told)
        return [*out, *idle]

    def _heed(self, shown: int) -> None:
        """Keep the plan's number above all that the leader has heard from others, and say it anew if it must be."""
        ours = self.plan.number if self.plan is not None and self.plan.term == self._term else 0
        foreign = shown > max(ours, self._shown)
        self._shown = max(self._shown, shown + GAP if foreign else shown)
        self._foreign |= foreign
        if self.plan is not None and (foreign or self.plan.term != self._term):
            self._say(self._balancer.decision)

    def _say(self, decision: Decision) -> None:
        assert self._term is not None
        ours = self.plan.number if self.plan is not None and self.plan.term == self._term else 0
        self.plan = BatchPlan(
            job=self._job,
            term=self._term,
            number=max(ours, self._shown) + 1,
            shares=dict(decision.sizes),
            reason=decision.reason,
            tail=decision.tail,
            least=decision.tail_least,
            trial=decision.trial,
        )


def _extras(timings: IterationTimings) -> dict[WorkerId, Extra]:
    return {
        t.worker: Extra(t.extra.leases, t.extra.samples, t.extra.compute_s, t.extra.wait_s)
        for t in timings.workers
        if t.extra is not None
    }


def _redone(hosted: HostedJob) -> int:
    return hosted.progress.redone_iterations if hosted.progress is not None else 0
