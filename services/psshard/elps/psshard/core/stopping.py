"""Whether what was evaluated ends a job: its target is reached, or it gets no better any more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from elps.psshard.core.rules import Rules


class Trend(NamedTuple):
    """How the watched metric has come along; told with each evaluation and kept with each checkpoint."""

    best: float | None = None
    """None before there is any."""
    best_iteration: int | None = None
    stale: int = 0
    """Evaluations since then that were no better."""


NO_TREND = Trend()
"""Before the first evaluation."""


class Stopping:
    """Keeps the trend from one evaluation to the next."""

    def __init__(self, rules: Rules, trend: Trend | None = None) -> None:
        self._rules = rules
        self.trend = trend or NO_TREND

    def evaluated(self, version: int, metrics: Mapping[str, float]) -> str:
        """Take an evaluation; why it ends the job, for people, or nothing."""
        rules, trend = self._rules, self.trend
        if rules.target_metric is not None and rules.patience:
            value = metrics.get(rules.target_metric, math.nan)
            if self._better(value):
                self.trend = Trend(value, version, 0)
            else:
                self.trend = trend._replace(stale=trend.stale + 1)
        return self.verdict(metrics)

    def verdict(self, metrics: Mapping[str, float | None]) -> str:
        """Why the job ends after this evaluation, which was the last that was taken."""
        name, trend = self._rules.target_metric, self.trend
        if name is None:
            return ""
        if reached := self._rules.reached(metrics):
            return reached
        if not self._rules.patience or trend.stale < self._rules.patience:
            return ""
        if trend.best is None:
            return f"{name} was no finite number in {trend.stale} evaluations"
        since = f"{trend.best:.6g} at iteration {trend.best_iteration}"
        return f"{name} has been no better than {since} for {trend.stale} evaluations"

    def _better(self, value: float) -> bool:
        best, least = self.trend.best, self._rules.min_delta
        if not math.isfinite(value):
            return False
        if best is None:
            return True
        return value > best + least if self._rules.target_is_maximum else value < best - least
