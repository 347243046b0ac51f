"""Failures of the network: what of a victim's ways is cut, reset, lossy or narrow, and how it is mended."""

from __future__ import annotations

import asyncio
import time

from realstack.planning import Act, Step, Way
from realstack.rooms import HOUSE, ROOMS, Room, Rooms, Selector
from realstack.site import SERVERS, Site

LOST_S, PASSES_S = 0.15, 0.1
"""Of a lossy way, in turn. A connection sends again what was lost after 0.2 s at the earliest, then later and later."""
RESET_EVERY_S = 1.0
"""A third trainer that dies on the same samples fails their job: the next one must get beyond them."""


class Severing:
    """The rooms of one site."""

    def __init__(self, site: Site, rooms: Rooms) -> None:
        self._site, self._rooms = site, rooms

    def cannot(self, step: Step) -> str:
        """Why this machine does not let a step be carried out; empty if it does."""
        match step.act:
            case Act.RESET | Act.HALF_OPEN:
                return self._rooms.no_reset
            case Act.DELAY:
                return self._rooms.no_delay
        return ""

    async def disturb(self, step: Step, name: str) -> None:
        """For the time of the step. All of it is as before afterwards, and when this is cancelled."""
        until = time.monotonic() + step.lasts_s
        sent, received = self._ways(name, step.way)
        match step.act:
            case Act.PARTITION:
                await self._cut([sent, received], step.lasts_s)
            case Act.ONE_WAY:
                await self._cut([received if step.inbound else sent], step.lasts_s)
            case Act.LOSSY:
                while time.monotonic() < until:
                    await self._cut([sent, received], LOST_S)
                    await asyncio.sleep(PASSES_S)
            case Act.RESET:
                while True:
                    self._reset(name, step.way)
                    if time.monotonic() >= until:
                        return
                    await asyncio.sleep(RESET_EVERY_S)
            case Act.HALF_OPEN:
                await self._cut([sent, received], step.lasts_s, losing=(name, step.way))
            case Act.DELAY:
                self._rooms.narrow(room := self._rooms.room(name))
                try:
                    await asyncio.sleep(step.lasts_s)
                finally:
                    self._rooms.widen(room)

    async def _cut(
        self, selectors: list[Selector], lasts_s: float, losing: tuple[str, Way] | None = None
    ) -> None:
        cuts = self._rooms.cut(selectors)
        try:
            if losing is not None:
                self._reset(*losing)
            await asyncio.sleep(lasts_s)
        finally:
            self._rooms.mend(cuts)

    def _ways(self, name: str, way: Way) -> tuple[Selector, Selector]:
        """What the victim sends, and what it is sent."""
        if name in SERVERS:
            port = str(self._port(name))
            tcp = ("ipproto", "tcp")
            return ("to", ROOMS, *tcp, "sport", port), ("from", ROOMS, *tcp, "dport", port)
        address = self._rooms.room(name).address
        match way:
            case Way.EVERYWHERE:
                return ("from", address), ("to", address)
            case Way.PEERS:
                return ("from", address, "to", ROOMS), ("from", ROOMS, "to", address)
            case Way.BROKER | Way.STORE:
                tcp = ("ipproto", "tcp")
                port = str(self._port("rabbitmq" if way is Way.BROKER else "redis"))
                return ("from", address, *tcp, "dport", port), ("to", address, *tcp, "sport", port)

    def _reset(self, name: str, way: Way) -> None:
        """End the victim's ends of its connections; those of the test to the servers are let be."""
        room: Room | None = None if name in SERVERS else self._rooms.room(name)
        if room is None:
            matching = ["dst", ROOMS, "and", "sport", "=", f":{self._port(name)}"]
        elif way is Way.PEERS:
            matching = ["dst", ROOMS]
        elif way is Way.EVERYWHERE:
            matching = []
        else:
            port = self._port("rabbitmq" if way is Way.BROKER else "redis")
            matching = ["dst", f"{HOUSE}:{port}"]
        self._rooms.reset(room, *matching)

    def _port(self, server: str) -> int:
        record = self._site.record
        assert record.broker_ports is not None
        assert record.store_port is not None
        return record.broker_ports.amqp if server == "rabbitmq" else record.store_port
