"""Whether new batches are worth having: a dead band, and a trial on paper.

Any forecast differs a little from the last, and the batches that fit it with it. Following each would make batches
flap without gain, and fitted noise makes the next iteration longer. So a change must

1. promise more than the dead band, `BAND` (`FINE` while such changes have been proven right, see 2);
2. and either promise so much that noise cannot be the cause (`SURE`, or `SIGMAS` times the error of forecasts), or come
   from a source that has been right: both the batches proposed and those that would have stayed are tried on every
   following iteration's true speeds, whichever was taken, and lately the proposed ones must have been better.

It has no price: where a plan only says how the coming iteration is cut, a change by itself costs nothing
(docs/balance.md).
"""

from __future__ import annotations

from dataclasses import dataclass

BAND = 0.02
"""Relative gain below which nothing changes."""
FINE = 0.01
SURE, SIGMAS = 0.15, 4.0
PROVEN = 0.005
"""Mean relative gain on paper, at least."""
DOUBT = 0.5
"""Mean gain over how much gains differ, at least: with about 5 trials the mean of mere noise is off by that much."""
MOST_TRIAL = 0.05
"""What one trial counts at most: a great step that was right says nothing of the small ones after it."""
TRIALS = 2
RECENT = 0.2
"""Weight of the newest trial: about the last 5."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether to change, and why (not)."""

    change: bool
    reason: str


class Gate:
    """Remembers how trials on paper ended."""

    def __init__(self) -> None:
        self._mean = 0.0  #: relative gain of proposals over staying, on true speeds
        self._spread = 0.0  #: usual distance from that mean
        self._trials = 0

    def tried(self, stayed_s: float, proposed_s: float) -> None:
        """What the iteration took, or would have taken, with either of the batches last compared."""
        if not stayed_s > 0:
            return
        gain = min(max(1 - proposed_s / stayed_s, -MOST_TRIAL), MOST_TRIAL)
        self._trials += 1
        weight = max(RECENT, 1 / self._trials)
        self._spread += weight * (abs(gain - self._mean) - self._spread)
        self._mean += weight * (gain - self._mean)

    def forget(self) -> None:
        """The workers are others now."""
        self._mean, self._spread, self._trials = 0.0, 0.0, 0

    def worth(self, now_s: float, proposed_s: float, noise: float) -> Verdict:
        """Judge a change from batches that are expected to take `now_s` to ones that take `proposed_s`.

        `noise` is the usual relative error of a forecast.
        """
        gain = 1 - proposed_s / now_s if now_s > 0 else 0.0
        sure = max(PROVEN, DOUBT * self._spread)
        proven = self._trials >= TRIALS and self._mean >= sure
        if gain <= (FINE if proven else BAND):
            return Verdict(False, f"kept: only {max(gain, 0):.1%} to gain, within the dead band")
        if proven or gain > max(SURE, SIGMAS * noise):
            expected = f"{proposed_s:.3g} s expected in place of {now_s:.3g} s"
            return Verdict(True, f"changed: {expected}")
        if self._trials < TRIALS:
            return Verdict(False, f"kept: whether {gain:.1%} is gained is being tried on paper")
        mean = f"{self._mean:.1%}"
        return Verdict(False, f"kept: {gain:.1%} is promised, but lately only {mean} was gained")
