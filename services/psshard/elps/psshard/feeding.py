"""Both ends of the connection between a partition's owner and the shard that follows it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from elps.contracts.errors import ElpsError, ProtocolError
from elps.contracts.ids import PartitionId
from elps.psshard.block import Array, Block
from elps.psshard.core.part import Advance
from elps.psshard.following import Following, WaveKey
from elps.psshard.reports import Followed, Report, Unfollowed
from elps.wire.connection import Connection
from elps.wire.frames import MAX_PART_BYTES, Header, Kind

MAX_WAITING_BYTES = 128 << 20
"""Sums that wait to be sent; a follower that lets more of them gather is too slow."""
TOLD_WAIT_S = 10.0
"""How long an owner that is ahead of the leader's word waits for it at the follower."""
IDLE_S = 0.5
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
        version, steps, arrays = block.tell(self._tell)
        head = Header(
            Kind.STATE, self._key[0], partition=partition, iteration=version, ticket=self._key[1]
        )
        for name, array in arrays.items():
            connection.send(head, {"name": name, "steps": steps}, array.data.cast("B"))

    def _tell(self, advance: Advance, total: Array) -> None:
        """A block has collected an iteration; called under its lock."""
        size = total.nbytes if advance.count else 0
        with self._changed:
            if self._closed or self._overrun:
                return
            self._overrun = self._waiting_bytes + size > MAX_WAITING_BYTES
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
            connection.send(head, {"count": advance.count, "step": advance.step}, body)
        return True


class FeedConnection:
    """The follower's end."""

    def __init__(
        self, connection: Connection, following: Following, report: Callable[[Report], None]
    ) -> None:
        self._connection, self._following, self._report = connection, following, report
        self._scratch = memoryview(bytearray(MAX_PART_BYTES))
        self._told = (0, -1)

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
            progress = self._following.progress(key)
            if progress != self._told:
                self._told = progress
                self._report(Followed(*key, *progress))

    def _state(self, key: WaveKey, header: Header, meta: dict[str, Any]) -> None:
        name, steps = str(meta.get("name")), _number(meta, "steps")
        partition = PartitionId(header.partition)
        array = self._following.array(key, partition, name, header.iteration)
        if array is None:
            self._connection.discard(header, self._scratch)
            return
        self._connection.body(header, array.data.cast("B"))
        self._following.came(key, partition, name, header.iteration, steps)

    def _sum(self, key: WaveKey, header: Header, meta: dict[str, Any]) -> None:
        advance = Advance(
            PartitionId(header.partition),
            header.iteration,
            _number(meta, "count"),
            _number(meta, "step"),
        )
        block = self._following.block(key, advance.partition, advance.iteration)
        if block is None:
            self._connection.discard(header, self._scratch)
            return
        if advance.count:
            self._connection.body(header, block.total.data.cast("B"))
        block.follow(advance)
        self._following.advanced(key, advance)


def _number(meta: dict[str, Any], name: str) -> int:
    value = meta.get(name)
    if not isinstance(value, int) or value < 0:
        raise ProtocolError(f"{name} is {value!r}, expected a whole number")
    return value
