"""What a simulation must come to: every job at its right end, with the right parameters, and nothing left over."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import numpy as np
from simulation.cluster import SCHEDULER, Cluster
from simulation.harm import Harm
from simulation.trainers import SAMPLES, SIMULATION

from elps.contracts import topology
from elps.contracts.codec import decode
from elps.contracts.ids import JobId
from elps.contracts.messages import AgentBeat, MemberMessage, ShardBeat
from elps.contracts.state import JobRecord, JobState
from elps.messaging.port import Delivery, Queue
from elps.storage.checkpoints import all_manifests, load_vector

LOOK_S = 0.5
ENDS_S = 45.0
"""From the end of all harm to the end of the last job. The longest single wait is a trainer's for a shard, 30 s."""
RESTS_S = 20.0
"""From there until nothing is left over."""
BEATS_S = 1.3
"""Within it everybody has told of himself, unless that was lost."""


class Rest:
    """Waits for the end, and looks at what is there then."""

    def __init__(self, cluster: Cluster, harm: Harm) -> None:
        self.cluster, self.harm, self.story = cluster, harm, cluster.story
        self.waited_s = 0.0  #: for the last job
        self._beats: deque[tuple[float, bytes]] = deque(maxlen=64)

    async def comes(self) -> None:
        """Wait for all of it, bounded."""
        began = self.cluster.loop.now
        while left := [r for r in (await self._records()).values() if not r.state.ended]:
            if self.cluster.loop.now - began > ENDS_S:
                for record in left:
                    self.story.wrong(f"{record.id} is {record.state.value}: {record.reason}")
                return
            for record in left:
                if record.state is JobState.PAUSED and not record.pausing:
                    # A pause that was asked for more than once may have come after the wish to go on.
                    job = str(record.id)
                    await self.harm.ask("resume", job, lambda j=job: self.harm.client.resume(j))  # type: ignore[misc]
            await asyncio.sleep(LOOK_S)
        self.waited_s = self.cluster.loop.now - began
        await self._ends_are_right()
        await self._listen()
        began = self.cluster.loop.now
        while leftovers := await self._leftovers():
            if self.cluster.loop.now - began > RESTS_S:
                self.story.wrong("left over: " + "; ".join(leftovers))
                return
            await asyncio.sleep(LOOK_S)

    async def _records(self) -> dict[str, JobRecord]:
        return await self.harm.records()

    async def _ends_are_right(self) -> None:
        records = await self._records()
        for _, document in self.harm.plan.jobs:
            record = records.get(document["id"])
            if record is None:
                self.story.wrong(f"{document['id']} is not there")
                continue
            told = f"{record.id} has {record.state.value}: {record.reason}"
            killed = self.harm.ended_by_user.get(record.id)
            if record.state is JobState.KILLED:
                if killed is None:
                    self.story.wrong(told)
            elif record.state is not JobState.FINISHED or killed:
                self.story.wrong(told)
            else:
                await self._is_exact(record, document)

    async def _is_exact(self, record: JobRecord, document: dict[str, Any]) -> None:
        passes = document["passes"]
        manifests = await all_manifests(self.cluster.store, record.id)
        if not manifests:
            self.story.wrong(f"{record.id} has finished without a checkpoint")
            return
        values = await load_vector(self.cluster.store, manifests[0])
        clipped = document["optimizer"].get("clip_norm")
        right = np.full(SAMPLES, -passes / (2.0 if clipped else 1.0))
        same = np.allclose(values, right, rtol=1e-9) if clipped else (values == right).all()
        if not same or manifests[0].iteration != record.progress.iterations:
            self.story.wrong(f"{record.id} at {manifests[0].iteration}: {values}, expected {right}")
        if record.progress.samples != passes * SAMPLES:
            self.story.wrong(f"{record.id} counts {record.progress.samples} samples")

    # --- what is left over --------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        async def keep(delivery: Delivery) -> None:
            self._beats.append((self.cluster.loop.now, delivery.body))

        keys = (topology.SHARD_BEAT, topology.AGENT_BEAT)
        queue = Queue("elps.simulation", tuple((topology.MEMBERS, key) for key in keys))
        await self.cluster.user_bus.subscribe(queue, keep)
        await asyncio.sleep(BEATS_S)

    async def _leftovers(self) -> list[str]:
        return [
            *self._of_processes(),
            *self._told_in_beats(),
            *self._queues(),
            *await self._keys(),
        ]

    def _of_processes(self) -> list[str]:
        found = [f"trainer {trainer.name}" for trainer in SIMULATION.trainers]
        for name, running in self.cluster.running.items():
            threads = [t.name for t in running.process.threads]
            if threads != (["accept"] if name.startswith("shard") else []):
                found.append(f"threads of {name}: {', '.join(threads)}")
            if running.process.dead:
                found.append(f"{name} is dead")
        return found + self._of_schedulers()

    def _of_schedulers(self) -> list[str]:
        """One is in charge, and it knows of no job that lives."""
        services = [r.service for n, r in self.cluster.running.items() if n.startswith(SCHEDULER)]
        serving = [s.serving for s in services if s.serving is not None]  # type: ignore[attr-defined]
        if len(serving) != 1:
            return [f"{len(serving)} schedulers of {len(services)} are in charge"]
        return [f"{job} is live for the scheduler" for job in serving[0].core.book.live]

    def _told_in_beats(self) -> list[str]:
        newest: dict[str, list[object]] = {}
        for _, body in self._beats:
            beat: MemberMessage = decode(body, MemberMessage)  # type: ignore[arg-type]
            if isinstance(beat, ShardBeat):
                newest[beat.shard] = [*beat.jobs, *beat.refused]
            elif isinstance(beat, AgentBeat):
                newest[beat.agent] = list(beat.trainers)
        members = [name for name in self.cluster.running if not name.startswith(SCHEDULER)]
        silent = [name for name in members if name not in newest]
        return [
            *(f"{name} says nothing" for name in silent),
            *(f"{name} has {held}" for name, held in newest.items() if held),
        ]

    def _queues(self) -> list[str]:
        found = []
        for name, queue in self.cluster.broker._queues.items():
            owner = queue.owner
            if owner is not None and (owner._closed or owner._process.dead):  # type: ignore[attr-defined]
                found.append(f"queue {name} of nobody")
            if queue.ready:
                found.append(f"{len(queue.ready)} messages in {name}: {queue.ready[0].headers}")
        return found

    async def _keys(self) -> list[str]:
        store, expected = self.cluster.store, {topology.JOB_INDEX, topology.CHARGE}
        for job, record in (await self._records()).items():
            if record.state is not JobState.KILLED:
                expected |= {topology.term_key(record.id), topology.manifests_key(record.id)}
                for manifest in await all_manifests(store, JobId(job)):
                    expected |= {
                        topology.chunk_key(record.id, manifest.name, number, array)
                        for number, entry in enumerate(manifest.partitions)
                        for array in entry.digests
                    }
        return [f"key {key}" async for key in store.scan("") if key not in expected]
