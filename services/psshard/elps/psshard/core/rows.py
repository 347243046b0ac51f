"""Losses and timings gathered per iteration until its row is whole.

A push may complete an iteration before the message with its loss is read, since the two come over different
connections: so a complete iteration's cut stays here until every piece has its loss and every push its time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from elps.contracts.ids import WorkerId
from elps.psshard.core.commands import IterationDone, Timing
from elps.psshard.core.cut import Cut, Hold, Piece
from elps.stream.interval import Interval

KEPT = 3
"""Complete iterations that wait for what is on its way; an older one goes out with what it has."""


@dataclass
class _Open:
    timings: dict[WorkerId, Timing] = field(default_factory=dict)
    unpushed: set[WorkerId] = field(default_factory=set)  #: computed, push not reported
    cut: Cut | None = None  #: set once the iteration is complete, with `done`
    done: IterationDone | None = None  #: loss and timings are filled in when it leaves

    @property
    def whole(self) -> bool:
        return self.cut is not None and self.cut.computed and not self.unpushed


class Rows:
    """Collects what `IterationDone` reports; rows leave in order."""

    def __init__(self, started_at: float) -> None:
        self._open: dict[int, _Open] = {}
        self._last_at = started_at  #: when the iteration before was complete, monotonic s

    def lent(self, worker: WorkerId, iteration: int, interval: Interval) -> Piece | None:
        """The piece of a complete iteration that still waits for this worker's loss."""
        row = self._open.get(iteration)
        piece = row.cut.find(interval, worker) if row is not None and row.cut is not None else None
        return piece if piece is not None and piece.hold is Hold.LENT else None

    def computed(self, iteration: int, worker: WorkerId, timing: Timing) -> None:
        """A lease was computed."""
        row = self._open.setdefault(iteration, _Open())
        before = row.timings.get(worker)
        row.timings[worker] = timing if before is None else before + timing.beyond_first
        row.unpushed.add(worker)

    def pushed(self, iteration: int, worker: WorkerId, push_s: float) -> None:
        """A worker's push was acknowledged by every shard; of several leases the first one's is told by itself.

        That is what a lease takes, as the balancer has to know it; the others' are what more leases cost.
        """
        row = self._open.get(iteration)
        if row is not None and worker in row.timings:
            first = not row.timings[worker].push_s
            row.timings[worker] += Timing(push_s=push_s) if first else Timing(extra_wait_s=push_s)
            row.unpushed.discard(worker)

    def acknowledged(self, worker: WorkerId) -> set[int]:
        """Iterations of which every shard has all that this worker has computed."""
        rows = self._open.items()
        return {t for t, row in rows if worker in row.timings and worker not in row.unpushed}

    def lost(self, worker: WorkerId) -> None:
        """Nothing more will come from this worker."""
        for row in self._open.values():
            row.unpushed.discard(worker)

    def complete(self, iteration: int, count: int, skipped: int, cut: Cut, now: float) -> None:
        """The iteration is complete on every partition."""
        row = self._open.setdefault(iteration, _Open())
        row.cut = cut
        row.done = IterationDone(iteration, count, skipped, None, now - self._last_at, {})
        self._last_at = now

    @property
    def waiting(self) -> bool:
        """Whether a complete iteration still lacks something."""
        return any(row.done is not None and not row.whole for row in self._open.values())

    def take(self) -> list[IterationDone]:
        """Rows that are whole, or that waited long enough, in order."""
        out = []
        newest = max((t for t, row in self._open.items() if row.done is not None), default=-1)
        for t in sorted(self._open):
            row = self._open[t]
            if row.done is None or not (row.whole or newest >= t + KEPT):
                break
            out.append(self._close(t))
        return out

    def flush(self) -> list[IterationDone]:
        """Every complete row, whole or not: the job ends or pauses."""
        return [self._close(t) for t in sorted(self._open) if self._open[t].done is not None]

    def _close(self, iteration: int) -> IterationDone:
        row = self._open.pop(iteration)
        assert row.done is not None
        assert row.cut is not None
        losses = [math.nan if p.loss is None else p.loss for p in row.cut.pieces]
        told = (
            sum(p.interval.size for p in row.cut.pieces) >= row.done.count
        )  # else under another leader
        total = math.fsum(losses) if told and all(map(math.isfinite, losses)) else math.nan
        mean = total / row.done.count if row.done.count and math.isfinite(total) else None
        return replace(row.done, loss=mean, timings=dict(sorted(row.timings.items())))
