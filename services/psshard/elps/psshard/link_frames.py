"""Orders and reports as frames of a link."""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from elps.contracts.epoch import Epoch
from elps.contracts.errors import ProtocolError
from elps.contracts.ids import PartitionId, WorkerId
from elps.psshard.assignment import Assignment
from elps.psshard.core import commands as do
from elps.psshard.core.inheriting import Stock
from elps.psshard.orders import Order
from elps.psshard.reports import (
    Followed,
    Frozen,
    Measured,
    Missed,
    Progressed,
    Report,
    Stocked,
    Trouble,
    Unfollowed,
    Worked,
    Written,
)
from elps.psshard.wave import Wave
from elps.wire.frames import Header, Kind


class _Beat(msgspec.Struct, frozen=True):
    s_per_byte: float = 0.0


class _Factor(msgspec.Struct, frozen=True):
    factor: Annotated[float, Meta(gt=0, le=1)]


class _Norms(msgspec.Struct, frozen=True):
    norms: list[tuple[int, Annotated[float, Meta(ge=0)] | None]]
    """None: not finite, which JSON has no word for."""

    def by_partition(self) -> dict[PartitionId, float]:
        return {PartitionId(p): math.inf if norm is None else norm for p, norm in self.norms}


T = TypeVar("T")
Frame = tuple[Header, dict[str, Any] | None]


def frame_of_order(epoch: Epoch, order: Order) -> Frame:
    """The leader's word as a frame."""
    match order:
        case Assignment():
            return Header(Kind.ASSIGN, epoch), msgspec.to_builtins(order)
        case do.AnnounceGate(version):
            return Header(Kind.GATE, epoch, iteration=version), None
        case do.Clip(iteration, factor):
            return Header(Kind.CLIP, epoch, iteration=iteration), {"factor": factor}
        case do.Freeze(interval, attempt):
            return Header(Kind.FREEZE, epoch, interval=interval, ticket=attempt), None
        case do.Thaw(interval):
            return Header(Kind.THAW, epoch, interval=interval), None
        case do.Grant(interval, reason):
            return Header(Kind.GRANT, epoch, interval=interval), {"reason": reason}
        case do.CallBack(worker, ticket):
            return Header(Kind.CALL_BACK, epoch, ticket=ticket), {"worker": worker}
        case do.WriteCheckpoint(version, hurry):
            return Header(Kind.CHECKPOINT, epoch, status=int(hurry), iteration=version), None
        case Wave(number=number):
            return Header(Kind.FOLLOW, epoch, ticket=number), msgspec.to_builtins(order)
        case do.Unfollow(wave, standing):
            return Header(Kind.UNFOLLOW, epoch, status=int(standing), ticket=wave), None
        case do.TakeStock():
            return Header(Kind.TAKE_STOCK, epoch), None


def order_of_frame(header: Header, meta: dict[str, Any]) -> Order | None:
    """A frame as the leader's word; None for a beat. `ProtocolError` when it is neither."""
    match header.kind:
        case Kind.ASSIGN:
            return _read(meta, Assignment)
        case Kind.GATE:
            return do.AnnounceGate(header.iteration)
        case Kind.CLIP:
            return do.Clip(header.iteration, _read(meta, _Factor).factor)
        case Kind.FREEZE | Kind.THAW | Kind.GRANT:
            return _about_skips(header, meta)
        case Kind.CALL_BACK:
            return do.CallBack(WorkerId(str(meta.get("worker"))), header.ticket)
        case Kind.CHECKPOINT:
            return do.WriteCheckpoint(header.iteration, hurry=bool(header.status))
        case Kind.FOLLOW:
            return _read(meta, Wave)
        case Kind.UNFOLLOW:
            return do.Unfollow(header.ticket, standing=bool(header.status))
        case Kind.TAKE_STOCK:
            return do.TakeStock()
        case Kind.BEAT:
            return None
    raise ProtocolError(f"{header.kind.name} is not an order")


def _about_skips(header: Header, meta: dict[str, Any]) -> Order:
    match header.kind:
        case Kind.FREEZE:
            return do.Freeze(header.interval, header.ticket)
        case Kind.THAW:
            return do.Thaw(header.interval)
    return do.Grant(header.interval, str(meta.get("reason", "")))


def frame_of_report(report: Report) -> Frame:
    """A shard's report as a frame."""
    match report:
        case Progressed(epoch, version):
            return Header(Kind.PROGRESS, epoch, iteration=version), None
        case Measured(epoch, iteration, norms):
            return Header(Kind.MEASURED, epoch, iteration=iteration), {
                "norms": [[p, norm] for p, norm in norms.items()]
            }
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
        case Trouble(epoch, reason, damaged, lost):
            status = int(damaged) + 2 * int(lost)
            return Header(Kind.TROUBLE, epoch, status=status), {"reason": reason}
        case Followed(epoch, wave, have, version):
            head = Header(
                Kind.FOLLOWED,
                epoch,
                status=int(version >= 0),
                partition=have,
                iteration=max(version, 0),
                ticket=wave,
            )
            return head, None
        case Unfollowed(epoch, wave, reason):
            return Header(Kind.UNFOLLOWED, epoch, ticket=wave), {"reason": reason}
        case Stocked(epoch, stock):
            return Header(Kind.STOCK, epoch), msgspec.to_builtins(stock)
        case Worked(epoch, s_per_byte):
            return Header(Kind.BEAT, epoch), {"s_per_byte": s_per_byte}


def report_of_frame(header: Header, meta: dict[str, Any]) -> Report | None:
    """A frame as a shard's report; None for a beat that tells nothing. `ProtocolError` when it is neither."""
    epoch = header.epoch
    match header.kind:
        case Kind.PROGRESS:
            return Progressed(epoch, header.iteration)
        case Kind.MEASURED:
            return Measured(epoch, header.iteration, _read(meta, _Norms).by_partition())
        case Kind.FROZEN:
            return Frozen(epoch, header.interval, header.ticket, bool(header.status))
        case Kind.WRITTEN if header.status:
            return Missed(epoch, header.iteration)
        case Kind.WRITTEN:
            entries = _read(meta, dict[int, tuple[int, dict[str, int]]])
            return Written(epoch, header.iteration, {PartitionId(p): e for p, e in entries.items()})
        case Kind.TROUBLE:
            damaged, lost = bool(header.status & 1), bool(header.status & 2)
            return Trouble(epoch, str(meta.get("reason")), damaged, lost)
        case Kind.FOLLOWED:
            version = header.iteration if header.status else -1
            return Followed(epoch, header.ticket, header.partition, version)
        case Kind.UNFOLLOWED:
            return Unfollowed(epoch, header.ticket, str(meta.get("reason")))
        case Kind.STOCK:
            return Stocked(epoch, _read(meta, Stock))
        case Kind.BEAT if meta:
            return Worked(epoch, _read(meta, _Beat).s_per_byte)
        case Kind.BEAT:
            return None
    raise ProtocolError(f"{header.kind.name} is not a report")


def _read(meta: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(meta, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"a link's frame that cannot be read: {error}") from None
