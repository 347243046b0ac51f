"""Orders and reports as frames of a link."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from elps.contracts.epoch import Epoch
from elps.contracts.errors import ProtocolError
from elps.contracts.ids import PartitionId, WorkerId
from elps.psshard.assignment import Assignment
from elps.psshard.core import commands as do
from elps.psshard.orders import Order
from elps.psshard.reports import Frozen, Missed, Progressed, Report, Trouble, Written
from elps.wire.frames import Header, Kind

T = TypeVar("T")
Frame = tuple[Header, dict[str, Any] | None]


def frame_of_order(epoch: Epoch, order: Order) -> Frame:
    """The leader's word as a frame."""
    match order:
        case Assignment():
            return Header(Kind.ASSIGN, epoch), msgspec.to_builtins(order)
        case do.AnnounceGate(version):
            return Header(Kind.GATE, epoch, iteration=version), None
        case do.Freeze(interval, attempt):
            return Header(Kind.FREEZE, epoch, interval=interval, ticket=attempt), None
        case do.Thaw(interval):
            return Header(Kind.THAW, epoch, interval=interval), None
        case do.Grant(interval, reason):
            return Header(Kind.GRANT, epoch, interval=interval), {"reason": reason}
        case do.CallBack(worker, ticket):
            return Header(Kind.CALL_BACK, epoch, ticket=ticket), {"worker": worker}
        case do.WriteCheckpoint(version):
            return Header(Kind.CHECKPOINT, epoch, iteration=version), None


def order_of_frame(header: Header, meta: dict[str, Any]) -> Order | None:
    """A frame as the leader's word; None for a beat. `ProtocolError` when it is neither."""
    match header.kind:
        case Kind.ASSIGN:
            return _read(meta, Assignment)
        case Kind.GATE:
            return do.AnnounceGate(header.iteration)
        case Kind.FREEZE:
            return do.Freeze(header.interval, header.ticket)
        case Kind.THAW:
            return do.Thaw(header.interval)
        case Kind.GRANT:
            return do.Grant(header.interval, str(meta.get("reason", "")))
        case Kind.CALL_BACK:
            return do.CallBack(WorkerId(str(meta.get("worker"))), header.ticket)
        case Kind.CHECKPOINT:
            return do.WriteCheckpoint(header.iteration)
        case Kind.BEAT:
            return None
    raise ProtocolError(f"{header.kind.name} is not an order")


def frame_of_report(report: Report) -> Frame:
    """A shard's report as a frame."""
    match report:
        case Progressed(epoch, version):
            return Header(Kind.PROGRESS, epoch, iteration=version), None
        case Frozen(epoch, interval, attempt, clean):
            status = int(clean)
            return Header(
                Kind.FROZEN, epoch, status=status, interval=interval, ticket=attempt
            ), None
        case Written(epoch, version, partitions):
            meta = {str(p): [steps, digests] for p, (steps, digests) in partitions.items()}
            return Header(Kind.WRITTEN, epoch, iteration=version), meta
        case Missed(epoch, version):
            return Header(Kind.WRITTEN, epoch, status=1, iteration=version), None
        case Trouble(epoch, reason, damaged):
            return Header(Kind.TROUBLE, epoch, status=int(damaged)), {"reason": reason}


def report_of_frame(header: Header, meta: dict[str, Any]) -> Report | None:
    """A frame as a shard's report; None for a beat. `ProtocolError` when it is neither."""
    epoch = header.epoch
    match header.kind:
        case Kind.PROGRESS:
            return Progressed(epoch, header.iteration)
        case Kind.FROZEN:
            return Frozen(epoch, header.interval, header.ticket, bool(header.status))
        case Kind.WRITTEN if header.status:
            return Missed(epoch, header.iteration)
        case Kind.WRITTEN:
            entries = _read(meta, dict[int, tuple[int, dict[str, int]]])
            return Written(epoch, header.iteration, {PartitionId(p): e for p, e in entries.items()})
        case Kind.TROUBLE:
            return Trouble(epoch, str(meta.get("reason")), bool(header.status))
        case Kind.BEAT:
            return None
    raise ProtocolError(f"{header.kind.name} is not a report")


def _read(meta: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(meta, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"a link's frame that cannot be read: {error}") from None
