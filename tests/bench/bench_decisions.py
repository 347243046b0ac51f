"""How long a policy takes to decide: 1,000 jobs that run, 10,000 worker slots, 250 shards.

`full`: facts that no policy has seen before, a tenth of the slots free and ten newcomers; `uneven`: the same where
every tenth machine is slow, and every other job held up by such ones. `one`: the same cluster
at rest, all slots taken, when one job arrives; `end`: when one has ended and its slots are free. There the facts of
all other jobs are the same objects as before. Each beside sorting a list of as many numbers as there are slots, so that
figures of two machines can be compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from measuring import arguments, emit, in_turns, median, p90, say

from elps.contracts.ids import AgentId, JobId, ShardId
from elps.contracts.job import Pool as Size
from elps.scheduler.core.policies import POLICIES
from elps.scheduler.core.policy import AgentFact, Facts, HeldFact, Policy, QueuedFact, ShardFact

JOBS, SLOTS, SHARDS = 1000, 10_000, 250
TIMES = 15
REST = 100
"""Decisions after which jobs have about what they are to have."""
FULL_MS, ONE_MS = 100.0, 2.0
"""Aims."""


def facts(seed: int, free: int, newcomers: int, *, slow: float = 1.0) -> Facts:
    """A cluster drawn from a seed; every object is new."""
    chance = np.random.default_rng(seed)
    given = chance.multinomial(SLOTS - free - 2 * JOBS, np.full(JOBS, 1 / JOBS)) + 2
    held = tuple(_held(n, int(workers), chance, slow) for n, workers in enumerate(given))
    agents = tuple(
        AgentFact(AgentId(f"a{n:05}"), 1, int(n < free), 0, 1.0 if n % 10 else slow)
        for n in range(SLOTS)
    )
    shards = tuple(ShardFact(ShardId(f"s{n:03}"), 8, 4, 0) for n in range(SHARDS))
    queued = tuple(_queued(n) for n in range(newcomers))
    return Facts(shards=shards, agents=agents, queued=queued, running=(), held=held)


def _queued(n: int) -> QueuedFact:
    return QueuedFact(JobId(f"new{n}"), Size(min=1, max=1), Size(min=4, max=64), left=500.0)


def _held(n: int, workers: int, chance: np.random.Generator, slow: float) -> HeldFact:
    fixed, shared = chance.uniform(0.01, 1.0), chance.uniform(1.0, 100.0)
    rates = tuple((k, 1 / (fixed + shared / k)) for k in (workers - 1, workers, workers + 1))
    return HeldFact(
        JobId(f"j{n:04}"), workers, Size(min=1, max=64), 1, Size(min=1, max=1),
        fed=n % 10 != 0, rates=rates, calm_s=100.0, left=float(chance.integers(10, 10_000)),
        speeds=() if slow == 1.0 else tuple(1.0 if k else slow for k in range(workers)),
        held_up=bool(n % 2), promise=(0.5, 1.0, 2.0)[n % 3],
    )  # fmt: skip


def at_rest(policy: Policy) -> Facts:
    """The cluster of seed 0 with its slots given out by the policy, told of as the core does."""
    found = facts(0, SLOTS - 2 * JOBS, 0)
    for _ in range(REST):
        if not (resizes := {r.job: r.workers for r in policy.decide(found).resizes}):
            break
        held = tuple(
            replace(j, workers=resizes[j.job]) if j.job in resizes else j for j in found.held
        )
        free = SLOTS - sum(j.workers for j in held)
        agents = tuple(AgentFact(AgentId(f"a{n:05}"), 1, 1, 0) for n in range(free))
        found = replace(found, held=held, agents=agents, all_slots=SLOTS)
    return found


def took_ms(decide: Callable[[], object]) -> float:
    """Processor time of one call, which waits for nothing."""
    began = time.process_time()
    decide()
    return (time.process_time() - began) * 1e3


def peer_ms() -> float:
    """What this machine takes to sort as many numbers as there are slots."""
    numbers = np.random.default_rng(0).permutation(SLOTS).tolist()
    return took_ms(lambda: sorted(numbers))


def measure(policy: Policy, times: int) -> None:
    """All of one policy."""
    rest = at_rest(policy)
    policy.decide(rest)
    seeds = iter(range(1, 10**6))
    job = rest.held[JOBS // 2]
    gone = tuple(j for j in rest.held if j is not job)
    back = tuple(AgentFact(AgentId(f"a{n:05}"), 1, 1, 0) for n in range(job.workers))

    def full() -> float:
        new = facts(next(seeds), SLOTS // 10, 10)
        return took_ms(lambda: policy.decide(new))

    def uneven() -> float:
        new = facts(next(seeds), SLOTS // 10, 10, slow=0.5)
        return took_ms(lambda: policy.decide(new))

    def one() -> float:
        new = replace(rest, queued=(_queued(next(seeds)),))
        return took_ms(lambda: policy.decide(new))

    def end() -> float:
        new = replace(rest, held=gone, agents=back)
        return took_ms(lambda: policy.decide(new))

    found = in_turns(
        times, {"peer": peer_ms, "full": full, "uneven": uneven, "one": one, "end": end}
    )
    aims = {"full": FULL_MS, "uneven": FULL_MS, "one": ONE_MS, "end": ONE_MS}
    for what, aim_ms in aims.items():
        emit(
            f"decisions.{policy.name}.{what}",
            median(found[what]),
            "ms",
            ratio=median(found[what]) / median(found["peer"]),
            to=f"sorting {SLOTS} numbers",
            p90=p90(found[what]),
            aim_ms=aim_ms,
            jobs=JOBS,
            slots=SLOTS,
            shards=SHARDS,
        )


def main() -> None:
    """Run all."""
    full = arguments(__doc__ or "").full
    for policy in POLICIES.values():
        say(f"decisions: {policy.name}")
        measure(policy, 4 * TIMES if full else TIMES)


if __name__ == "__main__":
    main()
