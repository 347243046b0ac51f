"""What a change of its size costs a job, and how long the job is left alone for it.

The cost is training time that is lost: how much longer a job took around a change than it would have taken at the rates
before and after it. It is measured at each change (`gain.Speeds`), and assumed until then. From it follows all by which
changes are held back:

- a change that nothing calls for has to bring more, within the horizon, than it costs everybody who takes part;
- it is made so seldom that changes take no more than a small part of a job's time.
"""

from __future__ import annotations

import math

ASSUMED_S = 0.1
"""Of training that a change takes, until it was measured: what it takes at the most on a local stack."""
LEAST_S, MOST_S = 0.02, 10.0
"""What is believed of a measurement: less is lost in its noise, more is no change of size but something else."""
NEWEST = 0.3
"""Weight of the newest measurement."""

HORIZON_S = 60.0
"""What a change costs has to come back within this time: by then another one is likely to be needed."""
MOVING, GROWING = 0.01, 0.1
"""Part of a job's time that may be lost by workers that change their job, and by ones that were idle before: there it
is more, since an idle worker is no use to anybody."""
IDLE_S = 10.0
"""What is free waits no longer than this for a job that has just been changed, whatever that has cost."""


class ChangeCost:
    """A running mean of what changes of one job have cost."""

    def __init__(self) -> None:
        self._mean = ASSUMED_S
        self.times = 0
        """How often it was measured."""

    def learn(self, seconds: float) -> None:
        """One more. Below 0 is possible: an iteration may end just before a look or just after. That averages out."""
        if math.isfinite(seconds):
            believed = min(max(seconds, -MOST_S), MOST_S)
            self._mean += NEWEST * (believed - self._mean)
            self.times += 1

    @property
    def seconds(self) -> float:
        """Of training, for one change; rounded, so that facts stay as they are while nothing of note was learned."""
        return round(min(max(self._mean, LEAST_S), MOST_S), 2)


def rests_s(cost_s: float) -> float:
    """The cost horizon: how long a change is not undone without an event, and no worker changes its job."""
    return cost_s / MOVING


def settles_s(cost_s: float) -> float:
    """How long after a change a job is given nothing that is free."""
    return min(cost_s / GROWING, IDLE_S)
