"""Both ends of the connection between a partition's owner and the shard that follows it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import structlog

from elps.contracts.errors import ElpsError, ProtocolError
from elps.contracts.ids import PartitionId
from elps.psshard.block import Array, Block, Sealed
from elps.psshard.core.part import Advance
from elps.psshard.following import Following, WaveKey
from elps.psshard.reports import Followed, Report, Unfollowed
from elps.stream.interval import Interval
from elps.wire.connection import Connection
from elps.wire.frames import MAX_PART_BYTES, Header, Kind

MAX_WAITING_BYTES, MAX_WAITING_VERSIONS = 128 << 20, 2
"""Sums that wait to be sent, whichever is more; a follower that lets more of them gather is too slow."""
TOLD_WAIT_S = 10.0
"""How long an owner that is ahead of the leader's word waits for it at the follower."""
IDLE_S = 0.5
TELL_S = 0.5
"""That single copies have advanced is told at most this often; that all have, at once."""
TOO_SLOW = "the follower takes the sums more slowly than they come"

log = structlog.get_logger()
Queued = tuple[Advance, Array | None]


class Feeder:
    """The owner's end: a thread sends copies of some blocks to one shard, then every sum that they collect."""

    def __init__(
        self,
        key: WaveKey,
        blocks: Mapping[PartitionId, Block],
        connect: Callable[[], Connection],
        failed: Callable[[Report], None],
    ) -> None:
        self._key, self._blocks, self._connect, self._failed = key, dict(blocks), connect, failed
        self._changed = threading.Condition()
        self._queue: deque[Queued] = deque()
        self._waiting_bytes = 0
        self._overrun = False  #: more gathered than may wait; what came since then is lost
        self._closed = False
        self.failure = ""  #: why it ended, if not because it was told to
        self._connection: Connection | None = None
        sizes = [block.size * block.dtype.itemsize for block in blocks.values()]
        self._limit = max(MAX_WAITING_BYTES, MAX_WAITING_VERSIONS * sum(sizes))

    def start(self) -> None:
        """Begin."""
        threading.Thread(target=self._run, name=f"feed-{self._key[1]}", daemon=True).start()

    def close(self) -> None:
        """Send nothing more."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()
            connection = self._connection
        if connection is not None:
            connection.close()

    def _run(self) -> None:
        try:
            connection = self._connect()
            with self._changed:
                self._connection = connection
                if self._closed:
                    connection.close()
                    return
            for partition, block in self._blocks.items():
                self._send_state(connection, partition, block)
                self._send_sums(connection, wait=False)
            while self._send_sums(connection, wait=True):
                pass
        except (ElpsError, TimeoutError) as error:
            self._fail(str(error))
        except Exception as error:
            log.exception("feed_failed", wave=self._key[1])
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            for block in self._blocks.values():
                block.tell_no_more(self._tell)
            if self._connection is not None:
                self._connection.close()

    def _fail(self, reason: str) -> None:
        with self._changed:
            closed, self._closed = self._closed, True
            reason = TOO_SLOW if self._overrun else reason
            self.failure = "" if closed else reason
        if not closed:
            self._failed(Unfollowed(*self._key, reason))

    def _send_state(self, connection: Connection, partition: PartitionId, block: Block) -> None:
        version, steps, skips, arrays = block.tell(self._tell)
        about = {"steps": steps, "skips": [(i.lo, i.hi) for i in skips]}
        head = Header(
            Kind.STATE, self._key[0], partition=partition, iteration=version, ticket=self._key[1]
        )
        for name, array in arrays.items():
            connection.send(head, {"name": name, **about}, array.data.cast("B"))

    def _tell(self, advance: Advance, total: Array) -> None:
        """A block has collected an iteration; called under its lock."""
        size = total.nbytes if advance.count else 0
        with self._changed:
            if self._closed or self._overrun:
                return
            self._overrun = self._waiting_bytes + size > self._limit
            if self._overrun:
                self._queue.clear()
            else:
                self._queue.append((advance, total.copy() if advance.count else None))
                self._waiting_bytes += size
            self._changed.notify_all()
            connection = self._connection if self._overrun else None
        if connection is not None:
            connection.close()  # its sender may be waiting for a follower that does not read

    def _send_sums(self, connection: Connection, *, wait: bool) -> bool:
        """Send what is queued; False once closed."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._queue or self._closed or self._overrun, IDLE_S)
            if self._closed:
                return False
            if self._overrun:
                raise ProtocolError(TOO_SLOW)
            queued = list(self._queue)
            self._queue.clear()
            self._waiting_bytes = 0
        for advance, total in queued:
            head = Header(
                Kind.SUM,
                self._key[0],
                partition=advance.partition,
                iteration=advance.iteration,
                ticket=self._key[1],
            )
            body = total.data.cast("B") if total is not None else None
            skips = [(i.lo, i.hi) for i in advance.skipped]
            meta = {"count": advance.count, "step": advance.step, "skips": skips}
            meta |= {"factor": advance.factor} if advance.factor != 1 else {}
            connection.send(head, meta, body)
        return True


class FeedConnection:
    """The follower's end."""

    def __init__(
        self, connection: Connection, following: Following, report: Callable[[Report], None]
    ) -> None:
        self._connection, self._following, self._report = connection, following, report
        self._scratch = memoryview(bytearray(MAX_PART_BYTES))
        self._told, self._told_at = (-1, 0), 0.0  #: progress told last, and when

    def serve(self) -> None:
        """Serve until the connection ends. Then the copies stay as they are: whether they do is the leader's to say."""
        while True:
            header = self._connection.receive()
            meta = self._connection.meta(header)
            key = header.epoch, header.ticket
            if not self._following.wait_for(key, TOLD_WAIT_S):
                raise ProtocolError(f"{self._connection.peer} feeds wave {key[1]}, which is over")
            match header.kind:
                case Kind.STATE:
                    self._state(key, header, meta)
                case Kind.SUM:
                    self._sum(key, header, meta)
                case _:
                    raise ProtocolError(f"{header.kind.name} on a connection that feeds")
            self._tell_progress(key)

    def _tell_progress(self, key: WaveKey) -> None:
        version, have = progress = self._following.progress(key)
        now = time.monotonic()
        if version > self._told[0] or (progress > self._told and now - self._told_at >= TELL_S):
            self._told, self._told_at = progress, now
            self._report(Followed(*key, have, version))

    def _state(self, key: WaveKey, header: Header, meta: dict[str, Any]) -> None:
        name, steps = str(meta.get("name")), _number(meta, "steps")
        partition = PartitionId(header.partition)
        array = self._following.array(key, partition, name, header.iteration)
        if array is None:
            self._connection.discard(header, self._scratch)
            return
        self._connection.body(header, array.data.cast("B"))
        self._following.came(key, partition, name, header.iteration, steps, _skips(meta))

    def _sum(self, key: WaveKey, header: Header, meta: dict[str, Any]) -> None:
        advance = Advance(
            PartitionId(header.partition),
            header.iteration,
            _number(meta, "count"),
            _number(meta, "step"),
            tuple(_skips(meta)),
            _factor(meta),
        )
        block = self._following.block(key, advance.partition, advance.iteration)
        if block is None:
            self._connection.discard(header, self._scratch)
            return
        if advance.count:
            self._connection.body(header, block.total.data.cast("B"))
        try:
            block.follow(advance)
        except Sealed:
            return  # what is here is another term's
        self._following.advanced(key, advance)


def _number(meta: dict[str, Any], name: str) -> int:
    value = meta.get(name)
    if not isinstance(value, int) or value < 0:
        raise ProtocolError(f"{name} is {value!r}, expected a whole number")
    return value


def _factor(meta: dict[str, Any]) -> float:
    value = meta.get("factor", 1.0)
    if not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ProtocolError(f"factor is {value!r}, expected a number from 0 to 1")
    return value


def _skips(meta: dict[str, Any]) -> list[Interval]:
    try:
        pairs = msgspec.convert(meta.get("skips", []), list[tuple[int, int]])
        return [Interval(lo, hi) for lo, hi in pairs]
    except (msgspec.ValidationError, ValueError):
        raise ProtocolError("skips that cannot be read") from None
