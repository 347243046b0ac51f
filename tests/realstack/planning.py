"""What happens to a stack in a chaos run, drawn from a seed alone: which jobs, and what fails at which point of them.

Nothing here looks at a stack or a clock. A moment is a number of iterations of the job that is under way, so that a
plan meets a job at the same point on a slow machine and on a fast one; only what lasts (until a process is started
again, or goes on) is in seconds, because the bounds that it is to stay below or exceed are.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Act(Enum):
    """What is done to the victim."""

    KILL = "kill -9"
    STOP = "SIGTERM"
    """A server that is ended so comes back; a service leaves for good or for a while, in order."""
    FREEZE = "SIGSTOP"
    SCALE = "scale"
    """The job is asked to be of another size."""
    PARTITION = "partition"
    """Nothing comes or goes any more, and nobody is told; mended after a while, as the following are."""
    ONE_WAY = "one-way partition"
    """Nothing arrives any more, or nothing that is sent leaves."""
    RESET = "connection resets"
    """Connections are reset, as both sides are told, and those that are made anew again, for a while."""
    HALF_OPEN = "half-open connections"
    """Its ends of its connections go and nobody is told, then it can be reached: the other ends still stand."""
    LOSSY = "lossy network"
    """Much of what comes and goes is lost, so that what is sent over a connection is late."""
    DELAY = "delayed network"
    """Nothing is lost, but all that comes and goes waits for the one before it on a narrow way."""


NETWORK = (Act.PARTITION, Act.ONE_WAY, Act.RESET, Act.HALF_OPEN, Act.LOSSY, Act.DELAY)
"""These want a network of one's own (`realstack.rooms`); where there is none they are planned all the same, told, and
left out."""


class Way(Enum):
    """Which of the victim's ways a failure of the network concerns; a server has but the one to all services."""

    EVERYWHERE = "everywhere"
    BROKER = "to the broker"
    STORE = "to the store"
    PEERS = "to shards and trainers"


class Victim(Enum):
    """To whom; there can be several of a kind, or none just then."""

    TRAINER = "trainer"
    AGENT = "agent"
    SHARD = "shard"
    LEADER = "leading shard"
    SCHEDULER = "scheduler"
    MONITOR = "monitor"
    BROKER = "rabbitmq"
    STORE = "redis"
    JOB = "job"


@dataclass(frozen=True)
class Step:
    """One thing that happens."""

    act: Act
    victim: Victim
    at: int
    """Iterations of the job that are done; 0: while it is being handed in."""
    after_s: float
    """So much later: somewhere within an iteration."""
    lasts_s: float
    """From the end of the process until it is started again; how long it stands when frozen, or its network fails.

    0 for a scale request.
    """
    rank: int
    """Chooses among several victims: the one of this number in their order, modulo how many there are."""
    spare: bool = False
    """A process in the place of one that is to leave is started before, and not after it."""
    way: Way = Way.EVERYWHERE
    inbound: bool = False
    """Of a one-way partition: what is sent to the victim is lost, not what it sends."""

    @property
    def fails(self) -> bool:
        """Whether it counts as a failure: what an operator does in order does not."""
        return self.act in (Act.KILL, Act.FREEZE, *NETWORK) or self.victim in (
            Victim.BROKER,
            Victim.STORE,
        )


@dataclass(frozen=True)
class PlannedJob:
    """A short job and what happens in its time, in order."""

    number: int
    fields: dict[str, Any]
    """Of its document."""
    steps: tuple[Step, ...]
    neighbour: dict[str, Any] | None
    """Fields of a job that trains beside it, if there is one."""


SOON_S, LATE_S = (0.0, 1.0), (1.0, 6.0)
"""Ranges of how long a process is away: hardly noticed, and past the time after which a member counts as lost (3 s)."""
SHORT_S, LONG_S = (0.3, 2.0), (4.0, 8.0)
"""The same for how long a frozen one stands."""
WITHIN_S = 0.06
"""Two iterations of a planned job."""
PER_JOB = (2, 4)
"""Failures in one job."""
TOGETHER = 0.3
"""Share of the failures that come with the one before them."""
BETWEEN = 0.4
"""How likely an operator does something in order after a failure."""

FAILURES: dict[tuple[Act, Victim, tuple[float, float]], int] = {
    (Act.KILL, Victim.TRAINER, SOON_S): 3,
    (Act.KILL, Victim.AGENT, SOON_S): 1,
    (Act.KILL, Victim.AGENT, LATE_S): 1,
    (Act.KILL, Victim.SHARD, SOON_S): 2,
    (Act.KILL, Victim.SHARD, LATE_S): 2,
    (Act.KILL, Victim.LEADER, SOON_S): 2,
    (Act.KILL, Victim.LEADER, LATE_S): 2,
    (Act.KILL, Victim.SCHEDULER, SOON_S): 2,
    (Act.KILL, Victim.SCHEDULER, LATE_S): 1,
    (Act.KILL, Victim.MONITOR, SOON_S): 1,
    (Act.FREEZE, Victim.TRAINER, SHORT_S): 1,
    (Act.FREEZE, Victim.TRAINER, LONG_S): 1,
    (Act.FREEZE, Victim.AGENT, SHORT_S): 1,
    (Act.FREEZE, Victim.AGENT, LONG_S): 1,
    (Act.FREEZE, Victim.SHARD, SHORT_S): 1,
    (Act.FREEZE, Victim.SHARD, LONG_S): 1,
    (Act.FREEZE, Victim.LEADER, SHORT_S): 1,
    (Act.FREEZE, Victim.LEADER, LONG_S): 1,
    (Act.FREEZE, Victim.SCHEDULER, SHORT_S): 1,
    (Act.FREEZE, Victim.SCHEDULER, LONG_S): 1,
    (Act.FREEZE, Victim.MONITOR, LONG_S): 1,
    (Act.KILL, Victim.BROKER, SOON_S): 1,
    (Act.STOP, Victim.BROKER, SOON_S): 1,
    (Act.FREEZE, Victim.BROKER, LONG_S): 1,
    (Act.KILL, Victim.STORE, SOON_S): 1,
    (Act.STOP, Victim.STORE, LATE_S): 1,
    (Act.FREEZE, Victim.STORE, LONG_S): 1,
    (Act.PARTITION, Victim.AGENT, SHORT_S): 1,
    (Act.PARTITION, Victim.AGENT, LONG_S): 1,
    (Act.PARTITION, Victim.SHARD, SHORT_S): 1,
    (Act.PARTITION, Victim.SHARD, LONG_S): 1,
    (Act.PARTITION, Victim.LEADER, SHORT_S): 1,
    (Act.PARTITION, Victim.LEADER, LONG_S): 1,
    (Act.PARTITION, Victim.SCHEDULER, LONG_S): 1,
    (Act.PARTITION, Victim.BROKER, SHORT_S): 1,
    (Act.PARTITION, Victim.BROKER, LONG_S): 1,
    (Act.PARTITION, Victim.STORE, LONG_S): 1,
    (Act.ONE_WAY, Victim.AGENT, LONG_S): 1,
    (Act.ONE_WAY, Victim.SHARD, LONG_S): 1,
    (Act.ONE_WAY, Victim.LEADER, LONG_S): 1,
    (Act.ONE_WAY, Victim.SCHEDULER, LONG_S): 1,
    (Act.RESET, Victim.AGENT, LATE_S): 1,
    (Act.RESET, Victim.SHARD, LATE_S): 1,
    (Act.RESET, Victim.LEADER, SOON_S): 1,
    (Act.RESET, Victim.BROKER, LATE_S): 1,
    (Act.RESET, Victim.STORE, SOON_S): 1,
    (Act.HALF_OPEN, Victim.AGENT, SHORT_S): 1,
    (Act.HALF_OPEN, Victim.SHARD, SHORT_S): 1,
    (Act.HALF_OPEN, Victim.LEADER, LONG_S): 1,
    (Act.HALF_OPEN, Victim.SCHEDULER, SHORT_S): 1,
    (Act.HALF_OPEN, Victim.BROKER, SHORT_S): 1,
    (Act.LOSSY, Victim.AGENT, LONG_S): 1,
    (Act.LOSSY, Victim.LEADER, LONG_S): 1,
    (Act.LOSSY, Victim.BROKER, LONG_S): 1,
    (Act.DELAY, Victim.AGENT, LONG_S): 1,
    (Act.DELAY, Victim.SHARD, SHORT_S): 1,
    (Act.DELAY, Victim.LEADER, LONG_S): 1,
}
"""How often each is dealt before all are dealt again."""
_OF_SHARDS = (Way.EVERYWHERE, Way.EVERYWHERE, Way.BROKER, Way.STORE, Way.PEERS)
WAYS: dict[Victim, tuple[Way, ...]] = {
    Victim.AGENT: (Way.EVERYWHERE, Way.BROKER, Way.PEERS),
    Victim.SHARD: _OF_SHARDS,
    Victim.LEADER: _OF_SHARDS,
    Victim.SCHEDULER: (Way.EVERYWHERE, Way.BROKER, Way.STORE),
    Victim.BROKER: (Way.EVERYWHERE,),
    Victim.STORE: (Way.EVERYWHERE,),
}
"""Those that a victim uses."""
ORDERS = (
    (Act.SCALE, Victim.JOB),
    (Act.SCALE, Victim.JOB),
    (Act.STOP, Victim.SHARD),
    (Act.STOP, Victim.AGENT),
)


def draw_plan(seed: int, failures: int) -> list[PlannedJob]:
    """Jobs with so many failures in all; the same for the same numbers."""
    rng = random.Random(f"chaos {seed} {failures}")
    deck: list[tuple[Act, Victim, tuple[float, float]]] = []
    jobs: list[PlannedJob] = []
    left = failures
    while left:
        count = min(left, rng.randint(*PER_JOB))
        left -= count
        fields = _fields(rng)
        steps: list[Step] = []
        for at in _moments(rng, count, fields["iterations"]):
            if not deck:
                deck = [kind for kind, often in FAILURES.items() for _ in range(often)]
                rng.shuffle(deck)
            act, victim, lasts = deck.pop()
            steps.append(_step(rng, act, victim, at, lasts))
            if rng.random() < BETWEEN:
                act, victim = rng.choice(ORDERS)
                later = rng.randint(at, fields["iterations"] - 1)
                steps.append(_step(rng, act, victim, later, SOON_S))
        steps.sort(key=lambda step: step.at)
        neighbour = _fields(rng, workers=(1, 1)) if rng.random() < 0.5 else None
        jobs.append(PlannedJob(len(jobs) + 1, fields, tuple(steps), neighbour))
    return jobs


def _moments(rng: random.Random, count: int, iterations: int) -> list[int]:
    """In order; some are the same as the one before."""
    drawn = sorted(
        rng.choice([0, rng.randrange(1, iterations)]) if n == 0 else rng.randrange(1, iterations)
        for n in range(count)
    )
    for n in range(1, count):
        if rng.random() < TOGETHER:
            drawn[n] = drawn[n - 1]
    return drawn


def _step(
    rng: random.Random, act: Act, victim: Victim, at: int, lasts: tuple[float, float]
) -> Step:
    return Step(
        act=act,
        victim=victim,
        at=at,
        after_s=round(rng.uniform(0, WITHIN_S), 3),
        lasts_s=0.0 if act is Act.SCALE else round(rng.uniform(*lasts), 2),
        rank=rng.randrange(60),
        spare=act is Act.STOP and rng.random() < 0.5,
        # All that uses a cable is delayed by it.
        way=rng.choice(WAYS[victim]) if act in NETWORK and act is not Act.DELAY else Way.EVERYWHERE,
        inbound=act is Act.ONE_WAY and rng.random() < 0.5,
    )


def _fields(rng: random.Random, workers: tuple[int, int] | None = None) -> dict[str, Any]:
    """A job of 2 to 5 s, undisturbed."""
    workers = workers or rng.choice([(1, 1), (1, 2), (2, 2)])
    shards = rng.choice([(1, 1), (1, 2), (1, 3), (2, 2), (2, 3)])
    dtype, optimizer = rng.choice(
        [
            ("float64", {"name": "adam", "lr": 0.02}),
            ("float64", {"name": "momentum", "lr": 0.1}),
            ("float32", {"name": "sgd", "lr": 0.5}),
        ]
    )
    iterations = rng.randrange(70, 160)
    clips = {"clip_norm": 0.5} if iterations % 3 == 0 else {}
    return {
        "dtype": dtype,
        "optimizer": optimizer | clips,
        "iterations": iterations,
        "replicas": iterations % 2 if shards[1] > 1 else 0,
        "workers": {"min": workers[0], "max": workers[1]},
        "shards": {"min": shards[0], "max": shards[1]},
        "checkpoint": {"every": rng.choice([7, 20]), "every_s": 0},
        "limits": {"floor_s": 1.5},
    }
