"""What the leader tells a shard about its part of a job under one epoch."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from elps.contracts.errors import ProtocolError
from elps.psshard.core.inheriting import History
from elps.psshard.untrained import Segment, segments_of
from elps.stream.geometry import Geometry
from elps.stream.interval import Interval
from elps.wire.frames import MAX_PART_BYTES

Number = Annotated[int, Meta(ge=0, le=2**62)]
_ITEMSIZE = {"float32": 4, "float64": 8}


class NotHere(ProtocolError):
    """Values that a shard was to hold already are not there."""


class Assignment(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Which partitions a shard holds, where they start from, and what of the stream is skipped."""

    partitions: list[tuple[Number, Number, Number]]
    """Number, first element and end in the job's flat vector; at most 1 MiB each."""
    samples: Number
    batch: Number
    granule: Number
    iterations: Number
    """In the whole job: the cosine schedule's length."""
    start: Number
    """Version that the partitions begin at."""
    checkpoint: str | None
    """Name of the checkpoint to load; None: version 0 comes from a trainer."""
    carried: bool = False
    """The values are here: this shard held the partitions at `start`, or followed them."""
    inherited: bool = False
    """The values are here from the term before: at `start`, or at the next version with `start` still readable."""
    history: History | None = None
    """What the values come from; None: a leader of a version before this one, from which nothing is inherited."""
    skips: list[tuple[Number, Number]]

    @property
    def geometry(self) -> Geometry:
        """Iterations as intervals."""
        return Geometry(self.samples, self.batch, self.granule)

    @property
    def untrained(self) -> tuple[Segment, ...]:
        """Elements of the job's vector that no gradient trains; `ProtocolError` when that cannot be told."""
        return segments_of(self.history)

    @property
    def skipped(self) -> list[Interval]:
        """Granted skips."""
        return [Interval(lo, hi) for lo, hi in self.skips]

    def check(self, dtype: str) -> None:
        """Raise `ProtocolError` when it cannot be kept."""
        for number, start, stop in self.partitions:
            if not 0 < (stop - start) * _ITEMSIZE[dtype] <= MAX_PART_BYTES:
                raise ProtocolError(
                    f"partition {number}: elements {start} to {stop} are no partition"
                )
        if len({p[0] for p in self.partitions}) != len(self.partitions):
            raise ProtocolError("a partition is named twice")
        try:
            self.geometry  # noqa: B018
        except ValueError as error:
            raise ProtocolError(str(error)) from None
