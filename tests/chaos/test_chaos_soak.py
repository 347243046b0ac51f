"""A soak: short jobs for a long time while one half of the stack fails; whoever is not hit stays as large as it is.

`make soak` runs it, `SOAK_S` is seconds in all. In the first half of the time trainers, agents and shards fail, in the
second the scheduler, the monitor and both servers. Whoever is only frozen goes on as it was, and may be in either.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

import psutil
import pytest
from realstack.footprint import Footprint, at_rest, open_descriptors
from realstack.inflicting import Enemy
from realstack.planning import Act, PlannedJob, Victim, draw_plan
from realstack.site import Site
from realstack.storming import train_through
from realstack.training import Operator

SOAK_S = float(os.environ.get("SOAK_S") or 1200)
SEED = int(os.environ.get("SEED") or 7)
LAST_JOB_S, REST_S = 300, 120
LOOK_S = 2.0
MEMBERS = {Victim.TRAINER, Victim.AGENT, Victim.SHARD, Victim.LEADER}
SERVICES = {Victim.TRAINER, Victim.SCHEDULER, Victim.MONITOR, Victim.BROKER, Victim.STORE}
STAYS = 0.8
"""Whoever lives for so much of a half is looked at: nobody has hit it."""
MORE, MORE_BYTES, MORE_DESCRIPTORS = 1.1, 8 << 20, 8
"""Growth from the second quarter to the last that is none: allocators keep what they had at the busiest moment."""


@dataclass
class Sizes:
    """What was seen of one process."""

    at: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)


class Watcher:
    """Looks at all processes of a stack, trainers left out."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.seen: dict[tuple[str, int], Sizes] = {}

    async def watch(self) -> None:
        """Until it is cancelled."""
        while True:
            for name, pid in self._processes():
                with contextlib.suppress(psutil.Error, OSError):
                    sizes = self.seen.setdefault((name, pid), Sizes())
                    rss, open_now = psutil.Process(pid).memory_info().rss, open_descriptors(pid)
                    sizes.at.append(time.monotonic())
                    sizes.bytes.append(rss)
                    sizes.descriptors.append(open_now)
            await asyncio.sleep(LOOK_S)

    def _processes(self) -> Iterator[tuple[str, int]]:
        for name, handle in self.site.handles.items():
            yield name, handle.pid
            if name.startswith("agent-"):
                with contextlib.suppress(psutil.Error):
                    for zygote in psutil.Process(handle.pid).children():
                        yield f"zygote of {name}", zygote.pid

    def grown(self, began: float, ended: float) -> tuple[list[str], list[str]]:
        """What is told of all that lived through this time, and of those that have grown in it; monotonic seconds."""
        told, grown = [], []
        for (name, pid), sizes in self.seen.items():
            if not sizes.at or sizes.at[-1] - sizes.at[0] < STAYS * (ended - began):
                continue
            quarters = [began + (ended - began) * n / 4 for n in range(5)]
            bytes_then, bytes_now = (_middle(sizes, sizes.bytes, quarters, n) for n in (1, 3))
            open_then, open_now = (_middle(sizes, sizes.descriptors, quarters, n) for n in (1, 3))
            line = (
                f"{name} ({pid}): {bytes_then / 1e6:.1f} to {bytes_now / 1e6:.1f} MB,"
                f" {open_then:g} to {open_now:g} descriptors"
            )
            told.append(line)
            if (
                bytes_now > MORE * bytes_then + MORE_BYTES
                or open_now > open_then + MORE_DESCRIPTORS
            ):
                grown.append(line)
        return told, grown


def _middle(sizes: Sizes, values: list[int], quarters: list[float], n: int) -> float:
    """Median in a quarter."""
    within = [
        v for at, v in zip(sizes.at, values, strict=True) if quarters[n] <= at < quarters[n + 1]
    ]
    assert within, "nothing was seen for a quarter of the time"
    return statistics.median(within)


def jobs(victims: set[Victim]) -> Iterator[PlannedJob]:
    """Jobs without end in which only these are ended; anybody may be frozen, and asked to be of another size."""
    for number in count(SEED):
        for planned in draw_plan(number, 20):
            steps = tuple(
                s for s in planned.steps if s.act in (Act.FREEZE, Act.SCALE) or s.victim in victims
            )
            yield replace(planned, steps=steps)


@pytest.mark.long
@pytest.mark.timeout(SOAK_S + 2 * LAST_JOB_S + REST_S)
async def test_whoever_is_not_hit_stays_as_large_as_it_is(site: Site, operator: Operator) -> None:
    await site.up(2, 3)
    before = await Footprint.of(site)
    enemy, watcher = Enemy(site, operator), Watcher(site)
    looking = asyncio.create_task(watcher.watch())
    all_grown: list[str] = []
    try:
        for what, victims in (("members", MEMBERS), ("services", SERVICES)):
            enemy.tell(f"{what} fail")
            began, watcher.seen = time.monotonic(), {}
            for planned in jobs(victims):
                await train_through(planned, enemy, operator)
                if time.monotonic() - began > SOAK_S / 2:
                    break
            await enemy.mended()
            told, grown = watcher.grown(began, time.monotonic())
            assert told, "nobody lived through it"
            for line in told:
                enemy.tell(line)
            all_grown += grown
        await site.up(2, 3)
        await at_rest(site, operator.store, before)
    finally:
        looking.cancel()
        await enemy.give_up()
    assert not all_grown, all_grown
