"""What is said between a leader and its trainers, over one lease connection each."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import structlog

from elps.contracts.epoch import Epoch
from elps.contracts.errors import ElpsError, ProtocolError
from elps.contracts.ids import JobId, ShardId, WorkerId
from elps.psshard.beginning import Beginning
from elps.psshard.core.clock import Clock
from elps.psshard.core.commands import Command, Lend
from elps.psshard.identity import Identity
from elps.psshard.origin import Origin, Source
from elps.psshard.reporting import Reporter
from elps.psshard.trainers import Computed, Noticed, Pushed, Sums, TrainerLink, Trainers, What, read
from elps.wire.connection import Connection
from elps.wire.frames import Header, Kind
from elps.wire.handshake import Refused

log = structlog.get_logger()


class Leader(Protocol):
    """What a conversation needs of the leader: the state that its lock guards, and what can be asked of it."""

    job: JobId
    lock: threading.Lock
    epoch: Epoch
    opened: Epoch
    clock: Clock | None
    origin: Origin
    trainers: Trainers
    beginning: Beginning
    reporter: Reporter

    def open(self, source: Source) -> None:
        """Begin from there."""

    def join(self, link: TrainerLink) -> None:
        """Take a trainer in, or raise `Refused`."""

    def event(
        self, ask: Callable[[Clock, float], list[Command]], epoch: Epoch | None = None
    ) -> None:
        """Give the clock an event and execute what it commands."""

    def dismiss(self, worker: WorkerId, reason: str) -> None:
        """Give up on a trainer."""

    def fail(self, reason: str) -> None:
        """The job cannot go on."""


class Conversation:
    """A trainer connects, opens task and data, says it is ready; it is told the map, connects to the shards, and asks.

    It is admitted once it asks and the values are there. The first ready trainer of a job without a checkpoint brings
    version 0.
    """

    def __init__(self, lead: Leader) -> None:
        self._lead = lead

    def serve(self, connection: Connection, worker: WorkerId) -> None:
        """Serve one trainer until its connection ends."""
        lead, link = self._lead, TrainerLink(worker, connection)
        try:
            lead.join(link)
        except Refused as error:  # what was true at the handshake is not any more
            link.stop(str(error))
            return
        cause = "its connection ended"
        try:
            while True:
                header = connection.receive()
                self._said(link, header, connection.meta(header))
        except (ElpsError, TimeoutError) as error:
            cause = str(error)
        finally:
            connection.close()
            with lead.lock:
                was_initialiser = lead.trainers.remove(link)
            lead.reporter.gone(worker)
            if link.leaving:
                lead.event(lambda clock, now: clock.worker_left(worker, link.leaving, now))
            else:
                lead.event(lambda clock, now: clock.worker_lost(worker, cause, now))
            if was_initialiser:
                self.greet_all()

    # --- from a trainer -----------------------------------------------------------------------------------------------

    def _said(self, link: TrainerLink, header: Header, meta: dict[str, Any]) -> None:
        worker, t, interval = link.worker, header.iteration, header.interval
        match header.kind:
            case Kind.READY:
                self._ready(link, read(meta, Identity))
            case Kind.FAILED:
                self._lead.fail(read(meta, What).what)
            case Kind.ASK:
                self._ask(link, header.epoch, read(meta, Computed) if meta else None)
            case Kind.PUSHED:
                pushed = read(meta, Pushed)
                self._lead.reporter.noticed(worker, pushed.around)
                self._lead.event(
                    lambda clock, _: clock.pushed(worker, t, pushed.push_s), header.epoch
                )
            case Kind.NOTICED:
                self._lead.reporter.noticed_waiting(worker, read(meta, Noticed).around)
            case Kind.BAD:
                what = read(meta, What).what
                self._lead.event(
                    lambda clock, now: clock.bad_gradient(worker, t, interval, what, now),
                    header.epoch,
                )
            case Kind.EVALUATED:
                sums = {n: math.nan if v is None else v for n, v in read(meta, Sums).sums.items()}
                self._lead.event(
                    lambda clock, now: clock.evaluated(worker, t, interval, sums, now), header.epoch
                )
            case Kind.RETIRING:
                link.leaving = link.leaving or "its agent ends it"
                self._lead.event(lambda clock, now: clock.worker_retires(worker, now))
                self._release(link)
            case Kind.LEAVING:
                link.leaving = read(meta, What).what or "it leaves"
            case Kind.INITIALISED:
                log.info("initialised", job=self._lead.job, worker=worker)
            case _:
                raise ProtocolError(f"{worker} sent {header.kind.name} on its lease connection")

    def _ask(self, link: TrainerLink, epoch: Epoch, done: Computed | None) -> None:
        worker = link.worker

        def ask(clock: Clock, now: float) -> list[Command]:
            out: list[Command] = []
            if done is not None:
                loss = math.nan if done.loss is None else done.loss
                out += clock.computed(worker, done.iteration, done.interval, loss, done.timing, now)
            link.asking = True
            return out + clock.asked(worker, now)

        self._lead.event(ask, epoch)
        if not link.admitted:
            self._admit(link, epoch)
        self._release(link)

    def _release(self, link: TrainerLink) -> None:
        """Let one that is to go do so once it has nothing in hand; what it has to say still is read."""
        if link.leaving and link.asking:
            link.tell(Header(Kind.STOP), {"reason": link.leaving})

    def _ready(self, link: TrainerLink, identity: Identity) -> None:
        lead = self._lead
        with lead.lock:
            link.identity = identity
            if not lead.beginning.settled:
                return  # looked at again when it is known where to begin
            known = lead.origin.identity
            if known is None:
                lead.origin.identity = identity
            accepts = known is not None and lead.origin.accept(known, identity)
        difference = known.difference(identity) if known is not None else ""
        if accepts and difference:
            lead.reporter.event("changed", f"it goes on with what is now; before: {difference}")
            self._greet(link)
        elif difference and not lead.origin.from_trainer and not lead.origin.accepted:
            lead.fail(
                f"the job is not what it was before: {difference}. Its newest checkpoint is kept: save it with elps "
                "export, and start a job with another id from it with init. A job whose document says on_change = "
                '"accept" goes on with what is now'
            )
        elif difference:
            lead.dismiss(link.worker, f"it sees another job than the first trainer: {difference}")
        elif known is None:
            lead.open(None)
        else:
            self._greet(link)

    # --- to the trainers ----------------------------------------------------------------------------------------------

    def look_again(self) -> None:
        """It is known where to begin: trainers that were ready before are looked at now."""
        with self._lead.lock:
            ready = self._lead.trainers.ready()
        for link in ready:
            if link.identity is not None and not link.admitted:
                self._ready(link, link.identity)

    def greet_all(self) -> None:
        """A map is new, or the one who was to bring version 0 is gone."""
        with self._lead.lock:
            ready = self._lead.trainers.ready()
        for link in ready:
            if not link.admitted:
                self._greet(link)

    def _greet(self, link: TrainerLink) -> None:
        """Tell a ready trainer the map, and have one bring version 0 when nobody does."""
        lead = self._lead
        with lead.lock:
            clock, epoch, trainers = lead.clock, lead.epoch, lead.trainers
            if clock is None or trainers.get(link.worker) is not link:
                return
            held = clock.has_values
            initialise = lead.origin.from_trainer and not held and trainers.initialiser is None
            if initialise:
                trainers.initialiser = link.worker
            known = link.greeted == epoch
            meta = None if known else {**lead.origin.map(), "since": lead.opened.n}
            link.greeted = epoch
        worker = link.worker  # its answer must not come before the clock awaits it
        if meta is not None:  # a second map would have it ask twice
            lead.event(lambda clock, now: clock.greeted(worker, now), epoch)
            link.tell(Header(Kind.MAP, epoch), meta)
        if initialise:
            lead.event(lambda clock, now: clock.brings(worker, now), epoch)
            link.tell(Header(Kind.INITIALISE, epoch))
        if held:
            self._admit(link, epoch)

    def tell_ahead(self, epoch: Epoch, places: Mapping[ShardId, tuple[str, int]]) -> None:
        """Partitions are about to move to these shards: trainers may connect to them meanwhile."""
        shards = [{"id": s, "host": host, "port": port} for s, (host, port) in places.items()]
        with self._lead.lock:
            links = [t for t in self._lead.trainers.ready() if t.greeted is not None]
        for link in links:
            link.tell(Header(Kind.AHEAD, epoch), {"shards": shards})

    def tell_map(self) -> None:
        """The map was exchanged: all go on under the new one as they are."""
        with self._lead.lock:
            epoch, meta = self._lead.epoch, self._lead.origin.map()
            links = [t for t in self._lead.trainers.ready() if t.greeted not in (None, epoch)]
            for link in links:
                link.greeted = epoch
        for link in links:
            link.tell(Header(Kind.MAP, epoch), {**meta, "since": self._lead.opened.n})

    def initialise_again(self) -> None:
        """A shard may have missed version 0: who was to bring it does so once more. What is there stays as it is."""
        lead = self._lead
        with lead.lock:
            clock, epoch, who = lead.clock, lead.epoch, lead.trainers.initialiser
            link = lead.trainers.get(who) if who is not None else None
            lacks = clock is not None and not clock.has_values
        if link is not None and lacks:
            link.tell(Header(Kind.INITIALISE, epoch))

    def admit_all(self, epoch: Epoch) -> None:
        """Once every partition has its first values, all ready trainers may be lent work."""
        lead = self._lead
        with lead.lock:
            clock = lead.clock
            if clock is None or epoch != lead.epoch or not clock.has_values:
                return
            waiting = [link for link in lead.trainers.ready() if not link.admitted]
        for link in waiting:
            self._admit(link, epoch)

    def _admit(self, link: TrainerLink, epoch: Epoch) -> None:
        """Let the clock know a trainer that asks, and so has its data and connections; if there are values."""
        worker = link.worker

        def admit(clock: Clock, now: float) -> list[Command]:
            known = self._lead.trainers.get(worker) is link
            if link.admitted or not known or not link.asking or not clock.has_values:
                return []
            link.admitted = True
            return clock.worker_ready(worker, now) + clock.asked(worker, now)

        self._lead.event(admit, epoch)

    def beat(self) -> None:
        """Keep those who wait for us from giving up, and hear what their machines have left meanwhile."""
        with self._lead.lock:
            waiting = [t for t in self._lead.trainers.all() if t.asking or not t.admitted]
            epoch = self._lead.epoch
        for link in waiting:
            link.tell(Header(Kind.WAIT, epoch), {"notice": True})

    def lend(self, epoch: Epoch, lend: Lend) -> None:
        """Hand out a lease."""
        with self._lead.lock:
            link = self._lead.trainers.get(lend.worker)
            if link is None or epoch != self._lead.epoch:
                return
            link.asking = False
        kind = Kind.TRAIN if lend.kind == "train" else Kind.EVALUATE
        link.tell(
            Header(kind, epoch, iteration=lend.version, interval=lend.interval, ticket=lend.ticket)
        )
