"""The course of a simulated cluster: events in virtual time, and the policy asked when the scheduler would ask it.

It is the policy that is run, not the whole core: the core goes through all heartbeats of all members, some million an
hour for a thousand workers, and its books would take hours for what takes seconds here. The policy is told the same
facts, asked as often (`placing`), and what it decides is carried out by the same rules: a worker that is given up ends
its iteration first, one that is added gets ready while the others train, partitions leave a shard while the job trains.

Left out: failures, terms, messages, and the noise of what is measured: a rate is known exactly, as soon as the core
would know it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from heapq import heappop, heappush
from itertools import count

from elps.balance.slowdown import Slowdown, Step
from elps.contracts.ids import AgentId, JobId
from elps.scheduler.core.costs import rests_s, settles_s
from elps.scheduler.core.facts import LOOK_S, WAITS_S
from elps.scheduler.core.machines import power, stepped
from elps.scheduler.core.policy import Decision, Policy, Refill, Resize, Start
from elps.scheduler.simulator.facing import Teller
from elps.scheduler.simulator.outcome import Ended, Outcome
from elps.scheduler.simulator.running import Running
from elps.scheduler.simulator.slots import Slots
from elps.scheduler.simulator.workload import Job, Workload

IDLE_LOOK_S = 30.0
"""While nothing happens and the last decision was to do nothing, the policy is asked so often."""


class Simulation:
    """One workload under one policy."""

    def __init__(self, workload: Workload, policy: Policy) -> None:
        self.workload, self.policy = workload, policy
        self.slots = Slots(workload.cluster)
        self.now = 0.0
        self.queue: dict[JobId, Job] = {}
        self.held: dict[JobId, Running] = {}
        self.ended: list[Ended] = []
        self.decisions = 0
        self._order: list[tuple[int, JobId]] = []  #: of those that have a place, by arrival
        self._arrival = {job.id: n for n, job in enumerate(workload.jobs)}
        self._held_up = not workload.cluster.balanced
        self._teller = Teller(resizes=policy.resizes, held_up=self._held_up)
        self._event_at = 0.0  #: when a job last came, gave its feedback or went
        self._measure_machines()
        self._heap: list[tuple[float, int, str, JobId | None, int]] = []
        self._numbers = count()
        self._asked_at = -math.inf
        self._clearing: dict[int, list[AgentId]] = {}  #: slots that will be free, by number
        self._freed = False  #: slots have become free since the policy was asked last
        self._looks: set[float] = set()  #: when the policy is asked although nothing happens
        self._idle_at = math.inf  #: the one of them that comes if nothing else does
        for job in workload.jobs:
            self._foresee(job.at_s, "arrives", job.id)
        if any(not constant(pattern) for pattern in workload.cluster.slowdowns):
            self._foresee(workload.cluster.weather_s, "weather")
        self._jobs = {job.id: job for job in workload.jobs}

    def run(self) -> Outcome:
        """To the end of the last job; `RuntimeError` if some can never start."""
        while len(self.ended) < len(self.workload.jobs):
            if not self.step():
                waiting = ", ".join(list(self.queue)[:5])
                raise RuntimeError(f"nothing happens any more, and these never started: {waiting}")
        return Outcome(
            self.workload.name,
            self.policy.name,
            self.workload.cluster.workers,
            tuple(sorted(self.ended, key=lambda e: self._arrival[e.job.id])),
            self.now,
            self.slots.used_s,
            self.decisions,
        )

    def step(self) -> bool:
        """All that happens at the next moment, and what is decided then; False if nothing will."""
        if not self._heap or not (self.held or self._clearing or self._arrivals_left()):
            return False
        self.now = now = self._heap[0][0]
        self.slots.pass_time(now)
        changed = False
        while self._heap and self._heap[0][0] <= now:
            _, _, what, job, stamp = heappop(self._heap)
            changed |= self._happens(what, job, stamp)
        if changed or now in self._looks:
            self._looks.discard(now)
            self._consider()
        return True

    def _arrivals_left(self) -> bool:
        return len(self.ended) + len(self.queue) < len(self.workload.jobs)

    # --- what happens -------------------------------------------------------------------------------------------------

    def _foresee(self, at: float, what: str, job: JobId | None = None, stamp: int = 0) -> None:
        if at < math.inf:
            heappush(self._heap, (at, next(self._numbers), what, job, stamp))

    def _happens(self, what: str, job: JobId | None, stamp: int) -> bool:
        """One thing; whether a policy might decide otherwise than before."""
        if what == "cleared":
            self.slots.cleared(self._clearing.pop(stamp))
            self._freed = True
            return True
        if job is None:
            return what == "weather" and self._weather()
        if what == "arrives":
            self.queue[job] = self._jobs[job]
            self._happened()
            return True
        run = self.held.get(job)
        if run is None:
            return False
        run.advance(self.now)
        if what == "ready":
            self._ready(run, stamp)
            return False
        if what == "joins":
            self._joins(run, stamp)
            return False
        if what == "moved":
            self._moved(run)
        elif stamp == run.stamp:
            self._as_foreseen(run, what)
        else:
            return False
        self._teller.forget(job)
        return True

    def _as_foreseen(self, run: Running, what: str) -> None:
        """Something on a job's course that nothing has changed since."""
        match what:
            case "begins":
                run.begun_at = self.now
                self._course(run)
            case "left":
                self._free(run.job.id, run.leaving)
                run.leaving = []
                self._changed(run)
            case "measured":
                self._note_rate(run)
            case "fed":
                run.fed_at = self.now
                self._happened()
            case "ends":
                self._end(run)
                self._happened()

    def _happened(self) -> None:
        """A job has come, given its feedback or gone."""
        self._event_at = self.now
        self._teller.happened()

    def _note_rate(self, run: Running) -> None:
        run.note_rate(self.now, power(self.slots.speeds_of(run.at_work), held_up=self._held_up))

    def _measure_machines(self) -> None:
        """How fast they are now is known at once."""
        patterns = self.workload.cluster.slowdowns
        if patterns:
            self.slots.speeds = [
                stepped(1 / patterns[n % len(patterns)].factor(self.now))
                for n in range(len(self.slots.agents))
            ]

    def _weather(self) -> bool:
        """Workers have become faster or slower; whether they are told so."""
        before = self.slots.speeds
        self._measure_machines()
        for run in self.held.values():
            run.advance(self.now)
            if run.begun_at is not None and self._rate(run) != run.rate:
                self._course(run)
                if run.count_at_work in run.rates:
                    self._note_rate(run)
                self._teller.forget(run.job.id)
        if self.held or self._arrivals_left():
            self._foresee(self.now + self.workload.cluster.weather_s, "weather")
        return before != self.slots.speeds

    def _moved(self, run: Running) -> None:
        self.slots.leave(run.job.id, run.emptied)
        run.emptied = []
        self._changed(run)

    def _ready(self, run: Running, number: int) -> None:
        """So many of its newcomers can take part; what is computed at present is lent to others."""
        boundary_at = self.now if run.begun_at is None else run.boundary_at()
        if self.now < boundary_at < math.inf:
            self._foresee(boundary_at, "joins", run.job.id, number)
        else:
            self._joins(run, number)

    def _joins(self, run: Running, number: int) -> None:
        """So many of its newcomers take part now."""
        run.joining -= min(number, run.joining)
        if run.begun_at is not None:
            self._changed(run)

    def _changed(self, run: Running) -> None:
        """The workers or shards that take part are others now."""
        if not self.workload.costs.restart:
            run.block(run.change_cost_s(self.workload.costs))
        self._course(run)
        self._teller.forget(run.job.id)

    def _rate(self, run: Running) -> float:
        """Iterations per second with the workers at work."""
        cluster, there = self.workload.cluster, run.at_work
        if not there:
            return 0.0
        apart, computing = run.job.profile.parts_s(len(there), max(1, len(run.shards)))
        if cluster.slowdowns:
            factors = [
                cluster.slowdowns[self.slots.number(agent) % len(cluster.slowdowns)].factor(
                    self.now
                )
                for agent in there
            ]
            if cluster.balanced:
                computing *= len(factors) / sum(1 / factor for factor in factors)
            else:
                computing *= max(factors)
        return 1 / (apart + computing)

    def _course(self, run: Running) -> None:
        """Foresee anew what comes, after its speed may have changed; it has advanced to now."""
        run.stamp += 1
        run.rate = self._rate(run)
        if not run.rate:
            return
        job, stamp = run.job.id, run.stamp
        if run.fed_at is None:
            self._foresee(run.reached_at(run.job.feedback), "fed", job, stamp)
        self._foresee(run.reached_at(run.iterations), "ends", job, stamp)
        if run.stopped_until > self.now:
            self._foresee(run.stopped_until, "goes on", job, stamp)
        if run.leaving:
            self._foresee(run.boundary_at(), "left", job, stamp)
        if run.count_at_work not in run.rates or run.unlearned_s:
            since = max(self.now, run.blocked_until)
            self._foresee(since + run.measured_after_s(), "measured", job, stamp)

    def _end(self, run: Running) -> None:
        job = run.job
        self._free(job.id, [*run.agents, *run.leaving])
        self.slots.leave(job.id, [*run.shards, *run.emptied])
        del self.held[job.id]
        entry = (run.order, job.id)
        del self._order[bisect_left(self._order, entry)]
        self.ended.append(Ended.of(run, self.now))

    def _free(self, job: JobId, agents: list[AgentId], after_s: float = 0.0) -> None:
        """Workers have ended, or will have after some time: their slots are free a little later, one by one."""
        self.slots.take_back(job, agents)
        free_s = self.workload.costs.free_s
        if not after_s + free_s:
            self.slots.cleared(agents)
            return
        for n, agent in enumerate(agents, start=1):
            number = next(self._numbers)
            self._clearing[number] = [agent]
            delay_s = after_s + free_s * n / len(agents)
            self._foresee(self.now + delay_s, "cleared", stamp=number)

    # --- what is decided ----------------------------------------------------------------------------------------------

    def _consider(self) -> None:
        """As the core does: at once when somebody waits or lacks anything, else soon if slots are free, or `LOOK_S`."""
        wants = bool(self.queue) or any(
            len(run.agents) < run.size or len(run.shards) < run.width for run in self.held.values()
        )
        if not wants:
            if not self.policy.resizes or not self.held:
                return
            due_at = self._asked_at + (WAITS_S if self._freed else LOOK_S)
            if self.now < due_at:
                self._look_at(due_at)
                return
        self._asked_at, self._freed = self.now, False
        acted = self._decide()
        if not self.policy.resizes:
            return
        if acted:
            self._look_at(self.now + LOOK_S)
        elif self._idle_at <= self.now or self._idle_at == math.inf:
            self._idle_at = self.now + IDLE_LOOK_S
            self._look_at(self._idle_at)

    def _look_at(self, at: float) -> None:
        if at not in self._looks:
            self._looks.add(at)
            self._foresee(at, "look")

    def _decide(self) -> bool:
        """Ask, carry out, and where sizes changed ask once more; whether anything was changed."""
        acted = False
        for _ in range(2):
            ordered = [self.held[job] for _, job in self._order]
            quiet_s = self.now - self._event_at
            facts = self._teller.facts(self.slots, self.queue.values(), ordered, self.now, quiet_s)
            decision = self.policy.decide(facts)
            self.decisions += 1
            acted |= bool(decision.starts or decision.refills or decision.resizes)
            self._apply(decision)
            if not decision.resizes:
                break
        return acted

    def _apply(self, decision: Decision) -> None:
        for refill in decision.refills:
            self._refill(refill)
        for start in decision.starts:
            self._start(start)
        for resize in decision.resizes:
            self._resize(resize)

    def _start(self, start: Start) -> None:
        job = self.queue.pop(start.job)
        self.slots.give(job.id, start.agents)
        self.slots.join(job.id, start.shards)
        run = Running(
            job,
            self._arrival[job.id],
            self.now,
            list(start.agents),
            list(start.shards),
            len(start.agents),
            len(start.shards),
            counted_at=self.now,
            held_at=self.now,
        )
        self.held[job.id] = run
        insort(self._order, (run.order, job.id))
        self._teller.forget(job.id)
        self._foresee(self.now + self.workload.costs.start_s, "begins", job.id, run.stamp)

    def _refill(self, refill: Refill) -> None:
        run, costs = self.held[refill.job], self.workload.costs
        run.advance(self.now)
        self.slots.give(run.job.id, refill.agents)
        self.slots.join(run.job.id, refill.shards)
        run.agents += refill.agents
        run.shards += refill.shards
        self._teller.forget(run.job.id)
        begun = run.begun_at is not None
        if costs.restart and begun:
            self._restart(run)
            return
        if refill.shards and begun:
            self._changed(run)
        if refill.agents:
            run.joining += len(refill.agents)
            takes_s = (
                costs.ready_s if begun else costs.start_s
            )  # before it has begun nobody warms up
            self._foresee(self.now + takes_s, "ready", run.job.id, len(refill.agents))

    def _resize(self, resize: Resize) -> None:
        run, costs = self.held[resize.job], self.workload.costs
        assert run.job.workers.min <= resize.workers <= max(run.job.workers.max, run.size)
        run.advance(self.now)
        if resize.workers != run.size:
            run.trend = 1 if resize.workers > run.size else -1
        run.size, run.width, run.resized_at = resize.workers, resize.shards, self.now
        run.resizes += 1
        for calm_s in (settles_s(run.cost.seconds), rests_s(run.cost.seconds)):
            self._look_at(math.ceil((self.now + calm_s) / LOOK_S) * LOOK_S)
        self._teller.forget(run.job.id)
        surplus = self._surplus(run, -1.0 if resize.fastest else 1.0)
        narrowed = run.shards[run.width :]
        if surplus:
            self._retire(run, surplus)
        if narrowed:
            del run.shards[run.width :]
            run.emptied += narrowed
            self._foresee(self.now + costs.move_s, "moved", run.job.id)
        if costs.restart and (surplus or narrowed):
            self._restart(run)

    def _surplus(self, run: Running, sign: float) -> list[AgentId]:
        """Who leaves: those that are not ready, then those on the slowest machines, or by the sign the fastest; of
        equals the newest.
        """
        there = len(run.agents) - run.joining
        ready = zip(self.slots.speeds_of(run.agents[:there]), range(there), strict=True)
        order = [*range(there, len(run.agents))][::-1]
        order += [n for _, n in sorted((sign * speed, -n) for speed, n in ready)]
        return [run.agents[abs(n)] for n in order[: max(0, len(run.agents) - run.size)]]

    def _retire(self, run: Running, surplus: list[AgentId]) -> None:
        """Those that are not ready go at once, the others when they have ended what they compute."""
        there = run.agents[: len(run.agents) - run.joining]
        unready = [agent for agent in surplus if agent not in there]
        run.joining -= len(unready)
        run.agents = [agent for agent in run.agents if agent not in surplus]
        costs = self.workload.costs
        at_once = surplus if costs.restart or run.begun_at is None else unready
        stops_s = costs.stop_s if costs.restart and run.begun_at is not None else 0.0
        self._free(run.job.id, at_once, stops_s)
        run.leaving += [agent for agent in surplus if agent not in at_once]
        if run.begun_at is not None and run.leaving:
            self._course(run)

    def _restart(self, run: Running) -> None:
        """It stops, and goes on later at its new size."""
        run.joining = 0
        run.rate = self._rate(run)
        run.block(run.change_cost_s(self.workload.costs))
        run.stopped_until = run.blocked_until
        self._course(run)


def constant(pattern: Slowdown) -> bool:
    """Whether a slow-down never changes."""
    return isinstance(pattern, Step) and pattern.before == pattern.after
