"""What is known of the workers of one job, and what it says of the coming iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from elps.balance.arrays import NEW, BoolArray, FloatArray, IntArray, arranged
from elps.balance.choosing import PREDICTORS
from elps.balance.cleaning import Screen
from elps.balance.leasing import Extra, LeaseCost
from elps.balance.limits import LARGEST_BATCH, Limits, total_of
from elps.balance.newcomers import TRIAL, Member, Memory
from elps.balance.observing import Circumstances, Observation, Readings, by_rows
from elps.balance.times import LinearTimes
from elps.contracts.ids import WorkerId

GROWTH = 2.0
"""A batch grows at most by this factor over the largest of late, or to an equal share: farther off no time model was
ever tried, and memory neither."""
FADE = 0.95
"""What is left of the largest batch of late after an iteration."""
TRANSFER_WEIGHT = 0.3
"""Of the newest pull and push in their averages."""
FIRST_NOISE, NOISE_WEIGHT = 0.05, 0.1
"""Relative error of forecasts that is assumed first, and the weight of the newest."""
LEAST_SLOPE = 0.05
"""Part of a measured time that is taken to grow with the samples at least."""


class Knowledge:
    """Rows are in the order of the members."""

    def __init__(self, predictor: str, seed: int) -> None:
        self.members: tuple[Member, ...] = ()
        self.row_of: dict[WorkerId, int] = {}
        self.current: Circumstances | None = None  #: availability as last reported
        self.measured = np.zeros(0, dtype=np.bool_)  #: whose time was believed at least once
        self.push_s = np.zeros(0)  #: running average
        self._pull_s = np.zeros(0)
        self._forecast: LinearTimes | None = None  #: since something was last learned
        self._screen = Screen()
        self._predictor = PREDICTORS[predictor](seed)
        self._memory = Memory()
        self._largest = np.zeros(0)  #: batch of late
        self._seeds = np.zeros(0)  #: seconds per sample expected of whoever was not measured yet
        self._hinted = np.zeros(0, dtype=np.bool_)  #: whose seed comes from its host or class
        self._sat_out = np.zeros(
            0, dtype=np.bool_
        )  #: who had nothing in the plan that another made
        self._errors = np.zeros(0)  #: usual relative error of the forecast
        self.leases = LeaseCost()  #: what one costs by itself
        self.took_s: float | None = (
            None  #: the newest iteration, if it had more leases than one each
        )
        self._minimum = np.zeros(0, dtype=np.int64)
        self._maximum = np.zeros(0, dtype=np.int64)

    @property
    def noise(self) -> float:
        """The usual relative error of a forecast, of the middle worker: one that jumps is no noise."""
        return float(np.median(self._errors[self.measured])) if self.measured.any() else 0.0

    def staff(self, members: tuple[Member, ...]) -> IntArray:
        """Take over other members; gives the arrangement (`arranged`). `ValueError` if one is named twice."""
        row_of = {member.worker: i for i, member in enumerate(members)}
        if len(row_of) != len(members):
            raise ValueError("a worker is named twice among the members of a job")
        cost = self._predictor.predict().per_sample_s
        self._memory.remember(self.members, cost, self.measured & np.isfinite(cost))
        rows = np.array([self.row_of.get(m.worker, NEW) for m in members], dtype=np.int64)
        self._screen.arrange(rows)
        self._predictor.arrange(rows)
        self.current = None
        self.measured = arranged(self.measured, rows, 0)
        self.push_s = arranged(self.push_s, rows, 0)
        self._pull_s = arranged(self._pull_s, rows, 0)
        self._largest = arranged(self._largest, rows, 0)
        self._sat_out = arranged(self._sat_out, rows, 0)
        self._errors = arranged(self._errors, rows, FIRST_NOISE)
        expected = [self._memory.expect(member) for member in members]
        self._seeds = np.array([cost for cost, _ in expected], dtype=np.float64)
        self._hinted = np.array([known for _, known in expected], dtype=np.bool_)
        self._minimum = np.array([m.minimum for m in members], dtype=np.int64)
        most = [LARGEST_BATCH if m.maximum is None else m.maximum for m in members]
        self._maximum = np.array(most, dtype=np.int64)
        self.members, self.row_of, self._forecast = members, row_of, None
        return rows

    def take_over(self, idle: BoolArray) -> None:
        """Who has nothing in the plan of one who knew more: that had its reason, and so they begin with the least."""
        self._sat_out = idle

    def learn(
        self, observations: Sequence[Observation], extras: Mapping[WorkerId, Extra]
    ) -> tuple[Readings, LinearTimes]:
        """Take in one iteration. Gives what is believed, and the times as they truly were: of whoever was not
        measured, as they were expected; of whoever had more than one lease, as with one.
        """
        table = by_rows(observations, self.row_of, len(self.members))
        self._take_extras(table, {self.row_of[w]: e for w, e in extras.items() if w in self.row_of})
        readings = self._screen.clean(table)
        told = np.isfinite(readings.samples)
        samples = np.where(told, readings.samples, 1.0)
        before = self.forecast()
        before_s = self._pull_s + self.push_s
        computing = before.time_s(samples) - before_s
        with np.errstate(invalid="ignore", divide="ignore"):
            error = np.minimum(np.abs(np.log(readings.compute_s / computing)), 1.0)
        known = self.measured & np.isfinite(error)
        moved = self._errors + NOISE_WEIGHT * (error - self._errors)
        self._errors = np.where(known, moved, self._errors)
        weight = np.where(self.measured, TRANSFER_WEIGHT, 1.0) * told
        self.push_s = self.push_s + weight * (np.where(told, readings.push_s, 0.0) - self.push_s)
        self._pull_s = self._pull_s + weight * (np.where(told, readings.pull_s, 0.0) - self._pull_s)
        self.measured = self.measured | told
        self._largest = np.maximum(self._largest * FADE, np.where(told, samples, 0.0))
        fixed = before.fixed_s - before_s
        slope = np.maximum(readings.compute_s - fixed, LEAST_SLOPE * readings.compute_s) / samples
        truth = LinearTimes.of(np.where(told, slope, before.per_sample_s), fixed)
        self._predictor.observe(readings)
        self.current, self._forecast = readings.current, None
        return readings, truth.later(self._pull_s + self.push_s)

    def _take_extras(self, table: FloatArray, extras: Mapping[int, Extra]) -> None:
        """Learn what leases cost, and turn the times of those who had several into those of one."""
        self.took_s = None
        if not extras:
            return
        samples, compute_s, pull_s, push_s = table[:4]
        took_s = compute_s + np.nan_to_num(pull_s) + np.nan_to_num(push_s)
        for row, extra in extras.items():
            took_s[row] += extra.wait_s
        self.took_s = float(np.nanmax(took_s, initial=0.0))
        self.leases.observe(samples, compute_s, extras)
        table[1] = self.leases.as_one(samples, compute_s, extras)

    def forecast(self) -> LinearTimes:
        """Times of the coming iteration, pull and push included."""
        if self._forecast is None:
            self._forecast = self._predicted()
        return self._forecast

    def _predicted(self) -> LinearTimes:
        said = self._predictor.predict()
        cost = np.where(np.isfinite(said.per_sample_s), said.per_sample_s, self._seeds)
        times = LinearTimes.of(cost, said.fixed_s, said.knee)
        return times.later(self._pull_s + self.push_s)

    def limits(self, total: int, granule: int) -> tuple[Limits, Limits]:
        """What the members take of a batch: at all, and in the next iteration, of whom little is known yet."""
        workers = len(self.members)
        hard = Limits.of(workers, granule=granule, minimum=self._minimum, maximum=self._maximum)
        if not self.measured.any():
            return hard, hard
        share = -(-total // workers)
        first = np.where(self._hinted, share, np.where(self._sat_out, 0, TRIAL * share))
        most = np.where(self.measured, np.maximum(GROWTH * self._largest, share), first)
        whole = np.maximum(np.ceil(most / granule) * granule, self._minimum)
        whole = np.maximum(whole, granule).astype(np.int64)
        soft = Limits(self._minimum, np.minimum(whole, self._maximum), granule)
        count = -(-total // granule)
        return hard, soft if total_of(soft.units(count)[1]) >= count else hard
