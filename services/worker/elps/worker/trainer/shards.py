"""A trainer's connections to the shards of its job: pull and push, each over a connection of its own.

A connection that breaks is made anew and the same request is sent again: pushes are dropped where they are known, pulls
have no effect. A shard that stays out of reach ends the trainer, which says which one it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from elps.contracts.epoch import Epoch
from elps.contracts.errors import ProtocolError
from elps.contracts.messages import StartTrainer
from elps.stream.interval import Interval
from elps.tasks.layout import Floats
from elps.wire.connection import Connection, ConnectionEnded
from elps.wire.frames import Flag, Header, Kind, Status
from elps.wire.handshake import Purpose
from elps.worker.trainer.reaching import Ahead, CalledAway, Place, ShardUnreachable, reach

SILENT_S = 20.0
"""A shard that owes an answer and says nothing for this long has lost the connection."""
REACH_S = 30.0
"""How long a shard is dialled before the trainer gives up."""
FAILURES, FAILING_S = 5, 60.0
"""So many lost connections in a row, or for so long, are enough."""

T = TypeVar("T")


@dataclass
class _Shard:
    """One shard and this trainer's two connections to it."""

    start: StartTrainer
    name: str
    host: str
    port: int
    partitions: list[tuple[int, int, int]]
    called_away: Callable[[], bool]
    ahead: Ahead
    pull: Connection | None = None
    push: Connection | None = None

    @property
    def place(self) -> Place:
        return self.name, self.host, self.port

    def pulling(self) -> Connection:
        self.pull = self._live(self.pull, "pull")
        return self.pull

    def pushing(self) -> Connection:
        self.push = self._live(self.push, "push")
        return self.push

    def _live(self, connection: Connection | None, purpose: Purpose) -> Connection:
        if connection is not None and connection.closed:
            connection.close()  # which could still be read
            connection = None
        elif connection is None:
            connection = self.ahead.take(self.place, purpose)
        if connection is None:
            connection = reach(
                self.start, self.host, self.port, self.name, purpose, REACH_S, self.called_away
            )
        connection.between = self._look
        return connection

    def _look(self) -> None:
        """Of a shard that stands still the leader says more, and sooner, than its connection does."""
        try:
            away = self.called_away()
        except ConnectionEnded:
            away = True  # the leader is gone: what the trainer is at is not wanted either
        if away:
            raise CalledAway(f"{self.name} has not answered")

    def close(self) -> None:
        for connection in (self.pull, self.push):
            if connection is not None:
                connection.close()


def _again(action: Callable[[], T]) -> T:
    """Do it again as long as only the connection failed; `ShardUnreachable` ends it."""
    failures, since = 0, 0.0
    while True:
        try:
            return action()
        except (ConnectionEnded, TimeoutError) as error:
            now = time.monotonic()
            failures, since = failures + 1, since or now
            if failures > FAILURES or now - since > FAILING_S:
                raise ShardUnreachable(
                    f"{failures} connections in a row were lost: {error}"
                ) from None


def _status(header: Header, peer: str) -> Status:
    try:
        return Status(header.status)
    except ValueError:
        raise ProtocolError(f"{peer} sent {header.kind.name} with status {header.status}") from None


@dataclass
class Pulled:
    """Outcome of a pull."""

    status: Status
    wait_s: float
    """Until the first values came."""
    pull_s: float
    """Receiving."""


class Shards:
    """All shards of a job under one epoch, as its map names them.

    While one of them cannot be reached, or does not answer, `called_away` is asked; if so, `CalledAway` is raised.
    """

    def __init__(
        self,
        start: StartTrainer,
        epoch: Epoch,
        shards: list[dict[str, Any]],
        itemsize: int,
        called_away: Callable[[], bool] = lambda: False,
        ahead: Ahead | None = None,
    ):
        self.epoch = epoch
        self._ahead = ahead or Ahead(start)
        self.itemsize = itemsize
        try:
            self._shards = [
                _Shard(
                    start,
                    str(s["id"]),
                    str(s["host"]),
                    int(s["port"]),
                    [(int(n), int(lo), int(hi)) for n, lo, hi in s["partitions"]],
                    called_away,
                    self._ahead,
                )
                for s in shards
                if s["partitions"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"a map that cannot be read: {error!r}") from None

    @property
    def partitions(self) -> list[tuple[int, int, int]]:
        """Number, first element and end of every partition."""
        return [p for s in self._shards for p in s.partitions]

    def take_over(self, before: Shards) -> None:
        """Go on with the connections of another map, to those shards that are on this one; the others are closed."""
        places = {s.place: s for s in self._shards}
        for old in before.all():
            new = places.get(old.place)
            if new is None:
                old.close()
            else:
                new.pull, new.push = old.pull, old.push

    def connect(self) -> None:
        """Make every connection, all at once; those for pushes are waited for when they are needed."""
        self._ahead.connect([s.place for s in self._shards if s.pull is None])
        for shard in self._shards:
            shard.pulling()

    def pull(self, version: int, ticket: int, params: Floats, flags: Flag = Flag.NONE) -> Pulled:
        """Receive all partitions at a version into the flat vector. Anything but OK leaves a mixture there."""
        began = time.perf_counter()
        raw = params.data.cast("B")
        for shard in self._shards:
            _again(lambda s=shard: self._ask(s, version, ticket, flags))  # type: ignore[misc]
        first = 0.0
        worst = Status.OK
        for shard in self._shards:
            sent = True

            def take(s: _Shard = shard) -> Status:
                nonlocal first, sent
                if not sent:
                    self._ask(s, version, ticket, flags)
                sent = False
                status, at = self._take(s, ticket, raw)
                first = first or at
                return status

            worst = max(worst, _again(take))
        ended = time.perf_counter()
        first = first or ended
        return Pulled(worst, first - began, ended - first)

    def _ask(self, shard: _Shard, version: int, ticket: int, flags: Flag) -> None:
        head = Header(Kind.PULL, self.epoch, flags, iteration=version, ticket=ticket)
        shard.pulling().send(head)

    def _take(self, shard: _Shard, ticket: int, raw: memoryview) -> tuple[Status, float]:
        """Take one shard's answer: its status, and when the first values began to come."""
        connection, first = shard.pulling(), 0.0
        places = {n: (lo * self.itemsize, hi * self.itemsize) for n, lo, hi in shard.partitions}
        try:
            while True:
                header = connection.receive(idle_s=SILENT_S)
                if header.kind is Kind.WAIT:
                    continue
                first = first or time.perf_counter()
                if header.ticket != ticket:
                    raise ProtocolError(
                        f"{shard.name} answered ticket {header.ticket}, not {ticket}"
                    )
                if header.kind is Kind.END:
                    return _status(header, shard.name), first
                if header.kind is not Kind.PART or header.partition not in places:
                    raise ProtocolError(
                        f"{shard.name} sent {header.kind.name} {header.partition} to a pull"
                    )
                lo, hi = places[header.partition]
                connection.body(header, raw[lo:hi])
        except (ProtocolError, TimeoutError):
            connection.close()
            raise

    def push_values(self, params: Floats) -> Status:
        """Push version 0."""
        pushing = Pushing(self, 0, Interval(0, 0), params, staged=False, kind=Kind.VALUES)
        return pushing.finish()

    def close(self) -> None:
        """End every connection, those under way included."""
        self._ahead.close()
        for shard in self._shards:
            shard.close()

    def connect_ahead(self, places: list[Place]) -> None:
        """Begin to connect to shards that are not on this map."""
        known = {s.place for s in self._shards}
        self._ahead.connect([place for place in places if place not in known])

    def all(self) -> list[_Shard]:
        """The shards that hold partitions, in the order of the map."""
        return self._shards


class Pushing:
    """One lease's push, which can be repeated from the start while the gradient is intact."""

    def __init__(
        self,
        shards: Shards,
        iteration: int,
        interval: Interval,
        flat: Floats,
        *,
        staged: bool,
        kind: Kind = Kind.PUSH,
    ) -> None:
        self._shards = shards
        self._raw = flat.data.cast("B")
        self._kind, self._iteration, self._interval = kind, iteration, interval
        self._staged = staged
        self._where = (
            {n: (s, lo, hi) for s in shards.all() for n, lo, hi in s.partitions} if staged else {}
        )
        self._early: dict[
            str, tuple[Connection, list[int]]
        ] = {}  #: shard to the parts sent on a connection

    def send_early(self, number: int) -> None:
        """Send a part that is final already; it counts with `finish`. A failure now is made good there."""
        shard, lo, hi = self._where[number]
        try:
            connection = shard.pushing()
            sent_on, numbers = self._early.get(shard.name, (connection, []))
            if sent_on is not connection:
                numbers = []
            self._send(connection, number, lo, hi, Flag.STAGED)
            self._early[shard.name] = (connection, [*numbers, number])
        except ConnectionEnded:
            self._early.pop(shard.name, None)

    def finish(self) -> Status:
        """Send what is missing, have it counted, and wait for every shard's answer: the worst of them."""
        waiting = []
        for shard in self._shards.all():
            try:
                self._send_rest(shard)
                waiting.append((shard, True))
            except ConnectionEnded:
                waiting.append((shard, False))
        return max((self._settle(shard, sent) for shard, sent in waiting), default=Status.OK)

    def abort(self) -> None:
        """Have the shards forget what was sent early."""
        for connection, _ in self._early.values():
            try:
                connection.send(self._header(Kind.ABORT))
            except ConnectionEnded:
                continue  # its staged parts went with it
        self._early = {}

    def _settle(self, shard: _Shard, sent: bool) -> Status:
        """Wait for a shard's answer; push to it anew when its connection broke."""

        def settle() -> Status:
            nonlocal sent
            if not sent:
                self._send_rest(shard)
            sent = False
            connection = shard.pushing()
            try:
                header = connection.receive(idle_s=SILENT_S)
            except TimeoutError:
                connection.close()
                raise
            if header.kind is not Kind.ACK or header.interval != self._interval:
                connection.close()
                raise ProtocolError(f"{shard.name} sent {header.kind.name} to a push")
            return _status(header, shard.name)

        return _again(settle)

    def _send_rest(self, shard: _Shard) -> None:
        connection = shard.pushing()
        sent_on, numbers = self._early.get(shard.name, (connection, []))
        done = set(numbers) if sent_on is connection else set()
        flags = Flag.STAGED if self._staged else Flag.NONE
        left = [p for p in shard.partitions if p[0] not in done]
        for at, (number, lo, hi) in enumerate(left):
            last = not self._staged and at == len(left) - 1
            self._send(connection, number, lo, hi, Flag.LAST if last else flags)
        if self._staged:
            connection.send(self._header(Kind.COMMIT, Flag.LAST))

    def _send(self, connection: Connection, number: int, lo: int, hi: int, flags: Flag) -> None:
        size = self._shards.itemsize
        header = Header(
            self._kind,
            self._shards.epoch,
            flags,
            partition=number,
            iteration=self._iteration,
            interval=self._interval,
            body_bytes=(hi - lo) * size,
        )
        connection.send(header, body=self._raw[lo * size : hi * size])

    def _header(self, kind: Kind, flags: Flag = Flag.NONE) -> Header:
        return Header(
            kind, self._shards.epoch, flags, iteration=self._iteration, interval=self._interval
        )
