"""Carries out on a real stack what `planning` drew: hits a process, and brings it back after its time."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Coroutine
from typing import Any

import psutil
from realstack.planning import NETWORK, Act, Step, Victim, Way
from realstack.severing import Severing
from realstack.site import LOST_S, SERVERS, Site, gone
from realstack.training import Operator, Training

from elps.contracts.errors import RetryLater
from elps.contracts.state import JobRecord
from elps.local.processes import Handle, handle_of, is_alive, send
from elps.local.services import kind_of

LEAVES_S = 90.0
"""A shard that is asked to go is gone after 45 s at the latest, whoever does not let it; a server sooner."""
ASK_S = 0.5
"""A store that is away or frozen is not waited for longer when somebody is looked for."""

KINDS = {Victim.AGENT: "agent", Victim.SHARD: "shard", Victim.LEADER: "shard"}
NUMBERS = {Act.KILL: signal.SIGKILL, Act.STOP: signal.SIGTERM, Act.FREEZE: signal.SIGSTOP}


class Enemy:
    """Of one stack; `story` tells all that was done to it and when."""

    def __init__(self, site: Site, operator: Operator) -> None:
        self.site, self.operator = site, operator
        self._severing = None if site.rooms is None else Severing(site, site.rooms)
        self.story: list[str] = []
        self._began = time.monotonic()
        self._mending: set[asyncio.Task[None]] = set()
        self._leading: dict[str, str] = {}  #: by job, the leading shard that was seen last
        self._frozen: set[int] = set()  #: process ids
        self._booting: set[int] = set()  #: process ids of brokers that do not answer yet
        self._leaving: set[str] = set()  #: names that were taken away and are not back
        self._shards_hit = 0  #: that are not mended yet
        self._shards_whole_since = self._began  #: monotonic s; of no meaning while one is hit

    def tell(self, what: str) -> None:
        line = f"{time.monotonic() - self._began:7.2f} s  {what}"
        self.story.append(line)
        print(line, flush=True)

    @property
    def shards_are_whole(self) -> bool:
        """All shards are there, and have been for so long that nobody thinks otherwise."""
        return not self._shards_hit and time.monotonic() > self._shards_whole_since + 2 * LOST_S

    def assert_nobody_else_died(self) -> None:
        """Whoever is not there was taken away."""
        dead = [
            name
            for name, handle in self.site.handles.items()
            if not is_alive(handle) and name not in self._leaving
        ]
        assert not dead, f"ended by themselves: {dead}; see their logs in {self.site.stack.home}"

    async def mended(self) -> None:
        """Wait until all that was taken away is back."""
        while self._mending:
            await asyncio.gather(*self._mending)

    async def give_up(self) -> None:
        """Leave nothing frozen and nobody cut off when a run fails."""
        for task in self._mending:
            task.cancel()
        await asyncio.gather(*self._mending, return_exceptions=True)
        for pid in self._frozen:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).resume()
        if self.site.rooms is not None:
            self.site.rooms.mend_all()

    async def carry_out(self, step: Step, training: Training) -> None:
        """Do it now; what brings the victim back goes on beside."""
        at = f"{training.id} at {max(training.newest + 1, step.at)}"
        if step.act is Act.SCALE:
            self._beside(self._scale(step, training, at))
            return
        if step.act in NETWORK and (why := self.left_out(step)):
            self.tell(f"{at}: {step.act.value} {step.victim.value}: left out, {why}")
            return
        victim = await self._choose(step, training)
        if victim is None:
            self.tell(f"{at}: {step.act.value} {step.victim.value}: none is there")
            return
        if step.act in NETWORK:
            self._beside(self._disturb(victim, step, at), victim)
            return
        ends = {
            Act.FREEZE: f" for {step.lasts_s:g} s",
            Act.KILL: "" if step.victim is Victim.TRAINER else f", back after {step.lasts_s:g} s",
            Act.STOP: ", another in its place"
            if step.spare
            else f", back after {step.lasts_s:g} s",
        }
        leads = self._leads(victim)
        self.tell(f"{at}: {step.act.value} {victim.name} ({victim.pid}){leads}{ends[step.act]}")
        if step.act is Act.STOP and step.spare and victim.name not in SERVERS:
            spare = self.site.newcomer(kind_of(victim.name))
            await self.site.start(spare)
            self.tell(f"{spare} starts in place of {victim.name}")
        send(victim, NUMBERS[step.act])
        if step.act is Act.FREEZE:
            self._frozen.add(victim.pid)
            self._beside(self._thaw(victim, step), victim)
        elif step.victim is not Victim.TRAINER and victim.name not in self._leaving:
            self._leaving.add(victim.name)
            self._beside(self._replace(victim, step), victim)

    def left_out(self, step: Step) -> str:
        """Why a failure of the network cannot be had here; empty if it can."""
        return self._severing.cannot(step) if self._severing is not None else self.site.no_rooms

    # --- who ----------------------------------------------------------------------------------------------------------

    async def _choose(self, step: Step, training: Training) -> Handle | None:
        """Only who is there and goes about its work; who is leaving may be killed or frozen meanwhile."""
        if step.victim is Victim.TRAINER:
            return _at(step.rank, self._trainers())
        there = {
            name: handle
            for name, handle in sorted(self.site.handles.items())
            if is_alive(handle) and handle.pid not in self._frozen
            # RabbitMQ does not hear a SIGTERM while it starts.
            if step.act is not Act.STOP
            or (name not in self._leaving and handle.pid not in self._booting)
        }
        kind = KINDS.get(step.victim, step.victim.value)
        chosen = [handle for name, handle in there.items() if kind_of(name) == kind]
        if step.victim is Victim.LEADER:
            leader = await self._leader_of(training)
            chosen = [handle for handle in chosen if handle.name == leader] or chosen
        return _at(step.rank, chosen)

    def _trainers(self) -> list[Handle]:
        found = []
        for process in sorted(self.site.trainers(), key=lambda t: t.pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_STOPPED):
                    found.append(handle_of("trainer", process.pid))
        return [handle for handle in found if handle is not None]

    async def _leader_of(self, training: Training) -> str | None:
        record: JobRecord | None = None
        with contextlib.suppress(RetryLater, TimeoutError):
            async with asyncio.timeout(ASK_S):
                record = await training.find()
        if record is not None and record.allocation is not None:
            self._leading[training.id] = record.allocation.shards[0]
        return self._leading.get(training.id)

    def _leads(self, victim: Handle) -> str:
        return " (leads)" if victim.name in self._leading.values() else ""

    # --- what comes after ---------------------------------------------------------------------------------------------

    def _beside(self, work: Coroutine[Any, Any, None], victim: Handle | None = None) -> None:
        hits = victim is not None and kind_of(victim.name) == "shard"

        async def until_whole() -> None:
            self._shards_hit += hits
            try:
                await work
            finally:
                self._shards_hit -= hits
                if hits:
                    self._shards_whole_since = time.monotonic()

        task = asyncio.create_task(until_whole())
        self._mending.add(task)
        task.add_done_callback(self._mending.discard)

    async def _disturb(self, victim: Handle, step: Step, at: str) -> None:
        """Whoever is started in the victim's place meanwhile has the same network."""
        assert self._severing is not None
        way = "" if step.way is Way.EVERYWHERE else f" {step.way.value}"
        way += f" ({'nothing arrives' if step.inbound else 'nothing leaves'})" * (
            step.act is Act.ONE_WAY
        )
        what = f"{step.act.value} {victim.name} ({victim.pid}){self._leads(victim)}{way}"
        self.tell(f"{at}: {what} for {step.lasts_s:g} s")
        await self._severing.disturb(step, victim.name)
        self.tell(f"{step.act.value} {victim.name}{way}: over")

    async def _thaw(self, victim: Handle, step: Step) -> None:
        await asyncio.sleep(step.lasts_s)
        self._frozen.discard(victim.pid)
        there = send(victim, signal.SIGCONT)
        self.tell(f"SIGCONT {victim.name} ({victim.pid}){'' if there else ': it is gone'}")

    async def _replace(self, victim: Handle, step: Step) -> None:
        """Wait for the end of a process, and start it again after its time, or strike it off where another has come."""
        name = victim.name
        await gone([victim], LEAVES_S)
        if step.act is Act.STOP:
            self.tell(f"{name} ({victim.pid}) has ended")
        if step.spare and name not in SERVERS:
            self.site.forget(name)
        else:
            await asyncio.sleep(step.lasts_s)
            await self.site.start(name)
            self.tell(f"{name} starts again")
        self._leaving.discard(name)
        if name == "rabbitmq":
            booting = self.site.handles[name].pid
            self._booting.add(booting)
            await self.site.broker_is_back()
            self._booting.discard(booting)

    async def _scale(self, step: Step, training: Training, at: str) -> None:
        """Ask for a size within the job's bounds, drawn with the step."""
        workers, shards = training.document.workers, training.document.shards
        wish = {
            "workers": workers.min + step.rank % (workers.max - workers.min + 1),
            "shards": shards.min + step.rank // 2 % (shards.max - shards.min + 1),
        }
        self.tell(f"{at}: scale to {wish}")
        try:
            reply = await self.operator.client.scale(training.id, reason="chaos", **wish)
        except RetryLater as error:
            self.tell(f"scaling {training.id} was not answered: {error}")
            return
        if not reply.ok:
            self.tell(f"scaling {training.id} was refused: {reply.reason}")
            record = await training.find()
            assert record is None or record.state.ended, reply


def _at(rank: int, chosen: list[Handle]) -> Handle | None:
    return chosen[rank % len(chosen)] if chosen else None
