"""Workers that get nothing, because the others are done before such a worker has finished its least batch.

That may change, and a worker that computes nothing is not measured. So it is tried again when so much time has passed
that the longer iteration of a trial is a small part of it, and at once when its processor has become much freer than
when it was measured. While it waits, a processor may look free that others want as soon as it computes: once that was
in vain, such trials may take a small part of the time as well.
"""

from __future__ import annotations

import numpy as np

from elps.balance.arrays import BoolArray, FloatArray, IntArray, arranged
from elps.balance.limits import Limits, total_of
from elps.balance.observing import Circumstances
from elps.balance.sizing import worth_using
from elps.balance.times import LinearTimes

TRIALS_COST, FREER_COST = 0.01, 0.05
"""Part of the time that trials may take; and that those may which a freer processor promised once in vain."""
LEAST_WAIT = 20
"""Iterations from one trial to the next."""
FREER = 1.5
"""By how much the processor must have become freer for a trial at once."""
PATIENCE = 4
"""Iterations after which a trial without a believable measurement is given up."""


class Idlers:
    """Says who is left out."""

    def __init__(self) -> None:
        self._waited_s = np.zeros(0)  #: training time since the worker's last measurement or trial
        self._waited = np.zeros(0)  #: the same in iterations
        self._trying = np.zeros(0)  #: iterations left of a trial
        self._vain = np.zeros(0, dtype=np.bool_)  #: tried for a freer processor, and not used since
        self._free = np.zeros((2, 0))  #: processor availability when last measured

    def arrange(self, rows: IntArray) -> None:
        """Workers came or went; see `arranged`."""
        self._waited_s = arranged(self._waited_s, rows, 0)
        self._waited = arranged(self._waited, rows, 0)
        self._trying = arranged(self._trying, rows, 0)
        self._vain = arranged(self._vain, rows, 0)
        self._free = arranged(self._free, rows, np.nan)

    def passed(self, measured: BoolArray, iteration_s: float, current: Circumstances) -> None:
        """An iteration is over; who was measured in it."""
        self._waited_s = np.where(measured, 0.0, self._waited_s + max(iteration_s, 0.0))
        self._waited = np.where(measured, 0.0, self._waited + 1)
        self._trying = np.where(measured, 0.0, np.maximum(self._trying - 1, 0))
        self._free = np.where(measured, _free(current), self._free)

    def out(
        self,
        times: LinearTimes,
        total: int,
        limits: Limits,
        sizes: IntArray,
        current: Circumstances | None,
    ) -> tuple[BoolArray, BoolArray]:
        """Who gets nothing, and who is tried again after it got nothing in the plan `sizes`."""
        worth = worth_using(times, total, limits)
        self._vain = self._vain & ~worth
        used = worth | (self._trying > 0)
        nobody = np.zeros_like(used)
        if used.all():
            return nobody, nobody
        extra_s = times.time_s(np.maximum(limits.minimum, 1).astype(np.float64))
        extra_s -= float(times.time_s(sizes.astype(np.float64)).max())
        patient = (self._waited >= LEAST_WAIT) & (self._waited_s * TRIALS_COST >= extra_s)
        early = self._freer(current) & (~self._vain | (self._waited_s * FREER_COST >= extra_s))
        tried = ~used & (sizes == 0) & (patient | early) & (limits.maximum > 0)
        count = -(-total // limits.granule)
        if tried.any() and total_of(limits.units(count)[0][used | tried]) <= count:
            self._trying = np.where(tried, PATIENCE, self._trying)
            self._vain = self._vain | (tried & early)
            self._waited_s, self._waited = (
                np.where(tried, 0.0, self._waited_s),
                np.where(tried, 0.0, self._waited),
            )
            if current is not None:
                self._free = np.where(tried, _free(current), self._free)
            return ~(used | tried), tried
        return ~used, nobody

    def _freer(self, current: Circumstances | None) -> BoolArray:
        if current is None:
            return np.zeros(len(self._waited), dtype=np.bool_)
        with np.errstate(invalid="ignore"):
            freer = _free(current) > FREER * self._free
        return np.asarray(freer.any(axis=0), dtype=np.bool_)


def _free(current: Circumstances) -> FloatArray:
    return current.series[:2]
