"""A job of a simulation: how far it is, how fast, and what changes of its size do to it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from elps.contracts.ids import AgentId, ShardId
from elps.scheduler.core.costs import ChangeCost
from elps.scheduler.core.curve import LossCurve
from elps.scheduler.core.gain import FADES_S
from elps.scheduler.simulator.workload import Costs, Job

BEAT_S = 1.0
"""Between two heartbeats."""
STRETCHES = 2
"""Until a rate is known: the first stretch with other workers is not counted (`Speeds`)."""


@dataclass
class Running:
    """A job that has a place."""

    job: Job
    order: int
    """Of arrival."""
    started_at: float
    agents: list[AgentId]
    """Its workers, in the order in which they came; those that leave are not among them."""
    shards: list[ShardId]
    """The leader first; those that are being left are not among them."""
    size: int
    """Workers that it shall have."""
    width: int
    joining: int = 0
    """The last so many of `agents` are getting ready."""
    leaving: list[AgentId] = field(default_factory=list)
    """They end what they compute."""
    emptied: list[ShardId] = field(default_factory=list)
    """Shards that its partitions leave."""
    done: float = 0.0
    """Iterations."""
    rate: float = 0.0
    """Iterations per second; 0 before it has begun."""
    counted_at: float = 0.0
    """When `done` was right."""
    blocked_until: float = 0.0
    """Until then it makes no progress: a change costs that."""
    stopped_until: float = 0.0
    """Until then it is being started again."""
    begun_at: float | None = None
    fed_at: float | None = None
    resized_at: float = -math.inf
    stamp: int = 0
    """Of its newest course; whatever was foreseen under another one is void."""
    trend: int = 0
    """Whether its size was last changed to more workers (1) or to fewer (-1)."""
    rates: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    """Measured, with when and with their power, by workers that take part."""
    cost: ChangeCost = field(default_factory=ChangeCost)
    unlearned_s: float = 0.0
    """Lost by its newest change, which is known when its rate after that is."""
    curve: LossCurve = field(default_factory=LossCurve)
    evaluated: int = 0
    """So many of its losses are in its curve."""
    resizes: int = 0
    lost_s: float = 0.0
    """Of training, by changes of its size."""
    held_s: float = 0.0
    """Slots times seconds."""
    held_at: float = 0.0

    @property
    def at_work(self) -> list[AgentId]:
        """Who computes."""
        there = self.agents[: len(self.agents) - self.joining]
        return there + self.leaving

    @property
    def count_at_work(self) -> int:
        """How many those are."""
        return len(self.agents) - self.joining + len(self.leaving)

    @property
    def known_rates(self) -> tuple[tuple[float, float], ...]:
        """As measured, by power."""
        return tuple(sorted((power, rate) for rate, _, power in self.rates.values()))

    @property
    def iterations(self) -> int:
        """After which it ends, or is killed."""
        killed = self.job.killed
        return self.job.iterations if killed is None else min(killed, self.job.iterations)

    def advance(self, now: float) -> None:
        """Count what was done since."""
        held = len(self.agents) + len(self.leaving)
        self.held_s += held * (now - self.held_at)
        self.held_at = now
        since = max(self.counted_at, min(self.blocked_until, now))
        self.done += self.rate * (now - since)
        self.counted_at = now

    def reached_at(self, iterations: float) -> float:
        """When it will have done so many, if nothing changes; it has advanced to now."""
        if not self.rate:
            return math.inf
        since = max(self.counted_at, self.blocked_until)
        return since + max(0.0, iterations - self.done) / self.rate

    def boundary_at(self) -> float:
        """When the iteration that it computes will have ended."""
        return self.reached_at(math.floor(self.done + 1e-9) + 1)

    def block(self, seconds: float) -> None:
        """It makes no progress for so long, after what blocks it already."""
        self.blocked_until = max(self.blocked_until, self.counted_at) + seconds
        self.lost_s += seconds
        self.unlearned_s += seconds

    def change_cost_s(self, costs: Costs) -> float:
        """Of a worker or shard more or fewer, or of a restart."""
        iteration_s = 1 / self.rate if self.rate else 0.0
        if costs.restart:
            return costs.restart_s + costs.restart_iterations * iteration_s
        return min(costs.change_iterations * iteration_s, costs.change_most_s)

    def measured_after_s(self) -> float:
        """How long after a change its rate is known."""
        return STRETCHES * BEAT_S * math.ceil(1 / self.rate / BEAT_S)

    def note_rate(self, now: float, power: float) -> None:
        """The rate with the workers that it has is known now, and what it has cost to come to them."""
        self.rates[self.count_at_work] = self.rate, now, power
        self.rates = {n: r for n, r in self.rates.items() if now - r[1] < FADES_S}
        if self.unlearned_s:
            self.cost.learn(self.unlearned_s)
            self.unlearned_s = 0.0

    def evaluate(self) -> None:
        """Tell its curve what was evaluated up to now."""
        losses = self.job.losses
        while self.evaluated < len(losses) and losses[self.evaluated][0] <= self.done + 1e-9:
            self.curve.seen(*losses[self.evaluated])
            self.evaluated += 1
