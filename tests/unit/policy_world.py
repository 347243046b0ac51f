"""A pool and jobs on which a policy's decisions are carried out at once, what no policy may do is checked each time."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from elps.contracts.ids import AgentId, JobId, ShardId
from elps.contracts.job import Pool as Size
from elps.scheduler.core.costs import ASSUMED_S, rests_s
from elps.scheduler.core.facts import uneven
from elps.scheduler.core.machines import power
from elps.scheduler.core.policy import (
    AgentFact,
    Decision,
    Facts,
    HeldFact,
    Policy,
    QueuedFact,
    RunningFact,
    ShardFact,
)

SHARD_SLOTS = 2


@dataclass
class Known:
    """A job of the world."""

    job: JobId
    workers: Size
    shards: Size
    rates: tuple[tuple[int, float], ...] = ()
    left: float | None = None
    weight: float = 1.0
    fed: bool = False
    movable: bool = True
    cost_s: float = ASSUMED_S
    promise: float = 1.0
    held_up: bool = False
    size: int = 0
    trend: int = 0
    on: list[ShardId] = field(default_factory=list)
    at: list[AgentId] = field(default_factory=list)
    resized_at: float = -100.0


class PolicyWorld:
    """Agents of one slot, shards of two, jobs that wait and jobs that run."""

    def __init__(self, policy: Policy, agents: int, shards: int = 9) -> None:
        self.policy, self.time = policy, 1000.0
        self.happened_at = self.time
        self.speeds: dict[AgentId, float] = {}
        self.agents: dict[AgentId, JobId | None] = {}
        self.shards = {ShardId(f"s{n}"): dict[JobId, None]() for n in range(shards)}
        self.waiting: dict[JobId, Known] = {}
        self.running: dict[JobId, Known] = {}
        self.moves: dict[JobId, list[tuple[float, int]]] = {}  #: since something happened
        self._named = self._joined = 0
        for _ in range(agents):
            self.join()

    # --- what happens -------------------------------------------------------------------------------------------------

    def happened(self) -> None:
        """From now on what was done before may be undone."""
        self.happened_at = self.time
        self.moves.clear()

    def join(self, speed: float = 1.0) -> None:
        """One agent more, on a machine so many times as fast as a usual one."""
        agent = AgentId(f"a{self._joined:03}")
        self.agents[agent], self.speeds[agent] = None, speed
        self._joined += 1
        self.happened()

    def lose(self, pick: int) -> None:
        """One agent fewer."""
        if not self.agents:
            return
        agent = list(self.agents)[pick % len(self.agents)]
        job = self.agents.pop(agent)
        if job is not None:
            self.running[job].at.remove(agent)
        self.happened()

    def arrive(self, **fields: Any) -> JobId:
        """One job more."""
        job = JobId(f"j{self._named:03}")
        self._named += 1
        self.waiting[job] = Known(job, **fields)
        self.happened()
        return job

    def feed(self, pick: int) -> None:
        """A job gives its feedback."""
        if self.running:
            list(self.running.values())[pick % len(self.running)].fed = True
            self.happened()

    def end(self, pick: int) -> None:
        """A job ends, or is killed."""
        jobs = [*self.running, *self.waiting]
        if not jobs:
            return
        job = jobs[pick % len(jobs)]
        self.waiting.pop(job, None)
        if (known := self.running.pop(job, None)) is not None:
            for agent in known.at:
                self.agents[agent] = None
            for shard in known.on:
                del self.shards[shard][job]
        self.happened()

    # --- what is decided ----------------------------------------------------------------------------------------------

    def facts(self, *, thin: bool = False) -> Facts:
        """As the core would tell them; `thin`: only of agents with something free."""
        agents = tuple(
            AgentFact(a, 1, int(j is None), 0, self.speeds[a]) for a, j in self.agents.items()
        )
        jobs = sorted(self.running.values(), key=lambda known: known.job)
        return Facts(
            shards=tuple(
                ShardFact(s, SHARD_SLOTS, SHARD_SLOTS - len(on), 0) for s, on in self.shards.items()
            ),
            agents=tuple(a for a in agents if a.free) if thin else agents,
            queued=tuple(
                QueuedFact(
                    k.job,
                    k.shards,
                    k.workers,
                    k.fed,
                    weight=k.weight,
                    rates=k.rates,
                    left=k.left,
                    held_up=k.held_up,
                )
                for k in self.waiting.values()
            ),
            running=tuple(
                RunningFact(
                    k.job,
                    k.size - len(k.at),
                    tuple(k.at),
                    (),
                    0,
                    tuple(k.on),
                    k.held_up,
                    min((self.speeds[a] for a in k.at), default=1.0),
                    k.workers.min,
                )
                for k in jobs
                if len(k.at) < k.size
            ),
            held=tuple(self._held(k) for k in jobs),
            quiet_s=self.time - self.happened_at,
            all_slots=len(agents) if thin else None,
        )

    def _held(self, known: Known) -> HeldFact:
        free = [s for s, on in self.shards.items() if len(on) < SHARD_SLOTS and s not in known.on]
        return HeldFact(
            known.job, known.size, known.workers, len(known.on), known.shards, known.fed,
            weight=known.weight, rates=known.rates, room=len(free), left=known.left,
            gives=tuple(reversed(known.on[1:])), calm_s=self.time - known.resized_at,
            movable=known.movable, cost_s=known.cost_s, promise=known.promise, trend=known.trend,
            held_up=known.held_up, speeds=uneven(tuple(self.speeds[a] for a in known.at)),
        )  # fmt: skip

    def power(self, known: Known, without: int = 0) -> float:
        """What a job's workers are worth, or would be without so many of the slowest."""
        speeds = sorted((self.speeds[a] for a in known.at), reverse=True)
        return power(speeds[: len(speeds) - without], held_up=known.held_up)

    def decide(self) -> bool:
        """Ask and carry out; whether anything was changed."""
        facts = self.facts()
        decision = self.policy.decide(facts)
        assert decision == self.policy.decide(facts), "equal facts, another decision"
        assert decision == self.policy.decide(self.facts(thin=True)), "it went by what is not free"
        self.check(decision)
        self.apply(decision)
        return bool(decision.starts or decision.refills or decision.resizes)

    def check(self, decision: Decision) -> None:
        """What no policy may decide."""
        given = [a for s in decision.starts for a in s.agents]
        given += [a for r in decision.refills for a in r.agents]
        assert len(set(given)) == len(given), "a slot was given twice"
        assert all(self.agents[agent] is None for agent in given), "a slot was given that is held"
        for start in decision.starts:
            known = self.waiting[start.job]
            assert known.workers.min <= len(start.agents) <= known.workers.max
            assert known.shards.min <= len(start.shards) <= known.shards.max
        for resize in decision.resizes:
            known = self.running[resize.job]
            assert resize.workers <= max(known.workers.max, known.size)
            assert resize.workers >= min(known.workers.min, known.size), "below its least"
            assert known.shards.min <= resize.shards <= known.shards.max
            if not known.movable:
                lacks = known.size - len(known.at)
                assert resize.workers >= known.size - lacks, "taken from one that cannot give"
                assert resize.shards >= len(known.on)
            assert resize.reason
        told = {job for job, _ in decision.waits}
        assert told | {s.job for s in decision.starts} == set(self.waiting), "somebody is not told"

    def apply(self, decision: Decision) -> None:
        """Carry out, at once."""
        for refill in decision.refills:
            known = self.running[refill.job]
            for agent in refill.agents:
                self.agents[agent] = known.job
                known.at.append(agent)
            for shard in refill.shards:
                self.shards[shard][known.job] = None
                known.on.append(shard)
        for start in decision.starts:
            known = self.waiting.pop(start.job)
            known.size, known.at, known.on = (
                len(start.agents),
                list(start.agents),
                list(start.shards),
            )
            self.running[known.job] = known
            for agent in start.agents:
                self.agents[agent] = known.job
            for shard in start.shards:
                self.shards[shard][known.job] = None
        for resize in decision.resizes:
            known = self.running[resize.job]
            if resize.workers != known.size:
                self.moves.setdefault(known.job, []).append(
                    (self.time, resize.workers - known.size)
                )
                known.trend = 1 if resize.workers > known.size else -1
            known.size, known.resized_at = resize.workers, self.time
            sign = 1.0 if resize.fastest else -1.0
            known.at.sort(key=lambda a: sign * self.speeds[a])
            for agent in known.at[known.size :]:
                self.agents[agent] = None
            del known.at[known.size :]
            for shard in known.on[resize.shards :]:
                del self.shards[shard][known.job]
            del known.on[resize.shards :]
            if resize.shards > len(known.on):
                room = (
                    s
                    for s, on in self.shards.items()
                    if len(on) < SHARD_SLOTS and s not in known.on
                )
                shard = next(room, None)
                assert shard is not None, "a shard was promised that is taken"
                self.shards[shard][known.job] = None
                known.on.append(shard)
        for shard, on in self.shards.items():
            assert len(on) <= SHARD_SLOTS, f"{shard} holds {list(on)}"

    def settle(self, rounds: int = 400) -> None:
        """Until nothing changes any more, with time passing; `AssertionError` if that does not come."""
        quiet, longest_s = 0, max((rests_s(k.cost_s) for k in self.running.values()), default=0.0)
        for _ in range(rounds):
            quiet = 0 if self.decide() else quiet + 1
            if quiet > 12:
                return
            self.time += max(1.0, longest_s / 10)
        raise AssertionError(f"still changing: {self.moves}")

    def flaps(self) -> list[str]:
        """Changes that were undone within the job's cost horizon, with nothing having happened in between."""
        found = []
        for job, moves in self.moves.items():
            horizon_s = rests_s(self.running[job].cost_s)
            for (t0, by0), (t1, by1) in pairwise(moves):
                if by0 * by1 < 0 and t1 - t0 < horizon_s:
                    found.append(f"{job}: {by0:+} at {t0}, {by1:+} at {t1}")
        return found
