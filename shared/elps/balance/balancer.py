"""The balancer of one job: timings of an iteration in, batches of the coming ones and the reason out.

It has no clock and no chance: the same timings in the same order give the same plans. Timings may be lost, doubled or
late; training never waits for a decision, the last plan simply goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from elps.balance.arrays import BoolArray, FloatArray, IntArray, arranged
from elps.balance.gate import Gate, Verdict
from elps.balance.idling import Idlers
from elps.balance.knowledge import Knowledge
from elps.balance.leasing import ROUND_TRIP_S, Extra
from elps.balance.limits import Limits, apportion, checked_total, in_samples
from elps.balance.newcomers import TRIAL, Member
from elps.balance.observing import Observation
from elps.balance.policy import Policy
from elps.balance.sizing import equal_finish, even, proportional
from elps.balance.stepping import LeaderStraggler
from elps.balance.tail import TailGate, least_part
from elps.balance.times import LinearTimes
from elps.contracts.ids import WorkerId


@dataclass(frozen=True, slots=True)
class Decision:
    """The batches from the next iteration on."""

    sizes: Mapping[WorkerId, int]
    """Samples for each worker, in the order of the members; they sum to the batch."""
    changed: bool
    """They differ from those of the decision before."""
    reason: str
    """For people."""
    expected_s: float = float("nan")
    """Forecast of the iteration; NaN as long as nothing is known."""
    idle: tuple[WorkerId, ...] = ()
    """Workers that get nothing: the iteration would be longer with them, or the batch is not enough for all."""
    tail: float = 0.0
    """Share of the batch that is better held back and lent as tail leases; the sizes then shrink alike (`scaled`)."""
    tail_least: float = 0.0
    """Part of its size that a worker's tail lease has at least, to be worth its request."""
    trial: int = 0
    """Samples of the next iteration alone that are to be held back and lent as one lease, to see what one costs."""


NO_EXTRAS: Mapping[WorkerId, Extra] = {}
TRIAL_WORKERS = 4
"""Granules of a batch for each worker, at least, for a tail: with fewer there is little to be shared out."""


def scaled(sizes: Mapping[WorkerId, int], total: int, granule: int = 1) -> dict[WorkerId, int]:
    """The same shares of another batch: a short one at the end of a pass, or what a tail leaves. Sums to `total`."""
    units = np.array(list(sizes.values()), dtype=np.int64)
    count = -(-checked_total(total, len(units)) // granule)
    able = units > 0 if units.any() else np.ones_like(units, dtype=np.bool_)
    weights = np.maximum(units, 1).astype(np.float64)
    shared = apportion(weights, count, np.zeros_like(units), np.where(able, count, 0))
    return dict(zip(sizes, in_samples(shared, total, granule).tolist(), strict=True))


class Balancer:
    """Keeps what is known of one job's workers and decides their batches.

    `total` is the global batch; `granule` as in the job document. Without members there is no plan.
    """

    def __init__(
        self,
        total: int,
        members: Sequence[Member] = (),
        *,
        granule: int = 1,
        policy: Policy | None = None,
    ) -> None:
        if checked_total(total, 1) < 1 or granule < 1:
            raise ValueError(f"a batch of {total} in granules of {granule}, expected 1 or more")
        self._total, self._granule = total, granule
        self._policy = policy or Policy()
        self._known = Knowledge(self._policy.predictor or "average", self._policy.seed)
        self._steps = LeaderStraggler()
        self._gate = Gate()
        self._idlers = Idlers()
        self._tail = TailGate()
        self._extra_s = ROUND_TRIP_S  #: what a tail lease costs beside what its samples take
        self._trial = False  #: the next iteration is to have one lease more
        self._iteration = -1  #: the newest that was observed
        self._sizes = np.zeros(0, dtype=np.int64)  #: the plan, by rows
        #: The two plans last compared, what would have stayed and what was proposed: to be tried on true times.
        self._compared: tuple[IntArray, IntArray] | None = None
        self.decision = Decision({}, False, "there are no workers")
        if members:
            self.staff(members)

    @property
    def members(self) -> tuple[Member, ...]:
        """The job's workers."""
        return self._known.members

    def knows(self, workers: Collection[WorkerId]) -> bool:
        """Whether of each of them a time was seen that can be believed; of nobody nothing is known."""
        rows = [self._known.row_of.get(worker) for worker in workers]
        return bool(rows) and all(row is not None and self._known.measured[row] for row in rows)

    def paces(self) -> dict[WorkerId, float]:
        """Seconds that a sample more takes each worker of which a time was seen that can be believed."""
        per_sample_s = self._known.forecast().per_sample_s
        return {
            self.members[row].worker: float(per_sample_s[row])
            for row in np.flatnonzero(self._known.measured).tolist()
        }

    def forecast(self) -> LinearTimes:
        """Times of the coming iteration as predicted, by the order of the members."""
        return self._known.forecast()

    def staff(self, members: Sequence[Member]) -> Decision:
        """The job's workers from now on, in the order in which batches are cut; a new plan if they are others.

        `ValueError` if one is named twice.
        """
        if (members := tuple(members)) == self._known.members:
            return self._say(self._sizes, "kept: the workers are the same")
        came = [m.worker for m in members if m.worker not in self._known.row_of]
        rows = self._known.staff(members)
        self._steps.arrange(rows)
        self._idlers.arrange(rows)
        self._gate.forget()
        self._compared = None
        self._sizes = arranged(self._sizes, rows, 0)
        if not members:
            return self._say(self._sizes, "there are no workers")
        hard, soft = self._known.limits(self._total, self._granule)
        why = f"workers changed: {len(members)} now, {len(came)} of them new"
        if self._policy.fixed or not self._known.measured.any():
            return self._say(even(self._total, hard).samples, why)
        return self._decide(soft, why)

    def resume(self, sizes: Mapping[WorkerId, int]) -> None:
        """Begin with the batches in force, which another decided. They change nothing if something is known already,
        or they do not name all members.
        """
        named = {m.worker: sizes[m.worker] for m in self.members if m.worker in sizes}
        if len(named) < len(self.members) or self._known.measured.any() or not any(named.values()):
            return
        shared = [*scaled(named, self._total, self._granule).values()]
        sizes_now = np.array(shared, dtype=np.int64)
        self._known.take_over(sizes_now == 0)
        self._say(sizes_now, "kept: these are in force")

    def observe(
        self,
        iteration: int,
        observations: Sequence[Observation],
        extras: Mapping[WorkerId, Extra] = NO_EXTRAS,
    ) -> Decision:
        """Learn an iteration and decide. One that is not newer than the newest seen is passed over.

        `extras` tells what part of an observation was computed in leases beyond the worker's first.
        """
        self._trial = False
        if iteration <= self._iteration or not self.members:
            return self._say(self._sizes, "kept: nothing new")
        self._iteration = iteration
        readings, truth = self._known.learn(observations, extras)
        told = np.isfinite(readings.samples)
        self._idlers.passed(told, _finish(truth, self._sizes), readings.current)
        if self._policy.fixed:
            return self._say(self._sizes, "kept: the policy is fixed batches")
        if not self._known.measured.any():
            return self._say(self._sizes, "kept: nothing was measured yet that can be believed")
        self._look_back(truth, told)
        return self._decide(self._known.limits(self._total, self._granule)[1], "")

    def rewind(self, iteration: int) -> None:
        """The job went back: `iteration` is computed (again) next. What was learned of speeds stays true."""
        self._iteration = min(self._iteration, iteration - 1)

    def _look_back(self, truth: LinearTimes, told: BoolArray) -> None:
        """Try the plans on the times as they really were."""
        if self._compared is not None:
            stayed, proposed = self._compared
            self._gate.tried(_finish(truth, stayed), _finish(truth, proposed))
        active = (self._sizes > 0) & told
        finish_s = truth.time_s(self._sizes.astype(np.float64))
        self._steps.observe(np.where(active, finish_s, np.nan))
        if self._policy.may_tail and active.any():
            self._weigh_tail(finish_s[active], self._sizes[active].astype(np.float64))

    def _weigh_tail(self, finish_s: FloatArray, sizes: FloatArray) -> None:
        """What a tail would have gained in this iteration; and whether it is worth knowing what a lease costs."""
        leases, tail = self._known.leases, self._tail
        push_s = float(np.median(self._known.push_s[self._known.measured]))
        wait_s = leases.wait_s or ROUND_TRIP_S + push_s
        per_sample_s = finish_s / (sizes + leases.samples)
        fixed_s = leases.samples * per_sample_s
        tail.observe(
            finish_s,
            1 / per_sample_s,
            float(self._total),
            wait_s,
            fixed_s=fixed_s if leases.known else None,
            took_s=self._known.took_s,
        )
        middle_s = float(np.median(per_sample_s))
        self._extra_s = wait_s + leases.samples * middle_s
        leases.passed(float(finish_s.max()))
        coarse = self._total < TRIAL_WORKERS * self._granule * len(sizes)
        if tail.hopeful and not tail.share and not coarse and len(sizes) > 1:
            self._trial = leases.trial_due(middle_s)

    def _decide(self, limits: Limits, why: str) -> Decision:
        times, now = self._known.forecast(), self._sizes
        out = tried = np.zeros(len(now), dtype=np.bool_)
        if self._policy.may_idle:
            out, tried = self._idlers.out(times, self._total, limits, now, self._known.current)
        proposed = self._proposed(times, limits.without(out), bool(why or tried.any()))
        if why:
            verdict = Verdict(True, why)
        elif tried.any():
            verdict = Verdict(True, f"changed: {self._names(tried)} tried again")
        elif self._policy.sizer == "leader-straggler" and not (out & (now > 0)).any():
            verdict = Verdict(True, "changed: a step from the slowest to the fastest")
        else:
            verdict = self._gate.worth(
                _finish(times, now), _finish(times, proposed), self._known.noise
            )
            self._compared = (now, proposed)
        if np.array_equal(proposed, now):
            return self._say(now, "kept: these fit" if verdict.change else verdict.reason, times)
        if not verdict.change:
            return self._say(now, verdict.reason, times)
        return self._say(proposed, verdict.reason + self._about_idle(times, proposed), times)

    def _proposed(self, times: LinearTimes, limits: Limits, anew: bool) -> IntArray:
        if self._policy.sizer == "proportional":
            return proportional(1 / times.per_sample_s, self._total, limits).samples
        if self._policy.sizer == "equal-finish":
            return equal_finish(times, self._total, limits).samples
        if anew or ((self._sizes > 0) & (limits.maximum == 0)).any():
            share = max(1.0, TRIAL * self._total / len(self._sizes))
            weights = np.where(self._sizes > 0, self._sizes, share)
            return proportional(weights, self._total, limits).samples
        return self._steps.move(self._sizes, limits)

    def _say(self, sizes: IntArray, reason: str, times: LinearTimes | None = None) -> Decision:
        members = self.members
        same = np.array_equal(sizes, self._sizes) and len(self.decision.sizes) == len(members)
        tail, trial = self._tail.share, self._granule if self._trial else 0
        self._trial = False
        if trial:
            reason = f"{reason}; once one lease more is lent, to see what it costs"
        if tail != self.decision.tail:
            held = f"{tail:.0%} of the batch is lent to whoever is free"
            reason = f"{reason}; {held if tail else 'nothing is held back any more'}"
        if times is None or not len(sizes):
            expected_s = float("nan")
        else:
            expected_s = _finish(times, sizes)
        least = least_part(expected_s, self._extra_s) if tail else 0.0
        if same and list(self.decision.sizes) == [m.worker for m in members]:
            self.decision = replace(
                self.decision,
                changed=bool(trial) or tail != self.decision.tail,
                reason=reason,
                expected_s=expected_s,
                tail=tail,
                tail_least=least,
                trial=trial,
            )
            return self.decision
        self._sizes = sizes
        by_worker = {m.worker: size for m, size in zip(members, sizes.tolist(), strict=True)}
        idle = tuple(worker for worker, size in by_worker.items() if not size)
        self.decision = Decision(by_worker, True, reason, expected_s, idle, tail, least, trial)
        return self.decision

    def _names(self, rows: BoolArray) -> str:
        names = [self.members[i].worker for i in np.flatnonzero(rows).tolist()]
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    def _about_idle(self, times: LinearTimes, sizes: IntArray) -> str:
        idle = sizes == 0
        if not idle.any():
            return ""
        least = np.maximum([m.minimum for m in self.members], 1).astype(np.float64)
        least_s = float(times.time_s(least)[idle].min())
        return (
            f"; idle: {self._names(idle)}, whose least batch would take {least_s:.3g} s "
            f"where the iteration takes {_finish(times, sizes):.3g} s"
        )


def _finish(times: LinearTimes, sizes: IntArray) -> float:
    return float(times.time_s(sizes.astype(np.float64)).max(initial=0.0))
