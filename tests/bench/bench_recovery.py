"""How soon a job and its stack recover from the kill -9 of each kind of process.

A job of 50 ms iterations trains on; one process at a time is killed, and started again at once as `make up` would do
it, but for shards and trainers: the job goes on without these. What is told is the time lost to the job beside an even
run, in seconds and in iterations; the longest time without a finished iteration; how many were computed again; and, for
what serves users, how long it took until it served again, its own start included.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import psutil
from bench_elastic import Watched
from bench_replicas import job
from measuring import arguments, emit, say
from private_stack import WAIT_S, in_stack, stack_to_start

from elps.client.control import Client
from elps.client.http import MonitorHttp
from elps.contracts.errors import ElpsError
from elps.local.record import StackRecord
from elps.local.stack import Stack

WARM_UP, KILL_AT, GO_ON = 5, 40, 60
"""Iterations: not counted, before a kill, and after it."""
ITERATION_S, MEGABYTES = 0.05, 1
LOOK_S = 0.02


@dataclass(frozen=True)
class Kind:
    """Whom to kill."""

    victim: str
    replicas: int = 0

    @property
    def serves(self) -> bool:
        """Whether users notice that it is away."""
        return self.victim in ("scheduler", "monitor", "broker", "store")

    @property
    def comes_back(self) -> bool:
        """Whether it is started again at once; the job goes on without shards, and agents replace trainers."""
        return self.serves or self.victim == "agent"


KINDS = (
    Kind("trainer"),
    Kind("agent"),
    Kind("shard", replicas=1),
    Kind("leading_shard", replicas=1),
    Kind("shard"),
    Kind("leading_shard"),
    Kind("scheduler"),
    Kind("monitor"),
    Kind("broker"),
    Kind("store"),
)


def victim_of(kind: Kind, record: StackRecord, shown: dict[str, Any]) -> int:
    """Process id."""
    other = next(s for s in shown["holders"] if s != shown["leader"])
    services = record.services
    match kind.victim:
        case "trainer":
            (zygote,) = psutil.Process(services["agent-1"].pid).children()
            return zygote.children()[0].pid
        case "agent":
            return services["agent-1"].pid
        case "shard":
            return services[other].pid
        case "leading_shard":
            return services[shown["leader"]].pid
        case "broker" | "store":
            handle = record.broker if kind.victim == "broker" else record.store
            assert handle is not None
            return handle.pid
        case name:
            return services[name].pid


async def served(kind: Kind, client: Client, record: StackRecord) -> float:
    """Unix time at which it answers users again."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                if kind.victim == "monitor":
                    await asyncio.to_thread(MonitorHttp(record.monitor_url).jobs)
                else:
                    reply = await client.submit(
                        job(f"after-{kind.victim}", 0, 1, MEGABYTES, ITERATION_S)
                    )
                    if not reply.ok:
                        raise RuntimeError(reply.reason)
            except (ElpsError, OSError):
                await asyncio.sleep(LOOK_S)
                continue
            return time.time()


async def kill(client: Client, stack: Stack, record: StackRecord, kind: Kind) -> None:
    """Kill one under a job, and see how both go on."""
    name = f"killed-{kind.victim}-{kind.replicas}"
    say(f"recovery: {name}")
    watched = Watched(client, name)
    following = asyncio.create_task(watched.follow())
    try:
        reply = await client.submit(job(name, kind.replicas, 1_000_000, MEGABYTES, ITERATION_S))
        if not reply.ok:
            raise RuntimeError(reply.reason)
        await watched.until(lambda: len(watched.rows) >= KILL_AT, f"{KILL_AT} iterations")
        shown = await asyncio.to_thread(MonitorHttp(record.monitor_url).job, name)
        pid = victim_of(kind, record, shown)
        usual = statistics.median(row.duration_s for row in watched.rows[WARM_UP:])
        last, killed_at = watched.rows[-1], time.time()
        os.kill(pid, signal.SIGKILL)
        serves_s: float | None = None
        if kind.comes_back:
            again = asyncio.create_task(asyncio.to_thread(stack.up, 2, 3))
            if kind.serves:
                serves_s = await served(kind, client, record) - killed_at
            await again
        goal = max(row.iteration for row in watched.rows) + GO_ON
        await watched.until(lambda: watched.rows[-1].iteration >= goal, "recovery")
        end = watched.rows[-1]
        lost_s = end.at - last.at - usual * (end.iteration - last.iteration)
        told = sorted((row.at, row.iteration) for row in watched.rows if row.at >= last.at)
        gap_s = max((b[0] - a[0] for a, b in pairwise(told) if b[1] <= a[1] + 1), default=0.0)
        redone = (await asyncio.to_thread(MonitorHttp(record.monitor_url).job, name))[
            "redone_iterations"
        ]
        emit(
            f"recovery.{kind.victim}",
            lost_s,
            "s",
            ratio=lost_s / usual,
            to="an iteration of the job",
            longest_gap_s=round(gap_s, 3),
            computed_again=redone,
            replicas=kind.replicas,
            **({"serves_again_s": round(serves_s, 3)} if serves_s is not None else {}),
        )
        await client.kill(name)
    finally:
        following.cancel()


def main() -> None:
    """Run all."""
    arguments(__doc__ or "")
    with stack_to_start() as stack:
        for kind in KINDS:
            record = stack.up(2, 3)  # what was killed is started again
            in_stack(record, partial(kill, stack=stack, record=record, kind=kind))


if __name__ == "__main__":
    main()
