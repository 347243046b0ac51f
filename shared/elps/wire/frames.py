"""Frames of the data plane.

A frame is a header of fixed size, then `meta_bytes` of JSON (only in frames that are rare), then `body_bytes` of raw
array elements, little-endian. Every frame carries the sender's epoch; which job it belongs to is settled by the
handshake, once per connection. Parts are at most 1 MiB, so that a receiver can take one whole into a buffer that fits
its cache, check it, and only then add it.

The numbers of kinds are never reused. Kinds 72 and above are reserved for sparse rows and votes.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag

import msgspec

from elps.contracts.epoch import NO_EPOCH, Epoch, Term
from elps.contracts.errors import ProtocolError
from elps.stream.interval import Interval

PROTOCOL_VERSION = 1
MAX_PART_BYTES = 1024 * 1024
"""Largest body: one partition."""
MAX_META_BYTES = 16 * 1024 * 1024
"""Largest JSON part: a layout of very many parameters."""
MAGIC = 0xE195


class Kind(IntEnum):
    """What a frame says."""

    # trainer to leader
    READY = 1
    """Meta: samples, layout, fingerprints."""
    ASK = 2
    """Lend me something; meta: what was computed, if anything."""
    PUSHED = 3
    """The push of `iteration` is acknowledged by all shards; meta: its time."""
    BAD = 4
    """The gradient of the lease is not finite; meta: what was seen."""
    EVALUATED = 5
    """Meta: sums of an evaluation lease."""
    FAILED = 6
    """The task failed; meta: the traceback."""
    INITIALISED = 7
    """Version 0 is pushed to all shards."""
    LEAVING = 8
    """I was asked to end, and nothing of mine is under way; meta: why."""
    RETIRING = 9
    """I was asked to end: I finish what I have in hand; say STOP once that is nothing."""
    NOTICED = 10
    """The answer to a WAIT that asks for it. Meta: what my machine has left while I wait."""
    # leader to trainer
    MAP = 16
    """Meta: the shards and their partitions under this epoch."""
    INITIALISE = 17
    """Compute version 0 and push it."""
    TRAIN = 18
    """A lease; `ticket` names it."""
    EVALUATE = 19
    """An evaluation lease."""
    STOP = 20
    """Nothing more to do; meta: why."""
    WAIT = 21
    """Still here, nothing to do yet: the answer to silence. Meta: whether to say NOTICED, which old leaders lack."""
    AHEAD = 22
    """Meta: shards that are to hold partitions soon, to be connected to meanwhile."""
    # trainer to shard, push connection
    PUSH = 32
    """One partition's part of a lease's gradient sum."""
    EMPTY = 33
    """The lease adds nothing to any partition of this shard."""
    COMMIT = 34
    """The staged parts of the lease count now."""
    ABORT = 35
    """Forget the staged parts of the lease."""
    VALUES = 36
    """One partition of version 0."""
    # shard to trainer, push connection
    ACK = 37
    """Answer to the frame with LAST; `status` is the worst verdict of the lease."""
    # trainer to shard, pull connection
    PULL = 40
    """All partitions of this shard at version `iteration`; `ticket` of the lease."""
    # shard to trainer, pull connection
    PART = 41
    """One partition's values."""
    END = 42
    """The pull is answered; `status` says whether the parts count."""
    # leader to shard, link
    ASSIGN = 48
    """Meta: map, layout, geometry, skips, and the checkpoint to load, if any."""
    GATE = 49
    FREEZE = 50
    THAW = 51
    GRANT = 52
    CALL_BACK = 53
    """Meta: worker; `ticket`."""
    CHECKPOINT = 54
    # shard to leader, link
    PROGRESS = 55
    """All partitions of the shard hold version `iteration`."""
    FROZEN = 56
    """Answer to FREEZE, with its `ticket`; `status` 1 when clean."""
    WRITTEN = 57
    """All chunks of the checkpoint of `iteration` are in the store; meta: their digests."""
    TROUBLE = 58
    """Meta: why the shard cannot go on with the job."""
    BEAT = 59
    """Both ways: still here."""
    FOLLOW = 60
    """Leader to shard. Meta: a wave, the partitions that other shards are to follow."""
    UNFOLLOW = 61
    """Leader to shard: the wave `ticket` is given up."""
    FOLLOWED = 62
    """Shard to leader: of wave `ticket`, `partition` copies are here; with `status` 1 all of them, at `iteration`."""
    UNFOLLOWED = 63
    """Shard to leader: wave `ticket` cannot go on; meta: why."""
    TAKE_STOCK = 66
    """Leader to shard: say what is there from the term before."""
    STOCK = 67
    """Shard to leader. Meta: partitions with their versions, what they have come from, skips in force."""
    # owner to follower
    STATE = 64
    """An array of a copy as it is at version `iteration`, for wave `ticket`; meta: name of the array, steps."""
    SUM = 65
    """What a partition has collected in `iteration`, for wave `ticket`; meta: samples counted, step."""


class Flag(IntFlag):
    """Modifiers of a frame."""

    NONE = 0
    STAGED = 1
    """The part is held back until the lease's COMMIT."""
    LAST = 2
    """The sender waits for an ACK after this frame."""
    NEWEST = 4
    """A pull for training under ``ssp`` or ``asp``: the newest values that iteration `iteration` may be done on."""


class Status(IntEnum):
    """Outcome of a pull or a push."""

    OK = 0
    CALLED_BACK = 1
    """Ask the leader for a lease."""
    GONE = 2
    """The version is no longer held: the lease is old; ask the leader for a lease."""
    STALE = 3
    """The epoch is not in force; meta says which one is."""
    REFUSED = 4
    """A skip is being decided, or the push was early: drop the gradient and ask for a lease."""


_HEADER = struct.Struct("<HBBBBxxIQQIIQQQIQ")
HEADER_BYTES = _HEADER.size


NOTHING = Interval(0, 0)


class Header(msgspec.Struct, frozen=True, gc=False):
    """A frame without its meta and body."""

    kind: Kind
    epoch: Epoch = NO_EPOCH
    flags: Flag = Flag.NONE
    status: int = 0
    partition: int = 0
    iteration: int = 0
    interval: Interval = NOTHING
    ticket: int = 0
    meta_bytes: int = 0
    body_bytes: int = 0

    @property
    def staged(self) -> bool:
        """Whether the flag STAGED is set."""
        return int.__and__(self.flags, 1) != 0  # as integers: the operators of flags are slow

    @property
    def last(self) -> bool:
        """Whether the flag LAST is set."""
        return int.__and__(self.flags, 2) != 0

    @property
    def newest(self) -> bool:
        """Whether the flag NEWEST is set."""
        return int.__and__(self.flags, 4) != 0

    def pack(self) -> bytes:
        """The header as bytes."""
        return _HEADER.pack(
            MAGIC,
            self.kind,
            self.flags,
            self.status,
            0,
            self.partition,
            self.epoch.term.number,
            self.epoch.term.nonce,
            self.epoch.n,
            self.meta_bytes,
            self.iteration,
            self.interval.lo,
            self.interval.hi,
            self.body_bytes,
            self.ticket,
        )


_epochs: dict[
    tuple[int, int, int], Epoch
] = {}  # the few epochs in use, so that a frame costs no new objects for them


def unpack(data: bytes | bytearray | memoryview) -> Header:
    """Read a header of `HEADER_BYTES`; raise `ProtocolError` when it is none."""
    (
        magic,
        kind,
        flags,
        status,
        _,
        partition,
        number,
        nonce,
        n,
        meta,
        iteration,
        lo,
        hi,
        body,
        ticket,
    ) = _HEADER.unpack(data)
    if magic != MAGIC:
        raise ProtocolError(f"not a frame: it begins with {magic:#06x}, expected {MAGIC:#06x}")
    try:
        known, flag = _KINDS[kind], _FLAGS[flags]
    except KeyError:
        raise ProtocolError(f"unknown frame: kind {kind}, flags {flags:#x}") from None
    if meta > MAX_META_BYTES or body > MAX_PART_BYTES or hi < lo:
        raise ProtocolError(
            f"{known.name} frame out of bounds: {meta} bytes of meta, {body} of body, interval [{lo}, {hi})"
        )
    key = (number, nonce, n)
    epoch = _epochs.get(key)
    if epoch is None:
        if len(_epochs) >= 256:
            _epochs.clear()
        epoch = _epochs[key] = Epoch(Term(number, nonce), n)
    return Header(
        known, epoch, flag, status, partition, iteration, Interval(lo, hi), ticket, meta, body
    )


_KINDS = {int(k): k for k in Kind}
_FLAGS = {n: Flag(n) for n in range(8)}
