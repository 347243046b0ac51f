"""What a seed decides: the jobs, what their user asks for meanwhile, and what is done to the services."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from simulation.trainers import SAMPLES

BATCH = 8
CLIP = BATCH**-0.5 / 2
"""Half the norm of every gradient."""
FIRST_S, LAST_S = 0.3, 6.0
"""When harm is done."""
AIMED = 4
BURSTS, BURST_S = 0.4, 1.5
"""Share of the seeds in which all of it comes within so short a time."""
LONGEST_S = 9.0
"""It lasts no longer: more than it takes to count as lost."""


class Act(Enum):
    """What is done."""

    KILL = "kill -9"
    STOP = "stop in order"
    SILENCE = "cut off from the broker"
    CUT = "cut off from the data plane"
    PART = "cut off from both"
    RESET = "all connections of the data plane are lost"
    BROKER = "no broker"
    STORE = "no store"
    SCALE = "scale"
    PAUSE = "pause"
    END = "kill job"


@dataclass(frozen=True)
class Strike:
    """One act. `whom`: a service, `leader` or `trainer` (then `rank` says which), or a job."""

    at_s: float
    act: Act
    whom: str = ""
    lasts_s: float = 0.0
    rank: int = 0
    sizes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """All of it."""

    services: list[str]
    jobs: list[tuple[float, dict[str, Any]]]
    strikes: list[Strike]
    messages: dict[str, float]
    """How messages of the control plane are lost, doubled and late."""
    preempts: float
    """How likely a thread loses the processor where it takes a lock."""
    policy: str
    """Of the scheduler."""
    slowness: float
    """How many times as long as usual the data plane's pieces take."""


def draw(seed: int, acts: Sequence[Act] = ()) -> Plan:
    """The plan of a seed; with `acts`, one that does little else but plenty of these."""
    rng = random.Random(seed)
    shards = [f"shard-{n}" for n in range(1, rng.choice((2, 2, 3)) + 1)]
    agents = [f"agent-{n}" for n in range(1, rng.choice((1, 2, 2)) + 1)]
    jobs = [_job(rng, n, len(shards)) for n in range(1, rng.choice((1, 1, 2, 2, 3)) + 1)]
    schedulers = ["scheduler", "scheduler-2"][: rng.choice((1, 2))]
    services = [*schedulers, *shards, *agents]
    names = [str(document["id"]) for _, document in jobs]
    first_s, last_s = FIRST_S, LAST_S
    if rng.random() < BURSTS:
        first_s = rng.uniform(first_s, last_s)
        last_s = first_s + BURST_S
    count = rng.choice((1, 1, 2, 2, 3, 4, 6))
    strikes = [_strike(rng, rng.uniform(first_s, last_s), services, names) for _ in range(count)]
    for act in acts:
        strikes += [_aimed(rng, act, services, names) for _ in range(AIMED)]
    calm = rng.random() < 0.3 and not acts
    messages = {
        "drop": 0.0 if calm else rng.choice((0.0, 0.02, 0.1)),
        "double": 0.0 if calm else rng.choice((0.0, 0.05, 0.2)),
        "delay": rng.choice((0.3, 1.0)),
        "delay_s": rng.choice((0.005, 0.005, 0.3)),
    }
    ordered = sorted(strikes, key=lambda strike: strike.at_s)
    preempts, slowness = rng.choice((0.0, 0.01, 0.05)), rng.choice((1.0, 5.0, 25.0, 60.0))
    policy = rng.choice(("fifo", "eps"))
    return Plan(services, jobs, ordered, messages, preempts, policy, slowness)


def _aimed(rng: random.Random, act: Act, services: list[str], jobs: list[str]) -> Strike:
    whom = rng.choice(jobs if act in (Act.PAUSE, Act.END) else [*services[1:], "leader", "trainer"])
    if whom == "trainer" and act is not Act.KILL:
        whom = "leader"
    return Strike(rng.uniform(FIRST_S, LAST_S), act, whom, rng.random(), rng.randrange(4))


def _job(rng: random.Random, number: int, shards: int) -> tuple[float, dict[str, Any]]:
    passes = rng.randint(2, 4)
    most = rng.randint(1, shards)
    document = {
        "id": f"job{number}",
        "task": "counting:Counting",
        "task_args": {"pace_s": rng.choice((0.5, rng.uniform(1.5, 6.0))) / (passes * SAMPLES)},
        "optimizer": {"name": "sgd", "lr": float(BATCH)}
        | ({"clip_norm": CLIP} if passes == 3 else {}),
        "batch": {"global": BATCH},
        "dtype": "float64",
        "passes": passes,
        "seed": number,
        "workers": {"min": 1, "max": rng.choice((1, 2, 2, 3))},
        "shards": {"min": 1, "max": most},
        "replicas": rng.randint(0, 1) if most > 1 else 0,
        "checkpoint": {"every_s": 0.0, "every": rng.choice((0, 1, 4))},
    }
    return rng.uniform(0.0, 2.0), document


def _strike(rng: random.Random, at: float, services: list[str], jobs: list[str]) -> Strike:
    lasts = rng.choice((0.2, 1.0, 3.0, LONGEST_S)) * rng.random()
    match rng.randrange(10):
        case 0 | 1 | 2:
            shards = [name for name in services if name.startswith("shard")]
            whom = rng.choice((*services, *shards, "leader", "leader", "trainer", "trainer"))
            return Strike(at, Act.KILL, whom, lasts, rng.randrange(4))
        case 3:
            return Strike(at, Act.STOP, rng.choice((*services, "leader")), lasts, rng.randrange(4))
        case 4 | 5:
            act = rng.choice((Act.SILENCE, Act.CUT, Act.PART, Act.RESET, Act.RESET))
            return Strike(at, act, rng.choice((*services, "leader")), lasts, rng.randrange(4))
        case 6:
            return Strike(at, rng.choice((Act.BROKER, Act.STORE)), "", lasts)
        case 7 | 8:
            sizes = {"workers": rng.randint(1, 2), "shards": rng.randint(1, 3)}
            some = {name: size for name, size in sizes.items() if rng.random() < 0.7}
            return Strike(at, Act.SCALE, rng.choice(jobs), sizes=some or sizes)
        case _:
            act = rng.choice((Act.PAUSE, Act.PAUSE, Act.END))
            return Strike(at, act, rng.choice(jobs), lasts)
