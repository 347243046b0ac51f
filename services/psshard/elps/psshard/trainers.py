"""The leader's connections to the trainers of its job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from elps.contracts.epoch import Epoch
from elps.contracts.errors import ProtocolError
from elps.contracts.ids import WorkerId
from elps.psshard.core.commands import Timing
from elps.psshard.identity import Identity
from elps.stream.interval import Interval
from elps.tasks.running import MAX_METRIC_CHARS, MAX_METRICS
from elps.wire.connection import Connection, ConnectionEnded
from elps.wire.frames import Header, Kind
from elps.wire.handshake import Refused

S = TypeVar("S", bound=msgspec.Struct)
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Cores = Annotated[float, Meta(ge=0, le=1e6)]
Number = Annotated[int, Meta(ge=0, le=2**62)]

MISSED_S = 2.0
"""A trainer that the scheduler's word has not named for this long is to stop; the word is repeated each second."""


class Computed(msgspec.Struct, frozen=True, kw_only=True):
    """With an ASK: the lease that was just computed."""

    iteration: Number
    lo: Number
    hi: Number
    loss: float | None
    """Sum over the interval; None when it is not finite."""
    compute_s: Seconds = 0.0
    pull_s: Seconds = 0.0
    wait_s: Seconds = 0.0
    lease_s: Seconds = 0.0

    @property
    def interval(self) -> Interval:
        """The lease's interval."""
        return Interval(self.lo, self.hi)

    @property
    def timing(self) -> Timing:
        """Where the time went."""
        return Timing(
            samples=self.hi - self.lo,
            compute_s=self.compute_s,
            pull_s=self.pull_s,
            wait_s=self.wait_s,
            lease_s=self.lease_s,
        )


class Noticed(msgspec.Struct, frozen=True, kw_only=True):
    """With NOTICED. What is not known of the trainer's machine is None, and in frames of older trainers all of it."""

    cpu_process: Cores | None = None
    cpu_host: Cores | None = None
    memory_bytes: Number | None = None

    @property
    def around(self) -> Around:
        """What the machine had left."""
        return Around(self.cpu_process, self.cpu_host, self.memory_bytes)


class Pushed(Noticed, frozen=True, kw_only=True):
    """With PUSHED."""

    push_s: Seconds


class Around(NamedTuple):
    """What a trainer's machine has left for it; see `WorkerTiming`."""

    cpu_process: float | None = None
    cpu_host: float | None = None
    memory_bytes: int | None = None


class Sums(msgspec.Struct, frozen=True, kw_only=True):
    """With EVALUATED: metrics summed over the lease; None where a sum is not finite."""

    sums: Annotated[
        dict[Annotated[str, Meta(max_length=MAX_METRIC_CHARS)], float | None],
        Meta(max_length=MAX_METRICS),
    ]


class What(msgspec.Struct, frozen=True, kw_only=True):
    """With BAD and FAILED."""

    what: str


def read(meta: dict[str, Any], kind: type[S]) -> S:
    """Check a frame's meta; `ProtocolError` when it is not of its kind."""
    try:
        return msgspec.convert(meta, kind)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"{kind.__name__} that cannot be read: {error}") from None


@dataclass
class TrainerLink:
    """One trainer as the leader sees it."""

    worker: WorkerId
    connection: Connection
    identity: Identity | None = None  #: set once it is ready
    asking: bool = False  #: waits for a lease
    admitted: bool = False  #: the clock knows it
    leaving: str = ""  #: it said that it goes of its own accord, and why
    greeted: Epoch | None = None  #: epoch of the map it was told last
    missed_at: float | None = None  #: since when the scheduler's word does not name it

    def tell(self, header: Header, meta: Any = None) -> bool:
        """Send a frame; False when the connection is gone, which its reader notices by itself."""
        try:
            self.connection.send(header, meta)
        except ConnectionEnded:
            return False
        return True

    def stop(self, reason: str) -> None:
        """Say that there is nothing more to do, and hang up."""
        self.tell(Header(Kind.STOP), {"reason": reason})
        self.connection.close()


class Trainers:
    """All trainers of one job. Plain state; the leader guards it."""

    def __init__(self, allowed: Iterable[WorkerId]) -> None:
        self.allowed = set(allowed)  #: by the scheduler's word
        self.dismissed: dict[WorkerId, str] = {}  #: given up, with the reason
        self.initialiser: WorkerId | None = None  #: brings version 0
        self._links: dict[WorkerId, TrainerLink] = {}
        self._gone: set[WorkerId] = set()  #: of those allowed: connected no more, and said nothing

    def check(self, worker: WorkerId) -> None:
        """Raise `Refused` when a trainer may not connect."""
        if worker in self.dismissed:
            raise Refused(f"dismissed: {self.dismissed[worker]}", "over")
        if worker in self._links:
            raise Refused(f"a trainer named {worker} is connected", "later")
        if worker not in self.allowed:
            raise Refused(f"{worker} is not in the plan yet", "later")

    def plan(
        self, workers: Iterable[WorkerId], ended: Mapping[WorkerId, str], now: float
    ) -> list[tuple[TrainerLink, str]]:
        """Take the scheduler's word on who may work; returns those to be stopped, with the reason.

        Others work in their place, while their agents, which were to end them, are out of reach say. One whose end was
        told goes at once; one that is only not named, once that has lasted: a word that comes late must end nobody.
        """
        self.allowed = set(workers)
        unwanted: list[tuple[TrainerLink, str]] = []
        for link in self.all():
            if link.worker in self.allowed:
                link.missed_at = None
            elif link.worker in ended:
                unwanted.append((link, f"not in the plan any more: {ended[link.worker]}"))
            elif link.missed_at is None:
                link.missed_at = now
            elif now - link.missed_at > MISSED_S:
                unwanted.append((link, "not in the plan any more"))
        for link, why in unwanted:
            link.leaving = link.leaving or why
        return unwanted

    def add(self, link: TrainerLink) -> None:
        """A trainer has connected."""
        self._gone.discard(link.worker)
        self._links[link.worker] = link

    def remove(self, link: TrainerLink) -> bool:
        """A trainer's connection has ended; True when it was to bring version 0."""
        if self._links.get(link.worker) is link:
            del self._links[link.worker]
            if not link.leaving:
                self._gone.add(link.worker)
        was = self.initialiser == link.worker
        if was:
            self.initialiser = None
        return was

    def get(self, worker: WorkerId) -> TrainerLink | None:
        """A connected trainer."""
        return self._links.get(worker)

    def all(self) -> list[TrainerLink]:
        """Connected trainers, in order of their ids."""
        return [self._links[w] for w in sorted(self._links)]

    def ready(self) -> list[TrainerLink]:
        """Those whose task and data are open."""
        return [link for link in self.all() if link.identity is not None]

    def admitted(self) -> list[WorkerId]:
        """Those the clock knows."""
        return [link.worker for link in self.all() if link.admitted]

    def gone(self) -> list[WorkerId]:
        """Those wanted whose connection has ended without a word, and that have not come again."""
        return sorted((self._gone & self.allowed) - self.dismissed.keys())

    def forget_epoch(self) -> None:
        """An epoch is over: all begin anew."""
        self.initialiser = None
        for link in self._links.values():
            link.admitted = link.asking = False
