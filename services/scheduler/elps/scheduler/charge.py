"""Who is in charge, of two schedulers or more: a lease in the store, claimed again and again.

A standby claims until the lease is its own: when it has run out, when its holder has let it go, or when the holder's
process is seen to be gone, which on one machine takes no time. While the store is away nobody gets it; what holds when
it has forgotten who is in charge, `core.tenure` says. Whoever does not reach the broker does not claim: it could tell
nobody anything.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Awaitable, Mapping, Sequence
from typing import TypeVar

import msgspec
import structlog

from elps.contracts import topology
from elps.contracts.epoch import NO_CHARGE, Charge
from elps.contracts.errors import RetryLater, Superseded
from elps.messaging.port import Bus
from elps.runtime.processes import has_ended, identity
from elps.runtime.service import Clock
from elps.scheduler.core.recall import Recall
from elps.scheduler.core.tenure import Past, Tenure
from elps.storage.port import Lease, Store

log = structlog.get_logger(__name__)
T = TypeVar("T")

NONCE_BITS = 53
"""Exact in every JSON reader, and two equal ones are as good as impossible."""
TTL_S = 3.0
"""Time of the lease: after so long without a word of its holder another one may take it."""
CLAIM_S = 0.5
"""Between two claims, of a standby as of whoever is in charge."""
RELEASE_S = 1.0
BROKER_S = 5.0
"""Without the broker for so long, whoever is in charge lets the lease run out."""


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """What the store keeps of who holds the lease."""

    nonce: int
    host: str
    pid: int
    process: str
    """See `elps.runtime.processes.identity`."""


class InCharge:
    """The claims of one scheduler, from its start until it is followed by another or ends."""

    def __init__(self, store: Store, bus: Bus, clock: Clock, past: Past) -> None:
        """`past` is what the same scheduler knows from before; it is kept up to date."""
        self._bus, self._reached_at = bus, clock.monotonic()
        self._store, self._clock = store, clock
        me = Holder(
            nonce=secrets.randbits(NONCE_BITS),
            host=socket.gethostname(),
            pid=os.getpid(),
            process=identity(),
        )
        self._me = msgspec.json.encode(me).decode()
        self._tenure = Tenure(me.nonce, TTL_S, past)
        self._recall = Recall()
        self._due, self._claimed = asyncio.Event(), asyncio.Event()
        self._putting = asyncio.Lock()  #: one value at a time, as `Recall` has it
        self._other = ""

    @property
    def resumes(self) -> bool:
        """Whether nobody was in charge since this scheduler was last: what it knew then holds."""
        return self._tenure.resumes

    @property
    def charge(self) -> Charge:
        """What the orders of this scheduler are signed with."""
        return self._tenure.charge

    @property
    def losses(self) -> int:
        """How often the store was found to have forgotten something."""
        return self._recall.losses

    def acts(self) -> bool:
        """Whether it may do anything at this moment."""
        return self._tenure.acts(self._clock.monotonic())

    async def acting(self) -> None:
        """Wait until it may do something; what keeps it is logged with its claims."""
        while not self.acts():
            self._claimed.clear()
            await self._claimed.wait()

    def obeyed(self, other: Charge) -> None:
        """A member has told whom it obeys."""
        self._tenure.obeyed(other)
        if self._tenure.lost:
            self._due.set()

    async def come(self) -> None:
        """Stand by until this scheduler is in charge; `Superseded` if it was, and heard so too late."""
        while not self.acts():
            await self._claim()
            self.check()
            if not self.acts():
                await asyncio.sleep(CLAIM_S)
        log.info("in_charge", number=self.charge.number)

    async def keep(self) -> None:
        """Stay in charge; `Superseded` once another one is."""
        while True:
            self.check()
            await self._claim()
            self.check()
            try:
                async with asyncio.timeout(CLAIM_S):
                    await self._due.wait()
            except TimeoutError:
                continue

    def check(self) -> None:
        """Raise `Superseded` if another one is in charge."""
        if self._tenure.lost:
            raise Superseded(f"another scheduler is in charge: {self._other or 'members obey it'}")

    async def put(self, key: str, fields: Mapping[str, bytes]) -> None:
        """Set fields of a hash in the store, unless another one is in charge: `Superseded`.

        A store that has forgotten who is gives the lease anew.
        """
        async with self._putting:
            lease = self._lease
            put = self._store.hash_put_under(key, fields, topology.CHARGE, lease)
            if not self._recall.told(await self._under(put), lease.writes):
                raise RetryLater("the store has forgotten something")

    async def remove(self, keys: Sequence[str]) -> None:
        """Remove keys from the store, in the same way."""
        await self._under(self._store.delete_under(keys, topology.CHARGE, self._lease))

    async def remove_fields(self, key: str, fields: Sequence[str]) -> None:
        """Remove fields of a hash in the store, in the same way."""
        await self._under(self._store.hash_delete_under(key, fields, topology.CHARGE, self._lease))

    @property
    def _lease(self) -> Lease:
        return Lease(self._me, self.charge.number, self._recall.known)

    async def _under(self, acting: Awaitable[T]) -> T:
        try:
            return await acting
        except Superseded:
            await self._claim()
            self.check()
            raise RetryLater("the store did not know who is in charge") from None

    async def leave(self) -> None:
        """Let another one be in charge at once."""
        self._tenure.resigned()
        if self.charge == NO_CHARGE:
            return
        try:
            async with asyncio.timeout(RELEASE_S):
                await self._store.release(topology.CHARGE, self._me)
        except (RetryLater, TimeoutError) as error:
            log.warning("charge_not_released", error=str(error), it_ends_in_s=TTL_S)

    async def _claim(self) -> None:
        if self._tenure.lost:
            return
        asked_at = self._clock.monotonic()
        if self._bus.connected:
            self._reached_at = asked_at
        elif asked_at - self._reached_at > BROKER_S or self.charge == NO_CHARGE:
            return  # what is to be done about it, the bus says
        tenure, writes = self._tenure, self._recall.known
        ended = bool(self._other) and has_ended(_process(self._other))
        try:
            lease = await self._store.claim(
                topology.CHARGE,
                self._me,
                TTL_S,
                at_least=tenure.at_least,
                over=self._other if ended or tenure.takes_back else "",
                known=0 if ended else tenure.awaits(asked_at),
            )
        except RetryLater as error:
            log.warning("waiting_for", whom="store", to="be in charge", error=str(error))
            return
        ours = lease.holder == self._me
        self._recall.told(lease.writes, writes)
        tenure.claimed(lease.number, ours, asked_at)
        self._claimed.set()
        if not lease.holder:
            log.warning("waiting_for", whom="who was in charge", to="be so", number=lease.number)
        elif not ours and lease.holder != self._other:
            log.info("another_scheduler_is_in_charge", who=lease.holder, number=lease.number)
        self._other = "" if ours else lease.holder or self._other


def _process(holder: str) -> str:
    """The process of a holder; empty if another version has written it."""
    try:
        return msgspec.json.decode(holder, type=Holder).process
    except msgspec.DecodeError:
        return ""
