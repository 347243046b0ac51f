"""The trainers' connections to a shard: one thread serves one connection, for pushes or for pulls.

Bulk has its own connection per direction, so that two sides never block each other in send.
"""

from __future__ import annotations

import time

import numpy as np

from elps.contracts.epoch import NO_EPOCH, Epoch
from elps.contracts.errors import ProtocolError
from elps.contracts.ids import PartitionId, WorkerId
from elps.psshard.core.part import Verdict
from elps.psshard.member import Member
from elps.psshard.slab import VALUES, Array
from elps.stream.interval import Interval
from elps.wire.connection import Connection
from elps.wire.frames import MAX_PART_BYTES, Header, Kind, Status

PULL_WAIT_S = 2.0
"""A pull that waits longer is told that the shard is still here."""
ASSIGN_WAIT_S = 10.0
"""How long a trainer that is ahead of the leader's word waits for it here; less than it waits for an answer."""
GATHER_BYTES = 256 * 1024
"""Up to this size a pull is answered with one copy and one send."""

_STATUS = {
    Verdict.ACCEPT: Status.OK,
    Verdict.HAVE_IT: Status.OK,
    Verdict.FROZEN: Status.REFUSED,
    Verdict.EARLY: Status.REFUSED,
    Verdict.STALE: Status.STALE,
}


Lease = tuple[Epoch, int, Interval]


def _lease(header: Header) -> Lease:
    return header.epoch, header.iteration, header.interval


class PushConnection:
    """Receives gradients: each part whole into one buffer that stays in the cache, then added."""

    def __init__(self, connection: Connection, member: Member) -> None:
        self._connection = connection
        self._member = member
        self._buffer = np.zeros(MAX_PART_BYTES, np.uint8)
        self._view = self._buffer.data
        self._dtype = np.dtype(member.document.dtype)
        self._staged: dict[PartitionId, Array] = {}  #: parts of `_lease` that do not count yet
        self._lease: Lease | None = None  #: the one being staged
        self._spare: dict[PartitionId, Array] = {}  #: their buffers, kept for an epoch
        self._spare_of = NO_EPOCH
        self._worst = Status.OK  #: of the frames since the last ACK

    def serve(self) -> None:
        """Serve until the connection ends."""
        while True:
            header = self._connection.receive()
            status = self._handle(header)
            self._worst = max(self._worst, status)
            if header.last:
                self._connection.send(
                    Header(
                        Kind.ACK,
                        header.epoch,
                        status=self._worst,
                        iteration=header.iteration,
                        interval=header.interval,
                    )
                )
                self._worst = Status.OK

    def _handle(self, header: Header) -> Status:
        match header.kind:
            case Kind.PUSH | Kind.VALUES:
                return self._part(header)
            case Kind.EMPTY:
                partitions = self._member.partitions
                return self._worst_of(header, [(p, None) for p in partitions])
            case Kind.COMMIT:
                if self._staged and self._lease != _lease(header):
                    raise ProtocolError(f"{self._connection.peer} commits what it has not staged")
                status = self._worst_of(header, list(self._staged.items()))
                self._forget_staged()
                return status
            case Kind.ABORT:
                self._forget_staged()
                self._worst = Status.OK
                return Status.OK
        raise ProtocolError(f"{self._connection.peer} sent {header.kind.name} on a push connection")

    def _part(self, header: Header) -> Status:
        partition = PartitionId(header.partition)
        if (
            header.kind is Kind.VALUES and self._worst is Status.OK
        ):  # waited in vain? then only once
            self._member.wait_assigned(header.epoch, ASSIGN_WAIT_S)
        size = self._member.partition_bytes(header.epoch, partition)
        if size is None:  # another epoch, or not here: the bytes are read and forgotten
            self._connection.discard(header, self._view)
            return Status.STALE
        view = self._view[:size]
        self._connection.body(header, view)
        values = self._buffer[:size].view(self._dtype)
        if header.kind is Kind.VALUES:
            self._member.bring(header.epoch, partition, {VALUES: values}, 0)
            return Status.OK
        if header.staged:
            if self._lease != _lease(header):
                self._forget_staged()
                self._lease = _lease(header)
            if self._spare_of != header.epoch:  # partitions may have moved away since
                self._spare, self._spare_of = {}, header.epoch
            held = self._spare.pop(partition, None)
            if held is None or held.size != values.size:
                held = np.empty_like(values)
            np.copyto(held, values)
            self._staged[partition] = held
            return Status.OK
        return self._worst_of(header, [(partition, values)])

    def _forget_staged(self) -> None:
        self._spare.update(self._staged)
        self._staged, self._lease = {}, None

    def _worst_of(self, header: Header, parts: list[tuple[PartitionId, Array | None]]) -> Status:
        worst = Status.OK
        for partition, values in parts:
            verdict = self._member.push(
                header.epoch, header.iteration, header.interval, partition, values
            )
            worst = max(worst, _STATUS[verdict])
        return worst


class PullConnection:
    """Answers pulls: waits for the version, then sends it; what was overwritten meanwhile does not count."""

    def __init__(self, connection: Connection, member: Member, worker: WorkerId) -> None:
        self._connection = connection
        self._member = member
        self._worker = worker
        self._scratch = np.zeros(GATHER_BYTES, np.uint8)

    def serve(self) -> None:
        """Serve until the connection ends."""
        while True:
            header = self._connection.receive()
            if header.kind is not Kind.PULL:
                raise ProtocolError(
                    f"{self._connection.peer} sent {header.kind.name} on a pull connection"
                )
            if header.newest and self._member.document.bound is None:
                raise ProtocolError(
                    f"{self._connection.peer} pulls the newest values of a job with a barrier"
                )
            self._answer(header)

    def _answer(self, ask: Header) -> None:
        self._wait_assigned(ask)
        partitions = self._member.partitions
        status = self._small(ask, partitions)
        if status is not None:
            if status is not Status.OK:
                self._end(ask, status)
            return
        status = Status.OK
        for partition in partitions:
            status = self._wait(ask, partition)
            if status is not Status.OK:
                break
            body = self._member.view(ask.epoch, partition, ask.iteration)
            if body is None:
                status = Status.STALE
                break
            self._connection.send(self._head(ask, partition, len(body)), body=body)
        if status is Status.OK and not self._member.still_readable(
            ask.epoch, partitions, ask.iteration, newest=ask.newest
        ):
            status = Status.GONE
        self._end(ask, status)

    def _small(self, ask: Header, partitions: list[PartitionId]) -> Status | None:
        """Answer in one send when all parts are small; None when they are not."""
        sizes = [self._member.partition_bytes(ask.epoch, p) for p in partitions]
        if None in sizes:
            return Status.STALE
        known = [s for s in sizes if s is not None]
        if sum(known) > GATHER_BYTES:
            return None
        for partition in partitions:
            status = self._wait(ask, partition)
            if status is not Status.OK:
                return status
        dtype = np.dtype(self._member.document.dtype)
        into = self._scratch[: sum(known)].view(dtype)
        gather = self._member.gather
        if not gather(ask.epoch, partitions, ask.iteration, into, newest=ask.newest):
            return Status.GONE
        pieces: list[memoryview | bytes | bytearray] = []
        at, raw = 0, self._scratch.data
        for partition, size in zip(partitions, known, strict=True):
            pieces += [self._head(ask, partition, size).pack(), raw[at : at + size]]
            at += size
        pieces.append(self._end_head(ask, Status.OK).pack())
        self._connection.send_raw([b"".join(pieces)])
        return Status.OK

    def _wait(self, ask: Header, partition: PartitionId) -> Status:
        while True:
            status = self._member.wait_for(
                ask.epoch,
                partition,
                ask.iteration,
                self._worker,
                ask.ticket,
                PULL_WAIT_S,
                newest=ask.newest,
            )
            if status is not None:
                return status
            self._still_here(ask)

    def _wait_assigned(self, ask: Header) -> None:
        """For a trainer that is ahead of the leader's word; past `ASSIGN_WAIT_S` it is told STALE."""
        deadline = time.monotonic() + ASSIGN_WAIT_S
        while not self._member.wait_assigned(ask.epoch, PULL_WAIT_S):
            if time.monotonic() > deadline:
                return
            self._still_here(ask)

    def _still_here(self, ask: Header) -> None:
        self._connection.send(
            Header(Kind.WAIT, ask.epoch, iteration=ask.iteration, ticket=ask.ticket)
        )

    @staticmethod
    def _head(ask: Header, partition: PartitionId, size: int) -> Header:
        return Header(
            Kind.PART,
            ask.epoch,
            partition=partition,
            iteration=ask.iteration,
            ticket=ask.ticket,
            body_bytes=size,
        )

    def _end(self, ask: Header, status: Status) -> None:
        self._connection.send(self._end_head(ask, status))

    @staticmethod
    def _end_head(ask: Header, status: Status) -> Header:
        return Header(
            Kind.END,
            ask.epoch,
            status=status,
            iteration=ask.iteration,
            interval=Interval(0, 0),
            ticket=ask.ticket,
        )
