"""Whose every slot is, and for how long it was anybody's. What breaks the account raises."""

from __future__ import annotations

from collections.abc import Iterable

from elps.contracts.ids import AgentId, JobId, ShardId
from elps.scheduler.core.policy import AgentFact, ShardFact
from elps.scheduler.simulator.workload import Cluster


class Slots:
    """Agents of one slot each, and shards."""

    def __init__(self, cluster: Cluster) -> None:
        wide = len(str(cluster.workers - 1))
        self.agents = [AgentId(f"a{n:0{wide}}") for n in range(cluster.workers)]
        self._free = dict.fromkeys(self.agents)  #: to nothing; an ordered set
        self._holder: dict[AgentId, JobId] = {}
        self._clearing: dict[AgentId, None] = {}  #: nobody's, and not free yet
        self._number = {agent: n for n, agent in enumerate(self.agents)}
        wide = len(str(cluster.shards - 1))
        self._each = cluster.shard_slots
        self.shards = [ShardId(f"s{n:0{wide}}") for n in range(cluster.shards)]
        self._on: dict[ShardId, dict[JobId, None]] = {shard: {} for shard in self.shards}
        self.shards_changed = 0
        """Grows with every change of the shards' slots."""
        self._shard_facts: tuple[int, tuple[ShardFact, ...]] = (-1, ())
        self.speeds: list[float] = []
        """Of the agents' machines, in their order; none: all are usual ones."""
        self.used_s = 0.0
        """Slots held, times seconds."""
        self._at = 0.0

    def number(self, agent: AgentId) -> int:
        """Its place in the cluster."""
        return self._number[agent]

    @property
    def free(self) -> int:
        """Worker slots."""
        return len(self._free)

    @property
    def clearing(self) -> int:
        """Worker slots that nobody has and that are not free yet."""
        return len(self._clearing)

    def pass_time(self, now: float) -> None:
        """Count what was held since."""
        self.used_s += len(self._holder) * (now - self._at)
        self._at = now

    def give(self, job: JobId, agents: Iterable[AgentId]) -> None:
        """Slots of these agents to a job; `AssertionError` if one has none."""
        for agent in agents:
            assert agent in self._free, (
                f"{agent} was given to {job}, and is {self._holder.get(agent)}'s"
            )
            del self._free[agent]
            self._holder[agent] = job

    def take_back(self, job: JobId, agents: Iterable[AgentId]) -> None:
        """They are free again once they are `cleared`."""
        for agent in agents:
            assert self._holder.pop(agent) == job
            self._clearing[agent] = None

    def cleared(self, agents: Iterable[AgentId]) -> None:
        """Slots that were taken back can be given to others."""
        for agent in agents:
            del self._clearing[agent]
            self._free[agent] = None

    def join(self, job: JobId, shards: Iterable[ShardId]) -> None:
        """A slot of each of these shards to a job."""
        for shard in shards:
            on = self._on[shard]
            assert job not in on, f"{job} has a slot of {shard} already"
            assert len(on) < self._each, f"{shard} was given to {job} and is full"
            on[job] = None
        self.shards_changed += 1

    def leave(self, job: JobId, shards: Iterable[ShardId]) -> None:
        """They are free again."""
        for shard in shards:
            del self._on[shard][job]
        self.shards_changed += 1

    def room(self, job: JobId) -> int:
        """Shards with a free slot on which the job is not."""
        return sum(len(on) < self._each and job not in on for on in self._on.values())

    def speeds_of(self, agents: Iterable[AgentId]) -> tuple[float, ...]:
        """Of machines, beside a usual one, as they are told."""
        if not self.speeds:
            return tuple(1.0 for _ in agents)
        return tuple(self.speeds[self._number[agent]] for agent in agents)

    def agent_facts(self) -> tuple[AgentFact, ...]:
        """Of those that nobody has, in the order of ids."""
        nobodys = sorted((*self._free, *self._clearing))
        return tuple(
            AgentFact(agent, 1, int(agent in self._free), int(agent in self._clearing), speed)
            for agent, speed in zip(nobodys, self.speeds_of(nobodys), strict=True)
        )

    def shard_facts(self) -> tuple[ShardFact, ...]:
        """Of all."""
        if self._shard_facts[0] != self.shards_changed:
            facts = (
                ShardFact(shard, self._each, self._each - len(on), 0)
                for shard, on in self._on.items()
            )
            self._shard_facts = self.shards_changed, tuple(facts)
        return self._shard_facts[1]
