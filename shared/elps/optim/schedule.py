"""The factor on the learning rate, a function of the step alone."""

from __future__ import annotations

import math

from elps.contracts.job import Schedule


def factor(schedule: Schedule, step: int, total: int) -> float:
    """The factor at an optimizer step, counted from 1; `total` is the number of iterations in the
    job.

    The warm-up's factor multiplies the schedule's, whose own steps are not put off by it: with
    ``warmup = w``, step *s* has the factor min(1, s/w). ``step`` multiplies by gamma before the
    steps size+1, 2·size+1, …; ``cosine`` falls from 1 at step 1 along half a cosine to the floor at
    step total+1, and stays there; so does ``polynomial``, along (1 - done/total)^power.
    ``inverse_sqrt`` is 1 up to the end of the warm-up *w* (at least step 1), then √(w/s), as in
    Vaswani et al. 2017 but for a peak of 1.
    """
    if step < 1:
        raise ValueError(f"steps count from 1, got {step}")
    done = step - 1
    value = 1.0
    match schedule.name:
        case "constant":
            pass
        case "step":
            value = float(schedule.gamma ** (done // schedule.step_size))
        case "cosine":
            share = _share(schedule, done, total)
            value = (
                schedule.floor + (1.0 - schedule.floor) * (1.0 + math.cos(math.pi * share)) / 2.0
            )
        case "polynomial":
            left = 1.0 - _share(schedule, done, total)
            value = schedule.floor + (1.0 - schedule.floor) * left**schedule.power
        case "inverse_sqrt":
            peak = max(schedule.warmup, 1)
            value = math.sqrt(peak / max(step, peak))
    if step < schedule.warmup:
        value *= step / schedule.warmup
    return value


def _share(schedule: Schedule, done: int, total: int) -> float:
    """How much of the schedule's length is behind, from 0 to 1."""
    length = schedule.total or total
    if length < 1:
        raise ValueError(
            f"{schedule.name} needs the number of steps: give schedule.total or the job's iterations"
        )
    return min(1.0, done / length)
