"""Carries out a plan: hands in the jobs, asks what their user asks, harms the services and mends them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from simulation.cluster import Cluster
from simulation.plans import Act, Plan, Strike
from simulation.trainers import SIMULATION

from elps.client.control import Client
from elps.contracts import topology
from elps.contracts.codec import decode
from elps.contracts.errors import RetryLater
from elps.contracts.requests import Reply
from elps.contracts.state import JobRecord

END_S = 60.0
"""A service that is stopped in order has ended after this; a shard waits for its jobs to be taken away."""
ASKS = 30
"""Tries of a user: five seconds each."""


class Harm:
    """Of one simulation."""

    def __init__(self, cluster: Cluster, plan: Plan) -> None:
        self.cluster, self.plan, self.story = cluster, plan, cluster.story
        self.client = Client(cluster.user_bus)
        self.ended_by_user: dict[str, bool] = {}  #: jobs, and whether the scheduler has said so
        self._gone: dict[str, int] = {}  #: services that are away, and for how many reasons

    async def carry_out(self) -> None:
        """Returns when all of it is done and mended."""
        jobs = [self._submit(at, document) for at, document in self.plan.jobs]
        strikes = [self._strike(strike) for strike in self.plan.strikes]
        await asyncio.gather(*jobs, *strikes)
        self.story.tell("--- all is mended ---")

    # --- the user -----------------------------------------------------------------------------------------------------

    async def _submit(self, at_s: float, document: dict[str, Any]) -> None:
        await asyncio.sleep(at_s)
        reply = await self.ask("submit", document["id"], lambda: self.client.submit(document))
        if not reply.ok:
            self.story.wrong(f"{document['id']} was refused: {reply}")

    async def ask(self, what: str, job: str, call: Callable[[], Awaitable[Reply]]) -> Reply:
        """As a user who does not give up."""
        for _ in range(ASKS):
            try:
                reply = await call()
            except RetryLater:
                await asyncio.sleep(0.5)
            else:
                self.story.tell(f"user: {what} {job}", ok=reply.ok, reason=reply.reason)
                return reply
        self.story.wrong(f"nobody answered to {what} {job}")
        return Reply(ok=False)

    async def records(self) -> dict[str, JobRecord]:
        """All jobs as the store has them; nothing while it is away."""
        try:
            found = await self.cluster.store.hash_all(topology.JOB_INDEX)
        except RetryLater:
            return {}
        return {job: decode(record, JobRecord) for job, record in sorted(found.items())}

    # --- the services -------------------------------------------------------------------------------------------------

    async def _strike(self, strike: Strike) -> None:
        await asyncio.sleep(strike.at_s)
        whom = strike.whom
        if whom == "leader":
            leaders = [
                str(record.allocation.shards[0])
                for record in (await self.records()).values()
                if record.allocation is not None
            ]
            if not leaders:
                return
            whom = leaders[strike.rank % len(leaders)]
        self.story.tell(f"--- {strike.act.value} {whom} for {strike.lasts_s:.2f} s ---")
        match strike.act:
            case Act.KILL if whom == "trainer":
                self._kill_trainer(strike.rank)
            case Act.KILL | Act.STOP:
                await self._take_away(strike, whom)
            case Act.SILENCE | Act.CUT | Act.PART:
                await self._cut_off(strike, whom)
            case Act.RESET:
                self.cluster.network.reset(whom)
            case Act.BROKER:
                await self._while_gone(strike, self.cluster.broker)
            case Act.STORE:
                await self._while_gone(strike, self.cluster.store)
            case _:
                await self._wish(strike)

    def _kill_trainer(self, rank: int) -> None:
        trainers = list(SIMULATION.trainers)
        if trainers:
            trainers[rank % len(trainers)].signal(signal.SIGKILL)

    async def _take_away(self, strike: Strike, name: str) -> None:
        self._gone[name] = self._gone.get(name, 0) + 1
        if self.cluster.is_up(name):
            if strike.act is Act.KILL:
                self.cluster.kill(name)
            else:
                await self._stop(name)
        await asyncio.sleep(strike.lasts_s)
        self._gone[name] -= 1
        if not self._gone[name] and not self.cluster.is_up(name):
            self.cluster.start(name)

    async def _stop(self, name: str) -> None:
        running = self.cluster.running[name]
        running.stop.set()
        assert running.task is not None
        try:
            async with asyncio.timeout(END_S):
                await asyncio.wait((running.task,))
        except TimeoutError:
            self.story.wrong(f"{name} has not ended within {END_S:g} s")
        await asyncio.sleep(0.1)

    async def _cut_off(self, strike: Strike, name: str) -> None:
        bus = self.cluster.running[name].bus
        if strike.act is not Act.CUT:
            bus.fall_silent()
        if strike.act is not Act.SILENCE:
            self.cluster.network.cut_off(name)
        await asyncio.sleep(strike.lasts_s)
        bus.speak_again()
        self.cluster.network.join(name)
        self.story.tell(f"--- {name} is back ---")

    async def _while_gone(self, strike: Strike, server: Any) -> None:
        server.stop()
        await asyncio.sleep(strike.lasts_s)
        server.start()
        self.story.tell("--- it is back ---")

    async def _wish(self, strike: Strike) -> None:
        job, client = strike.whom, self.client
        match strike.act:
            case Act.SCALE:
                await self.ask("scale", job, lambda: client.scale(job, **strike.sizes))
            case Act.PAUSE:
                await self.ask("pause", job, lambda: client.pause(job))
                await asyncio.sleep(strike.lasts_s)
                await self.ask("resume", job, lambda: client.resume(job))
            case Act.END:
                self.ended_by_user[job] = False
                reply = await self.ask("kill", job, lambda: client.kill(job))
                self.ended_by_user[job] = reply.ok
