"""A static scheduler that changes sizes all the same: checkpoint, stop, start again with other numbers.

Everybody has the same number of workers. Whenever a job arrives or ends, those whose share is another now are stopped
and started again, all at once; what happens meanwhile is seen to together afterwards. As a driver of a real stack under
`fifo`, and as a policy for the simulator, both by the same shares.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lives import ENDS, must
from measuring import say

from elps.client.control import Client
from elps.contracts.messages import JobEvent
from elps.scheduler.core.places import Spreading, by_room, refilled_from
from elps.scheduler.core.policy import Decision, Facts, Resize, Start


def shares(jobs: Sequence[str], workers: int) -> dict[str, int]:
    """Equal shares of all workers; those that came first have what is left over. Of too many the last have none."""
    each, over = divmod(workers, len(jobs)) if jobs else (0, 0)
    return {job: each + (n < over) for n, job in enumerate(jobs)}


@dataclass
class Restarting:
    """Drives the jobs of a stack under `fifo`; `told` hears their events."""

    client: Client
    workers: int
    restarts: int = 0
    _sizes: dict[str, int] = field(default_factory=dict)  #: of jobs that were handed in
    _arrived: list[dict[str, Any]] = field(default_factory=list)
    _rests: dict[str, asyncio.Event] = field(default_factory=dict)  #: jobs that are being stopped
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def hand_in(self, document: dict[str, Any]) -> None:
        """A job arrives."""
        self._arrived.append(document)
        self._changed.set()

    def told(self, event: JobEvent) -> None:
        """Something happened to a job."""
        if event.what in ENDS:
            self._sizes.pop(event.job, None)
            self._changed.set()
        if event.what in (*ENDS, "paused") and event.job in self._rests:
            self._rests[event.job].set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._rearrange()

    async def _rearrange(self) -> None:
        arrived, self._arrived = self._arrived, []
        names = [*self._sizes, *(document["id"] for document in arrived)]
        wanted = shares(names, self.workers)
        others = [job for job, size in self._sizes.items() if wanted[job] != size]
        stopped = await asyncio.gather(*(self._stop(job) for job in others))
        for job, rests in zip(others, stopped, strict=True):
            if rests and job in self._sizes:  # some have ended instead
                self._sizes[job] = wanted[job]
                await must(self.client.scale(job, workers=wanted[job]))
                await must(self.client.resume(job))
        for document in arrived:
            job = document["id"]
            self._sizes[job] = wanted[job]
            await must(self.client.submit(document))
            await must(self.client.scale(job, workers=wanted[job]))
        say(f"newcomers: sizes {self._sizes}, {len(others)} were stopped for them")

    async def _stop(self, job: str) -> bool:
        rests = self._rests[job] = asyncio.Event()
        try:
            if not (await self.client.pause(job)).ok:
                return False  # it has just ended
            self.restarts += 1
            await rests.wait()  # the whole workload is under a time-out
        finally:
            del self._rests[job]
        return True


class EqualShares:
    """The same as a policy, for a simulation in which changes are made by restarts."""

    name, resizes, told_held = "equal shares by restarts", True, True

    def decide(self, facts: Facts) -> Decision:
        """See `Policy.decide`."""
        wanted = shares([job.job for job in (*facts.held, *facts.queued)], facts.worker_slots)
        free_shards = {fact.shard: fact.free for fact in facts.shards}
        agents = {fact.agent: fact.free for fact in facts.agents}
        refills = refilled_from(free_shards, agents, facts.running)
        starts, resizes = list[Start](), list[Resize]()
        spreading = Spreading(agents)
        for job in facts.queued:
            shards = by_room(free_shards)[: job.shards.max]
            if not shards or spreading.left < wanted[job.job] or not wanted[job.job]:
                break
            for shard in shards:
                free_shards[shard] -= 1
            starts.append(Start(job.job, shards, spreading.take(wanted[job.job]), "its share"))
        others = [j for j in facts.held if j.growable and j.movable and wanted[j.job] != j.workers]
        growth = sum(max(0, wanted[j.job] - j.workers) for j in others)
        for held in others:
            if wanted[held.job] < held.workers or growth <= spreading.left:
                resizes.append(Resize(held.job, wanted[held.job], held.shards, "its share"))
        return Decision(tuple(starts), tuple(refills), tuple(resizes), ())
