"""A lease's gradient: computed, checked while it is in the cache, and pushed partition by partition."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np

from elps import optim
from elps.stream.interval import Interval
from elps.stream.order import Order
from elps.tasks.layout import Floats
from elps.tasks.running import OpenJob
from elps.wire.frames import Status
from elps.worker.trainer.shards import Pushing, Shards

STREAM_BYTES = 1024 * 1024
"""Below this the parts of a streaming task are sent together: there is nothing to gain from sending them early."""


class Gradient:
    """The gradient buffer of a trainer, and what is known of its content."""

    def __init__(self, job: OpenJob, order: Order) -> None:
        self._job, self._order = job, order
        self.flat: Floats = np.full(job.layout.size, 0, job.layout.dtype)  # its pages are there now
        self.bad = ""  #: what was not finite, for people; empty when the gradient is good
        self._pushing: Pushing | None = None

    def compute(self, params: Floats, iteration: int, interval: Interval, shards: Shards) -> float:
        """Compute the sums over a lease and return the loss; parts of a streaming task travel early, staged.

        `bad` tells afterwards whether the gradient is finite; `push` must follow when it is, `drop` when it is not.
        """
        self.bad = ""
        streams = self._job.streams and self._job.layout.size_bytes >= STREAM_BYTES
        self._pushing = Pushing(shards, iteration, interval, self.flat, staged=streams)
        if streams:
            ready = _Ready(self._job, shards.partitions)
            loss = self._job.gradient(
                params, interval, self._order, self.flat, lambda name: self._early(ready, name)
            )
        else:
            loss = self._job.gradient(params, interval, self._order, self.flat)
            if not optim.all_finite(self.flat):
                self.bad = self._name_bad()
        return loss

    def push(self) -> Status:
        """Push what was not pushed yet, and have it counted; returns the worst of the shards' answers."""
        assert self._pushing is not None
        return self._pushing.finish()

    def drop(self) -> None:
        """Take back what was pushed early."""
        if self._pushing is not None:
            self._pushing.abort()

    def _early(self, ready: _Ready, name: str) -> None:
        assert self._pushing is not None
        for number, start, stop in ready.completed_by(name):
            if self.bad:
                return
            if not optim.all_finite(self.flat[start:stop]):
                self.bad = self._name_bad(start, stop)
                return
            self._pushing.send_early(number)

    def _name_bad(self, start: int = 0, stop: int | None = None) -> str:
        """Which parameters' gradients are not finite."""
        stop = self.flat.size if stop is None else stop
        names = []
        for p in self._job.layout.parameters:
            lo, hi = max(p.offset, start), min(p.offset + p.size, stop)
            if lo < hi and not optim.all_finite(self.flat[lo:hi]):
                bad = int((~np.isfinite(self.flat[lo:hi])).sum())
                names.append(f"{p.name!r} ({bad} of {p.size} elements)")
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        return f"the gradient of {shown} is NaN or infinite"


class _Ready:
    """Which partitions are final once a parameter is."""

    def __init__(self, job: OpenJob, partitions: list[tuple[int, int, int]]) -> None:
        self._partitions = sorted(partitions, key=lambda p: p[1])
        self._starts = [p[1] for p in self._partitions]
        self._stops = [p[2] for p in self._partitions]
        self._left = [0] * len(self._partitions)  #: parameters of each partition that are not final
        self._span: dict[str, range] = {}
        for p in job.layout.parameters:
            first = bisect_right(self._stops, p.offset)
            last = bisect_left(self._starts, p.offset + p.size)
            self._span[p.name] = range(first, last) if p.size else range(0)
            for at in self._span[p.name]:
                self._left[at] += 1

    def completed_by(self, name: str) -> list[tuple[int, int, int]]:
        """Partitions of which this was the last parameter."""
        done = []
        for at in self._span[name]:
            self._left[at] -= 1
            if not self._left[at]:
                done.append(self._partitions[at])
        return done
